"""One recording on screen, with everything the pages ask of it, worked out once."""

import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from specviz.analysis import CostModel
from specviz.analysis.cost_model import beyond_measured, outside_words
from specviz.errors import SpecVizError
from specviz.models.precision import rows_are_independent
from specviz.replay import ConfidenceThreshold, replay
from specviz.replay.rules import recorded_rule
from specviz.trace import Recording, Trace
from specviz.ui.panel_data import pack_recording, pack_rounds
from specviz.ui.requests import PairChoice
from specviz.ui.token_texts import display_from

DRAFT_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)  # that a reader may choose, up to what is recorded
_packer = ThreadPoolExecutor(1, thread_name_prefix="pack-ahead")


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
    _packed: dict = field(default_factory=dict)
    _ahead: dict[int, Future] = field(default_factory=dict)

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

    def packed_rounds(self, max_draft: int) -> str:
        """`pack_rounds` at one draft length as JSON text."""
        if max_draft not in self._packed:
            self._packed[max_draft] = json.dumps(pack_rounds(self.recording, max_draft, self.cost))
        return self._packed[max_draft]

    def pack_ahead(self, chosen: int) -> None:
        """Pack the rounds of every draft length on offer in the background, those near the `chosen` one first, so that
        choosing one is answered at once: packing takes most of the time that a reader would wait."""
        for max_draft in sorted(self.draft_lengths, key=lambda length: abs(length - chosen)):
            if max_draft not in self._packed and max_draft not in self._ahead:
                self._ahead[max_draft] = _packer.submit(self.packed_rounds, max_draft)

    def trace(self, tau: float, max_draft: int) -> Trace:
        return replay(self.recording, ConfidenceThreshold(tau), max_draft)

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
        if not all(map(_rows_are_independent, (pair.target_precision, pair.draft_precision))):
            first += " At int8 what a row of a pass says depends on its neighbours, so a real run may differ."
        if self.cost is None:
            return f"{first} The cost of its passes was not measured, so there is no speedup."
        beyond = beyond_measured(self.cost, [len(self.recording.prompt_ids)], [len(self.recording.output_ids)])
        words = f"{first} Speedups are modelled from pass times measured on {self.cost.pair.device}."
        return f"{words} {outside_words(int(beyond.sum()), 1)}".rstrip()


def _rows_are_independent(precision: str) -> bool:
    """As `rows_are_independent`; an uploaded recording may name a precision that this version does not know."""
    try:
        return rows_are_independent(precision)
    except SpecVizError:
        return True
