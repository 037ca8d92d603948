"""Is the output still the target's? Tests of distributions, exactness of greedy decoding, and drift of lossy rules."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specviz.analysis.cost_model import CostModel
from specviz.analysis.prediction import predict, ratio
from specviz.errors import SpecVizError
from specviz.replay import RoundCounts
from specviz.replay.rules import AcceptanceRule
from specviz.trace import PairInfo, Recording, near_tie_epsilons

ALPHA = 1e-4  # the chance that a distribution test fails where nothing is wrong
LEAST_EXPECTED = 5.0  # rarer outcomes are counted together, as the chi-square distribution asks


@dataclass(frozen=True)
class DistributionTest:
    """Drawn outcomes against an exact distribution.

    Attributes:
        samples: outcomes drawn.
        total_variation: between the shares drawn and the distribution; with finitely many samples never 0.
        bound: what sampling noise alone exceeds with a chance of at most `alpha`.
        p_value: of the chi-square statistic.
        cells: outcomes that were told apart in it.
    """

    samples: int
    total_variation: float
    bound: float
    p_value: float
    cells: int
    alpha: float = ALPHA

    @property
    def passed(self) -> bool:
        """Neither test sees a difference."""
        return self.total_variation <= self.bound and self.p_value >= self.alpha

    @property
    def verdict(self) -> str:
        """One sentence in plain words."""
        if self.passed:
            return (
                f"No difference from the target in {self.samples:,} samples: chance alone gives a chi-square as large "
                f"in {self.p_value:.1%} of such tests."
            )
        return (
            f"Not the target's distribution: in {self.samples:,} samples it is off by {self.total_variation:.3f} in "
            f"total variation, and chance alone gives a chi-square as large in fewer than "
            f"{max(self.p_value, 1e-12):.1g} of such tests."
        )


def test_distribution(counts: np.ndarray, probabilities: np.ndarray, alpha: float = ALPHA) -> DistributionTest:
    """Test whether `counts` of outcomes can come from `probabilities`, both of any one shape.

    The bound on the total variation D of n samples is E D + sqrt(ln(1/alpha) / 2n) with E D at most
    sum sqrt(p (1 - p) / n) / 2: one sample moves D by at most 1/n, so McDiarmid's inequality applies. An outcome of
    probability 0 that was drawn fails the chi-square test outright.

    Raises:
        SpecVizError: nothing was drawn, or shapes differ.
    """
    from scipy.special import chdtrc  # slow to import, and pages only read what was tested

    counts, probabilities = np.asarray(counts, np.float64).ravel(), np.asarray(probabilities, np.float64).ravel()
    samples = counts.sum()
    if counts.shape != probabilities.shape or samples <= 0:
        raise SpecVizError("A distribution is tested with counts of the same outcomes, at least one of them drawn.")
    probabilities = probabilities / probabilities.sum()
    distance = 0.5 * np.abs(counts / samples - probabilities).sum()
    noise = 0.5 * np.sqrt(probabilities * (1 - probabilities) / samples).sum()
    bound = noise + np.sqrt(np.log(1 / alpha) / (2 * samples))

    expected = samples * probabilities
    order = np.argsort(expected)[np.count_nonzero(expected == 0) :]
    together = max(np.count_nonzero(expected[order] < LEAST_EXPECTED), 1)
    together = max(together, int(np.searchsorted(np.cumsum(expected[order]), LEAST_EXPECTED)) + 1)
    rare, others = order[:together], order[together:]
    observed_cells = np.append(counts[others], counts[rare].sum())
    expected_cells = np.append(expected[others], expected[rare].sum())
    impossible = counts[probabilities == 0].sum() > 0
    statistic = ((observed_cells - expected_cells) ** 2 / expected_cells).sum()
    freedom = len(expected_cells) - 1
    p_value = 0.0 if impossible else 1.0 if freedom == 0 else float(chdtrc(freedom, statistic))
    return DistributionTest(int(samples), float(distance), float(bound), p_value, len(expected_cells), alpha)


test_distribution.__test__ = False  # pytest would take it for a test


def total_variation(p: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Half the sum of absolute differences, (...) of (..., V): the share of tokens that a best coupling changes."""
    return 0.5 * np.abs(np.asarray(p, np.float64) - other).sum(-1)


def kl_divergence(other: np.ndarray, p: np.ndarray) -> np.ndarray:
    """KL(other || p) in nats, (...) of (..., V); infinite where `other` allows what p does not."""
    other, p = np.broadcast_arrays(np.asarray(other, np.float64), np.asarray(p, np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(other > 0, other * (np.log(other) - np.log(p)), 0.0)
    return np.maximum(terms.sum(-1), 0)


@dataclass(frozen=True)
class AcceptancePicture:
    """How one drafted token is judged: distributions over the same tokens, in the order of p, and what follows."""

    p: np.ndarray  # (V,) target
    q: np.ndarray  # (V,) draft
    overlap: np.ndarray  # (V,) min(p, q)
    residual: np.ndarray  # (V,) the positive part of p - q, not normalised
    accept: np.ndarray  # (V,) probability that the token stands if drafted
    effective: np.ndarray  # (V,) distribution of the token that the text gets
    acceptance_rate: float
    total_variation: float  # of effective from p
    kl: float  # of effective from p, nats


def acceptance_picture(rule: AcceptanceRule, p: np.ndarray, q: np.ndarray) -> AcceptancePicture:
    """The picture of one position under `rule`, for distributions (V,) over the same tokens."""
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    effective = rule.effective(p, q)
    return AcceptancePicture(
        p=p,
        q=q,
        overlap=np.minimum(p, q),
        residual=np.maximum(p - q, 0),
        accept=rule.accept(p, q),
        effective=effective,
        acceptance_rate=float(rule.acceptance_rate(p, q)),
        total_variation=float(total_variation(effective, p)),
        kl=float(kl_divergence(effective, p)),
    )


@dataclass(frozen=True)
class GreedyExactness:
    """Greedy speculative outputs against plain ones of the same prompts."""

    outputs: int
    equal: int
    tokens: int  # compared, up to and with the first difference of each output
    explained: int  # outputs that differ first where the target's two best logits nearly tie
    smallest_margin: float  # of the target at any compared position, in logits

    @property
    def passed(self) -> bool:
        return self.equal + self.explained == self.outputs

    @property
    def verdict(self) -> str:
        """One sentence in plain words."""
        head = f"{self.equal} of {self.outputs} outputs equal plain greedy decoding, {self.tokens:,} tokens compared"
        if self.equal == self.outputs:
            return f"{head}; the nearest call between two tokens was {self.smallest_margin:.4f} logits."
        if self.passed:
            return f"{head}; the others part where the target's two best tokens nearly tie, so rounding decides."
        return f"{head}; {self.outputs - self.equal - self.explained} part where the target was not in doubt."


def greedy_exactness(
    outputs: Sequence[Sequence[int]],
    plain: Sequence[Sequence[int]],
    margins: Sequence[Sequence[float]],
    pair: PairInfo,
) -> GreedyExactness:
    """Compare outputs, one per prompt, with plain decoding.

    Args:
        margins: the target's top-1 minus top-2 logit at each position of the outputs.
    """
    epsilon = near_tie_epsilons(pair)[1]
    equal = explained = tokens = 0
    smallest = np.inf
    for output, expected, margin in zip(outputs, plain, margins, strict=True):
        first = first_divergence(output, expected)
        shorter = min(len(output), len(expected))
        compared = shorter if first is None else min(first + 1, shorter)
        tokens += compared
        smallest = min(smallest, *margin[:compared])
        equal += first is None
        explained += first is not None and first < shorter and margin[first] < epsilon
    return GreedyExactness(len(outputs), equal, tokens, explained, float(smallest))


def perplexity(recording: Recording) -> float:
    """Of the recorded text under the target, at the settings it was sampled with."""
    return float(np.exp(-np.log(np.maximum(recording.target_prob_of_emitted.astype(np.float64), 1e-38)).mean()))


def first_divergence(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position at which two outputs differ, None if they are equal."""
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))


@dataclass(frozen=True)
class DriftedText:
    """What rules do along one text that the target wrote; see `specviz.engine.drift.TextDrift` for the arrays.

    Shapes: N output positions, R rules in the order of `RuleDrift.rules`.
    """

    prompt_tokens: int
    confidence: np.ndarray  # (N,)
    entropy: np.ndarray  # (N,)
    accept: np.ndarray  # (R, N)
    kl: np.ndarray  # (R, N)
    total_variation: np.ndarray  # (R, N)
    surprise: np.ndarray  # (R, N)


@dataclass(frozen=True)
class RuleDrift:
    """Several texts under the same rules."""

    rules: tuple[AcceptanceRule, ...]
    texts: tuple[DriftedText, ...]


@dataclass(frozen=True)
class TradeOff:
    """One rule at one threshold and draft length: what it gains and what it changes, per emitted token."""

    rule: AcceptanceRule
    speedup: float  # modelled, over plain decoding
    tokens_per_target_pass: float
    acceptance_rate: float  # accepted / proposed
    kl: float  # nats, effective from target
    total_variation: float
    agreement: float  # chance that a token is one the target could as well have drawn itself: 1 - total variation
    perplexity: float  # under the target


def trade_offs(
    drift: RuleDrift, cost: CostModel, threshold: float, max_draft: int, *, pass_mode: str | None = None
) -> list[TradeOff]:
    """Every rule at one setting, in the order of `drift.rules`.

    Rounds are followed along the texts as in `replay_expected`, with the mean acceptance of each position; a position
    drifts as far as the rule moves it, times the chance that a drafted token is judged there, and tokens of
    the target's own do not drift at all. Two things are taken as along the text: what is drafted after a rejection,
    and the contexts of lossy rules, whose own texts would lead elsewhere.

    Raises:
        SpecVizError: the cost model does not cover this.
    """
    walks = [_Rounds(text, threshold, max_draft) for text in drift.texts]
    prompts = [text.prompt_tokens for text in drift.texts]
    entropy = np.concatenate([text.entropy for text in drift.texts])
    found = []
    for row, rule in enumerate(drift.rules):
        followed = [walk.follow(text.accept[row]) for walk, text in zip(walks, drift.texts, strict=True)]
        counts = RoundCounts(
            *(np.stack([getattr(one, name) for one, _ in followed]) for name in RoundCounts.__dataclass_fields__)
        )
        price = predict(counts, cost, pass_mode=pass_mode, prompt_tokens=prompts)
        judged = np.concatenate([judged for _, judged in followed])
        kl, distance, surprise = (
            np.concatenate([getattr(text, name)[row] for text in drift.texts])
            for name in ("kl", "total_variation", "surprise")
        )
        drifted = float((judged * distance).mean())
        found.append(
            TradeOff(
                rule=rule,
                speedup=float(price.plain_seconds.sum() / price.seconds.sum()),
                tokens_per_target_pass=float(counts.emitted.sum() / counts.rounds.sum()),
                acceptance_rate=float(ratio(counts.accepted.sum(), counts.proposed.sum())),
                kl=float((judged * kl).mean()),
                total_variation=drifted,
                agreement=1 - drifted,
                perplexity=float(np.exp((judged * surprise + (1 - judged) * entropy).mean())),
            )
        )
    return found


class _Rounds:
    """Rounds along one text at one threshold and draft length."""

    def __init__(self, text: DriftedText, threshold: float, max_draft: int) -> None:
        number = len(text.confidence)
        self._max_draft, self._prompt, self._number = max_draft, text.prompt_tokens, number
        sure = text.confidence > threshold
        self._lengths = np.zeros(number, np.int64)  # proposed by a round that starts here
        self._withheld = np.zeros(number, bool)
        for start in range(number):
            limit = min(max_draft, number - start - 1)
            unsure = np.flatnonzero(~sure[start : start + limit])
            self._lengths[start] = unsure[0] if unsure.size else limit
            self._withheld[start] = unsure.size > 0

    def follow(self, accept: np.ndarray) -> tuple[RoundCounts, np.ndarray]:
        """Expected counts, and the chance of each position to have a drafted token judged, (N,)."""
        number, bins = self._number, self._max_draft + 1
        starts, judged = np.zeros(number + 1), np.zeros(number)
        starts[0] = 1
        lengths, contexts = np.zeros(bins), np.zeros(bins)
        all_used = 0.0
        for start in range(number):
            weight, length = starts[start], self._lengths[start]
            reached = weight
            for depth in range(length):
                judged[start + depth] += reached
                starts[start + depth + 1] += reached * (1 - accept[start + depth])
                reached *= accept[start + depth]
            starts[start + length + 1] += reached
            all_used += reached * (length > 0 and not self._withheld[start] and start + length + 1 < number - 1)
            lengths[length] += weight
            contexts[length] += weight * (self._prompt + start)
        weights = starts[:-1]
        steps = self._lengths + self._withheld
        before = self._prompt + np.arange(number)
        proposed, tested = (weights * self._lengths).sum(), judged.sum()
        rounds = weights.sum()
        return (
            RoundCounts(
                rounds=rounds,
                draft_steps=(weights * steps).sum(),
                proposed=proposed,
                tested=tested,
                accepted=number - rounds,
                discarded=proposed - tested,
                withheld=(weights * self._withheld).sum(),
                emitted=np.asarray(number),
                two_token_steps=np.asarray(all_used),
                proposal_lengths=lengths,
                verify_context=contexts,
                draft_context=(weights * (steps * before + steps * (steps - 1) // 2)).sum(),
            ),
            judged,
        )
