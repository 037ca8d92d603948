"""Is speculation worth it here, and with which setting? One recommendation for every page, command and report.

It comes from one search, over threshold, draft length and what happens to the token that fails (`tuning.tune`), and
from what was measured of it. A page or command that holds one of the three fixed shows the best of what is left, says
what it holds fixed, and shows this beside it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specviz.analysis.bootstrap import Interval
from specviz.analysis.checks import Check
from specviz.analysis.cost_model import outside_words
from specviz.analysis.tuning import FLAT, Choice, Tuning, more_prompts

SPECULATE, DO_NOT, WITHDRAWN = "speculate", "do not speculate", "withdrawn"
NEGLIGIBLE = 0.01  # a draft that saves fewer target passes than this share saves none to speak of


@dataclass(frozen=True, eq=False)
class Advice:
    """What to do.

    Attributes:
        answer: SPECULATE; DO_NOT, where a gain is impossible, a loss or not certain; WITHDRAWN, where a measurement
            contradicts the cost model.
        recommendation: one sentence.
        sentences: what it rests on and how well that is known.
    """

    tuning: Tuning
    answer: str
    recommendation: str
    sentences: tuple[str, ...]

    @property
    def choice(self) -> Choice:
        """The best setting that was found, whether or not it is worth using."""
        return self.tuning.best

    @property
    def text(self) -> str:
        """Everything, as one paragraph."""
        return " ".join((self.recommendation, *self.sentences))


def advise(tuning: Tuning, checks: Sequence[Check] = ()) -> Advice:
    """The recommendation.

    Args:
        checks: points of these recordings that were really measured, beside what the cost model predicts for them.
    """
    best = tuning.best
    measured = tuple(check.sentence for check in checks)
    contradicted = [check for check in checks if check.contradicts]
    if contradicted:
        return Advice(
            tuning,
            WITHDRAWN,
            contradicted[-1].sentence,
            tuple(check.sentence for check in checks if check is not contradicted[-1]),
        )
    known = (*_how_well_known(tuning), *_beyond(tuning))
    expected = best.held_out
    passes = tuning.most_tokens_per_pass
    if passes - 1 < NEGLIGIBLE:
        words = (
            "Do not speculate with this pair: the target accepts hardly any token of the draft, so that a target pass "
            f"gives at most {passes:.2f} tokens, where plain decoding gives 1."
        )
        return Advice(tuning, DO_NOT, words, (*measured, *_beyond(tuning)))
    if not expected.value > 1:
        words = f"Do not speculate with this pair here: even the best setting is slower, {_expectation(tuning, best)}."
        return Advice(tuning, DO_NOT, words, (*measured, *known))
    if not surely_pays(expected):
        words = (
            "Do not speculate with this pair yet: the best setting may be no faster than plain decoding, "
            f"{_expectation(tuning, best)}."
        )
        return Advice(tuning, DO_NOT, words, (*measured, *_needed(tuning), *_beyond(tuning)))
    return Advice(tuning, SPECULATE, _use(tuning, best), (*measured, *known))


def surely_pays(speedup: Interval) -> bool:
    """Whether a speedup is above 1 with its whole interval, where it has one."""
    return speedup.value > 1 and not speedup.low <= 1


def setting_words(choice: Choice) -> str:
    """The setting in the short words that links and buttons use."""
    if choice.name == "fixed":
        return f"γ = {choice.max_draft} without a threshold"
    return f"τ = {choice.threshold:.2f}, γ = {choice.max_draft}, {choice.on_fail}"


def _use(tuning: Tuning, best: Choice) -> str:
    if best.name == "fixed":
        return f"Use a fixed draft length of {best.max_draft} without a threshold: {_expectation(tuning, best)}."
    fate = (
        "propose the token that fails it (keep)" if best.name == "keep" else "withhold the token that fails it (drop)"
    )
    return (
        f"Use threshold {best.threshold:.2f} and draft length {best.max_draft}, and {fate}: "
        f"{_expectation(tuning, best)}; any threshold from {best.flat[0]:.2f} to {best.flat[1]:.2f} is within "
        f"{FLAT:.0%} of that."
    )


def _expectation(tuning: Tuning, choice: Choice) -> str:
    expected = choice.held_out
    if tuning.prompts < 2:
        return f"{expected.value:.2f}× plain decoding on this one prompt{_range(expected)}"
    return f"expect {expected.value:.2f}× plain decoding on new prompts{_range(expected)}"


def _range(interval: Interval) -> str:
    if math.isnan(interval.low):
        return ""
    return f" ({interval.level:.0%} interval {interval.low:.2f} to {interval.high:.2f})"


def _how_well_known(tuning: Tuning) -> tuple[str, ...]:
    best, fixed, gain = tuning.best, tuning.fixed, tuning.gain
    if tuning.prompts < 2:
        return ("One prompt says nothing about others; record more to learn what to expect of new prompts.",)
    first = (
        "Chosen among thresholds in steps of 0.01, all draft lengths, and both fates of the token that fails (drop and "
        f"keep), and judged over {tuning.prompts} prompts in {len(best.fold_choices)} folds: settings chosen on other "
        f"prompts are {best.regret:.1%} slower than the best in hindsight."
    )
    rival = "plain decoding"
    if best is not fixed:
        rival = f"the best fixed draft length (γ = {fixed.max_draft}, {fixed.held_out.value:.2f}×)"
    second = (
        f"Against {rival} the speedup differs by {gain.value:+.3f} "
        f"({gain.level:.0%} interval {gain.low:+.3f} to {gain.high:+.3f})."
    )
    if tuning.more_prompts == 0:
        third = "That is settled: the interval lies on one side."
    elif tuning.more_prompts is None:
        third = "That is so little that no reasonable number of prompts would settle it; take either."
    else:
        third = f"About {tuning.more_prompts} more prompts of this kind would settle it."
    return first, second, third


def _needed(tuning: Tuning) -> tuple[str, ...]:
    """How many more prompts would settle whether speculation pays at all."""
    expected = tuning.best.held_out
    over_plain = Interval(expected.value - 1, expected.low - 1, expected.high - 1, expected.level)
    needed = more_prompts(over_plain, tuning.prompts)
    if not needed:
        return ("The gain is so little that no reasonable number of prompts would settle it.",)
    return (f"About {needed} more prompts of this kind would settle whether it is faster.",)


def _beyond(tuning: Tuning) -> tuple[str, ...]:
    words = outside_words(tuning.outside, tuning.prompts)
    return (words,) if words else ()
