// Finding what Python worked out: which rounds take place at a threshold, and what is known of each of their steps.

// How many values of a rising list are at or below x.
function countUpTo(rising, x) {
  let low = 0;
  let high = rising.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rising[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low;
}

class Lookup {
  constructor(recording, rounds) {
    this.recording = recording;
    this.rounds = rounds;
    this.changeThresholds = rounds.changes.map((level) => (level ? rounds.levels[level - 1] : 0));
  }

  // Index into every list of numbers: the stretch of thresholds without a change that holds tau.
  stretchAt(tau) {
    return countUpTo(this.changeThresholds, tau) - 1;
  }

  // The rounds at tau, in order: {key, start, steps, target, reason, end}.
  roundsAt(tau) {
    const level = countUpTo(this.rounds.levels, tau);
    const found = [];
    for (let start = 0; start < this.rounds.emitted; ) {
      const variants = this.rounds.starts[start];
      let index = variants.length - 1;
      while (variants[index][0] > level) index -= 1;
      const [, steps, target, reason, end] = variants[index];
      found.push({ key: start * 64 + index, start, steps, target, reason, end });
      start = end;
    }
    return found;
  }

  // Step `index` of a round: {letter, position, token, confidence, entropy, branch}.
  step(round, index) {
    const { recording } = this;
    const letter = round.steps[index];
    const position = round.start + index;
    const rejected = round.steps.indexOf("r");
    if (rejected < 0 || index <= rejected) {
      return {
        letter, position, token: recording.draft[position], confidence: recording.confidence[position],
        entropy: recording.entropy[position], branch: false,
      };
    }
    const at = recording.branchOffsets[round.start + rejected] + index - rejected - 1;
    return {
      letter, position, token: recording.branch[at], confidence: recording.branchConfidence[at],
      entropy: recording.branchEntropy[at], branch: true,
    };
  }

  confidence(round, index) {
    const rejected = round.steps.indexOf("r");
    if (rejected < 0 || index <= rejected) return this.recording.confidence[round.start + index];
    return this.recording.branchConfidence[this.recording.branchOffsets[round.start + rejected] + index - rejected - 1];
  }

  text(token) {
    return token < 0 ? "" : this.recording.texts[token];
  }
}

// A token on its own: spaces and line breaks made visible.
function visible(text) {
  return text.replaceAll("\n", "").replaceAll(" ", "·");
}
