"""Tables for people: a sweep as a data frame, printed, and as CSV."""

from pathlib import Path

import numpy as np
import pandas as pd

from specviz.analysis.cost_model import outside_words
from specviz.analysis.curves import SpeedupGrid
from specviz.analysis.metrics import metrics
from specviz.trace.files import whole_file

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
PRINTED_THRESHOLDS = 11


def sweep_table(cells: SpeedupGrid) -> pd.DataFrame:
    """One row per threshold and draft length, pooled over the recordings.

    Columns: threshold, max_draft, on_fail, pass_mode, recordings, speedup, low, high (limits of the interval over
    prompts), level, tokens_per_second, the fields of `Metrics`, rounds, draft_steps, proposed, tested, accepted,
    discarded, withheld, emitted (tokens, steps and rounds in all), predicted_seconds, plain_seconds, and what was
    run: target, draft, target_precision, draft_precision, device.
    """
    thresholds, max_drafts = np.meshgrid(cells.thresholds, cells.max_drafts, indexing="ij")
    seconds, plain = cells.seconds.sum(axis=0), cells.plain_seconds.sum()
    numbers = {
        "speedup": cells.speedup,
        "low": cells.low,
        "high": cells.high,
        "level": np.full(seconds.shape, cells.level),
        "tokens_per_second": cells.counts.emitted / seconds,
    }
    numbers |= vars(metrics(cells.counts))
    names = ("rounds", "draft_steps", "proposed", "tested", "accepted", "discarded", "withheld", "emitted")
    numbers |= {name: getattr(cells.counts, name) for name in names}
    numbers |= {"predicted_seconds": seconds, "plain_seconds": np.full(seconds.shape, plain)}
    frame = pd.DataFrame({name: np.ravel(values) for name, values in numbers.items()})
    frame.insert(0, "threshold", thresholds.ravel())
    frame.insert(1, "max_draft", max_drafts.ravel())
    settings = {"on_fail": cells.on_fail, "pass_mode": cells.pass_mode, "recordings": len(cells.plain_seconds)}
    for place, (name, value) in enumerate(settings.items(), 2):
        frame.insert(place, name, value)
    pair = ("target", "draft", "target_precision", "draft_precision", "device")
    return frame.assign(**{name: getattr(cells.pair, name) for name in pair})


def table_as_csv(frame: pd.DataFrame) -> str:
    """A table as CSV. A text cell that a spreadsheet would run as a formula gets an apostrophe in front."""
    safe = frame.copy()
    for name in safe.columns[[not pd.api.types.is_numeric_dtype(dtype) for dtype in safe.dtypes]]:
        safe[name] = [f"'{cell}" if str(cell).startswith(FORMULA_STARTS) else cell for cell in safe[name]]
    return safe.to_csv(index=False, lineterminator="\n")


def write_table(frame: pd.DataFrame, path: str | Path) -> None:
    """Write `table_as_csv`, whole or not at all.

    Raises:
        SpecVizError: the file cannot be written.
    """
    with whole_file(Path(path)) as temporary:
        temporary.write_text(table_as_csv(frame), "utf-8")


def describe(cells: SpeedupGrid) -> str:
    """The sweep for a terminal: speedups as thresholds down and draft lengths across, then the best."""
    rows = np.unique(np.linspace(0, len(cells.thresholds) - 1, PRINTED_THRESHOLDS).round().astype(int))
    table = pd.DataFrame(
        cells.speedup[rows],
        index=pd.Index([f"{value:.3f}" for value in cells.thresholds[rows]], name="threshold"),
        columns=pd.Index([f"γ={value}" for value in cells.max_drafts]),
    )
    pair, number = cells.pair, len(cells.plain_seconds)
    lines = [
        f"Predicted speedup over plain decoding, {number} prompt{'s' * (number != 1)}, pass mode {cells.pass_mode}",
        f"{pair.target} ({pair.target_precision}) with {pair.draft} ({pair.draft_precision}) on {pair.device}",
        table.to_string(float_format="{:.2f}".format),
        cells.sentence,
    ]
    if cells.outside:
        lines.append(outside_words(cells.outside, number))
    return "\n".join(lines)
