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
    const scale = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(LANE_HEIGHT * scale);
    this.context = this.canvas.getContext("2d");
    this.context.scale(scale, scale);
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
    this.canvas.setAttribute("aria-label", summary);
    this.steps = rounds.flatMap((round) => Array.from(round.steps, (_, index) => [round, index]));
    const { context, width, colours } = this;
    const pitch = Math.min(18, width / Math.max(1, this.steps.length));
    this.pitch = pitch;
    const bar = pitch > 3 ? pitch - Math.min(4, pitch * 0.28) : pitch;
    // One path a status: thousands of bars are then four things to draw.
    const paths = Object.fromEntries(Object.keys(colours).map((status) => [status, new Path2D()]));
    this.steps.forEach(([round, index], place) => {
      const status = STATUS[round.steps[index]];
      const height = Math.max(1, BAR_FIELD * lookup.confidence(round, index));
      const x = place * pitch;
      if (status === "withheld") paths.withheld.rect(x + 0.5, LANE_HEIGHT - height + 0.5, Math.max(0.5, bar - 1), height);
      else paths[status].rect(x, LANE_HEIGHT - height, bar, height);
    });
    context.clearRect(0, 0, width, LANE_HEIGHT);
    for (const status of ["accepted", "rejected", "discarded"]) {
      context.fillStyle = colours[status];
      context.fill(paths[status]);
    }
    context.lineWidth = 1;
    context.strokeStyle = colours.withheld;
    context.setLineDash(bar > 6 ? [2, 2] : []);
    context.stroke(paths.withheld);
  }

  // The step under a horizontal place, or nothing.
  at(x) {
    return this.steps[Math.floor(x / this.pitch)];
  }
}
