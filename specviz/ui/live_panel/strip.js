// The output as tokens, in two readings: a text with its drafted ghosts, and one row a round.

const CUT = { threshold: "τ", max_draft: "γ", eos: "end", budget: "limit" };

class TextReading {
  constructor(root) {
    this.root = root;
    this.withGhosts = false;
  }

  build(lookup) {
    this.lookup = lookup;
    this.tokens = lookup.recording.output.map((token, position) => {
      const text = lookup.text(token);
      const node = element("span", "tk");
      node.append(...text.split(/(↵)/).filter(Boolean).map((part) => (part === "↵" ? element("span", "break", part) : part)));
      // A single space may vanish where a line breaks, and its underline with it; indentation and line breaks may not.
      if (/\n|\s\s|^\s+$/.test(text)) node.style.whiteSpace = "pre-wrap";
      node.dataset.position = position;
      node.tabIndex = -1;
      return node;
    });
    this.shown = new Array(this.tokens.length).fill("");
    this.ghosts = new Map(); // output position of the target's token -> {key, node}
    // A block a line of the text: a change then moves the words of its own lines only.
    const blocks = [element("span", "block")];
    this.tokens.forEach((node) => {
      blocks.at(-1).append(node);
      if (node.textContent.endsWith("\n")) blocks.push(element("span", "block"));
    });
    this.root.replaceChildren(...blocks);
  }

  // `committed`: tokens after this many are dimmed (the play button's future).
  show(rounds, committed = Infinity) {
    for (const round of rounds) {
      const own = round.target ? round.end - 1 : round.end;
      for (let position = round.start; position < round.end; position += 1) {
        const status = position < own ? "accepted" : STATUS[round.target];
        const className = `tk ${status}${position === round.start ? " start" : ""}${position >= committed ? " later" : ""}`;
        if (this.shown[position] !== className) {
          this.shown[position] = className;
          this.tokens[position].className = className;
          this.tokens[position].dataset.status = status;
        }
      }
    }
    this.showGhosts(this.withGhosts ? rounds.filter((round) => round.end <= committed) : []);
  }

  showGhosts(rounds) {
    const wanted = new Set();
    for (const round of rounds) {
      const accepted = round.end - round.start - (round.target ? 1 : 0);
      if (round.steps.length <= accepted) continue;
      const position = round.end - 1;
      wanted.add(position);
      const present = this.ghosts.get(position);
      if (present && present.key === round.key) continue;
      present?.node.remove();
      const node = element("span", "ghosts");
      for (let index = accepted; index < round.steps.length; index += 1) {
        const ghost = ghostOf(this.lookup, round, index);
        if (ghost.dataset.status === "withheld") ghost.textContent = ghost.textContent.trim() || visible(ghost.textContent);
        node.append(ghost);
      }
      this.tokens[position].before(node);
      this.ghosts.set(position, { key: round.key, node });
    }
    for (const [position, { node }] of this.ghosts) {
      if (!wanted.has(position)) {
        node.remove();
        this.ghosts.delete(position);
      }
    }
  }
}

function ghostOf(lookup, round, index) {
  const step = lookup.step(round, index);
  const status = STATUS[step.letter];
  const node = element("span", status === "accepted" ? "tk accepted" : `ghost ${status}`, lookup.text(step.token));
  node.dataset.position = step.position;
  node.dataset.status = status;
  node.dataset.roundStart = round.start;
  node.dataset.step = index;
  node.tabIndex = -1;
  return node;
}

// One round as a row. Rows depend on their round alone, so they are made once and kept.
function roundRow(lookup, round) {
  const row = element("div", "round");
  row.dataset.start = round.start;
  row.dataset.reason = round.reason;
  for (let index = 0; index < round.steps.length; index += 1) {
    const step = lookup.step(round, index);
    const status = STATUS[step.letter];
    const cell = element("span", `cell is-${status}`);
    const meter = element("span", "meter");
    meter.style.width = `${Math.max(2, 34 * step.confidence).toFixed(1)}px`;
    const word = element("span", "word");
    const token = ghostOf(lookup, round, index);
    token.textContent = visible(lookup.text(step.token));
    word.append(token);
    if (MARK[status]) word.append(element("span", `mark is-${status}`, MARK[status]));
    cell.append(meter, word);
    row.append(cell);
  }
  const cut = element("span", "cut", CUT[round.reason] ?? round.reason);
  cut.title = {
    threshold: "drafting stopped here: the confidence did not exceed the threshold",
    max_draft: "drafting stopped here: the draft length was reached",
    eos: "drafting stopped here: the draft proposed the end of the text",
    budget: "drafting stopped here: no more tokens are wanted",
  }[round.reason] ?? "";
  row.append(cut);
  if (round.target) {
    const position = round.end - 1;
    const status = STATUS[round.target];
    const own = element("span", "cell own");
    const word = element("span", "word");
    const token = element("span", `tk ${status}`, visible(lookup.text(lookup.recording.output[position])));
    token.dataset.position = position;
    token.dataset.status = status;
    token.dataset.roundStart = round.start;
    token.tabIndex = -1;
    word.append(token, element("span", "mark", MARK[status]));
    own.append(word);
    row.append(element("span", "arrow", "→"), own);
  }
  return row;
}

class RoundsReading {
  constructor(root) {
    this.root = root;
  }

  build(lookup) {
    this.lookup = lookup;
    this.rows = new Map();
    this.root.replaceChildren();
  }

  row(round) {
    let row = this.rows.get(round.key);
    if (!row) {
      row = roundRow(this.lookup, round);
      this.rows.set(round.key, row);
    }
    return row;
  }

  // Both lists run in order of their starts, so one walk turns the rows on screen into those wanted.
  show(rounds) {
    const wanted = rounds.map((round) => this.row(round));
    const staying = new Set(wanted);
    let present = this.root.firstChild;
    for (const row of wanted) {
      while (present && !staying.has(present)) {
        const gone = present;
        present = present.nextSibling;
        gone.remove();
      }
      if (present === row) present = present.nextSibling;
      else this.root.insertBefore(row, present);
    }
    while (present) {
      const gone = present;
      present = present.nextSibling;
      gone.remove();
    }
  }
}
