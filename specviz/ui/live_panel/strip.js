// The output as tokens, in two readings: a text with its drafted ghosts, and one row a round.

const CUT = { threshold: "τ", max_draft: "γ", eos: "end", stop: "end", budget: "limit" };

class TextReading {
  constructor(root) {
    this.root = root;
    this.withGhosts = false;
    this.ghostly = []; // rounds whose ghosts are wanted
  }

  // Lay out a recording's text.
  build(lookup) {
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
    this.ghosts = new Map(); // output position of the last token of a round -> {key, node}
    // A block a line of the text: a change then moves the words of its own lines only.
    const blocks = [element("span", "block")];
    this.tokens.forEach((node) => {
      blocks.at(-1).append(node);
      if (node.textContent.endsWith("\n")) blocks.push(element("span", "block"));
    });
    this.root.replaceChildren(...blocks);
    // Ghosts move the words after them, so only blocks in view or close to it get theirs at once.
    this.inView = new Set();
    this.observer?.disconnect();
    this.observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) this.inView[isIntersecting ? "add" : "delete"](target);
      this.showGhosts();
    }, { root: this.root, rootMargin: "150px" });
    blocks.forEach((block) => this.observer.observe(block));
  }

  // From now on the rounds are this lookup's.
  read(lookup) {
    this.lookup = lookup;
    for (const { node } of this.ghosts.values()) node.remove();
    this.ghosts.clear();
    this.ghostly = [];
    this.made = new Map(); // a round's key -> the node of its ghosts, kept for the next time
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
    this.ghostly = this.withGhosts ? rounds.filter((round) => round.end <= committed) : [];
    this.showGhosts();
  }

  showGhosts() {
    const wanted = new Map();
    for (const round of this.ghostly) {
      const accepted = round.end - round.start - (round.target ? 1 : 0);
      const block = this.tokens[round.end - 1].parentNode;
      if (round.steps.length > accepted && this.inView.has(block)) wanted.set(round.end - 1, round);
    }
    for (const [position, { key, node }] of this.ghosts) {
      if (wanted.get(position)?.key === key) wanted.delete(position);
      else {
        node.remove();
        this.ghosts.delete(position);
      }
    }
    for (const [position, round] of wanted) {
      const node = this.ghostsOf(round);
      this.tokens[position].before(node);
      this.ghosts.set(position, { key: round.key, node });
    }
  }

  ghostsOf(round) {
    let node = this.made.get(round.key);
    if (!node) {
      node = element("span", "ghosts");
      for (let index = round.end - round.start - (round.target ? 1 : 0); index < round.steps.length; index += 1) {
        const ghost = ghostOf(this.lookup, round, index);
        if (ghost.dataset.status === "withheld") ghost.textContent = ghost.textContent.trim() || visible(ghost.textContent);
        node.append(ghost);
      }
      this.made.set(round.key, node);
    }
    return node;
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
    cell.style.setProperty("--sure", `${Math.max(2, 34 * step.confidence).toFixed(1)}px`);
    const token = ghostOf(lookup, round, index);
    token.textContent = visible(lookup.text(step.token));
    cell.append(token);
    row.append(cell);
  }
  const cut = element("span", "cut", CUT[round.reason] ?? round.reason);
  cut.title = {
    threshold: "drafting stopped here: the confidence did not exceed the threshold",
    max_draft: "drafting stopped here: the draft length was reached",
    eos: "drafting stopped here: the draft proposed the end of the text",
    stop: "drafting stopped here: the draft completed a stop string",
    budget: "drafting stopped here: no more tokens are wanted",
  }[round.reason] ?? "";
  row.append(cut);
  if (round.target) {
    const position = round.end - 1;
    const status = STATUS[round.target];
    const own = element("span", `cell own is-${status}`);
    const token = element("span", `tk ${status}`, visible(lookup.text(lookup.recording.output[position])));
    token.dataset.position = position;
    token.dataset.status = status;
    token.dataset.roundStart = round.start;
    token.tabIndex = -1;
    own.append(token);
    row.append(element("span", "arrow", "→"), own);
  }
  return row;
}

const FIRST_ROWS = 13; // more than fit into view
const ROW_HEIGHT = 41; // pixels, about, of a row that is not drawn yet

// Only the rows down to a little below what is in view are drawn, so that a change costs the same for any length of text.
class RoundsReading {
  constructor(root) {
    this.root = root;
    this.rest = element("div", "rest"); // stands for the rows that are not drawn
    root.addEventListener("scroll", () => this.drawInView(), { passive: true });
  }

  build(lookup) {
    this.lookup = lookup;
    this.rows = new Map();
    this.rounds = [];
    this.limit = FIRST_ROWS;
    this.root.replaceChildren(this.rest);
  }

  row(round) {
    let row = this.rows.get(round.key);
    if (!row) {
      row = roundRow(this.lookup, round);
      this.rows.set(round.key, row);
    }
    return row;
  }

  show(rounds) {
    this.rounds = rounds;
    this.draw();
  }

  drawAll() {
    this.limit = this.rounds.length;
    this.draw();
  }

  drawInView() {
    const { scrollTop, clientHeight } = this.root;
    if (scrollTop === 0) this.limit = FIRST_ROWS;
    const missing = scrollTop + 2 * clientHeight - this.rest.offsetTop;
    if (missing > 0 && this.limit < this.rounds.length) this.limit += Math.ceil(missing / ROW_HEIGHT);
    this.draw();
  }

  // Both lists run in order of their starts, so one walk turns the rows on screen into those wanted.
  draw() {
    const wanted = this.rounds.slice(0, this.limit).map((round) => this.row(round));
    const staying = new Set(wanted);
    let present = this.root.firstChild;
    const dropUntil = (stays) => {
      while (present !== this.rest && !stays(present)) {
        const gone = present;
        present = present.nextSibling;
        gone.remove();
      }
    };
    for (const row of wanted) {
      dropUntil((node) => staying.has(node));
      if (present === row) present = present.nextSibling;
      else this.root.insertBefore(row, present);
    }
    dropUntil(() => false);
    this.rest.style.height = `${ROW_HEIGHT * (this.rounds.length - wanted.length)}px`;
  }
}
