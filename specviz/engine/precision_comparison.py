"""The same pair at several precisions of target and draft, measured side by side.

First what each target takes to load and decode with, in processes of their own; then every combination records the same
prompts, those of one target along the same outputs; then all of them are calibrated, taking turns; last, each model
reads the recorded texts beside itself in fp32.
All combinations are in memory together from the calibration on. `specviz.analysis.precisions` makes numbers of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specviz.engine.calibration import PassSamples
from specviz.engine.decoding import never
from specviz.engine.engine import Engine, Settings
from specviz.engine.memory_probe import Footprint, probe
from specviz.engine.quantisation_error import TextError, text_errors
from specviz.engine.record_many import Prompt, record_many
from specviz.engine.recording import TargetOutput
from specviz.errors import SpecVizError
from specviz.measure.costs import steady_samples
from specviz.models.loading import LoadedModel, load_pair
from specviz.models.precision import FLOAT_PRECISIONS, Combination, check_precision, natural_precision
from specviz.models.token_text import TokenText
from specviz.trace import RecordingSet

REFERENCE = "fp32"  # what quantisation error is measured against
Progress = Callable[[str, float], None]


@dataclass(frozen=True, eq=False)
class MeasuredCombination:
    """One combination: its recordings, the samples of its passes, and the bytes of both models' weights."""

    recordings: RecordingSet
    samples: PassSamples
    memory_bytes: int


@dataclass(frozen=True, eq=False)
class MeasuredModel:
    """One model at one precision. role: target or draft; texts: see `TextError`; footprint: of a target."""

    role: str
    precision: str
    memory_bytes: int
    texts: list[TextError]
    footprint: Footprint | None = None


@dataclass(frozen=True, eq=False)
class MeasuredComparison:
    """Everything measured. `full` numbers the combination whose target is the full-precision baseline.

    tokens: bytes of every token id of the outputs and of what the models would have said; notes: what could not be
    measured and why, a sentence each.
    """

    combinations: list[MeasuredCombination]
    models: list[MeasuredModel]
    full: int
    tokens: dict[int, bytes]
    notes: list[str] = field(default_factory=list)


def with_baseline(combinations: Sequence[Combination], device: str) -> tuple[list[Combination], int]:
    """The combinations without repeats, and the place of the one that is the full-precision baseline.

    That is the first with a target at fp32, bf16 or fp16; where there is none, one at the device's natural precision is
    put in front.
    """
    wanted = list(dict.fromkeys(combinations))
    if not wanted:
        raise SpecVizError("No combination of precisions was given; give at least one, such as nf4:bf16.")
    for place, combination in enumerate(wanted):
        if combination.target in FLOAT_PRECISIONS:
            return wanted, place
    natural = natural_precision(device)
    return [Combination(natural, natural), *wanted], 0


def compare_precisions(
    target: str,
    draft: str,
    combinations: Sequence[Combination],
    prompts: Sequence[Prompt],
    parts: Path,
    *,
    device: str = "auto",
    pass_mode: str = "fast",
    max_new_tokens: int = 48,
    max_draft: int = 8,
    stopped: Callable[[], bool] = never,
    progress: Progress = lambda stage, share: None,
) -> MeasuredComparison | None:
    """Measure the combinations; None if stopped.

    Args:
        parts: folder for finished recordings; the same call after an interruption goes on there.
        progress: called with a stage and the share of it that is done.

    Raises:
        SpecVizError: a length below 1 or a precision that the device lacks, named before anything is loaded; or no
            prompt can be recorded.
    """
    wanted, full = with_baseline(combinations, device)
    Settings(max_draft=max_draft, max_new_tokens=max_new_tokens)  # refuses what no recording could be made with
    for precision in dict.fromkeys(p for combination in wanted for p in (combination.target, combination.draft)):
        check_precision(precision, device)
    footprints: dict[str, Footprint] = {}
    targets = list(dict.fromkeys([REFERENCE, *(combination.target for combination in wanted)]))
    for place, precision in enumerate(targets):
        if stopped():
            return None
        progress(f"Memory and load time at {precision}", place / len(targets))
        footprints[precision] = probe(target, precision, device)

    engines, recordings, memory, notes = [], [], [], {}
    written: dict[str, dict[str, TargetOutput]] = {}  # by precision of the target
    for combination in wanted:
        progress(f"Loading {combination}", 0.0)
        pair = load_pair(target, draft, combination.target, combination.draft, device)
        memory.append(pair.memory_bytes)  # before the engine repacks the weights
        engines.append(Engine(pair, pass_mode=pass_mode, widest_draft=max_draft))
        made = record_many(
            engines[-1],
            prompts,
            parts,
            max_new_tokens=max_new_tokens,
            max_draft=max_draft,
            written=written.setdefault(combination.target, {}),
            stopped=stopped,
            progress=lambda stage, done, total, name=combination: progress(f"Recording {name}", done / total),
        )
        if not made.complete:
            return None
        if made.recordings is None:
            raise SpecVizError(f"No prompt could be recorded: {next(iter(made.failures.values()))}")
        notes |= {prompt: f"Prompt {prompt} was left out: {why}" for prompt, why in made.failures.items()}
        recordings.append(made.recordings)
    try:
        samples = steady_samples(
            engines, contexts=_contexts(recordings), max_draft=max_draft, stopped=stopped, progress=progress
        )
    except SpecVizError:
        if stopped():
            return None
        raise
    texts = recordings[full]
    try:
        models = _model_errors(target, draft, engines, texts, footprints, device, stopped, progress)
    except SpecVizError as error:  # fp32 may need more memory than there is
        models, notes["fp32"] = [], f"Quantisation error was not measured: {error}"
    if models is None:
        return None
    token_text = TokenText(engines[full].pair.tokenizer)
    ids = {int(token) for each in recordings for recording in each.recordings for token in recording.output_ids}
    for model in models:
        for text in model.texts:
            ids |= {*text.token.tolist(), *text.reference_token.tolist()}
    return MeasuredComparison(
        [
            MeasuredCombination(each, sampled, taken)
            for each, sampled, taken in zip(recordings, samples, memory, strict=True)
        ],
        models,
        full,
        {token: token_text.bytes_of(token) for token in sorted(ids)},
        list(notes.values()),
    )


def _contexts(sets: Sequence[RecordingSet]) -> tuple[int, int]:
    """The ends of the texts: cost is close to a line in the context, and two points leave time to repeat them."""
    spans = [(len(r.prompt_ids), len(r.prompt_ids) + len(r.output_ids)) for each in sets for r in each.recordings]
    return min(first for first, _ in spans), max(last for _, last in spans)


def _model_errors(
    target: str,
    draft: str,
    engines: Sequence[Engine],
    texts: RecordingSet,
    footprints: dict[str, Footprint],
    device: str,
    stopped: Callable[[], bool],
    progress: Progress,
) -> list[MeasuredModel] | None:
    """Every different target and draft among the engines, beside itself in fp32; None if stopped."""
    progress(f"Loading {REFERENCE}", 0.0)
    reference = load_pair(target, draft, REFERENCE, REFERENCE, device)
    measured = []
    for role in ("target", "draft"):
        beside: LoadedModel = getattr(reference, role)
        models = {beside.precision: beside} | {
            loaded.precision: loaded for loaded in (getattr(engine.pair, role) for engine in engines)
        }
        errors = text_errors(
            list(models.values()),
            beside,
            texts.recordings,
            stopped=stopped,
            progress=lambda share, stage=f"Reading the texts with the {role}": progress(stage, share),
        )
        if errors is None:
            return None
        for (precision, loaded), own in zip(models.items(), errors, strict=True):
            footprint = footprints.get(precision) if role == "target" else None
            measured.append(MeasuredModel(role, precision, loaded.memory_bytes, own, footprint))
    return measured
