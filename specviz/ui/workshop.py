"""The queue before the engine: one worker, one pair in memory, everybody waits for their turn.

Sessions hand in a request and get a job, which they look at whenever they draw. A job belongs to whoever knows its id;
ids cannot be guessed, and the id in the address bar is how a reloaded page finds its run again. Nothing here imports
torch; the pair is loaded by `specviz.ui.running` when the first job needs it.
"""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol

import streamlit as st

from specviz.analysis import CostModel
from specviz.analysis.calibrated import MachineBusy
from specviz.analysis.fidelity_report import FidelityReport
from specviz.analysis.precisions import PrecisionComparison
from specviz.errors import SpecVizError
from specviz.trace import Recording, RecordingSet, kept
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
from specviz.ui.shown import Shown, kept_recording

PAIRS_IN_MEMORY = 1
JOBS_KEPT = 64
WAITING, LOADING, RUNNING, MEASURING, FINISHED, STOPPED, FAILED = (
    "waiting",
    "loading",
    "running",
    "measuring",
    "finished",
    "stopped",
    "failed",
)


class RunningPair(Protocol):
    """A loaded pair, as the worker uses it."""

    memory_bytes: int

    def record(
        self,
        request: RunRequest,
        on_round: Callable[[dict], None],
        stopped: Callable[[], bool],
        progress: Callable[[str, float | None], None],
    ) -> tuple[Recording, dict[int, bytes]]: ...

    def kept_costs(self, recordings: Sequence[Recording], say: Callable[[str], None]) -> CostModel | None: ...

    def measure_costs(
        self,
        request: Request,
        recordings: Sequence[Recording],
        stopped: Callable[[], bool],
        progress: Callable[[str, float | None], None],
        say: Callable[[str], None],
    ) -> CostModel: ...


Loader = Callable[[PairChoice, Callable[[str, float | None, float | None], None]], RunningPair]
Comparer = Callable[
    [CompareRequest, Callable[[], bool], Callable[[str, float | None], None]], PrecisionComparison | None
]


@dataclass(eq=False)
class Job:
    """One run. The worker writes, pages only read; `stop` is how they interrupt."""

    request: Request
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    state: str = WAITING
    stage: str = ""
    done: float | None = None  # of the stage: a share of 1, or bytes if `total` is known
    total: float | None = None
    rounds: list[dict] = field(default_factory=list)  # as they are committed, for the live view
    shown: Shown | None = None  # of a run
    members: tuple[Shown, ...] = ()  # of a sweep
    failures: dict[str, str] = field(default_factory=dict)  # of a sweep: a prompt's id and why it was left out
    race: MeasuredRace | None = None  # of a race
    point: MeasuredPoint | None = None  # of a measurement
    comparison: PrecisionComparison | None = None  # of a comparison of precisions
    fidelity: FidelityReport | None = None  # of tests of fidelity
    cost: CostModel | None = None  # of a measurement of costs
    notes: list[str] = field(default_factory=list)  # what the reader should know besides the result
    message: str = ""  # what went wrong
    kept: str = ""  # the name under which the project folder keeps the recordings of a run or a sweep
    not_kept: str = ""  # why it does not
    _stop: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        self._stop.set()

    @property
    def stop_asked(self) -> bool:
        return self._stop.is_set()

    @property
    def over(self) -> bool:
        return self.state in (FINISHED, STOPPED, FAILED)

    def report(self, stage: str, done: float | None = None, total: float | None = None) -> None:
        self.stage, self.done, self.total = stage, done, total


class Workshop:
    """Runs jobs one after the other, in the order they came."""

    def __init__(self, load: Loader, capacity: int = PAIRS_IN_MEMORY, compare: Comparer | None = None) -> None:
        self._load, self._capacity, self._compare = load, capacity, compare
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._queue: list[Job] = []
        self._pairs: OrderedDict[PairChoice, RunningPair] = OrderedDict()
        self._changed = threading.Condition()
        threading.Thread(target=self._work, daemon=True, name="specviz-workshop").start()

    def submit(self, request: Request) -> Job:
        job = Job(request)
        with self._changed:
            self._jobs[job.id] = job
            self._queue.append(job)
            for old in [key for key, kept in self._jobs.items() if kept.over][: max(0, len(self._jobs) - JOBS_KEPT)]:
                del self._jobs[old]
            self._changed.notify()
        return job

    def job(self, job_id: str | None) -> Job | None:
        """The job of this id, if it is still kept."""
        return self._jobs.get(job_id or "")

    def jobs_before(self, job: Job) -> int:
        """How many jobs come first, the one that is running included."""
        with self._changed:
            if job not in self._queue:
                return 0
            busy = sum(1 for kept in self._jobs.values() if kept.state in (LOADING, RUNNING, MEASURING))
            return self._queue.index(job) + busy

    def stop(self, job: Job) -> None:
        """Stop a job at once if it waits, at its next token if it runs."""
        job.stop()
        with self._changed:
            if job in self._queue:
                self._queue.remove(job)
                job.state = STOPPED

    def memory_bytes(self) -> int:
        """Of the weights in memory."""
        return sum(pair.memory_bytes for pair in list(self._pairs.values()))

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    self._changed.wait()
                job = self._queue.pop(0)
                job.state = LOADING
            try:
                self._run(job)
            except SpecVizError as error:
                job.message, job.state = str(error), STOPPED if job.stop_asked else FAILED
            except Exception as error:  # whatever libraries raise must not end the queue
                self._pairs.clear()
                job.message = _sentence(error)
                job.state = FAILED

    def _run(self, job: Job) -> None:
        request = job.request
        if isinstance(request, CompareRequest):  # loads models of its own, several at once
            self._pairs.clear()
            job.state = RUNNING
            job.comparison = self._compare(request, lambda: job.stop_asked, job.report)
            job.state = FINISHED if job.comparison is not None else STOPPED
            return
        pair = self._loaded(job)
        if job.stop_asked:
            job.state = STOPPED
            return
        job.state = RUNNING
        match request:
            case RunRequest():
                self._record(job, pair)
            case SweepRequest():
                recordings, tokens, job.failures = pair.sweep(request, lambda: job.stop_asked, job.report)
                self._show_sweep(job, pair, recordings, tokens)
            case RaceRequest():
                job.report("Running plainly, then speculatively")
                job.race = pair.race(request, lambda: job.stop_asked)
            case MeasureRequest():
                job.point = pair.measure(request, lambda: job.stop_asked, job.report)
            case FidelityRequest():
                cost = pair.kept_costs((), job.notes.append) or self._measured_costs(job, pair)
                job.state = RUNNING
                job.fidelity = pair.fidelity(request, cost, lambda: job.stop_asked, job.report)
            case CostRequest():
                job.cost = self._measured_costs(job, pair)
                _price_kept_sets(request.pair, job.cost)
        job.state = STOPPED if job.stop_asked else FINISHED

    def _record(self, job: Job, pair: RunningPair) -> None:
        """Record, show it at once, then see to its prices."""
        request = job.request
        job.report("Reading the prompt")
        recording, tokens = pair.record(request, job.rounds.append, lambda: job.stop_asked, job.report)
        cost = pair.kept_costs([recording], job.notes.append)
        shown = Shown(f"run:{job.id}", request.prompt, recording, cost, tokens, request.pair)
        job.shown = self._keep(job, [shown], kept.name_of_run(job.id))[0]
        if cost is None and not job.stop_asked:
            cost = self._costs_if_quiet(job, pair, [recording])
        if shown.cost is None and cost is not None:
            shown = replace(shown, name=f"run:{job.id}:priced", cost=cost, _packed={})
            job.shown = self._keep(job, [shown], job.kept)[0] if job.kept else shown

    def _show_sweep(self, job: Job, pair: RunningPair, recordings: list[Recording], tokens: dict[int, bytes]) -> None:
        """Keep the set, then see to its prices."""
        if not recordings:
            return
        cost = pair.kept_costs(recordings, job.notes.append)
        members = [
            Shown(f"sweep:{job.id}:{place}", recording.prompt, recording, cost, tokens, job.request.pair)
            for place, recording in enumerate(recordings)
        ]
        job.members = tuple(self._keep(job, members, kept.new_name()))
        if cost is None and not job.stop_asked:
            cost = self._costs_if_quiet(job, pair, recordings)
        if members[0].cost is None and cost is not None:
            members = [replace(one, name=f"{one.name}:priced", cost=cost, _packed={}) for one in members]
            job.members = tuple(self._keep(job, members, job.kept) if job.kept else members)

    def _keep(self, job: Job, members: list[Shown], name: str) -> list[Shown]:
        """Keep recordings in the project folder and return them under the names that they are read back with. Where
        that fails, they are the session's alone: `job.not_kept` says why."""
        if job.kept and job.kept not in kept.kept_sets():
            return members  # deleted since
        first = members[0]
        recording_set = RecordingSet(
            [shown.recording for shown in members], first.cost.to_json() if first.cost else None, first.tokens
        )
        run = isinstance(job.request, RunRequest)
        title = first.title if run else f"{len(members)} prompts: {first.title}"
        try:
            origin = kept.RUN if run else kept.SET
            entry = kept.keep(recording_set, name, title=title, origin=origin, sources=asdict(job.request.pair))
        except SpecVizError as error:
            job.kept, job.not_kept = "", str(error)
            return members
        job.kept = name
        return [replace(shown, name=kept_recording(entry, place)) for place, shown in enumerate(members)]

    def _measured_costs(self, job: Job, pair: RunningPair, recordings: Sequence[Recording] = ()) -> CostModel:
        job.state = MEASURING
        return pair.measure_costs(job.request, recordings, lambda: job.stop_asked, job.report, job.notes.append)

    def _costs_if_quiet(self, job: Job, pair: RunningPair, recordings: Sequence[Recording]) -> CostModel | None:
        """None, with a note, where the machine is too busy: what was recorded is then shown without prices."""
        try:
            return self._measured_costs(job, pair, recordings)
        except MachineBusy as error:
            job.notes.append(f"{error} Until then there is no speedup.")
            return None

    def _loaded(self, job: Job) -> RunningPair:
        choice = job.request.pair
        if choice not in self._pairs:
            while len(self._pairs) >= self._capacity:
                self._pairs.popitem(last=False)
            job.report("Loading the pair")
            self._pairs[choice] = self._load(choice, job.report)
        self._pairs.move_to_end(choice)
        return self._pairs[choice]


def _price_kept_sets(pair: PairChoice, cost: CostModel) -> None:
    """Price everything that the project folder keeps of this pair with its new costs, so that no later session finds
    the old ones."""
    for name, entry in kept.kept_sets().items():
        if not entry.sources or (entry.sources.get("target"), entry.sources.get("draft")) != (pair.target, pair.draft):
            continue
        try:
            recorded = kept.read_kept(name)
            if recorded.settings.get("pass_mode") in cost.modes:
                priced = recorded.with_cost_model(cost.to_json())
                kept.keep(priced, name, title=entry.title, origin=entry.origin, sources=entry.sources)
        except SpecVizError:
            continue  # damaged, deleted meanwhile, or of other precisions: what is there stays


def _sentence(error: Exception) -> str:
    """What went wrong and what to do, for an error that is not one of ours."""
    # torch's own classes by their names, since nothing here imports torch; on a CPU it raises a plain RuntimeError.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "allocate memory" in str(error):
        device = "graphics memory" if "CUDA" in str(error) else "memory"
        return (
            f"The {device} is full; choose a narrower precision, fewer tokens or a smaller pair, or close other "
            "programs that use it, then run again."
        )
    return (
        f"The run broke off ({type(error).__name__}: {str(error)[:160]}); "
        "run again, and if that does not help, choose another pair or precision."
    )


@st.cache_resource(show_spinner=False)
def workshop() -> Workshop:
    """The one workshop of this server."""

    def load(choice: PairChoice, report) -> RunningPair:
        report("Starting PyTorch")
        from specviz.ui.running import load_running_pair

        return load_running_pair(choice, report)

    def compare(request: CompareRequest, stopped, report) -> PrecisionComparison | None:
        report("Starting PyTorch", None)
        from specviz.ui.running import compare_at_precisions

        return compare_at_precisions(request, stopped, report)

    return Workshop(load, compare=compare)
