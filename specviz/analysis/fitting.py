"""What the fitted policies learn from a training set of recordings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from specviz.analysis.cost_model import CostModel, rates
from specviz.analysis.draft_calibration import log_odds
from specviz.analysis.prediction import predict
from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold, Policy, PolicyReplayer
from specviz.replay.contexts import KINDS, flags_as_text, kinds_of_positions
from specviz.replay.one_setting import Rounds
from specviz.replay.policies import FEATURES, ContextThreshold, CostAware, Learned

CHANCE_BINS = 25
MOST_ITERATIONS = 8
SETTLED = 1e-4  # relative change of the time per token
TRAINING_THRESHOLDS = (0.0, 0.3, 0.6)  # rounds of these settings give the learned policy its depths and outcomes


@dataclass
class Training:
    """The prompts that a policy is fitted to, and the prices it is fitted for.

    Args:
        replayer: of the training recordings.
        flags: of the vocabulary (`specviz.replay.contexts`); None where token texts are unknown.
    """

    replayer: PolicyReplayer
    cost: CostModel
    pass_mode: str | None = None
    flags: bytes | None = None

    def seconds(self, policies: Policy | Sequence[Policy]) -> np.ndarray:
        """(R,) predicted seconds of each training recording."""
        found = predict(
            self.replayer.counts(policies),
            self.cost,
            pass_mode=self.pass_mode,
            prompt_tokens=self.replayer.prompt_tokens,
        )
        return found.seconds

    @cached_property
    def cost_aware(self) -> CostAware:
        """The cost-aware policy at the time per token that it brings about itself."""
        outputs = [len(rounds.output) for rounds in self.replayer.rounds]
        price = rates(self.cost, self.pass_mode, self.replayer.prompt_tokens, outputs, self.replayer.max_draft)
        middle = np.asarray(self.replayer.prompt_tokens) + np.asarray(outputs) / 2

        def at_middle(lines):
            """Seconds at the middle of each generation, averaged over tokens."""
            context = middle.reshape(-1, *(1 for _ in lines.shape[1:-1]))
            return np.average(lines[..., 0] + lines[..., 1] * context, axis=0, weights=outputs)

        chances, next_chances = _chances(self.replayer.rounds)
        tokens = sum(outputs)
        wait = float(at_middle(price.plain))
        for _ in range(MOST_ITERATIONS):
            policy = CostAware(
                verify_seconds=at_middle(price.target).tolist(),
                draft_seconds=float(at_middle(price.draft)),
                token_seconds=wait,
                chances=chances,
                next_chances=next_chances,
            )
            before, wait = wait, min(wait, float(self.seconds(policy).sum()) / tokens)
            if before - wait <= SETTLED * before:
                break
        return policy

    @cached_property
    def learned(self) -> tuple[list[float], float]:
        """Weights and intercept of the learned policy."""
        rows, accepted = [], []
        for rounds in self.replayer.rounds:
            for threshold in TRAINING_THRESHOLDS:
                _tested_steps(rounds, ConfidenceThreshold(threshold, "keep"), rows, accepted)
        if len(set(accepted)) < 2:
            return [0.0] * len(FEATURES), 20.0 if accepted and accepted[0] else -20.0
        from sklearn.linear_model import LogisticRegression  # slow to import, and most pages fit nothing
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        model = make_pipeline(StandardScaler(), LogisticRegression())
        model.fit(np.array(rows), np.array(accepted))
        scaler, logistic = model.steps[0][1], model.steps[1][1]
        weights = logistic.coef_[0] / scaler.scale_
        return weights.tolist(), float(logistic.intercept_[0] - weights @ scaler.mean_)

    @cached_property
    def context_model(self) -> tuple[float, np.ndarray]:
        """Slope of the log-odds of the confidence, and an intercept for each kind of position (pulled to the common one
        where there is little to learn from)."""
        if self.flags is None:
            raise SpecVizError("Kinds of position need token texts, and those of this set are not known.")
        recordings = self.replayer.recordings
        kinds = np.concatenate([kinds_of_positions(one, self.flags) for one in recordings])
        confidence = np.concatenate([one.draft_confidence for one in recordings])
        accepted = np.concatenate([one.draft_token == one.output_ids for one in recordings])
        if accepted.all() or not accepted.any():
            return 1.0, np.full(len(KINDS), 20.0 if accepted.all() else -20.0)
        columns = np.column_stack([log_odds(confidence), np.eye(len(KINDS))[kinds]])
        from sklearn.linear_model import LogisticRegression  # slow to import

        model = LogisticRegression().fit(columns, accepted)
        return max(float(model.coef_[0, 0]), 1e-3), model.intercept_[0] + model.coef_[0, 1:]

    def context_threshold(self, chance: float) -> ContextThreshold:
        """For each kind the confidence at which a token is accepted with this chance."""
        slope, intercepts = self.context_model
        thresholds = 1 / (1 + np.exp(-np.clip((log_odds(chance) - intercepts) / slope, -500, 500)))
        return ContextThreshold(dict(zip(KINDS, thresholds.tolist(), strict=True)), flags_as_text(self.flags), "keep")


def _chances(rounds: Sequence[Rounds]) -> tuple[list[float], list[float]]:
    """In bins of the confidence: the chance of acceptance, and that of the next token once this one is accepted."""
    confidence, accepted, before, after = [], [], [], []
    for one in rounds:
        said = [one.said_after(start)[0].confidence for start in range(len(one.output))]
        right = [run > 0 for run in one.right_run[:-1]]
        confidence += said
        accepted += right
        before += [value for value, is_right in zip(said, right[:-1], strict=False) if is_right]
        after += [later for is_right, later in zip(right, right[1:], strict=False) if is_right]
    centres = (np.arange(CHANCE_BINS) + 0.5) / CHANCE_BINS

    def rising(values: Sequence[float], outcomes: Sequence[bool]) -> list[float]:
        if not outcomes:
            return [0.0] * CHANCE_BINS
        from sklearn.isotonic import IsotonicRegression  # slow to import

        model = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
        model.fit(np.array(values), np.array(outcomes, np.float64))
        return model.predict(centres).tolist()

    return rising(confidence, accepted), rising(before, after)


def _tested_steps(rounds: Rounds, policy: Policy, rows: list, accepted: list) -> None:
    """Append features and outcome of every draft step that the target judged under this policy."""
    start, outcome = 0, 1.0
    policy.begin(rounds.prompt)
    while start < len(rounds.output):
        turn = rounds.play(start, policy)
        for stats in turn.drafted[: turn.accepted + 1]:
            rows.append((stats.confidence, stats.entropy, stats.margin, stats.depth, outcome))
            accepted.append(stats.depth < rounds.right_run[start])
        if turn.proposed:
            outcome = turn.accepted / turn.proposed
        start = turn.end


MakePolicy = Callable[[float, Training], Policy]


def learned_policy(bound: float, training: Training) -> Learned:
    """The fitted logistic model with this bound on the chance."""
    weights, intercept = training.learned
    return Learned(weights, intercept, bound, "keep")
