// One bar per draft step, in order.

const BAR_FIELD = 104; // pixels of height for confidence 1
const LANE_HEIGHT = 108;

class Lane {
  constructor(root) {
    this.canvas = root.querySelector("canvas");
    this.line = root.querySelector(".lane-line");
    this.steps = [];
  }

  resize() {
    this.scale = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.canvas.width = Math.round(this.width * this.scale);
    this.canvas.height = Math.round(LANE_HEIGHT * this.scale);
    this.context = this.canvas.getContext("2d");
    this.drawn = null;
  }

  readColours(panel) {
    const style = getComputedStyle(panel);
    const colour = (name) => style.getPropertyValue(name).trim();
    this.colours = {
      accepted: colour("--fill-accepted"), rejected: colour("--fill-rejected"), discarded: colour("--fill-discarded"),
      withheld: colour("--ghost"),
    };
  }

  show(lookup, rounds, tau, summary) {
    this.line.style.transform = `translateY(${(LANE_HEIGHT - BAR_FIELD * tau).toFixed(1)}px)`;
    if (this.drawn === rounds) return;
    this.drawn = rounds;
    this.canvas.setAttribute("aria-label", summary);
    this.steps = rounds.flatMap((round) => Array.from(round.steps, (_, index) => [round, index]));
    const { context, colours, scale } = this;
    this.pitch = Math.min(18, this.width / Math.max(1, this.steps.length));
    const pitch = this.pitch * scale;
    const gap = pitch > 3 ? Math.min(4 * scale, pitch * 0.28) : 0;
    const bottom = this.canvas.height;
    const bars = { accepted: [], rejected: [], discarded: [], withheld: [] };
    this.steps.forEach(([round, index], place) => {
      const left = Math.round(place * pitch);
      const width = Math.max(1, Math.round((place + 1) * pitch - gap) - left);
      const height = Math.max(1, Math.round(scale * BAR_FIELD * lookup.confidence(round, index)));
      bars[STATUS[round.steps[index]]].push([left, width, height]);
    });
    context.clearRect(0, 0, this.canvas.width, bottom);
    // Rectangles on whole pixels, one colour after the other: much faster to draw than paths of as many bars.
    for (const status of ["accepted", "rejected", "discarded"]) {
      context.fillStyle = colours[status];
      for (const [left, width, height] of bars[status]) context.fillRect(left, bottom - height, width, height);
    }
    context.fillStyle = colours.withheld;
    const line = Math.max(1, Math.round(scale));
    for (const [left, width, height] of bars.withheld) {
      context.fillRect(left, bottom - height, width, line);
      context.fillRect(left, bottom - height, line, height);
      if (width > 2 * line) context.fillRect(left + width - line, bottom - height, line, height);
    }
  }

  // The step under a horizontal place, or nothing.
  at(x) {
    return this.steps[Math.floor(x / this.pitch)];
  }
}
