// A term of the glossary: text that can have the focus, with its definition, which the style sheet shows then.
// GLOSSARY comes before this script: key -> {name, text, formula}.

let definitions = 0;

function term(key, label = GLOSSARY[key].name) {
  const { text, formula } = GLOSSARY[key];
  const definition = document.createElement("span");
  definition.className = "definition";
  definition.setAttribute("role", "tooltip");
  definitions += 1;
  definition.id = `definition-${definitions}`;
  definition.append(text);
  if (formula) definition.append(Object.assign(document.createElement("code"), { textContent: formula }));
  const node = document.createElement("span");
  node.className = "term";
  node.tabIndex = 0;
  node.dataset.term = key;
  node.setAttribute("aria-describedby", definition.id);
  node.append(label, definition);
  return node;
}
