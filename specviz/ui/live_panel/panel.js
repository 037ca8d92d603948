// The panel: keeps the threshold, and once a frame shows everything at it.

const NUMBERS = [
  "acceptance_rate", "tokens_per_target_pass", "mean_accepted_run", "draft_steps_wasted", "target_passes_saved",
];
// Statuses in the order of the key, and how their tokens are drawn.
const KEY = [
  ["accepted", "tk"], ["correction", "tk"], ["bonus", "tk"], ["plain", "tk"],
  ["rejected", "ghost"], ["discarded", "ghost"], ["withheld", "ghost"],
];
const SETTLE_MS = 350; // after the last key, or the first picture
// What happens to the token that fails the threshold.
const FATES = {
  drop: {
    gloss: "the draft proposes a token only if its confidence exceeds this; a token that fails is withheld",
    lane: "What stays under the line is withheld.",
  },
  keep: {
    gloss: "the draft stops after the first token whose confidence does not exceed this; that token is still proposed",
    lane: "A bar under the line is still proposed, and ends the drafting.",
  },
};

class Panel {
  constructor(root) {
    this.root = root;
    this.find = (selector) => root.querySelector(selector);
    this.tau = 0.5;
    this.reading = "text";
    const move = (tau) => this.moveTo(tau);
    const release = () => this.report();
    this.slider = new Slider(this.find(".slider"), move, release);
    this.curve = new Curve(this.find(".curve"), move, release);
    this.text = new TextReading(this.find(".strip.text"));
    this.roundsReading = new RoundsReading(this.find(".strip.rounds"));
    this.lane = new Lane(this.find(".lane"));
    this.card = new Card(this.find(".card"), root);
    this.playback = new Playback(this.find(".stage"), (committed) => this.text.show(this.rounds, committed));
    this.playback.onEnd = () => this.showPlaying();
    this.counts = [...root.querySelectorAll("[data-count]")];
    this.name();
    this.listen();
    new ResizeObserver(() => this.resize()).observe(root);
  }

  // Words with their definitions.
  name() {
    for (const place of this.root.querySelectorAll("[data-term]")) {
      place.replaceChildren(term(place.dataset.term, place.textContent));
      delete place.dataset.term;
    }
    this.numbers = NUMBERS.map((key) => {
      const name = element("dt");
      name.append(term(key));
      return { name, value: element("dd") };
    });
    this.find(".numbers").replaceChildren(...this.numbers.flatMap(({ name, value }) => [name, value]));
    this.find(".key").replaceChildren(...KEY.map(([status, className]) => {
      const item = element("li");
      const word = term(status);
      word.classList.add(...className.split(" "), status);
      item.append(word, element("span", `glyph of-${status}`));
      return item;
    }));
  }

  // Called by Streamlit with new data, and when the theme changes.
  update({ data, setStateValue }) {
    this.setStateValue = setStateValue;
    this.root.dataset.theme = isDark(getComputedStyle(this.root).getPropertyValue("--st-background-color")) ? "dark" : "light";
    this.lane.readColours(this.root);
    if (this.data !== data) {
      const first = !this.data;
      if (this.data?.key !== data.key) {
        if (first) {
          this.tau = data.tau;
          this.text.withGhosts = data.ghosts;
          this.find(".ghost-switch input").checked = data.ghosts;
        }
        this.playback.close();
        this.showPlaying();
        this.root.querySelectorAll(".strip").forEach((strip) => { strip.scrollTop = 0; });
      }
      const before = this.data;
      this.data = data;
      this.card.unpin();
      this.showParts(data.parts);
      this.build(before);
      if (data.tellsWhenDrawn) this.tellDrawn(first ? SETTLE_MS : 0);
    }
    this.resize();
  }

  // Charts come in answer and keep the browser busy, the first time for a second: the panel is to be seen before.
  tellDrawn(delay) {
    const { maxDraft, onFail } = this.lookup.rounds;
    const setting = `${maxDraft} ${onFail}`;
    if (this.drawn === setting) return;
    this.drawn = setting;
    requestAnimationFrame(() => setTimeout(() => this.setStateValue("drawn", [maxDraft, onFail]), delay));
  }

  // Which parts are on show; none named: all of them.
  showParts(parts) {
    for (const node of this.root.querySelectorAll("[data-part]")) {
      node.hidden = parts.length > 0 && !node.dataset.part.split(" ").some((part) => parts.includes(part));
    }
    if (parts.length && !parts.includes("strip") && !parts.includes("lane")) this.find(".aside").classList.add("alone");
  }

  // `before`: the data until now. A recording or rounds that are still the same text are not read again.
  build(before) {
    const { data } = this;
    const newRecording = before?.recording !== data.recording;
    const recording = newRecording ? JSON.parse(data.recording) : this.lookup.recording;
    const rounds = before?.rounds === data.rounds ? this.lookup.rounds : JSON.parse(data.rounds);
    this.lookup = new Lookup(recording, rounds);
    setText(this.find(".prompt-text"), recording.prompt);
    setText(this.find(".about"), data.about);
    this.find(".speed").hidden = !rounds.speedup;
    this.find(".best").hidden = !rounds.speedup;
    this.slider.build(recording, this.lookup.changeThresholds.slice(1));
    this.curve.build(this.lookup, data.measured);
    if (newRecording) this.text.build(this.lookup);
    this.text.read(this.lookup);
    this.roundsReading.build(this.lookup);
    this.buildChoices();
    this.slider.tau = undefined;
  }

  buildChoices() {
    const { maxDraft, onFail } = this.lookup.rounds;
    const lengths = [...new Set([...this.data.draftLengths, maxDraft])].sort((a, b) => a - b);
    this.buildGroup(".gammas", "draft_length", "draft length γ", lengths, maxDraft, (length) => this.choose("gamma", length));
    this.buildGroup(".fates", "failing_token", "failing token", Object.keys(FATES), onFail, (fate) => this.choose("fate", fate));
    const { gloss, lane } = FATES[onFail];
    setText(this.find(".tau-gloss"), gloss);
    setText(this.find(".lane-caption"), `Confidence of every draft step, in order. ${lane}`);
    setText(this.find(".curve-caption"), `Speedup at every threshold, with γ = ${maxDraft} and ${onFail} held fixed`);
  }

  // One of several values: a button each, the shown one pressed; arrow keys go to the next.
  buildGroup(selector, key, label, values, shown, choose) {
    const group = this.find(selector);
    const buttons = values.map((value) => {
      const button = element("button", "", String(value));
      button.type = "button";
      button.title = FATES[value]?.gloss ?? "";
      button.setAttribute("role", "radio");
      button.setAttribute("aria-checked", String(value === shown));
      button.tabIndex = value === shown ? 0 : -1;
      button.addEventListener("click", () => {
        if (value === shown) return;
        group.classList.add("waiting");
        choose(value);
      });
      button.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
        if (!step) return;
        event.preventDefault();
        const next = buttons[values.indexOf(value) + step];
        if (next) {
          this.refocus = selector;
          next.click();
        }
      });
      return button;
    });
    const name = element("span", "label");
    name.append(term(key, label));
    group.replaceChildren(name, ...buttons);
    group.classList.remove("waiting");
    if (this.refocus === selector) {
      group.querySelector('[aria-checked="true"]').focus();
      this.refocus = null;
    }
  }

  choose(name, value) {
    this.report();
    this.setStateValue(name, value);
  }

  resize() {
    if (!this.lookup) return;
    this.slider.resize();
    this.lane.resize();
    if (this.lookup.rounds.speedup) this.curve.draw();
    this.show();
  }

  moveTo(tau) {
    this.tau = clamp(tau, 0, 1);
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.show();
    });
  }

  // Everything on screen, at the present threshold.
  show() {
    const { lookup, tau } = this;
    const { rounds } = lookup;
    const stretch = lookup.stretchAt(tau);
    const same = this.shownStretch === stretch && this.shownData === this.data;
    if (!same) {
      this.rounds = lookup.roundsAt(tau);
      this.showNumbers(stretch);
    }
    const speedup = rounds.speedup ? rounds.speedup[stretch] : null;
    setText(this.find(".tau-figure"), formatTau(tau));
    this.slider.show(tau, `${formatTau(tau)}${speedup === null ? "" : `, speedup ${speedup.toFixed(2)}`}`);
    this.curve.show(tau, speedup);
    this.lane.show(lookup, this.rounds, tau, this.summary(stretch));
    if (!same) {
      if (this.playback.open) this.playback.load(lookup, this.rounds);
      this.showReading();
      this.card.refresh((token) => this.showCard(token));
    }
    this.shownStretch = stretch;
    this.shownData = this.data;
    this.root.dataset.tau = tau;
    this.root.dataset.gamma = rounds.maxDraft;
    this.root.dataset.fate = rounds.onFail;
  }

  showReading() {
    if (this.reading === "rounds") this.roundsReading.show(this.rounds);
    else this.text.show(this.rounds, this.playback.open ? this.playback.committed : Infinity);
  }

  showNumbers(stretch) {
    const { counts, metrics, speedup } = this.lookup.rounds;
    if (speedup) setText(this.find(".speed-figure"), speedup[stretch].toFixed(2));
    const values = [
      formatPercent(metrics.acceptance_rate[stretch]),
      formatNumber(metrics.tokens_per_target_pass[stretch]),
      formatNumber(metrics.mean_accepted_run[stretch]),
      `${metrics.draft_steps_wasted[stretch]} of ${counts.draftSteps[stretch]}`,
      `${metrics.target_passes_saved[stretch]} of ${this.lookup.rounds.emitted}`,
    ];
    this.numbers.forEach(({ value }, index) => setText(value, values[index]));
    for (const cell of this.counts) setText(cell, String(counts[cell.dataset.count][stretch]));
    const untested = counts.discarded[stretch] + counts.untestedWithheld[stretch];
    setText(this.find(".untested"), `${untested} more drafted after a rejection, never tested`);
  }

  summary(stretch) {
    const { counts, speedup, maxDraft, onFail, emitted } = this.lookup.rounds;
    const at = (name) => counts[name][stretch];
    return `At threshold ${formatTau(this.tau)}, draft length ${maxDraft} and ${onFail}: ${emitted} tokens in ${at("rounds")} rounds, `
      + `${at("draftSteps")} draft steps, ${at("accepted")} of ${at("proposed")} proposed tokens accepted`
      + `${speedup ? `, speedup ${speedup[stretch].toFixed(2)}` : ""}.`;
  }

  // The hand has let go: the rest of the page may follow.
  report() {
    clearTimeout(this.settling);
    setText(this.find(".summary"), this.summary(this.lookup.stretchAt(this.tau)));
    if (this.reported === this.tau) return;
    this.reported = this.tau;
    this.setStateValue("tau", this.tau);
  }

  stepTo(tau) {
    this.moveTo(tau);
    clearTimeout(this.settling);
    this.settling = setTimeout(() => this.report(), SETTLE_MS);
  }

  toChange(direction) {
    const thresholds = this.lookup.changeThresholds;
    const next = this.lookup.stretchAt(this.tau) + direction;
    if (next >= 0 && next < thresholds.length) this.stepTo(thresholds[next]);
  }

  toBest() {
    if (this.lookup.rounds.speedup) this.stepTo(this.curve.best);
  }

  togglePlay() {
    if (this.playback.running) this.playback.pause();
    else {
      this.playback.load(this.lookup, this.rounds);
      this.playback.start();
    }
    this.showPlaying();
  }

  showPlaying() {
    setText(this.find(".play"), this.playback.running ? "❚❚ pause" : "▶ play");
    this.find(".leave").hidden = !this.playback.open;
  }

  chooseReading(reading) {
    this.reading = reading;
    this.root.querySelectorAll("[data-reading]").forEach((button) => {
      button.setAttribute("aria-pressed", String(button.dataset.reading === reading));
    });
    this.find(".strip.text").hidden = reading !== "text";
    this.find(".strip.rounds").hidden = reading !== "rounds";
    this.find(".ghost-switch").hidden = reading !== "text";
    this.card.unpin();
    this.showReading();
  }

  listen() {
    // The names of the sides lie on the slider: a press on them is one on the slider.
    for (const side of this.root.querySelectorAll(".side-label")) {
      side.addEventListener("pointerdown", (event) => this.find(".slider").dispatchEvent(new PointerEvent(event.type, event)));
    }
    this.find(".previous").addEventListener("click", () => this.toChange(-1));
    this.find(".next").addEventListener("click", () => this.toChange(1));
    this.find(".best").addEventListener("click", () => this.toBest());
    this.find(".play").addEventListener("click", () => this.togglePlay());
    this.find(".leave").addEventListener("click", () => {
      this.playback.close();
      this.showReading();
      this.showPlaying();
    });
    this.find(".pace select").addEventListener("change", (event) => { this.playback.pace = Number(event.target.value); });
    this.find(".ghost-switch input").addEventListener("change", (event) => {
      this.text.withGhosts = event.target.checked;
      this.showReading();
    });
    this.root.querySelectorAll("[data-reading]").forEach((button) => {
      button.addEventListener("click", () => this.chooseReading(button.dataset.reading));
    });
    this.find(".slider").addEventListener("keydown", (event) => this.key(event));
    for (const strip of this.root.querySelectorAll(".strip")) this.listenToTokens(strip);
    this.listenToTokens(this.find(".stage-row"));
    const canvas = this.find(".lane canvas");
    canvas.addEventListener("pointermove", (event) => {
      const step = this.lane.at(event.offsetX);
      if (!step || this.card.pinnedTo) return this.card.hide();
      const { left, bottom, top } = canvas.getBoundingClientRect();
      const x = left + event.offsetX;
      return this.card.show(this.lookup, this.lookup.step(...step), { left: x, top, bottom });
    });
    canvas.addEventListener("pointerleave", () => this.card.hide());
    this.root.addEventListener("keydown", (event) => { if (event.key === "Escape") this.card.unpin(); });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = event.shiftKey ? 0.001 : 0.01;
    const near = (tau) => Math.round(tau * 1000) / 1000;
    const act = {
      ArrowLeft: () => this.stepTo(near(this.tau - step)),
      ArrowDown: () => this.stepTo(near(this.tau - step)),
      ArrowRight: () => this.stepTo(near(this.tau + step)),
      ArrowUp: () => this.stepTo(near(this.tau + step)),
      PageDown: () => this.stepTo(near(this.tau - 0.1)),
      PageUp: () => this.stepTo(near(this.tau + 0.1)),
      Home: () => this.stepTo(0),
      End: () => this.stepTo(1),
      n: () => this.toChange(1),
      p: () => this.toChange(-1),
      b: () => this.toBest(),
      " ": () => this.togglePlay(),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation(); // Streamlit has shortcuts of its own
    act();
  }

  listenToTokens(strip) {
    const tokenOf = (event) => event.target.closest("[data-position]");
    strip.addEventListener("pointerover", (event) => {
      const token = tokenOf(event);
      if (token && !this.card.pinnedTo && !this.slider.dragging) this.showCard(token);
    });
    strip.addEventListener("pointerleave", () => this.card.hide());
    strip.addEventListener("scroll", () => this.card.hide(), { passive: true });
    strip.addEventListener("focusin", (event) => {
      const token = tokenOf(event);
      if (token && !this.card.pinnedTo) this.showCard(token);
    });
    strip.addEventListener("focusout", () => this.card.hide());
    strip.addEventListener("click", (event) => {
      const token = tokenOf(event);
      if (token) this.pin(token);
    });
    // One stop for the Tab key; arrows walk from token to token.
    strip.tabIndex = 0;
    strip.addEventListener("keydown", (event) => {
      if (event.key === "End" && strip === this.roundsReading.root) this.roundsReading.drawAll();
      const tokens = [...strip.querySelectorAll("[data-position]")];
      const here = tokens.indexOf(tokenOf(event));
      const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: tokens.length - 1 }[event.key];
      if (event.key === "Enter" && here >= 0) this.pin(tokens[here]);
      else if (to === undefined) return;
      else tokens[clamp(to, 0, tokens.length - 1)]?.focus();
      event.preventDefault();
    });
  }

  factsOf(token) {
    const position = Number(token.dataset.position);
    const round = this.rounds.findLast((candidate) => candidate.start <= position && position < candidate.end)
      ?? this.rounds[this.rounds.length - 1];
    if (token.dataset.step !== undefined) {
      const start = Number(token.dataset.roundStart);
      const own = this.rounds.find((candidate) => candidate.start === start) ?? this.playback.rounds?.find((r) => r.start === start);
      if (own) return this.lookup.step(own, Number(token.dataset.step));
    }
    const { recording } = this.lookup;
    const isTargets = round.target && position === round.end - 1;
    return {
      letter: isTargets ? round.target : "a", position, token: recording.output[position],
      confidence: recording.confidence[position], entropy: recording.entropy[position], branch: false,
    };
  }

  showCard(token) {
    const facts = this.factsOf(token);
    token.setAttribute("aria-label", `${visible(this.lookup.text(facts.token))}: ${WORDS[facts.letter]}`);
    this.card.show(this.lookup, facts, token.getBoundingClientRect());
  }

  pin(token) {
    if (this.card.pinnedTo === token) return this.card.unpin();
    this.card.pin(token);
    return this.showCard(token);
  }
}

function isDark(colour) {
  const context = document.createElement("canvas").getContext("2d");
  context.fillStyle = colour.trim() || "#fff";
  context.fillRect(0, 0, 1, 1);
  const [red, green, blue] = context.getImageData(0, 0, 1, 1).data;
  return 0.299 * red + 0.587 * green + 0.114 * blue < 128;
}

const panels = new WeakMap();

export default function render(component) {
  const host = component.parentElement;
  const root = host.querySelector(".panel");
  let panel = panels.get(root);
  if (!panel) {
    panel = new Panel(root);
    panels.set(root, panel);
  }
  panel.update(component);
  return () => panel.playback.close();
}
