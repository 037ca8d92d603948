"""A loaded pair at work. The only module of the app that reaches torch; imported by the workshop's worker alone."""

from collections.abc import Callable, Iterable, Sequence

from specviz.analysis import CostModel
from specviz.analysis.comparison import measured_point
from specviz.analysis.fidelity_report import FidelityReport, fidelity_report
from specviz.analysis.precisions import PrecisionComparison, precision_comparison
from specviz.bench.rules import on_a_small_pair
from specviz.engine.engine import Engine, Settings
from specviz.engine.events import DraftStep, Event, Finished, RoundCommitted, Verified
from specviz.engine.fidelity import TESTED_RULES, measure_fidelity
from specviz.engine.measurement import measure, repeats_of
from specviz.engine.precision_comparison import Combination, compare_precisions
from specviz.engine.record_many import record_many
from specviz.engine.recording import record
from specviz.errors import SpecVizError
from specviz.measure import costs
from specviz.models.defaults import PASS_MODE
from specviz.models.loading import LoadedPair, encode_prompt, load_pair
from specviz.models.precision import chosen_precision
from specviz.models.storage import cache_folder
from specviz.models.token_text import TokenText
from specviz.replay import ConfidenceThreshold
from specviz.trace import Recording, used_tokens
from specviz.ui.garbage import leave_out_what_lives
from specviz.ui.requests import (
    CompareRequest,
    CostRequest,
    FidelityRequest,
    MeasuredPoint,
    MeasuredRace,
    MeasureRequest,
    PairChoice,
    RaceRequest,
    Request,
    RunRequest,
    SweepRequest,
)
from specviz.ui.token_texts import display_text

Progress = Callable[[str, float | None], None]


class LivePair:
    """A pair with its engine; see `specviz.ui.workshop.RunningPair`."""

    def __init__(self, pair: LoadedPair) -> None:
        self._pair = pair
        self.memory_bytes = pair.memory_bytes  # before the engine repacks weights, which hides their size
        self._engine = Engine(pair, pass_mode=PASS_MODE)
        self._text = TokenText(pair.tokenizer)

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
            max_draft=request.max_draft,
            **request.drawing.arguments(),
            prompt=request.prompt,
            observers=(_RoundTeller(self._shown_text, on_round),),
            stopped=stopped,
            progress=progress,
        )
        return recording, {token: self._text.bytes_of(token) for token in used_tokens([recording])}

    def sweep(
        self, request: SweepRequest, stopped: Callable[[], bool], progress: Progress
    ) -> tuple[list[Recording], dict[int, bytes], dict[str, str]]:
        """Record every prompt; finished ones stay in the user's cache, so the same sweep goes on where it was."""
        done = record_many(
            self._engine,
            request.prompts,
            cache_folder() / "recordings",
            max_new_tokens=request.max_new_tokens,
            max_draft=request.max_draft,
            **request.drawing.arguments(),
            stopped=stopped,
            progress=lambda stage, number, total: progress(f"{stage}, {number} of {total} done", number / total),
        )
        recordings = list(done.recordings.recordings) if done.recordings else []
        return recordings, {token: self._text.bytes_of(token) for token in used_tokens(recordings)}, done.failures

    def measure(self, request: MeasureRequest, stopped: Callable[[], bool], progress: Progress) -> MeasuredPoint:
        """One setting on every prompt, interleaved with plain decoding."""
        settings = _settings(request)
        prompts = [list(ids) for ids in request.prompt_ids]
        repeats = repeats_of(len(prompts))
        found = measure(self._engine, prompts, [settings], repeats=repeats, stopped=stopped, progress=progress)
        return measured_point(
            request.tau, request.max_draft, found.plain_seconds, found.speculative_seconds[0], request.on_fail
        )

    def race(self, request: RaceRequest, stopped: Callable[[], bool]) -> MeasuredRace:
        """One plain and one speculative run after a short warm-up of both."""
        ids = encode_prompt(self._pair, request.prompt)
        settings = _settings(request)
        self._engine.warm_up(ids)
        plain, plain_output = _timed(self._engine.plain(ids, request.max_new_tokens, stopped, **settings.of_text()))
        speculative, output = _timed(self._engine.speculative(ids, settings, stopped))
        if stopped():
            raise SpecVizError("The race was stopped.")
        return MeasuredRace(
            plain,
            speculative,
            [self._shown_text(token) for token in output],
            self._engine.pair_info().device,
            tuple(plain_output) == tuple(output),
        )

    def fidelity(
        self, request: FidelityRequest, cost: CostModel, stopped: Callable[[], bool], progress: Progress
    ) -> FidelityReport | None:
        """Tests, drift and outputs; None if stopped."""
        measured = measure_fidelity(
            self._engine,
            request.prompts,
            sampling=request.sampling,
            seed=request.seed,
            threshold=request.tau,
            max_draft=request.max_draft,
            max_new_tokens=request.max_new_tokens,
            stopped=stopped,
            progress=progress,
        )
        if measured is None:
            return None
        first_three = []
        for number, rule in enumerate(TESTED_RULES):
            progress("First three tokens on a small pair", number / len(TESTED_RULES))
            first_three.append((rule, on_a_small_pair(rule, measured.samples)))
        return fidelity_report(measured, cost, first_three)

    def kept_costs(self, recordings: Sequence[Recording], say: Callable[[str], None]) -> CostModel | None:
        """The costs kept from an earlier measurement, if they price these recordings."""
        return costs.kept_costs(self._engine, _span(recordings), say=say)

    def measure_costs(
        self,
        request: Request,
        recordings: Sequence[Recording],
        stopped: Callable[[], bool],
        progress: Progress,
        say: Callable[[str], None],
    ) -> CostModel:
        """Measure the costs that price these recordings, or what a `CostRequest` says, and keep them."""
        engine, span, max_draft = self._engine, _span(recordings), costs.LONGEST_DRAFT
        if isinstance(request, CostRequest):
            span, max_draft = request.span, request.max_draft
            if request.pass_mode != engine.pass_mode:
                engine = Engine(self._pair, pass_mode=request.pass_mode, widest_draft=max_draft)
        return costs.measure_costs(engine, span, max_draft, stopped=stopped, progress=progress, say=say)

    def _shown_text(self, token: int) -> str:
        return display_text(self._text.bytes_of(token))


def _span(recordings: Sequence[Recording]) -> tuple[int, int]:
    return costs.spanned(recordings) if recordings else costs.USUAL_CONTEXTS


def _settings(request: MeasureRequest | RaceRequest) -> Settings:
    drawing = request.drawing.arguments()
    return Settings(
        ConfidenceThreshold(request.tau, request.on_fail), request.max_draft, request.max_new_tokens, **drawing
    )


def _timed(events: Iterable[Event]) -> tuple[list[list[float]], tuple[int, ...]]:
    """Moments of a run, from its rounds' own times, and its output."""
    seconds, found, output = 0.0, [], ()
    for event in events:
        match event:
            case RoundCommitted(start=start, emitted=emitted, times=times):
                seconds += times.draft + times.verify + times.overhead
                found.append([seconds, start + len(emitted)])
            case Finished(output_ids=output_ids):
                output = output_ids
    return found, output


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
    pair = load_pair(
        choice.target,
        choice.draft,
        chosen_precision(choice.target_precision, "auto"),
        chosen_precision(choice.draft_precision, "auto"),
        progress=report,
    )
    leave_out_what_lives()
    return LivePair(pair)


def compare_at_precisions(
    request: CompareRequest, stopped: Callable[[], bool], progress: Progress
) -> PrecisionComparison | None:
    """Measure and price a comparison; None if stopped. Finished recordings stay in the user's cache.

    Raises:
        SpecVizError: see `compare_precisions`.
    """
    leave_out_what_lives()
    measured = compare_precisions(
        request.pair.target,
        request.pair.draft,
        [Combination.parse(text) for text in request.combinations],
        request.prompts,
        cache_folder() / "recordings",
        max_new_tokens=request.max_new_tokens,
        max_draft=request.max_draft,
        stopped=stopped,
        progress=progress,
    )
    return None if measured is None else precision_comparison(measured)
