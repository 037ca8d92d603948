"""Every causal-language-model family that transformers offers, as a tiny random pair, against `generate`.

Each family runs in a process of its own, so that one that crashes or hangs costs its own row of the table and no more.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import platform
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from queue import Empty

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig, PreTrainedModel

import specviz
from specviz.bench import tiny_families
from specviz.bench.reporting import Verdicts, console
from specviz.engine.engine import PASS_MODES, Engine, Settings, library_versions, observe_all
from specviz.errors import SpecVizError
from specviz.models.draft_model import DraftConfig
from specviz.models.loading import LoadedModel, LoadedPair
from specviz.models.messages import first_line
from specviz.models.quiet import quiet_loading
from specviz.replay import ConfidenceThreshold

PROMPT_TOKENS, NEW_TOKENS, MAX_DRAFT = 30, 64, 8
NEAR_TIE = 1e-3  # between the target's two largest logits, of a spread of some units, in fp32
SECONDS = 300  # that a family may take
EXACT, NEAR, REFUSED, WRONG, FAILED, UNTESTED = "exact", "near-tie", "refused", "WRONG", "FAILED", "untested"


@dataclass(frozen=True)
class Result:
    """How one family did in one pass mode; detail: a sentence where there is something to say."""

    verdict: str
    detail: str = ""


@dataclass(frozen=True)
class Row:
    """One family: its name, the one it is loaded as, how its passes work, and a result by pass mode."""

    family: str
    loaded_as: str
    passes: str
    results: dict[str, Result]

    @property
    def is_exact(self) -> bool:
        return all(result.verdict in (EXACT, NEAR) for result in self.results.values())


def families() -> list[type[PretrainedConfig]]:
    """Configurations of all causal families of this transformers, each once, in the order of their names."""
    known = {config.model_type: config for config in MODEL_FOR_CAUSAL_LM_MAPPING if config is not DraftConfig}
    return [known[name] for name in sorted(known)]


def run(out: Path | None, *, only: list[str] | None = None) -> bool:
    """Test the families, write the table to `out`; whether none is wrong or fails and about 90% are exact.

    Args:
        out: while the run lasts, finished rows are kept beside it, and a run after an interruption continues there.
        only: names of families; None tests all.
    """
    chosen = [config for config in families() if not only or config.model_type in only]
    if not chosen:
        raise SpecVizError(f"transformers has no family called {', '.join(only)}; give names such as llama,gpt2.")
    finished = _read_finished(out) if out else {}
    rows = []
    for number, config in enumerate(chosen):
        earlier = finished.get(config.model_type)
        rows.append(earlier or in_own_process(config))
        if out and not earlier:
            _keep_finished(out, rows[-1])
        results = ", ".join(f"{mode} {result.verdict}" for mode, result in rows[-1].results.items())
        kept = " (kept from an interrupted run)" if earlier else ""
        console.print(f"{number + 1} of {len(chosen)}: {config.model_type}: {results}{kept}", markup=False)
    if out:
        _write(out, rows)
        _finished_file(out).unlink(missing_ok=True)
        console.print(f"Written to {out}", markup=False)
    tested = [row for row in rows if not _has(row, UNTESTED)]
    verdicts = Verdicts()
    for verdict, what in ((WRONG, "gives another text"), (FAILED, "fails without a sentence")):
        names = [row.family for row in tested if _has(row, verdict)]
        verdicts.check(f"no family {what}", not names, ", ".join(names) or "none")
    exact = sum(row.is_exact for row in tested)
    verdicts.check(
        "about 90% of the families tested are exact in both pass modes",
        exact >= 0.88 * len(tested),
        f"{exact} of {len(tested)}; {len(rows) - len(tested)} untested",
    )
    return verdicts.all_met


def _has(row: Row, verdict: str) -> bool:
    return any(result.verdict == verdict for result in row.results.values())


def in_own_process(config: type[PretrainedConfig]) -> Row:
    """The row of one family, whatever happens to the process that makes it."""
    context = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn")
    answers = context.Queue()
    process = context.Process(target=_answer, args=(config, answers), daemon=True)
    process.start()
    row, waited = None, 0.0
    while row is None and waited < SECONDS and (process.is_alive() or waited == 0):
        try:
            row = answers.get(timeout=1)
        except Empty:
            waited += 1
    process.kill()
    process.join()
    if row is not None:
        return row
    how = "does not end" if waited >= SECONDS else f"ends the process (status {process.exitcode})"
    return Row(config.model_type, "", "", dict.fromkeys(PASS_MODES, Result(UNTESTED, f"A tiny one {how}.")))


def _answer(config: type[PretrainedConfig], answers: multiprocessing.Queue) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # families warn on both
        os.dup2(nowhere, stream)
    torch.set_num_threads(1)
    with quiet_loading():
        answers.put(measure(config))


def measure(config_class: type[PretrainedConfig]) -> Row:
    """Build a family's tiny pair and compare its speculative text with `generate`, in both pass modes."""
    name = config_class.model_type
    try:
        config = tiny_families.tiny_config(config_class)
        target = tiny_families.tiny_target(config)
        draft = tiny_families.tiny_draft(target)
        generator = torch.Generator().manual_seed(3)
        prompt = torch.randint(5, tiny_families.VOCABULARY, (PROMPT_TOKENS,), generator=generator).tolist()
        expected, margins = _generate(copy.deepcopy(target), prompt)
    except Exception as error:  # what this file cannot build is no statement about the engine
        why = f"A tiny one cannot be built and generated from ({type(error).__name__}: {first_line(error)})."
        return Row(name, "", "", dict.fromkeys(PASS_MODES, Result(UNTESTED, why)))
    results, passes = {}, ""
    for mode in PASS_MODES:
        try:
            pair = LoadedPair(_loaded(copy.deepcopy(target), "target"), _loaded(copy.deepcopy(draft), "draft"))
            engine = Engine(pair, pass_mode=mode, widest_draft=MAX_DRAFT)
            passes = f"{passes} / {engine.target_runner.uncompiled_pass.description}".removeprefix(" / ")
            settings = Settings(ConfidenceThreshold(0.0), MAX_DRAFT, NEW_TOKENS)
            outputs = [
                observe_all(engine.speculative(prompt, settings), ()).output_ids,
                observe_all(engine.plain(prompt, NEW_TOKENS), ()).output_ids,
            ]
            results[mode] = next(
                (found for output in outputs if (found := _compared(list(output), expected, margins)).verdict != EXACT),
                Result(EXACT),
            )
        except SpecVizError as error:
            results[mode] = Result(REFUSED, str(error))
        except Exception as error:
            results[mode] = Result(FAILED, f"{type(error).__name__}: {first_line(error)}.")
    kinds = dict.fromkeys(passes.split(" / "))
    return Row(name, config.model_type, " / ".join(kinds), results)


def _loaded(model: PreTrainedModel, name: str) -> LoadedModel:
    return LoadedModel(
        model=model,
        tokenizer=None,
        name=f"The {name}",
        revision="",
        precision="fp32",
        device="cpu",
        memory_bytes=0,
        eos_token_ids=(),
        max_context=tiny_families.MAX_CONTEXT,
        is_chat=False,
        family=model.config.model_type,
    )


def _generate(model: PreTrainedModel, prompt: list[int]) -> tuple[list[int], list[float]]:
    """Greedy tokens of `generate`, and the margin between the two largest logits at each."""
    ids = torch.tensor([prompt])
    options = dict(
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    try:
        output = model.generate(ids, **options)
    except Exception:  # in some families generate's own cache has another number of layers than the model
        output = model.generate(ids, **options, use_cache=False)
    best = torch.stack(output.logits)[:, 0].float().topk(2, -1).values
    return output.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]).tolist()


def _compared(output: list[int], expected: list[int], margins: list[float]) -> Result:
    if output == expected:
        return Result(EXACT)
    at = next((i for i, (a, b) in enumerate(zip(output, expected, strict=False)) if a != b), len(output))
    margin = margins[at] if at < len(margins) else float("inf")
    if margin < NEAR_TIE:
        return Result(NEAR, f"Token {at + 1} differs, where the two largest logits are {margin:.1g} apart.")
    return Result(WRONG, f"Token {at + 1} differs, where the two largest logits are {margin:.2g} apart.")


# --- what an interrupted run has finished ----------------------------------------------------------------------------


def _finished_file(out: Path) -> Path:
    return out.with_name(f".{out.name}.finished")


def _read_finished(out: Path) -> dict[str, Row]:
    """Rows by family that an interrupted run of this same code and these same libraries has finished."""
    path = _finished_file(out)
    rows: dict[str, Row] = {}
    if not path.exists():
        return rows
    if path.stat().st_mtime < max(file.stat().st_mtime for file in Path(specviz.__file__).parent.rglob("*.py")):
        path.unlink()
        return rows
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
            if entry.pop("versions") == library_versions():
                entry["results"] = {mode: Result(**result) for mode, result in entry["results"].items()}
                rows[entry["family"]] = Row(**entry)
        except (ValueError, KeyError, TypeError, AttributeError):  # the line that was written as the run ended
            continue
    return rows


def _keep_finished(out: Path, row: Row) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with _finished_file(out).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"versions": library_versions()} | asdict(row)) + "\n")


# --- the table -----------------------------------------------------------------------------------------------------


def _write(out: Path, rows: list[Row]) -> None:
    text = "\n".join(_lines(rows)) + "\n"
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(out)


def _lines(rows: list[Row]) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in library_versions().items())
    tested = [row for row in rows if not _has(row, UNTESTED)]
    counts = Counter(result.verdict for row in tested for result in row.results.values())
    yield "# Model families"
    yield ""
    yield (
        f"`python -m specviz bench families --out docs/families.md`, {date.today().isoformat()}, {versions}, "
        f"{platform.machine()}."
    )
    yield ""
    yield (
        f"One tiny random pair in fp32 for each of the {len(rows)} causal-language-model families of transformers (the "
        f"draft is the target with a little noise). A prompt of {PROMPT_TOKENS} tokens is continued by {NEW_TOKENS} at "
        f"threshold 0 and draft length {MAX_DRAFT}, speculatively and plainly, in both pass modes, and compared with "
        "greedy `generate`."
    )
    yield ""
    yield (
        f"{sum(row.is_exact for row in tested)} of the {len(tested)} families tested are exact in both pass modes; "
        f"results in all: {', '.join(f'{counts[kind]} {kind}' for kind in counts)}. {len(rows) - len(tested)} are "
        "untested."
    )
    yield ""
    yield (
        "*Passes* says how the target is run: over a key-value *cache*; over the family's own *recurrent* states, of "
        "which copies are kept; or by reading the *whole text* in every pass, where the family has no cache of that "
        "kind (exact, but its times grow with the text). *Own logits*: the head is run inside the model."
    )
    yield ""
    yield "| family | passes | invariant | fast | notes |"
    yield "|---|---|---|---|---|"
    for row in rows:
        notes = dict.fromkeys(result.detail for result in row.results.values() if result.detail)
        loaded_as = f"Its text part is loaded, as {row.loaded_as}." if row.loaded_as not in ("", row.family) else ""
        cells = [row.family, row.passes, *(row.results[mode].verdict for mode in ("invariant", "fast"))]
        cells.append(" ".join(filter(None, (loaded_as, *notes))).replace("|", "\\|").replace("\n", " "))
        yield f"| {' | '.join(cells)} |"
