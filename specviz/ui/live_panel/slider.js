// The threshold under the hand: a mirrored histogram of confidences whose axis is the slider's rail.

const AXIS_HEIGHT = 60;
const TALLEST_RIGHT = 54;
const TALLEST_WRONG = 28;

class Slider {
  constructor(root, onMove, onRelease) {
    this.root = root;
    this.faded = root.querySelector(".track.faded");
    this.proposed = root.querySelector(".proposed");
    this.full = this.proposed.querySelector(".track");
    this.handle = root.querySelector(".handle");
    this.onMove = onMove;
    this.onRelease = onRelease;
    root.addEventListener("pointerdown", (event) => this.press(event));
    root.addEventListener("pointermove", (event) => this.drag(event));
    for (const name of ["keydown", "blur"]) root.addEventListener(name, () => root.classList.remove("by-pointer"));
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
    const histogram = () => [
      drawing("path", { class: "right", d: bars(right, true, TALLEST_RIGHT) }),
      drawing("path", { class: "wrong", d: bars(wrong, false, TALLEST_WRONG) }),
    ];
    const ticks = changes.map((tau) => `M${(1000 * tau).toFixed(1)} 94v6`).join("");
    // Faint bars everywhere; over them full ones in a window that begins at the handle. Moving the window draws nothing.
    this.faded.replaceChildren(
      ...histogram(), drawing("line", { class: "axis", x1: 0, x2: 1000, y1: AXIS_HEIGHT, y2: AXIS_HEIGHT }),
      drawing("path", { class: "ticks", d: ticks }),
    );
    this.full.replaceChildren(...histogram());
    this.resize();
  }

  resize() {
    this.width = this.root.clientWidth;
    if (this.tau !== undefined) this.show(this.tau, this.valueText);
  }

  show(tau, valueText) {
    this.tau = tau;
    this.valueText = valueText;
    const x = (tau * this.width).toFixed(2);
    this.handle.style.transform = `translateX(${x}px)`;
    this.proposed.style.transform = `translateX(${x}px)`;
    this.full.style.transform = `translateX(-${x}px)`;
    this.root.setAttribute("aria-valuenow", tau.toFixed(4));
    this.root.setAttribute("aria-valuetext", valueText);
  }

  press(event) {
    if (event.button !== 0) return;
    this.left = this.root.getBoundingClientRect().left;
    this.dragging = true;
    this.root.classList.add("by-pointer"); // the ring is for the keyboard
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
