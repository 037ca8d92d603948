"""A recording: what is needed to replay any threshold, draft length and policy on one prompt.

With a deterministic target the output does not depend on how it was drafted. So two things settle every round:
what the draft says after each prefix of the output, and, wherever it is wrong, how it would have gone on. The first
wrong token of a draft phase sits at some output position w; what the draft proposes after it depends on nothing else,
so one branch per wrong position is enough.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from specviz.errors import SpecVizError
from specviz.trace.columns import ABOVE_0, INT, TEXT, Column, logit_margin, nats, probability, word
from specviz.trace.limits import (
    MOST_DRAFT,
    MOST_EOS,
    MOST_NAME,
    MOST_OUTPUT,
    MOST_PROMPT,
    MOST_PROMPT_TEXT,
    MOST_RECORDINGS,
    MOST_SETTINGS,
)
from specviz.trace.trace import PairInfo

TOP_TOKENS = 5
TEXT_ENDS = ("eos", "stop")  # finish reasons of a text that ended by itself

# One value of a kind per recording.
SCALAR_COLUMNS = (
    Column("prompt_id", TEXT, "", "unique in its set", most=MOST_NAME),
    Column("category", TEXT, "", "kind of prompt; may be empty", most=MOST_NAME),
    Column("prompt", TEXT, "", "the prompt as it was written", most=MOST_PROMPT_TEXT),
    Column("seed", "int64", "", "of everything drawn", least=-(2**63), most=2**63 - 1),
    word("finish_reason", "what ended the output: eos, length or context"),
    Column("max_new_tokens", "int64", "tokens", "as asked for when recording", least=1),
    Column("output_limit", "int64", "tokens", "most output tokens that fit the context after this prompt", least=1),
)
# One value (or TOP_TOKENS values) per output position: what both models say after the output before it.
POSITION_COLUMNS = (
    Column("draft_token", INT, "", "the token the draft takes: greedily its most likely one"),
    probability("draft_confidence", "probability of the draft's most likely token, after temperature", least=ABOVE_0),
    nats("draft_entropy", "entropy of the draft's distribution"),
    probability("draft_margin", "the draft's top-1 minus top-2 probability"),
    probability("draft_prob_of_emitted", "the draft's probability of the emitted token"),
    probability("target_prob_of_draft_token", "the target's probability of the draft's token"),
    Column("target_rank_of_draft_token", INT, "", "rank of the draft's token for the target, 1 = most likely", least=1),
    nats("target_entropy", "entropy of the target's distribution"),
    probability("target_prob_of_emitted", "the target's probability of the emitted token"),
    logit_margin("target_margin", "the target's top-1 minus top-2 logit, noise included; NaN if unknown"),
)
TOP_COLUMNS = (
    Column(
        "draft_top_ids", INT, "", "the draft's five most likely tokens; -1 where the vocabulary is smaller", unknown=-1
    ),
    probability("draft_top_probs", "their probabilities"),
    Column(
        "target_top_ids",
        INT,
        "",
        "the target's five most likely tokens; -1 where the vocabulary is smaller",
        unknown=-1,
    ),
    probability("target_top_probs", "their probabilities"),
)
# The draft's further steps after its wrong token at position i lie at branch_offsets[i] : branch_offsets[i + 1].
BRANCH_COLUMNS = (
    Column("branch_token", INT, "", "the token the draft takes"),
    probability("branch_confidence", "probability of its most likely token, after temperature", least=ABOVE_0),
    nats("branch_entropy", "entropy of the draft's distribution"),
    probability("branch_margin", "the draft's top-1 minus top-2 probability"),
)
ARRAY_COLUMNS = (
    Column("prompt_ids", INT, "", "the prompt's token ids"),
    Column("output_ids", INT, "", "the emitted token ids, N of them"),
    *POSITION_COLUMNS,
    *TOP_COLUMNS,
    Column("branch_offsets", INT, "", "N + 1 offsets into the branch columns; no branch where the draft is right"),
    *BRANCH_COLUMNS,
)


@dataclass(frozen=True, eq=False)
class Recording:
    """One prompt's recording. Shapes: N output positions, P prompt tokens, B branch steps in all.

    A branch goes on from the draft's wrong token and has `max_draft - 1` further steps. It is shorter where it
    ended with an end-of-sequence token or completed a stop string (by its last token, or by the wrong token itself),
    and it may be shorter near the end of the output where no round can reach: the last token of an output is never
    proposed, so a step at output position N - 1 or later is not needed unless the output ended by itself (then
    `output_limit` takes N's place).
    """

    prompt_id: str
    category: str
    prompt: str
    pair: PairInfo
    settings: Mapping  # JSON-able: pass_mode, rule, and whatever else does not depend on the stopping policy
    seed: int
    finish_reason: str  # eos, stop, length or context; a run stopped from outside is recorded as one of that length
    max_new_tokens: int  # as asked for when recording
    output_limit: int  # most output tokens that fit the context after this prompt
    max_draft: int  # G: the longest draft length that can be replayed
    eos_ids: tuple[int, ...]

    prompt_ids: np.ndarray  # (P,) int32
    output_ids: np.ndarray  # (N,) int32
    draft_token: np.ndarray  # (N,) int32
    draft_confidence: np.ndarray  # (N,) float32
    draft_entropy: np.ndarray  # (N,) float32
    draft_margin: np.ndarray  # (N,) float32
    draft_prob_of_emitted: np.ndarray  # (N,) float32
    target_prob_of_draft_token: np.ndarray  # (N,) float32
    target_rank_of_draft_token: np.ndarray  # (N,) int32
    target_entropy: np.ndarray  # (N,) float32
    target_prob_of_emitted: np.ndarray  # (N,) float32
    target_margin: np.ndarray  # (N,) float32
    draft_top_ids: np.ndarray  # (N, 5) int32
    draft_top_probs: np.ndarray  # (N, 5) float32
    target_top_ids: np.ndarray  # (N, 5) int32
    target_top_probs: np.ndarray  # (N, 5) float32
    branch_offsets: np.ndarray  # (N + 1,) int32
    branch_token: np.ndarray  # (B,) int32
    branch_confidence: np.ndarray  # (B,) float32
    branch_entropy: np.ndarray  # (B,) float32
    branch_margin: np.ndarray  # (B,) float32

    def __eq__(self, other: object) -> bool:
        """Equal to the bit."""
        if not isinstance(other, Recording):
            return NotImplemented
        for item in fields(self):
            a, b = getattr(self, item.name), getattr(other, item.name)
            if isinstance(a, np.ndarray):
                if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
                    return False
            elif a != b:
                return False
        return True

    @property
    def ended(self) -> bool:
        """Whether the output ended by itself: with an end-of-sequence token or a stop string."""
        return self.finish_reason in TEXT_ENDS

    def budget(self, max_new_tokens: int | None = None) -> int:
        """Most tokens a replay with this `max_new_tokens` (default: as recorded) may emit, context included.

        Raises:
            SpecVizError: the recording is too short to know what would have happened.
        """
        if max_new_tokens is None:
            max_new_tokens = self.max_new_tokens
        if max_new_tokens < 1:
            raise SpecVizError(f"max_new_tokens is {max_new_tokens}; it must be at least 1.")
        if max_new_tokens != self.max_new_tokens and "forced_eos_token_id" in self.settings.get(
            "generation_config", ()
        ):
            raise SpecVizError(
                f"The end of this text was forced at {self.max_new_tokens} tokens (forced_eos_token_id), so it says "
                f"nothing of a text of {max_new_tokens}; record again with that many."
            )
        limit = min(max_new_tokens, self.output_limit)
        if not self.ended and limit > len(self.output_ids):
            raise SpecVizError(
                f"This recording holds {len(self.output_ids)} tokens and the text went on; "
                f"replay at most that many (not {max_new_tokens}) or record again with more."
            )
        return limit

    def check_max_draft(self, max_draft: int) -> None:
        """Refuse a draft length that the recording's branches do not cover."""
        if not 1 <= max_draft <= self.max_draft:
            raise SpecVizError(
                f"The draft length is {max_draft}; this recording covers 1 to {self.max_draft}, "
                "for longer ones record again with a larger max_draft."
            )

    def validate(self) -> "Recording":
        """Check shapes, types and branches; return self.

        Raises:
            SpecVizError: naming the first thing that does not fit.
        """
        problem = next(_problems(self), None)
        if problem:
            raise SpecVizError(f"The recording of prompt {self.prompt_id!r} is unusable: {problem}; record it again.")
        return self


def _problems(recording: Recording):
    """Yield what is wrong, most basic first."""
    for column in SCALAR_COLUMNS:
        value = getattr(recording, column.name)
        if type(value) is not (str if column.dtype == TEXT else int):
            yield f"{column.name} is {str(value)[:40]!r}"
            return
        if problem := column.problem(np.asarray([value])):
            yield problem
            return
    output = recording.output_ids
    number = len(output)
    steps = len(recording.branch_token)
    shapes = {column.name: (number,) for column in POSITION_COLUMNS}
    shapes |= {column.name: (number, TOP_TOKENS) for column in TOP_COLUMNS}
    shapes |= {column.name: (steps,) for column in BRANCH_COLUMNS}
    shapes |= {"prompt_ids": (len(recording.prompt_ids),), "output_ids": (number,), "branch_offsets": (number + 1,)}
    for column in ARRAY_COLUMNS:
        values = getattr(recording, column.name)
        if values.dtype != column.dtype or values.shape != shapes[column.name]:
            yield f"{column.name} is {values.dtype} of shape {values.shape}"
            return
        if problem := column.problem(values):
            yield problem
            return
    if not number:
        yield "it has no output"
        return
    if number > MOST_OUTPUT or len(recording.prompt_ids) > MOST_PROMPT or len(recording.eos_ids) > MOST_EOS:
        yield f"it holds more than {MOST_PROMPT} tokens of prompt, {MOST_OUTPUT} of output or {MOST_EOS} that end it"
        return
    budget = min(recording.max_new_tokens, recording.output_limit)
    cut = "length" if budget == recording.max_new_tokens else "context"
    stops = bool(recording.settings.get("stop"))
    if recording.finish_reason not in (("eos", "stop", cut) if stops else ("eos", cut)):
        yield f"the finish reason is {recording.finish_reason!r}"
    if number > budget or (number < budget and not recording.ended):
        yield f"it holds {number} of {budget} tokens but finished by {recording.finish_reason!r}"
    if not 1 <= recording.max_draft <= MOST_DRAFT:
        yield f"max_draft is {recording.max_draft}, which is not 1 to {MOST_DRAFT}"
        return
    is_eos = np.isin(output, recording.eos_ids)
    if is_eos[:-1].any() or is_eos[-1] != (recording.finish_reason == "eos"):
        yield "its end-of-sequence tokens and its finish reason disagree"

    offsets = recording.branch_offsets
    lengths = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != steps or (lengths < 0).any() or (lengths > recording.max_draft - 1).any():
        yield "its branch offsets do not fit its branches"
        return
    wrong = recording.draft_token != output
    if lengths[~wrong].any():
        yield "it has a branch where the draft is right"
    reach = recording.output_limit if recording.ended else number
    needed = np.minimum(recording.max_draft - 1, reach - 2 - np.arange(number))
    last_token = recording.draft_token.copy()
    last_token[lengths > 0] = recording.branch_token[offsets[1:][lengths > 0] - 1]
    # where a branch completes a stop string only its text would tell
    if not stops and (wrong & (lengths < needed) & ~np.isin(last_token, recording.eos_ids)).any():
        yield "a branch is too short"
    eos_steps = np.flatnonzero(np.isin(recording.branch_token, recording.eos_ids))
    if not np.isin(eos_steps + 1, offsets).all() or (lengths[np.isin(recording.draft_token, recording.eos_ids)]).any():
        yield "a branch goes on after end-of-sequence"


def check_set_size(recordings: int, max_draft: int) -> None:
    """Refuse a set of more recordings than a file may hold, or than a sweep over all draft lengths could.

    Raises:
        SpecVizError: in that case.
    """
    most = min(MOST_RECORDINGS, MOST_SETTINGS // max(1, max_draft))
    if recordings > most:
        raise SpecVizError(
            f"A set of draft length {max_draft} holds at most {most:,} recordings, not {recordings:,}; "
            "make several sets, which every command takes together."
        )


@dataclass(frozen=True)
class RecordingSet:
    """Recordings of many prompts, all of one pair and with the same settings, and the pair's cost model if known."""

    recordings: Sequence[Recording]
    cost_model: Mapping | None = None  # JSON-able; `specviz.analysis` gives it its meaning
    tokens: Mapping[int, bytes] = field(default_factory=dict)  # the bytes of token ids, those that are known

    def __post_init__(self) -> None:
        if not self.recordings:
            raise SpecVizError("A recording set needs at least one recording.")
        first = self.recordings[0]
        check_set_size(len(self.recordings), first.max_draft)
        for name in ("pair", "settings", "max_draft", "eos_ids"):
            if any(getattr(recording, name) != getattr(first, name) for recording in self.recordings):
                raise SpecVizError(f"These recordings do not belong together: they differ in {name}.")

    @property
    def pair(self) -> PairInfo:
        return self.recordings[0].pair

    @property
    def settings(self) -> Mapping:
        return self.recordings[0].settings

    @property
    def max_draft(self) -> int:
        return self.recordings[0].max_draft

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self.recordings[0].eos_ids

    def with_cost_model(self, cost_model: Mapping) -> "RecordingSet":
        """The same recordings with another cost model.

        Raises:
            SpecVizError: it was measured on another pair or precision than the recordings. Another device is fine: the
                cost model names its own.
        """
        priced, recorded = cost_model["pair"], self.pair
        for name in ("target", "draft", "target_precision", "draft_precision"):
            if priced[name] != getattr(recorded, name):
                raise SpecVizError(
                    f"The cost model was measured with {name.replace('_', ' ')} {priced[name]!r}, the recordings were "
                    f"made with {getattr(recorded, name)!r}; measure the costs on the pair that was recorded."
                )
        return replace(self, cost_model=cost_model)

    def with_tokens(self, tokens: Mapping[int, bytes]) -> "RecordingSet":
        """The same recordings with these bytes of their token ids, so that they can be shown without the tokenizer."""
        return replace(self, tokens=tokens)
