// The rounds as an animation: draft, verify, verdict, commit, on the cost model's clock slowed down.

const TARGET_PASS_MS = 700;
const VERDICT_MS = 500;
const COMMIT_MS = 250;
const LEAST_STEP_MS = 60;

class Playback {
  constructor(root, onCommit) {
    this.root = root;
    this.title = root.querySelector(".stage-title");
    this.row = root.querySelector(".stage-row");
    this.onCommit = onCommit;
    this.pace = 1;
    this.index = 0;
    this.running = false;
  }

  get open() {
    return !this.root.hidden;
  }

  load(lookup, rounds) {
    const committed = this.rounds ? this.committed : 0;
    this.lookup = lookup;
    this.rounds = rounds;
    if (!this.open) return;
    this.index = Math.max(0, rounds.findIndex((round) => round.start >= committed));
    this.beginRound();
  }

  // Output tokens committed before the round on stage.
  get committed() {
    return this.rounds[this.index]?.start ?? this.lookup.rounds.emitted;
  }

  start() {
    if (!this.open || this.index >= this.rounds.length) {
      this.root.hidden = false;
      this.index = 0;
      this.beginRound();
    }
    this.running = true;
    this.schedule();
  }

  pause() {
    this.running = false;
    clearTimeout(this.timer);
  }

  close() {
    this.pause();
    this.root.hidden = true;
    this.index = 0;
  }

  beginRound() {
    const round = this.rounds[this.index];
    const row = roundRow(this.lookup, round);
    this.cells = [...row.querySelectorAll(".cell:not(.own)")];
    this.rest = [...row.children].filter((child) => !this.cells.includes(child));
    for (const node of row.children) node.classList.add("hidden");
    for (const cell of this.cells) this.veil(cell, true);
    this.row.replaceChildren(row);
    this.phases = this.phasesOf(round);
    this.say("draft");
    this.onCommit(this.committed);
  }

  // Until the verdict a proposed token shows no status.
  veil(cell, on) {
    cell.classList.toggle("veiled", on);
    const token = cell.querySelector(".tk, .ghost");
    if (token.dataset.status !== "withheld") token.classList.toggle("untried", on);
    token.classList.toggle("accepted", !on && token.dataset.status === "accepted");
  }

  // Each is how long it is waited for, and what happens then.
  phasesOf(round) {
    const stepMs = Math.max(LEAST_STEP_MS, TARGET_PASS_MS * (this.lookup.rounds.draftStepShare ?? 0.2));
    const drafts = this.cells.map((cell) => [stepMs, () => cell.classList.remove("hidden")]);
    const verify = [0, () => {
      this.rest[0]?.classList.remove("hidden");
      this.say("verify");
    }];
    const verdict = [TARGET_PASS_MS, () => {
      for (const cell of this.cells) this.veil(cell, false);
      for (const node of this.rest) node.classList.remove("hidden");
      this.say("verdict");
    }];
    const commit = [VERDICT_MS, () => {
      this.say("commit");
      this.onCommit(round.end);
    }];
    const rest = [COMMIT_MS, () => {}];
    return [...drafts, verify, verdict, commit, rest];
  }

  say(phase) {
    const round = this.rounds[this.index];
    const proposed = round.steps.replace(/[Wwu]/g, "").length;
    const accepted = round.end - round.start - (round.target ? 1 : 0);
    const words = {
      draft: "the draft proposes",
      verify: `one pass of the target checks ${proposed === 1 ? "1 token" : `${proposed} tokens`}`,
      verdict: proposed ? `${accepted} of ${proposed} accepted` : "nothing was proposed",
      commit: `${round.end - round.start} committed`,
    }[phase];
    setText(this.title, `Round ${this.index + 1} of ${this.rounds.length}: ${words}`);
  }

  schedule() {
    const [delay, act] = this.phases[0];
    this.timer = setTimeout(() => {
      act();
      this.phases.shift();
      if (!this.phases.length) {
        this.index += 1;
        if (this.index >= this.rounds.length) {
          this.running = false;
          this.onEnd?.();
          return;
        }
        this.beginRound();
      }
      if (this.running) this.schedule();
    }, delay / this.pace);
  }
}
