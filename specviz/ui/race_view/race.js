// Two runs on one clock. Each lane is a list of moments: [seconds, tokens committed by then].

const races = new WeakMap();

class Race {
  constructor(root) {
    this.root = root;
    this.go = root.querySelector(".go");
    this.pace = 1;
    this.go.addEventListener("click", () => (this.running ? this.pause() : this.start()));
    root.querySelector(".again").addEventListener("click", () => { this.seek(0); this.start(); });
    root.querySelector("select").addEventListener("change", (event) => { this.pace = Number(event.target.value); });
  }

  load(data) {
    if (this.key === data.key) return;
    this.key = data.key;
    this.tokens = data.tokens;
    this.lanes = data.lanes.map((lane, index) => this.lane(lane, index));
    this.root.querySelector(".lanes").replaceChildren(...this.lanes.map(({ node }) => node));
    this.end = Math.max(...data.lanes.map(({ moments }) => moments.at(-1)[0]));
    this.pause();
    this.seek(0);
  }

  lane({ name, origin, moments }, index) {
    const node = document.createElement("div");
    node.className = `lane ${index ? "speculative" : "plain"}`;
    const head = document.createElement("h3");
    const count = document.createElement("span");
    head.append(name, count);
    const about = document.createElement("p");
    about.className = "origin";
    about.textContent = origin;
    const track = document.createElement("div");
    track.className = "track";
    const bar = document.createElement("i");
    track.append(bar);
    const text = document.createElement("p");
    text.className = "text";
    text.dir = "auto";
    const past = document.createElement("span");
    const future = document.createElement("span");
    future.className = "future";
    text.append(past, future);
    node.append(head, about, track, text);
    return { node, name, moments, count, bar, past, future, shown: -1, at: 0 };
  }

  start() {
    if (this.seconds >= this.end) this.seek(0);
    this.running = true;
    this.go.textContent = "❚❚ pause";
    let last;
    const frame = (now) => {
      if (!this.running) return;
      if (last !== undefined) this.seek(this.seconds + ((now - last) / 1000) * this.pace);
      last = now;
      if (this.seconds >= this.end) this.pause();
      else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  pause() {
    this.running = false;
    this.go.textContent = "▶ start";
  }

  seek(seconds) {
    this.seconds = Math.min(seconds, this.end);
    this.root.querySelector(".clock").textContent = `${this.seconds.toFixed(1)} s`;
    for (const lane of this.lanes) this.show(lane);
    this.root.classList.toggle("under-way", this.seconds > 0);
    const over = this.seconds >= this.end;
    const [plain, speculative] = this.lanes.map(({ moments }) => moments.at(-1)[0]);
    this.root.querySelector(".result").textContent = over
      ? `Plain ${plain.toFixed(2)} s, speculative ${speculative.toFixed(2)} s: ${(plain / speculative).toFixed(2)} times as fast.`
      : "";
  }

  show(lane) {
    const { moments } = lane;
    let committed = 0;
    let index = lane.at;
    if (index && moments[index - 1][0] > this.seconds) index = 0;
    while (index < moments.length && moments[index][0] <= this.seconds) index += 1;
    lane.at = index;
    if (index) committed = moments[index - 1][1];
    if (committed !== lane.shown) {
      lane.past.textContent = this.tokens.slice(0, committed).join("");
      lane.future.textContent = this.tokens.slice(committed).join("");
      lane.shown = committed;
    }
    lane.bar.style.width = `${(100 * committed) / this.tokens.length}%`;
    const last = moments.at(-1)[0];
    lane.count.textContent = this.seconds >= last ? `done in ${last.toFixed(2)} s` : `${committed} of ${this.tokens.length}`;
  }
}

export default function render({ data, parentElement }) {
  const root = parentElement.querySelector(".race");
  if (!races.has(root)) races.set(root, new Race(root));
  races.get(root).load(data);
  return () => races.get(root)?.pause();
}
