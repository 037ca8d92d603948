// Small helpers. Text from models goes into the page through `textContent` only.

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

function drawing(tag, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function clamp(value, low, high) {
  return Math.min(high, Math.max(low, value));
}

const formatTau = (tau) => tau.toFixed(3);
const formatPercent = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)} %`);
const formatNumber = (value, digits = 2) => (value === null ? "–" : value.toFixed(digits));

// Tell `onMove` of the pointer's events on `node` from press to release, wherever it goes meanwhile.
function followPointer(node, onMove, onRelease) {
  let dragging = false;
  node.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    dragging = true;
    node.setPointerCapture(event.pointerId);
    onMove(event);
  });
  node.addEventListener("pointermove", (event) => dragging && onMove(event));
  for (const name of ["pointerup", "pointercancel"]) {
    node.addEventListener(name, () => {
      if (dragging) onRelease();
      dragging = false;
    });
  }
}
