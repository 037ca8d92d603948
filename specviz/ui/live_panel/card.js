// What is known of one token: shown on hover and focus, kept on click.

const WORDS = {
  a: "proposed and accepted",
  r: "proposed and rejected",
  d: "proposed after the rejection, never tested",
  W: "withheld, though the target would have agreed",
  w: "withheld, and the target would not have agreed",
  u: "withheld after the rejection, never tested",
  c: "the target's correction of the rejected token",
  b: "the target's own token, on top of the accepted run",
  p: "the target's own token; the draft proposed nothing in this round",
};

class Card {
  constructor(root, panel) {
    this.root = root;
    this.panel = panel;
    this.pinnedTo = null;
  }

  // `facts`: {letter, position, token, confidence, entropy, branch}
  show(lookup, facts, anchor) {
    const { recording } = lookup;
    const { position } = facts;
    const known = !facts.branch;
    const rows = [["position", String(position + 1)]];
    if (facts.confidence !== undefined) {
      rows.push(["confidence of the draft", facts.confidence.toFixed(4)], ["entropy of the draft", `${facts.entropy.toFixed(3)} nats`]);
    }
    if (known) {
      rows.push(["target's probability of the draft's token", formatNumber(recording.targetProbability[position], 4)]);
      rows.push(["entropy of the target", `${formatNumber(recording.targetEntropy[position], 3)} nats`]);
    }
    const list = element("div", "facts");
    for (const [name, value] of rows) list.append(element("span", "", name), element("span", "", value));
    const children = [
      element("bdi", "token", visible(lookup.text(facts.token)) || "(empty)"),
      element("p", "verdict", WORDS[facts.letter]),
      list,
    ];
    if (known) {
      const tops = element("div", "tops");
      tops.append(
        this.candidates(lookup, "the draft says", "of-draft", recording.draftTop[position], recording.draftTopProbabilities[position]),
        this.candidates(lookup, "the target says", "of-target", recording.targetTop[position], recording.targetTopProbabilities[position]),
      );
      children.push(tops);
    }
    if (this.pinnedTo) {
      const close = element("button", "close", "✕");
      close.type = "button";
      close.setAttribute("aria-label", "Close");
      close.addEventListener("click", () => this.unpin());
      children.push(close);
    }
    this.root.replaceChildren(...children);
    this.root.hidden = false;
    this.place(anchor);
  }

  candidates(lookup, title, className, tokens, probabilities) {
    const column = element("div", className);
    column.append(element("h4", "", title));
    tokens.forEach((token, rank) => {
      if (token < 0) return;
      const row = element("div", "candidate");
      const bar = element("i");
      bar.style.width = `${Math.max(1, 100 * probabilities[rank]).toFixed(1)}%`;
      row.append(
        element("bdi", "", visible(lookup.text(token)) || "(empty)"),
        element("span", "", probabilities[rank].toFixed(3)), bar,
      );
      column.append(row);
    });
    return column;
  }

  // `anchor`: a rectangle in the window. Beside the text where there is a column for it, else under or over the token.
  place(anchor) {
    const frame = this.panel.getBoundingClientRect();
    const { offsetWidth, offsetHeight } = this.root;
    const aside = this.panel.querySelector(".aside").getBoundingClientRect();
    let x = aside.right - frame.left - offsetWidth;
    let y = anchor.top - 40;
    if (aside.left > frame.left + 100) {
      const columns = this.panel.querySelector(".columns").getBoundingClientRect();
      y = Math.max(columns.top, Math.min(y, window.innerHeight - offsetHeight - 12));
    } else {
      const below = anchor.bottom + 8;
      const fits = below + offsetHeight < window.innerHeight || anchor.top - offsetHeight - 8 < 0;
      x = clamp(anchor.left - frame.left - 12, 4, frame.width - offsetWidth - 4);
      y = fits ? below : anchor.top - offsetHeight - 8;
    }
    this.root.style.left = `${x.toFixed(0)}px`;
    this.root.style.top = `${(y - frame.top).toFixed(0)}px`;
  }

  hide() {
    if (!this.pinnedTo) this.root.hidden = true;
  }

  // The token may have changed or gone.
  refresh(show) {
    if (!this.pinnedTo) return;
    if (this.pinnedTo.isConnected) show(this.pinnedTo);
    else this.unpin();
  }

  pin(node) {
    this.unpin();
    this.pinnedTo = node;
    node.classList.add("pinned");
    this.root.classList.add("is-pinned");
  }

  unpin() {
    this.pinnedTo?.classList.remove("pinned");
    this.pinnedTo = null;
    this.root.classList.remove("is-pinned");
    this.root.hidden = true;
  }
}
