// Several combinations of precisions under one threshold: every frame moves markers and writes numbers, no more.

const HEIGHT = 240;
const MARGIN = { left: 40, right: 8, top: 8, bottom: 22 };
const SETTLE_MS = 350; // after the last key
const MARKS = ["M6 1a5 5 0 1 1 0 10a5 5 0 1 1 0-10z", "M1.5 1.5h9v9h-9z", "M6 .5l5.5 10.5h-11z", "M6 0l6 6l-6 6l-6-6z", "M6 11.5l-5.5-10.5h11z", "M4 0h4v4h4v4h-4v4h-4v-4h-4v-4h4z"];

// Colour is not the only cue: each line has a mark of its own, the same in both charts and in the table.
function markOf(line, className) {
  const svg = drawing("svg", { class: className, viewBox: "0 0 12 12", "aria-hidden": "true" });
  svg.append(drawing("path", { d: MARKS[line.mark % MARKS.length], fill: line.colour }));
  return svg;
}

function niceTicks(low, high) {
  const step = [0.05, 0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000].find((size) => (high - low) / size <= 5) ?? 2000;
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push(tick);
  return ticks.map((tick) => [tick, step < 1 ? tick.toFixed(step < 0.1 || step === 0.25 ? 2 : 1) : tick.toFixed(0)]);
}

class Chart {
  constructor(figure, onMove, onRelease) {
    this.svg = figure.querySelector("svg");
    this.layer = figure.querySelector(".riders");
    const move = (event) => onMove((event.clientX - this.svg.getBoundingClientRect().left - MARGIN.left) / this.inner);
    followPointer(this.svg, move, onRelease);
  }

  // `series`: one list of values for each line; `plains`: [value, colour] of dashed lines; `one`: a value ruled stronger.
  draw(lines, series, plains, one, unit) {
    const width = this.svg.clientWidth || 400;
    this.inner = width - MARGIN.left - MARGIN.right;
    this.series = series;
    const all = [...series.flat(), ...plains.map(([value]) => value), ...(one ? [one] : [])];
    let lowest = Infinity;
    let highest = -Infinity;
    for (const value of all) {
      lowest = Math.min(lowest, value);
      highest = Math.max(highest, value);
    }
    const pad = Math.max(0.02 * highest, 0.06 * (highest - lowest));
    lowest -= pad;
    highest += pad;
    const bottom = HEIGHT - MARGIN.bottom;
    this.x = (share) => MARGIN.left + this.inner * share;
    this.y = (value) => bottom - ((value - lowest) / (highest - lowest)) * (bottom - MARGIN.top);
    const across = (className, value, style = {}) => drawing("line", { class: className, x1: this.x(0), x2: this.x(1), y1: this.y(value), y2: this.y(value), ...style });
    this.svg.replaceChildren(
      ...niceTicks(lowest, highest).flatMap(([tick, text]) => [
        across("grid", tick), drawing("text", { x: MARGIN.left - 6, y: this.y(tick) + 4, "text-anchor": "end" }, `${text}${unit}`),
      ]),
      ...(one ? [across("one", one)] : []),
      ...plains.map(([value, colour]) => across("plain", value, { stroke: colour })),
      ...lines.map((line, index) => drawing("path", { class: "steps", stroke: line.colour, d: this.path(series[index]) })),
      ...[0, 0.5, 1].map((share) => drawing("text", { x: this.x(share), y: HEIGHT - 4, "text-anchor": ["start", "middle", "end"][2 * share] }, share === 0.5 ? "τ 0.5" : String(share))),
    );
    this.line = element("span", "line");
    this.riders = lines.map((line) => markOf(line, "rider"));
    this.layer.replaceChildren(this.line, ...this.riders);
  }

  path(values) {
    let path = `M${this.x(0)} ${this.y(values[0]).toFixed(1)}`;
    for (let index = 1; index < values.length; index += 1) {
      if (values[index] !== values[index - 1]) path += `H${this.x(index / (values.length - 1)).toFixed(1)}V${this.y(values[index]).toFixed(1)}`;
    }
    return `${path}H${this.x(1)}`;
  }

  show(index, label) {
    const x = this.x(index / (this.series[0].length - 1)).toFixed(1);
    this.line.style.transform = `translateX(${x}px)`;
    this.riders.forEach((rider, row) => { rider.style.transform = `translate(${x}px, ${this.y(this.series[row][index]).toFixed(1)}px)`; });
    this.svg.setAttribute("aria-label", label);
  }
}

class PrecisionPanel {
  constructor(root) {
    this.root = root;
    this.find = (selector) => root.querySelector(selector);
    this.baseline = "own";
    const move = (share) => this.moveTo(Math.round(clamp(share, 0, 1) * 1000) / 1000);
    const release = () => this.report();
    this.speeds = new Chart(this.find(".speeds"), move, release);
    this.rates = new Chart(this.find(".rates"), move, release);
    const slider = this.find(".slider");
    const drag = (event) => move((event.clientX - slider.getBoundingClientRect().left) / slider.clientWidth);
    slider.addEventListener("pointerdown", (event) => {
      slider.focus({ preventScroll: true });
      event.preventDefault();
    });
    followPointer(slider, drag, release);
    slider.addEventListener("keydown", (event) => this.key(event));
    this.choosing(this.find(".baselines"), (button) => {
      this.baseline = button.dataset.baseline;
      this.build();
      this.show();
    });
    new ResizeObserver(() => { if (this.data) { this.build(); this.show(); } }).observe(root);
  }

  // A group of radio buttons: arrows walk, a click chooses.
  choosing(group, choose) {
    group.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button && button.getAttribute("aria-checked") !== "true") choose(button);
    });
    group.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const buttons = [...group.querySelectorAll("button")];
      const next = step && buttons[buttons.indexOf(event.target) + step];
      if (!next) return;
      event.preventDefault();
      next.focus();
      next.click();
    });
  }

  update({ data, setStateValue }) {
    this.setStateValue = setStateValue;
    if (this.data === data) return;
    if (!this.data) this.tau = data.tau;
    this.data = data;
    this.find('[data-baseline="full"]').textContent = `plain decoding at ${data.full}`;
    this.find(".over-full").textContent = `× ${data.full} plain`;
    this.find(".about").textContent = data.about;
    this.buildGammas();
    this.buildTable();
    this.build();
    this.show();
  }

  build() {
    const { lines } = this.data;
    const own = this.baseline === "own";
    for (const button of this.root.querySelectorAll("[data-baseline]")) {
      const chosen = button.dataset.baseline === this.baseline;
      button.setAttribute("aria-checked", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
    }
    this.speeds.draw(lines, lines.map((line) => (own ? line.speedup : line.overFull)), own ? [] : lines.map((line) => [line.plainOverFull, line.colour]), 1, "×");
    this.rates.draw(lines, lines.map((line) => line.rate), lines.map((line) => [line.plainRate, line.colour]), 0, "");
  }

  buildGammas() {
    const group = this.find(".gammas");
    const hadFocus = group.contains(this.root.getRootNode().activeElement);
    const buttons = Array.from({ length: this.data.longestDraft }, (_, index) => {
      const button = element("button", "", String(index + 1));
      button.type = "button";
      button.setAttribute("role", "radio");
      button.setAttribute("aria-checked", String(index + 1 === this.data.gamma));
      button.tabIndex = index + 1 === this.data.gamma ? 0 : -1;
      return button;
    });
    group.replaceChildren(element("span", "", "draft length γ"), ...buttons);
    group.classList.remove("waiting");
    if (hadFocus) buttons[this.data.gamma - 1]?.focus();
    if (this.listening) return;
    this.listening = true;
    this.choosing(group, (button) => {
      group.classList.add("waiting");
      this.report();
      this.setStateValue("gamma", Number(button.textContent));
    });
  }

  buildTable() {
    this.cells = [];
    const rows = this.data.lines.map((line) => {
      const row = element("tr");
      const head = element("th");
      head.scope = "row";
      head.append(markOf(line, ""), line.label);
      const cells = Array.from({ length: 7 }, () => element("td"));
      cells[3].textContent = line.plainRate.toFixed(1);
      cells[6].textContent = `${line.megabytes} MB`;
      this.cells.push(cells);
      row.append(head, ...cells);
      return row;
    });
    this.find("tbody").replaceChildren(...rows);
  }

  moveTo(tau) {
    this.tau = clamp(tau, 0, 1);
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.show();
    });
  }

  show() {
    const { lines } = this.data;
    const index = Math.round(this.tau * 1000);
    this.root.dataset.tau = this.tau;
    this.root.dataset.gamma = this.data.gamma;
    this.find(".tau-figure").textContent = this.tau.toFixed(3);
    const slider = this.find(".slider");
    this.find(".handle").style.transform = `translateX(${(this.tau * slider.clientWidth).toFixed(1)}px)`;
    lines.forEach((line, row) => {
      const acceptance = line.acceptance[index];
      const values = [line.speedup[index].toFixed(2), line.overFull[index].toFixed(2), line.rate[index].toFixed(1), null, acceptance === null ? "–" : `${(100 * acceptance).toFixed(0)} %`, line.perPass[index].toFixed(2)];
      values.forEach((value, column) => { if (value !== null) this.cells[row][column].textContent = value; });
    });
    const summary = this.summary(index);
    slider.setAttribute("aria-valuenow", this.tau.toFixed(3));
    slider.setAttribute("aria-valuetext", summary);
    this.speeds.show(index, summary);
    this.rates.show(index, summary);
  }

  summary(index) {
    return `Threshold ${this.tau.toFixed(3)}: ${this.data.lines.map((line) => `${line.label} ${line.speedup[index].toFixed(2)} times its own plain decoding`).join(", ")}.`;
  }

  report() {
    clearTimeout(this.settling);
    this.find(".unseen").textContent = this.summary(Math.round(this.tau * 1000));
    if (this.reported === this.tau) return;
    this.reported = this.tau;
    this.setStateValue("tau", this.tau);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = event.shiftKey ? 0.001 : 0.01;
    const to = { ArrowLeft: this.tau - step, ArrowDown: this.tau - step, ArrowRight: this.tau + step, ArrowUp: this.tau + step, PageDown: this.tau - 0.1, PageUp: this.tau + 0.1, Home: 0, End: 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.moveTo(Math.round(to * 1000) / 1000);
    clearTimeout(this.settling);
    this.settling = setTimeout(() => this.report(), SETTLE_MS);
  }
}

const panels = new WeakMap();

export default function render(component) {
  const root = component.parentElement.querySelector(".precisions");
  if (!panels.has(root)) panels.set(root, new PrecisionPanel(root));
  panels.get(root).update(component);
}
