// The threshold under the hand: a mirrored histogram of confidences whose axis is the slider's rail.

const AXIS_HEIGHT = 60;
const TALLEST_RIGHT = 54;
const TALLEST_WRONG = 28;

class Slider {
  constructor(root, onMove, onRelease) {
    this.root = root;
    this.track = root.querySelector(".track");
    this.handle = root.querySelector(".handle");
    this.onMove = onMove;
    this.onRelease = onRelease;
    root.addEventListener("pointerdown", (event) => this.press(event));
    root.addEventListener("pointermove", (event) => this.drag(event));
    for (const name of ["pointerup", "pointercancel"]) root.addEventListener(name, (event) => this.release(event));
  }

  build(recording, changes) {
    const { right, wrong } = recording.histogram;
    const width = 1000 / right.length;
    // Square roots: a good draft is sure most of the time, and the few doubtful tokens are what the threshold is about.
    const scale = Math.sqrt(Math.max(1, ...right, ...wrong.map((count) => (count * TALLEST_RIGHT ** 2) / TALLEST_WRONG ** 2)));
    const bars = (counts, upwards, tallest) => counts.map((count, bin) => {
      const height = (Math.sqrt(count) / scale) * TALLEST_RIGHT;
      const clipped = Math.min(height, tallest);
      return count ? `M${bin * width + 1.5} ${AXIS_HEIGHT}h${width - 3}v${upwards ? -clipped : clipped}h${3 - width}z` : "";
    }).join("");
    const histogram = (className) => {
      const group = drawing("g", { class: className });
      group.append(
        drawing("path", { class: "right", d: bars(right, true, TALLEST_RIGHT) }),
        drawing("path", { class: "wrong", d: bars(wrong, false, TALLEST_WRONG) }),
      );
      return group;
    };
    // Faint bars everywhere, full ones over them from the handle on: a move changes one number.
    const clip = drawing("clipPath", { id: "specviz-proposed" });
    this.proposed = drawing("rect", { x: 0, y: 0, width: 1000, height: 100 });
    clip.append(this.proposed);
    const full = histogram("full");
    full.setAttribute("clip-path", "url(#specviz-proposed)");
    const ticks = changes.map((tau) => `M${(1000 * tau).toFixed(1)} 94v6`).join("");
    this.track.replaceChildren(
      clip, histogram("faded"), full, drawing("line", { class: "axis", x1: 0, x2: 1000, y1: AXIS_HEIGHT, y2: AXIS_HEIGHT }),
      drawing("path", { class: "ticks", d: ticks }),
    );
    this.resize();
  }

  resize() {
    this.width = this.root.clientWidth;
    if (this.tau !== undefined) this.show(this.tau, this.valueText);
  }

  show(tau, valueText) {
    this.tau = tau;
    this.valueText = valueText;
    this.handle.style.transform = `translateX(${(tau * this.width).toFixed(2)}px)`;
    this.proposed.setAttribute("x", (1000 * tau).toFixed(2));
    this.root.setAttribute("aria-valuenow", tau.toFixed(4));
    this.root.setAttribute("aria-valuetext", valueText);
  }

  press(event) {
    if (event.button !== 0) return;
    this.left = this.root.getBoundingClientRect().left;
    this.dragging = true;
    this.root.setPointerCapture(event.pointerId);
    this.root.focus({ preventScroll: true });
    this.drag(event);
    event.preventDefault();
  }

  drag(event) {
    if (!this.dragging) return;
    const share = clamp((event.clientX - this.left) / this.width, 0, 1);
    this.onMove(Math.round(share * 1000) / 1000);
  }

  release() {
    if (!this.dragging) return;
    this.dragging = false;
    this.onRelease();
  }
}
