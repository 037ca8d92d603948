"""Recording a set of prompts: each finished prompt is kept on disk, and a killed run goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from specviz.engine.decoding import never
from specviz.engine.engine import Engine, Settings
from specviz.engine.recording import (
    DEFAULT_RECORDED_DRAFT,
    GREEDY_SAMPLING,
    TargetOutput,
    check_recordable,
    record,
    write_output,
)
from specviz.errors import SpecVizError
from specviz.models.loading import encode_prompt
from specviz.replay.generation import LogitRequests
from specviz.replay.rules import AcceptanceRule
from specviz.replay.sampling import Sampling
from specviz.trace import Recording, RecordingSet, read_recordings, write_recordings
from specviz.trace.recording import check_set_size


class Prompt(Protocol):
    """What is needed of a prompt; `id` is unique in its set."""

    id: str
    category: str
    text: str


@dataclass(frozen=True)
class RecordedMany:
    """What became of a set of prompts. `recordings` is None if no prompt could be recorded; `failures` has a sentence
    for each prompt that could not; `complete` is False if the run was stopped before the last prompt.
    """

    recordings: RecordingSet | None
    failures: dict[str, str]
    complete: bool


def record_many(
    engine: Engine,
    prompts: Sequence[Prompt],
    parts: Path,
    *,
    max_new_tokens: int = 128,
    max_draft: int = DEFAULT_RECORDED_DRAFT,
    method: str = "fast",
    sampling: Sampling = GREEDY_SAMPLING,
    rule: AcceptanceRule | None = None,
    seed: int = 0,
    requests: LogitRequests | None = None,
    stop: tuple[str, ...] | None = None,
    chat: bool | None = None,
    written: dict[str, TargetOutput] | None = None,
    stopped: Callable[[], bool] = never,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> RecordedMany:
    """Record every prompt, in order.

    Args:
        parts: folder for finished prompts, one small Parquet file each, named by a hash of everything that decides its
            content; the same call after an interruption loses at most the prompt in flight. Several processes may share
            it, as each file is written whole.
        written: outputs by the id of their prompt, read and added to: drafts of one target that are recorded with the
            same settings can share what it wrote.
        progress: called with a stage, prompts done, and prompts in all.

    Raises:
        SpecVizError: unusable settings, or more prompts than a set holds.
    """
    check_set_size(len(prompts), max_draft)
    drafted = min(max_draft, engine.widest_draft)
    drawing = {"sampling": sampling, "rule": rule, "seed": seed, "requests": requests, "stop": stop}
    settings = Settings(max_draft=drafted, max_new_tokens=max_new_tokens, **drawing)
    written = {} if written is None else written
    check_recordable(settings.rule)
    parts.mkdir(parents=True, exist_ok=True)
    recordings: list[Recording] = []
    failures: dict[str, str] = {}
    for number, prompt in enumerate(prompts):
        progress(f"Prompt {prompt.id}", number, len(prompts))
        part = parts / f"{_fingerprint(engine, prompt, settings, max_draft, method, chat)}.parquet"
        kept = _kept(part)
        if kept is None:
            if stopped():
                return RecordedMany(RecordingSet(recordings) if recordings else None, failures, False)
            interrupted = False

            def ask() -> bool:
                nonlocal interrupted
                interrupted = interrupted or stopped()
                return interrupted

            try:
                prompt_ids = encode_prompt(engine.pair, prompt.text, chat)
                output = written.get(prompt.id) or write_output(engine, prompt_ids, settings, stopped=ask)
                kept = record(
                    engine,
                    prompt_ids,
                    max_new_tokens=max_new_tokens,
                    max_draft=max_draft,
                    method=method,
                    **drawing,
                    prompt=prompt.text,
                    prompt_id=prompt.id,
                    category=prompt.category,
                    written=output,
                )
            except SpecVizError as error:
                if not interrupted:
                    failures[prompt.id] = str(error)
                    continue
            if interrupted:
                return RecordedMany(RecordingSet(recordings) if recordings else None, failures, False)
            write_recordings(RecordingSet([kept]), part)
            written[prompt.id] = output
        recordings.append(kept)
    progress("Done", len(prompts), len(prompts))
    return RecordedMany(RecordingSet(recordings) if recordings else None, failures, True)


def _fingerprint(engine: Engine, prompt: Prompt, settings: Settings, *rest) -> str:
    decides = [
        asdict(engine.pair_info()),
        engine.fixed_settings(settings),
        [settings.max_new_tokens, settings.seed],
        [prompt.id, prompt.category, prompt.text],
        *rest,
    ]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:24]


def _kept(part: Path) -> Recording | None:
    """The recording kept in `part`, or None if there is none that can be read."""
    try:
        return read_recordings(part).recordings[0]
    except (SpecVizError, OSError):
        return None
