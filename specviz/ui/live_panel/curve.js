// The exact step function of the speedup over the threshold, and the marker that rides on it.

const CURVE_HEIGHT = 180;
const MARGIN = { left: 30, right: 8, top: 26, bottom: 22 };

class Curve {
  constructor(figure, onMove, onRelease) {
    this.figure = figure;
    this.svg = figure.querySelector("svg");
    // The marker is a layer of its own, so that moving it draws nothing else again.
    this.rider = figure.querySelector(".rider");
    this.riderLine = figure.querySelector(".rider-line");
    const move = (event) => {
      const share = (event.clientX - this.svg.getBoundingClientRect().left - MARGIN.left) / this.inner;
      onMove(Math.round(clamp(share, 0, 1) * 1000) / 1000);
    };
    followPointer(this.svg, move, onRelease);
  }

  build(lookup, measured) {
    this.lookup = lookup;
    this.measured = measured;
    this.figure.hidden = !lookup.rounds.speedup;
    if (lookup.rounds.speedup) this.draw();
  }

  draw() {
    const speedups = this.lookup.rounds.speedup;
    const thresholds = this.lookup.changeThresholds;
    const width = this.svg.clientWidth || 292;
    this.inner = width - MARGIN.left - MARGIN.right;
    const all = [1, ...speedups, ...this.measured.flatMap((point) => [point.low ?? point.speedup, point.high ?? point.speedup])];
    const lowest = Math.min(...all);
    const highest = Math.max(...all);
    const pad = Math.max(0.02, 0.08 * (highest - lowest));
    const bottom = CURVE_HEIGHT - MARGIN.bottom;
    this.x = (tau) => MARGIN.left + this.inner * tau;
    this.y = (speedup) => bottom - ((speedup - lowest + pad) / (highest - lowest + 2 * pad)) * (bottom - MARGIN.top);
    let path = `M${this.x(0)} ${this.y(speedups[0]).toFixed(1)}`;
    for (let index = 1; index < speedups.length; index += 1) {
      path += `H${this.x(thresholds[index]).toFixed(1)}V${this.y(speedups[index]).toFixed(1)}`;
    }
    path += `H${this.x(1)}`;
    const best = speedups.indexOf(highestOf(speedups));
    const until = thresholds[best + 1] ?? 1;
    this.best = thresholds[best];
    const bestX = this.x((this.best + until) / 2);
    const bestY = this.y(speedups[best]);
    const toTheLeft = bestX > width / 2;
    const one = this.y(1);
    this.svg.replaceChildren(
      drawing("line", { class: "one", x1: this.x(0), x2: this.x(1), y1: one, y2: one }),
      drawing("text", { x: MARGIN.left - 6, y: one + 4, "text-anchor": "end" }, "1×"),
      drawing("path", { class: "steps", d: path }),
      ...this.measured.flatMap((point) => this.measuredPoint(point)),
      drawing("circle", { class: "optimum", cx: bestX, cy: bestY, r: 4 }),
      drawing(
        "text",
        { class: "optimum-label", x: bestX + (toTheLeft ? 6 : -6), y: 12, "text-anchor": toTheLeft ? "end" : "start" },
        `best ${speedups[best].toFixed(2)}× at ${formatTau(this.best)}`,
      ),
      ...[0, 0.5, 1].map((tau) => drawing(
        "text",
        { x: this.x(tau), y: CURVE_HEIGHT - 6, "text-anchor": tau === 0 ? "start" : tau === 1 ? "end" : "middle" },
        tau === 0.5 ? "τ 0.5" : String(tau),
      )),
    );
  }

  measuredPoint(point) {
    const x = this.x(point.tau);
    const y = this.y(point.speedup);
    const toTheLeft = x > this.inner / 2;
    const parts = [
      drawing("rect", { class: "measured", x: x - 4.5, y: y - 4.5, width: 9, height: 9 }),
      drawing(
        "text",
        { class: "measured-label", x: x + (toTheLeft ? -9 : 9), y: y + 4, "text-anchor": toTheLeft ? "end" : "start" },
        `measured ${point.speedup.toFixed(2)}×`,
      ),
    ];
    if (point.low === undefined) return parts;
    return [drawing("line", { class: "measured", x1: x, x2: x, y1: this.y(point.low), y2: this.y(point.high) }), ...parts];
  }

  show(tau, speedup) {
    if (speedup === null) return;
    const x = this.x(tau).toFixed(1);
    this.rider.style.transform = `translate(${x}px, ${this.y(speedup).toFixed(1)}px)`;
    this.riderLine.style.transform = `translateX(${x}px)`;
    this.svg.setAttribute("aria-label", `Speedup ${speedup.toFixed(2)} at threshold ${formatTau(tau)}`);
  }
}

function highestOf(values) {
  return values.reduce((highest, value) => Math.max(highest, value), -Infinity);
}
