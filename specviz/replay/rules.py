"""Acceptance rules: with what probability a drafted token stands, and where the token comes from if it does not.

A rule is written once, on arrays of probabilities, and serves the engine (torch tensors) and the analysis (numpy
arrays) alike. Throughout, p is the target's and q the draft's next-token distribution, both after temperature and the
other sampling settings, (..., V) over the same V tokens.

Which stopping policies keep a lossless rule lossless. Under `greedy`, `coupled` and `target_sample_match` the output
does not depend on the proposals, so every policy does. Under `rejection` a policy may look at the draft's distribution
and at the text, but not at the token that was then drawn, if it withholds that token, nor may it take tokens back for
what the draft said after them: withholding unlikely draws would make them rarer than the target does. A policy that
looks at the drawn token but proposes it before it stops (`keep`) does no harm: the token is judged like any other. A
policy says so by `looks_at_drawn_token`; `stays_lossless` says what follows, the engine's `Settings` refuse what does
not stay lossless, and `python -m specviz bench rules` measures it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from specviz.errors import SpecVizError
from specviz.replay.generation import LogitRequests
from specviz.replay.sampling import Sampling
from specviz.replay.stop_strings import check_stop_strings
from specviz.trace.recording import Recording

Array = Any  # a numpy array or a torch tensor
LOSSLESS, LOSSY = "lossless", "lossy"
# How the draft takes its token.
LIKELIEST, OWN_DRAW, SHARED_NOISE = "likeliest", "own draw", "shared noise"
TINY = 1e-38  # stands in for a probability of 0 in a denominator


class AcceptanceRule:
    """Base of all rules.

    Attributes:
        name: as given on the command line and written into traces.
        claim: `lossless` (the output is distributed as the target's own) or `lossy`.
        source: where the rule comes from.
        draft_takes: how the draft's token comes about: its likeliest, a draw from q, or the arg max of log q plus the
            noise that the target uses too.
        fixed_output: whether, for a given seed, the output is the same for every draft, threshold and draft length, so
            that a recording replays exactly.
    """

    name: ClassVar[str]
    claim: ClassVar[str]
    source: ClassVar[str]
    draft_takes: ClassVar[str] = OWN_DRAW
    fixed_output: ClassVar[bool] = False
    knob: ClassVar[str | None] = None  # name of the rule's one number, if it has one
    elementwise: ClassVar[bool] = False  # whether a token's acceptance depends on that token's p and q alone

    def accept(self, p: Array, q: Array) -> Array:
        """Probability that each token stands if the draft took it, (..., V)."""
        raise NotImplementedError

    def chance(self, p: Array, q: Array, tokens: Array) -> Array:
        """Probability that each of `tokens` (...) stands if the draft took it, (...), without asking for all others
        where the rule allows."""
        if self.elementwise:
            return self.accept(_take(p, tokens), _take(q, tokens))
        return _take(self.accept(p, q), tokens)

    def after(self, p: Array, q: Array) -> Array:
        """Distribution of the target's own token after a rejection, (..., V), whichever token was rejected.

        `coupled` and `target_sample_match` have none: there the target's token is drawn before anything is judged.
        """
        raise NotImplementedError

    def drafted(self, q: Array) -> Array:
        """Distribution of the draft's token, (..., V)."""
        return q

    def acceptance_rate(self, p: Array, q: Array) -> Array:
        """Probability that the draft's token stands, (...)."""
        return (self.drafted(q) * self.accept(p, q)).sum(-1)

    def effective(self, p: Array, q: Array) -> Array:
        """Distribution of the token that the text gets where a draft's token was judged, (..., V); p if lossless."""
        stands = self.drafted(q) * self.accept(p, q)
        rejected = (1 - stands.sum(-1)).clip(0)  # rounding may take a sum above 1
        return stands + rejected[..., None] * self.after(p, q)

    def settings(self) -> dict:
        """As JSON-able values; `rule_from_settings` inverts it."""
        return {"rule": self.name, **asdict(self)}

    def __str__(self) -> str:
        return self.name if self.knob is None else f"{self.name}={getattr(self, self.knob):g}"


@dataclass(frozen=True)
class Greedy(AcceptanceRule):
    """Accept what equals the target's arg max. The only rule at temperature 0, where every rule comes to this."""

    name = "greedy"
    claim = LOSSLESS
    source = "Leviathan et al. 2023"
    draft_takes = LIKELIEST
    fixed_output = True

    def accept(self, p, q):
        return _one_hot(p)

    def after(self, p, q):
        return _one_hot(p)

    def drafted(self, q):
        return _one_hot(q)


@dataclass(frozen=True)
class Rejection(AcceptanceRule):
    """Accept with min(1, p/q); after a rejection draw from the normalised positive part of p - q."""

    name = "rejection"
    claim = LOSSLESS
    source = "Leviathan et al. 2023, Chen et al. 2023"
    elementwise = True

    def accept(self, p, q):
        return (p / q.clip(TINY)).clip(0, 1)

    def after(self, p, q):
        return residual(p, q)


@dataclass(frozen=True)
class Coupled(AcceptanceRule):
    """Both models take the arg max of log-probability plus the same Gumbel noise, fixed per seed and position.

    The target's token is a draw from p that no proposal influences; the draft's is accepted when it is that token.
    Given that the draft took x, this has probability p(x) / (q(x) sum over y of max(p(y), p(x) q(y) / q(x))).
    """

    name = "coupled"
    claim = LOSSLESS
    source = "Daliri, Musco, Suresh 2024"
    draft_takes = SHARED_NOISE
    fixed_output = True

    def accept(self, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        """As in the base class; numpy only, in O(V log V)."""
        # sorted by r = p / q the maximum is r q(y) for the tokens before x and p(y) from x on
        ratio = np.where(q > 0, p / np.clip(q, TINY, None), np.inf)
        order = np.argsort(ratio, -1)
        sorted_p, sorted_q = np.take_along_axis(p, order, -1), np.take_along_axis(q, order, -1)
        r = np.take_along_axis(ratio, order, -1)
        after_p = np.cumsum(sorted_p[..., ::-1], -1)[..., ::-1]
        before_q = np.cumsum(sorted_q, -1) - sorted_q
        finite = np.isfinite(r) & (sorted_q > 0)
        chance = np.where(finite, r, 0) / np.where(finite, after_p + np.where(finite, r, 0) * before_q, 1).clip(TINY)
        found = np.empty_like(chance)
        np.put_along_axis(found, order, chance, -1)
        return found.clip(0, 1)

    def effective(self, p, q):
        return p


@dataclass(frozen=True)
class TargetSampleMatch(AcceptanceRule):
    """Draw from the target; accept the draft's likeliest token if it is what was drawn."""

    name = "target_sample_match"
    claim = LOSSLESS
    source = "llama.cpp's speculative decoding"
    draft_takes = LIKELIEST
    fixed_output = True

    def accept(self, p, q):
        return p

    def drafted(self, q):
        return _one_hot(q)

    def effective(self, p, q):
        return p


@dataclass(frozen=True)
class Lenient(AcceptanceRule):
    """Accept with min(1, p / (l q)); after a rejection as `rejection`. No token is more likely than p / l."""

    name = "lenient"
    claim = LOSSY
    source = "Leviathan et al. 2023, lenience"
    knob = "lenience"
    elementwise = True

    lenience: float = 0.5

    def __post_init__(self) -> None:
        _check(0 < self.lenience <= 1, self, "above 0 and at most 1 (1 is lossless)")

    def accept(self, p, q):
        return (p / (self.lenience * q).clip(TINY)).clip(0, 1)

    def after(self, p, q):
        return residual(p, q)


@dataclass(frozen=True)
class TopK(AcceptanceRule):
    """Accept when the draft's token is among the target's k likeliest; otherwise draw from p."""

    name = "top_k"
    claim = LOSSY
    source = "a relaxation of greedy acceptance, as in Stern et al. 2018, section 5.1"
    knob = "k"

    k: int = 3

    def __post_init__(self) -> None:
        _check(1 <= self.k < np.inf and self.k == int(self.k), self, "a whole number from 1")
        object.__setattr__(self, "k", int(self.k))

    def accept(self, p, q):
        smallest = _kth_largest(p, min(self.k, p.shape[-1]))[..., None]
        return ((p >= smallest) & (p > 0)) * 1.0

    def after(self, p, q):
        return p


@dataclass(frozen=True)
class Typical(AcceptanceRule):
    """Accept when p exceeds min(e, sqrt(e) exp(-entropy of p)); otherwise draw from p."""

    name = "typical"
    claim = LOSSY
    source = "Cai et al. 2024 (Medusa), typical acceptance"
    knob = "bound"

    bound: float = 0.09

    def __post_init__(self) -> None:
        _check(0 < self.bound <= 1, self, "above 0 and at most 1")

    def accept(self, p, q):
        # exp(-entropy) as a product, since p log p has to be 0 where p is
        negative_entropy = (p * _log(p.clip(TINY))).sum(-1)
        limit = (self.bound**0.5 * _exp(negative_entropy)).clip(0, self.bound)
        return (p > limit[..., None]) * 1.0

    def after(self, p, q):
        return p


RULES: dict[str, type[AcceptanceRule]] = {
    rule.name: rule for rule in (Greedy, Rejection, Coupled, TargetSampleMatch, Lenient, TopK, Typical)
}


def rule_from_settings(settings: dict) -> AcceptanceRule:
    """The rule that `AcceptanceRule.settings` described."""
    knobs = dict(settings)
    name = knobs.pop("rule", None)
    if name not in RULES:
        raise SpecVizError(f"There is no acceptance rule {name!r}; choose one of {', '.join(RULES)}.")
    try:
        return RULES[name](**knobs)
    except TypeError as error:
        raise SpecVizError(f"The settings {knobs} do not fit the acceptance rule {name!r}: {error}.") from error


def recorded_rule(settings: Mapping) -> type[AcceptanceRule]:
    """The kind of rule that a trace or recording was made under; before there was a choice it was `greedy`.

    Raises:
        SpecVizError: there is no such rule.
    """
    name = settings.get("rule", Greedy.name)
    if not isinstance(name, str) or name not in RULES:
        raise SpecVizError(f"This was made under an acceptance rule that is not known here, {str(name)[:40]!r}.")
    return RULES[name]


def recorded_drawing(
    recording: Recording,
) -> tuple[Sampling, AcceptanceRule, int, LogitRequests, tuple[str, ...]]:
    """Sampling settings, rule, seed, other requests and stop strings that a recording was made with.

    A recording from before the target's generation config counted has followed nothing of it.

    Raises:
        SpecVizError: its settings are not those of a recording.
    """
    settings = recording.settings
    rule, values = recorded_rule(settings), settings.get("sampling", {})
    try:
        return (
            Sampling(**{"repetition_penalty": 1.0, **values}),
            rule(),
            recording.seed,
            LogitRequests.of(settings.get("generation_config", {})),
            check_stop_strings(settings.get("stop", ())),
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise SpecVizError("The sampling settings of this recording are damaged; record it again.") from error


def rule_from_text(text: str) -> AcceptanceRule:
    """A rule as written on the command line: its name, for lossy rules with a number, such as `lenient=0.5`.

    Raises:
        SpecVizError: there is no such rule, or the number does not fit.
    """
    name, equals, value = text.partition("=")
    rule = rule_from_settings({"rule": name})
    if not equals:
        return rule
    if rule.knob is None:
        raise SpecVizError(f"The acceptance rule {name} takes no number; leave out ={value}.")
    try:
        number = float(value)
    except ValueError as error:
        raise SpecVizError(f"{value!r} is not a number; write {name}=… with one, such as {rule}.") from error
    return type(rule)(**{rule.knob: number})


def stays_lossless(rule: AcceptanceRule, looks_at_drawn_token: bool, on_fail: str) -> bool:
    """Whether the output keeps the target's distribution when drafting stops early.

    Args:
        looks_at_drawn_token: as policies say (`Policy.looks_at_drawn_token`).
        on_fail: "drop" or "keep" the token that fails.
    """
    return rule.claim == LOSSLESS and (rule.fixed_output or not looks_at_drawn_token or on_fail == "keep")


def residual(p: Array, q: Array) -> Array:
    """The normalised positive part of p - q; p where that is empty, which happens only by rounding."""
    positive = (p - q).clip(0)
    total = positive.sum(-1)[..., None]
    empty = (total <= 0) * 1.0
    return (positive + empty * p) / (total + empty * p.sum(-1)[..., None])


def _check(fits: bool, rule: AcceptanceRule, allowed: str) -> None:
    if not fits:
        raise SpecVizError(f"The {rule.knob} of {rule.name} is {getattr(rule, rule.knob)}; it must be {allowed}.")


def _one_hot(values: Array) -> Array:
    """1 at the first maximum, 0 elsewhere."""
    found = values * 0
    best = values.argmax(-1)[..., None]
    if isinstance(values, np.ndarray):
        np.put_along_axis(found, best, 1, -1)
        return found
    return found.scatter(-1, best, 1)


def _take(values: Array, tokens: Array) -> Array:
    """The value of each token: (..., V) and (...) give (...)."""
    if isinstance(values, np.ndarray):
        return np.take_along_axis(values, tokens[..., None], -1)[..., 0]
    return values.gather(-1, tokens[..., None])[..., 0]


def _kth_largest(values: Array, k: int) -> Array:
    if isinstance(values, np.ndarray):
        return np.partition(values, -k, -1)[..., -k]
    return values.topk(k, -1).values[..., -1]


def _log(values: Array) -> Array:
    return np.log(values) if isinstance(values, np.ndarray) else values.log()


def _exp(values: Array) -> Array:
    return np.exp(values) if isinstance(values, np.ndarray | np.generic) else values.exp()
