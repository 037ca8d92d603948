// Text from models goes into the page through `textContent` only.

function element(tag, className, text) {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

export default function render({ data, parentElement }) {
  parentElement.querySelector(".difference").replaceChildren(...data.texts.map(({ name, same, parting, after, note }) => {
    const side = document.createElement("div");
    const text = element("p", "text", "");
    text.dir = "auto";
    text.append(element("span", "same", same.join("")));
    if (parting !== null) {
      const mark = element("span", "parting", parting);
      mark.title = "here the two outputs part";
      text.append(mark);
    }
    text.append(element("span", "after", after.join("")));
    side.append(element("h4", "", name), text, element("p", "note", note));
    return side;
  }));
}
