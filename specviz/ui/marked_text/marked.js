// A text in tokens: some marked as different from another text, or all of them there to be chosen.

export default function render({ data, parentElement, setStateValue }) {
  const text = parentElement.querySelector(".marked .text");
  const choose = (place) => {
    for (const [index, node] of nodes.entries()) node.setAttribute("aria-pressed", String(index === place));
    setStateValue("place", place);
  };
  const nodes = data.tokens.map(([word, mark], place) => {
    const node = document.createElement(data.choose ? "button" : "span");
    node.textContent = word;
    if (mark) node.className = mark;
    if (data.choose) {
      node.type = "button";
      node.title = mark;
      node.setAttribute("aria-label", `token ${place + 1}, ${mark}: ${word.trim() || "white space"}`);
      node.setAttribute("aria-pressed", String(place === data.place));
      node.addEventListener("click", () => choose(place));
    }
    return node;
  });
  text.replaceChildren(...nodes);
}
