// Tokens as text nodes in shaded spans; one of them is pointed at, by pointer or arrow keys.

const shown = new WeakMap();

class ShadedText {
  constructor(root) {
    this.root = root;
    this.text = root.querySelector(".text");
    this.note = root.querySelector(".note");
    this.at = -1;
    this.text.addEventListener("pointerover", (event) => this.point(event.target));
    this.text.addEventListener("click", (event) => this.point(event.target));
    this.text.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      this.go(Math.min(this.spans.length - 1, Math.max(0, this.at + step)));
    });
  }

  load(data) {
    const key = JSON.stringify(data);
    if (this.key === key) return;
    this.key = key;
    this.notes = data.notes;
    this.root.querySelector(".name").textContent = data.label;
    this.root.style.setProperty("--shade", data.colour);
    const begins = new Set(data.breaks);
    this.spans = data.tokens.map((token, index) => {
      const span = document.createElement("span");
      span.className = begins.has(index) ? "tk begins" : "tk";
      span.style.setProperty("--part", data.shades[index]);
      span.textContent = token;
      span.dataset.index = index;
      return span;
    });
    this.text.replaceChildren(...this.spans);
    this.at = -1;
    this.note.textContent = "Point at a token, or go to one with the arrow keys.";
  }

  point(target) {
    if (target.dataset?.index !== undefined) this.go(Number(target.dataset.index));
  }

  go(index) {
    this.spans[this.at]?.classList.remove("here");
    this.at = index;
    this.spans[index].classList.add("here");
    this.note.textContent = this.notes[index];
  }
}

export default function ({ parentElement, data }) {
  const root = parentElement.querySelector(".shaded");
  if (!shown.has(root)) shown.set(root, new ShadedText(root));
  shown.get(root).load(data);
}
