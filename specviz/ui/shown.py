"""One recording on screen, with everything the pages ask of it, worked out once."""

import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from specviz.analysis import CostModel
from specviz.analysis.cost_model import beyond_measured, outside_words
from specviz.errors import SpecVizError
from specviz.models.precision import rows_are_independent
from specviz.replay import ConfidenceThreshold, replay
from specviz.replay.generation import not_honoured_words
from specviz.replay.policies import ON_FAIL
from specviz.replay.rules import recorded_rule
from specviz.trace import Recording, Trace
from specviz.trace.kept import KeptSet
from specviz.ui.panel_data import pack_recording, pack_rounds
from specviz.ui.requests import PairChoice
from specviz.ui.token_texts import display_from

DRAFT_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)  # that a reader may choose, up to what is recorded
UNMEASURED = "The cost of its passes was not measured, so there is no speedup."
_packer = ThreadPoolExecutor(1, thread_name_prefix="pack-ahead")


def kept_recording(entry: KeptSet, place: int) -> str:
    """The name of one recording of a kept set."""
    return f"kept:{entry.name}:{entry.version}:{place}"


@dataclass
class Shown:
    """A recording, its cost model if known, and the bytes of its tokens.

    Several sessions may share one: what it keeps is only added to, and the same whoever works it out.
    """

    name: str  # the same for the same content
    title: str
    recording: Recording
    cost: CostModel | None
    tokens: dict[int, bytes]
    pair: PairChoice | None = None  # how to load the pair again, if that is known
    unpriced: str = UNMEASURED  # without a cost model: why, in a sentence
    _packed: dict = field(default_factory=dict)
    _ahead: dict[tuple[int, str], Future] = field(default_factory=dict)

    @property
    def longest_draft(self) -> int:
        """The longest draft length that can be replayed and priced."""
        if self.cost is None:
            return self.recording.max_draft
        return min(self.recording.max_draft, self.cost.mode(self.recording.settings.get("pass_mode")).longest_draft)

    @property
    def draft_lengths(self) -> list[int]:
        """The draft lengths on offer, the longest that can be replayed among them."""
        longest = self.longest_draft
        return [length for length in DRAFT_LENGTHS if length < longest] + [longest]

    def packed_recording(self) -> str:
        """`pack_recording` as JSON text."""
        if "recording" not in self._packed:
            self._packed["recording"] = json.dumps(pack_recording(self.recording, display_from(self.tokens)))
        return self._packed["recording"]

    def packed_rounds(self, max_draft: int, on_fail: str = "drop") -> str:
        """`pack_rounds` at one draft length and fate of the token that fails, as JSON text."""
        key = (max_draft, on_fail)
        if key not in self._packed:
            self._packed[key] = json.dumps(pack_rounds(self.recording, max_draft, self.cost, on_fail))
        return self._packed[key]

    def pack_ahead(self, chosen: int, on_fail: str = "drop") -> None:
        """Pack the rounds that a reader may ask for next in the background, so that choosing is answered at once:
        packing takes most of the time that a reader would wait. First every draft length on offer at this fate of the
        token that fails, those near the `chosen` one first, and the chosen one at the other fate; then the rest."""
        lengths = sorted(self.draft_lengths, key=lambda length: abs(length - chosen))
        other = next(fate for fate in ON_FAIL if fate != on_fail)
        keys = [(length, on_fail) for length in lengths]
        keys[1:1] = [(length, other) for length in lengths[:1]]
        for key in [*keys, *((length, other) for length in lengths[1:])]:
            if key not in self._packed and key not in self._ahead:
                self._ahead[key] = _packer.submit(self.packed_rounds, *key)

    def trace(self, tau: float, max_draft: int, on_fail: str = "drop") -> Trace:
        return replay(self.recording, ConfidenceThreshold(tau, on_fail), max_draft)

    def about(self) -> str:
        """Where recording and times come from, in a sentence or two."""
        pair = self.recording.pair
        precisions = f"{pair.target_precision} target, {pair.draft_precision} draft"
        first = (
            f"Replayed from one recording of {len(self.recording.output_ids)} tokens; no model runs. "
            f"{pair.target} with {pair.draft} ({precisions})."
        )
        sampling = self.recording.settings.get("sampling", {})
        if sampling.get("temperature"):
            rule = recorded_rule(self.recording.settings).name
            first += f" Drawn at temperature {sampling['temperature']:g} under {rule}, seed {self.recording.seed}."
        if self.recording.finish_reason == "stop":
            first += " It ended with a stop string; the token that completes the string is the last."
        if unfollowed := not_honoured_words(self.recording.settings):
            first += f" {unfollowed}"
        if not all(map(_rows_are_independent, (pair.target_precision, pair.draft_precision))):
            first += " At int8 what a row of a pass says depends on its neighbours, so a real run may differ."
        if self.cost is None:
            return f"{first} {self.unpriced}"
        beyond = beyond_measured(self.cost, [len(self.recording.prompt_ids)], [len(self.recording.output_ids)])
        words = f"{first} Speedups are modelled. {self.cost.origin}"
        return f"{words} {outside_words(int(beyond.sum()), 1)}".rstrip()


def _rows_are_independent(precision: str) -> bool:
    """As `rows_are_independent`; an uploaded recording may name a precision that this version does not know."""
    try:
        return rows_are_independent(precision)
    except SpecVizError:
        return True
