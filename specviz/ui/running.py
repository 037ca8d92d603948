"""A loaded pair at work. The only module of the app that reaches torch; imported by the workshop's worker alone."""

from collections.abc import Callable

from specviz.analysis import CostModel
from specviz.analysis.calibrated import cost_model
from specviz.engine.calibration import calibrate
from specviz.engine.engine import Engine
from specviz.engine.events import DraftStep, Event, RoundCommitted, Verified
from specviz.engine.recording import record
from specviz.models.loading import LoadedPair, encode_prompt, load_pair
from specviz.models.token_text import TokenText
from specviz.trace import Recording
from specviz.ui.token_texts import display_text, used_tokens
from specviz.ui.workshop import PairChoice, RunRequest

Progress = Callable[[str, float | None], None]


class LivePair:
    """A pair with its engine; see `specviz.ui.workshop.RunningPair`."""

    def __init__(self, pair: LoadedPair) -> None:
        self._pair = pair
        self._engine = Engine(pair)
        self._text = TokenText(pair.tokenizer)
        self.memory_bytes = pair.memory_bytes

    def record(
        self, request: RunRequest, on_round: Callable[[dict], None], stopped: Callable[[], bool], progress: Progress
    ) -> tuple[Recording, dict[int, bytes]]:
        """Generate and record; `on_round` gets each round as {"drafted": [[text, status]], "own": [text, status]}."""
        ids = encode_prompt(self._pair, request.prompt)
        progress("Generating", None)
        recording = record(
            self._engine,
            ids,
            max_new_tokens=request.max_new_tokens,
            max_draft=min(request.max_draft, self._engine.widest_draft),
            prompt=request.prompt,
            observers=(_RoundTeller(self._shown_text, on_round),),
            stopped=stopped,
            progress=progress,
        )
        return recording, {token: self._text.bytes_of(token) for token in used_tokens([recording])}

    def measure_costs(self, stopped: Callable[[], bool], progress: Progress) -> CostModel:
        return cost_model(calibrate(self._engine, stopped=stopped, progress=progress))

    def _shown_text(self, token: int) -> str:
        return display_text(self._text.bytes_of(token))


class _RoundTeller:
    """An observer that tells each round once it is committed."""

    def __init__(self, text: Callable[[int], str], on_round: Callable[[dict], None]) -> None:
        self._text, self._on_round = text, on_round
        self._drafted: list[tuple[int, bool]] = []

    def __call__(self, event: Event) -> None:
        match event:
            case DraftStep(stats=stats, proposed=proposed):
                self._drafted.append((stats.token, proposed))
            case Verified():
                self._verified = event
            case RoundCommitted():
                self._on_round(self._told(self._verified))
                self._drafted = []

    def _told(self, verified: Verified) -> dict:
        drafted = []
        for index, (token, proposed) in enumerate(self._drafted):
            if not proposed:
                status = "withheld"
            elif index < verified.accepted:
                status = "accepted"
            else:
                status = "rejected" if index == verified.accepted else "discarded"
            drafted.append([self._text(token), status])
        own = None if verified.target_token is None else [self._text(verified.target_token), verified.target_status]
        return {"drafted": drafted, "own": own}


def load_running_pair(choice: PairChoice, report: Callable[[str, float | None, float | None], None]) -> LivePair:
    """Fetch if need be, load and check the pair.

    Raises:
        SpecVizError: it cannot be found, does not fit together, or does not fit into memory.
    """
    return LivePair(
        load_pair(choice.target, choice.draft, choice.target_precision, choice.draft_precision, progress=report)
    )
