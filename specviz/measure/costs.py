"""The costs of a loaded pair: measured until they can be true together, and kept for the next time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence

from specviz.analysis.calibrated import MachineBusy, cost_model, cost_models
from specviz.analysis.cost_model import CostModel
from specviz.analysis.cost_store import CostKey, load_cost, save_cost
from specviz.engine.calibration import DEFAULT_CONTEXTS, PassSamples, calibrate_together, longest_measured
from specviz.engine.decoding import never
from specviz.engine.engine import Engine
from specviz.errors import SpecVizError
from specviz.trace import Recording

TRIES = 3  # of a measurement that contradicts itself
USUAL_CONTEXTS = (DEFAULT_CONTEXTS[0], DEFAULT_CONTEXTS[-1])
LONGEST_DRAFT = 16  # that is priced where nothing longer is asked for
Progress = Callable[[str, float], None]


def spanned(recordings: Iterable[Recording]) -> tuple[int, int]:
    """The shortest and the longest context of these recordings, in tokens."""
    spans = [(len(one.prompt_ids), len(one.prompt_ids) + len(one.output_ids)) for one in recordings]
    return min(first for first, _ in spans), max(last for _, last in spans)


def cost_key(engine: Engine) -> CostKey:
    """What the costs of this engine are kept under."""
    configurations = [loaded.model.config.to_dict() for loaded in (engine.pair.target, engine.pair.draft)]
    for configuration in configurations:
        configuration.pop("_name_or_path", None)  # where it lies changes no time
    text = json.dumps(configurations, sort_keys=True, default=str)
    return CostKey(
        pair=engine.pair_info(),
        architecture=hashlib.sha256(text.encode()).hexdigest()[:16],
        pass_mode=engine.pass_mode,
        width=engine.widest_draft + 1 if engine.pass_mode == "invariant" else 0,
        compiled=engine.compiled,
    )


def kept_costs(
    engine: Engine,
    span: tuple[int, int] = USUAL_CONTEXTS,
    max_draft: int = LONGEST_DRAFT,
    *,
    say: Callable[[str], None] = lambda sentence: None,
) -> CostModel | None:
    """The costs kept for this engine, if they cover these contexts and draft lengths and the machine was quiet.

    Args:
        say: called with a sentence where kept costs cannot be used and are to be measured again.
    """
    try:
        cost = load_cost(cost_key(engine))
    except SpecVizError as error:
        say(str(error))
        return None
    if cost is None or not _covers(cost, engine, span, max_draft):
        return None
    if cost.busy:
        say("The machine was busy when the kept pass times were measured, so they are measured again.")
        return None
    return cost


def measure_costs(
    engine: Engine,
    span: tuple[int, int] = USUAL_CONTEXTS,
    max_draft: int = LONGEST_DRAFT,
    *,
    stopped: Callable[[], bool] = never,
    progress: Progress = lambda stage, share: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> CostModel:
    """Measure the costs and keep them in place of those kept before; what those covered is covered again.

    Args:
        span: the shortest and the longest context to price, in tokens.
        max_draft: the longest draft length to price.
        say: called with a sentence if they cannot be kept.

    Raises:
        SpecVizError: stopped, or the machine stayed too busy; then what was kept before stays.
    """
    key = cost_key(engine)
    try:
        before = load_cost(key)
    except SpecVizError:  # damaged: it is replaced
        before = None
    if before is not None:
        span = min(span[0], before.contexts[0]), max(span[1], before.contexts[-1])
        max_draft = max(max_draft, before.mode(key.pass_mode).longest_draft)
    contexts = (max(2, span[0]), max(2, (span[0] + span[1]) // 2), max(2, span[1]))
    cost = measured_costs(engine, contexts, max_draft, stopped=stopped, progress=progress)
    try:
        save_cost(key, cost)
    except SpecVizError as error:
        say(str(error))
    return cost


def measured_costs(
    engine: Engine,
    contexts: Sequence[int],
    max_draft: int = LONGEST_DRAFT,
    *,
    stopped: Callable[[], bool] = never,
    progress: Progress = lambda stage, share: None,
) -> CostModel:
    """Measure the costs at these context lengths without keeping them; arguments and errors as in `measure_costs`."""
    return cost_model(
        *steady_samples([engine], contexts=contexts, max_draft=max_draft, stopped=stopped, progress=progress)
    )


def steady_samples(
    engines: Sequence[Engine],
    *,
    contexts: Sequence[int],
    max_draft: int,
    stopped: Callable[[], bool] = never,
    progress: Progress = lambda stage, share: None,
) -> list[PassSamples]:
    """Samples of all engines that make cost models; measured again, all of them, while they contradict themselves.

    Measuring only the offending passes again would compare the machine of now with that of before.

    Raises:
        SpecVizError: stopped, or still contradictory after `TRIES` measurements, which is said of the last one.
    """
    for tries_left in reversed(range(TRIES)):
        samples = calibrate_together(
            engines, contexts=contexts, max_draft=max_draft, stopped=stopped, progress=progress
        )
        try:
            cost_models(samples)
            return samples
        except MachineBusy:
            if not tries_left:
                raise
            progress("The machine was busy; measuring passes again", 0.0)
    raise AssertionError("unreachable")


def _covers(cost: CostModel, engine: Engine, span: tuple[int, int], max_draft: int) -> bool:
    """Whether a price exists for all that is asked, as far as it can be measured at all."""
    longest = min(span[1], longest_measured([engine]))
    enough_drafts = engine.pass_mode == "invariant" or cost.mode(engine.pass_mode).longest_draft >= max_draft
    return cost.contexts[0] <= max(2, min(span[0], longest)) and cost.contexts[-1] >= longest and enough_drafts
