// Rounds as they are committed. Each call brings all rounds so far; only the new ones are added.

const drawn = new WeakMap();
const FRESH = 3; // rounds whose drafted tokens that did not make it are still shown; then the text is left to be read

const counted = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;

function token(text, status) {
  const node = document.createElement("span");
  node.className = status;
  node.textContent = text;
  return node;
}

export default function render({ data, parentElement }) {
  const root = parentElement.querySelector(".run");
  const text = root.querySelector(".text");
  let state = drawn.get(root);
  if (!state || state.key !== data.key || state.rounds > data.rounds.length) {
    state = { key: data.key, rounds: 0, tokens: 0, ghosts: [] };
    drawn.set(root, state);
    text.replaceChildren();
  }
  for (const round of data.rounds.slice(state.rounds)) {
    const ghosts = [];
    for (const [word, status] of round.drafted) {
      const node = token(word, status);
      text.append(node);
      if (status === "accepted") state.tokens += 1;
      else ghosts.push(node);
    }
    state.ghosts.push(ghosts);
    if (state.ghosts.length > FRESH) state.ghosts.shift().forEach((node) => node.remove());
    if (round.own) {
      text.append(token(...round.own));
      state.tokens += 1;
    }
  }
  state.rounds = data.rounds.length;
  root.querySelector(".count").textContent = `${counted(state.tokens, "token")} in ${counted(state.rounds, "round")}`;
}
