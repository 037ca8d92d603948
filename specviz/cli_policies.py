"""The commands about when to stop drafting: `arena`, `calibration`, `tune`."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from specviz import cli_names, limits
from specviz.cli_paths import input_file, model_name, output_file, recording_file
from specviz.cli_progress import errors, stage_progress
from specviz.errors import SpecVizError
from specviz.models.defaults import PASS_MODE

console = Console(highlight=False)


def add_commands(commands, add_pair_options) -> None:
    """Add the parsers of these commands.

    Args:
        add_pair_options: adds the options that say which pair, as every command has them.
    """
    _add_arena(commands)
    _add_calibration(commands)
    _add_tune(commands, add_pair_options)


def read_sets(paths: list[Path]) -> list:
    """One or several recording sets.

    Raises:
        SpecVizError: one cannot be read, says of itself what nothing here knows, or is given twice, which would count
            its prompts as new evidence.
    """
    from specviz.replay.rules import recorded_drawing
    from specviz.trace import read_recordings

    for place, path in enumerate(paths):
        if path.resolve() in [other.resolve() for other in paths[:place]]:
            raise SpecVizError(f"{path} is given twice; give every recording set once.")
    sets = [read_recordings(path) for path in paths]
    for path, found in zip(paths, sets, strict=True):
        try:
            recorded_drawing(found.recordings[0])
        except SpecVizError as error:
            raise SpecVizError(f"{path} cannot be used: {error}") from error
    return sets


def priced_sets(paths: list[Path]) -> tuple[list, object]:
    """The recordings of one or several sets, and the cost model they share.

    Raises:
        SpecVizError: a set has none, or another than the first; see also `read_sets`.
    """
    from specviz.analysis.cost_model import CostModel

    sets = read_sets(paths)
    for path, found in zip(paths, sets, strict=True):
        if found.cost_model is None:
            raise SpecVizError(f"{path} has no cost model; record it again without --no-cost-model.")
        if found.cost_model != sets[0].cost_model:
            raise SpecVizError(f"{path} has another cost model than {paths[0]}; give the files one by one.")
    try:
        cost = CostModel.from_json(sets[0].cost_model)
    except SpecVizError as error:
        raise SpecVizError(f"{paths[0]} has no usable costs: {error}") from error
    return [recording for found in sets for recording in found.recordings], cost


def _flags(pair, source: str | None) -> bytes | None:
    """What the kinds of position need to know of the vocabulary; None, with a sentence, where it is not known.

    Args:
        source: where to take the tokenizer from; None tries the built-in pair's and uses it if the set is that pair's.
    """
    from specviz.models.catalogue import BUILTIN_TARGET, BUILTIN_TARGET_NAME
    from specviz.models.sources import find_model
    from specviz.models.token_text import TokenText
    from specviz.replay.contexts import vocabulary_flags

    if source is None and pair.target != BUILTIN_TARGET_NAME:
        errors.print(
            f"Without the tokenizer of {pair.target} there are no kinds of position; name it with --tokenizer.",
            markup=False,
        )
        return None
    try:
        with stage_progress() as report:
            model = find_model(source or BUILTIN_TARGET, report)
    except SpecVizError as error:
        if source:
            raise
        errors.print(f"Without token texts there are no kinds of position: {error}", markup=False)
        return None
    return vocabulary_flags(TokenText(model.tokenizer).bytes_of, len(model.tokenizer))


def print_origin(cost) -> None:
    """When and where the times behind the prices were measured."""
    console.print(cost.origin, style="dim", markup=False, soft_wrap=True)


def add_cost_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--measure-costs-again",
        action="store_true",
        help="measure the pass times even if earlier ones are kept for this pair and machine, and replace those",
    )


def print_advice(advice) -> None:
    """The recommendation and what it rests on, as every command prints it."""
    for sentence in (advice.recommendation, *advice.sentences):
        console.print(sentence, markup=False, soft_wrap=True)


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recordings", type=input_file, nargs="+", metavar="FILE.parquet", help="recording sets")
    parser.add_argument(
        "--tokenizer",
        type=model_name,
        metavar="MODEL",
        help="hub id, folder or GGUF file whose tokenizer names the tokens",
    )


def _described(pair, prompts: int) -> str:
    return (
        f"{pair.target} ({pair.target_precision}) with {pair.draft} ({pair.draft_precision}) on {pair.device}, "
        f"{prompts} prompt{'s' * (prompts != 1)}"
    )


def _write(frame, path: Path | None, what: str = "Table") -> None:
    """Write a table where the reader asked for it."""
    from specviz.analysis.report import write_table

    if path:
        write_table(frame, path)
        console.print(f"{what} written to {path}", markup=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=place == 0)
    return table


# --- arena ---------------------------------------------------------------------------------------------------------


def _add_arena(commands) -> None:
    parser = commands.add_parser(
        "arena",
        help="every stopping policy at its best knob on a recording set, against the best possible",
        description="Replay every stopping policy on a recording set; no model runs. Each chooses its knob, and learns "
        "what it learns, on one half of the prompts and is judged on the other, both ways round.",
    )
    _add_set(parser)
    parser.add_argument(
        "-g", "--max-draft", type=limits.MAX_DRAFT.read, help="longest draft of every policy (default: all recorded)"
    )
    parser.add_argument("--csv", type=output_file, metavar="FILE", help="write the table")
    parser.add_argument(
        "--curves", type=output_file, metavar="FILE", help="write the speedup of every policy over its knob"
    )
    parser.add_argument(
        "--pairs", type=output_file, metavar="FILE", help="write how sure the difference of any two policies is"
    )
    parser.set_defaults(command=run_arena)


def run_arena(options: argparse.Namespace) -> None:
    """`arena`: the table of all policies and the result in words."""
    from specviz.analysis.arena import arena
    from specviz.analysis.arena_table import arena_table, curve_table, pair_table
    from specviz.analysis.tuning import tune
    from specviz.analysis.verdict import advise

    recordings, cost = priced_sets(options.recordings)
    flags = _flags(recordings[0].pair, options.tokenizer)
    with stage_progress() as report:
        result = arena(
            recordings,
            cost,
            options.max_draft,
            flags=flags,
            progress=lambda label, done, total: report("Replaying", done, total, label),
        )
    frame = arena_table(result)
    table = _table("policy", "knob", "speedup", "95 %", "chosen", "oracle", "t/pass", "waste")
    for row in frame.itertuples():
        table.add_row(
            row.policy,
            row.chosen.replace(" ", ""),
            f"{row.speedup:.3f}",
            f"{row.low:.2f}–{row.high:.2f}",
            f"{row.chosen_speedup:.3f}",
            f"{row.captured:.0%}",
            f"{row.tokens_per_pass:.2f}",
            f"{row.waste:.0%}",
        )
    console.print(f"Predicted speedup, {_described(result.pair, len(result.plain_seconds))}", markup=False)
    console.print(table)
    print_origin(cost)
    console.print(
        "speedup: on prompts that did not choose the knob, with its interval over prompts and pass times; chosen: on "
        "those that did; oracle: share of the optimal oracle's gain; t/pass: tokens per target pass; waste: share of "
        "draft steps whose token was not accepted",
        style="dim",
    )
    for sentence in result.sentences:
        console.print(sentence, markup=False, soft_wrap=True)
    console.print()
    print_advice(advise(tune(recordings, cost)))
    for label in result.left_out:
        console.print(f"Left out, since token texts are unknown: {label}.", markup=False)
    _write(frame, options.csv)
    _write(curve_table(result), options.curves, "Curves")
    _write(pair_table(result), options.pairs, "Pairs")


# --- calibration ---------------------------------------------------------------------------------------------------


def _add_calibration(commands) -> None:
    parser = commands.add_parser(
        "calibration",
        help="is the draft's confidence the chance that its token is accepted?",
        description="Reliability, calibration error, Brier score and discrimination of a recording set's draft, whole, "
        "by precision where there are several, by kind of position and by depth in the draft.",
    )
    _add_set(parser)
    parser.add_argument("--csv", type=output_file, metavar="FILE", help="write the table")
    parser.set_defaults(command=run_calibration)


def run_calibration(options: argparse.Namespace) -> None:
    """`calibration`: the reliability table and the scores, whole and split."""
    from specviz.analysis import draft_calibration as draft

    recordings = [recording for one in read_sets(options.recordings) for recording in one.recordings]
    pair = recordings[0].pair
    by_precision = draft.by_precision(recordings)
    flags = _flags(pair, options.tokenizer)
    whole = draft.calibration(draft.judged(recordings))
    diagram = _table("confidence", "tokens", "mean confidence", "accepted", "95 % interval")
    for edges, count, confidence, rate, low, high in zip(*vars(whole.diagram).values(), strict=True):
        diagram.add_row(
            f"{edges[0]:.1f} to {edges[1]:.1f}",
            str(int(count)),
            f"{confidence:.3f}",
            f"{rate:.3f}",
            f"{low:.3f} to {high:.3f}",
        )
    if len(by_precision) > 1:
        pair = replace(pair, target_precision="several precisions", draft_precision="several precisions")
    console.print(f"Draft tokens, {_described(pair, whole.prompts)}", markup=False)
    console.print(diagram)
    parts = {"all": draft.judged(recordings)}
    if len(by_precision) > 1:
        parts |= by_precision
    if flags is not None:
        parts |= draft.by_kind(recordings, flags)
    deepest = min([8, *(recording.max_draft for recording in recordings)])
    parts |= {f"depth {depth}": tokens for depth, tokens in draft.by_depth(recordings, deepest).items()}
    frame = draft.calibration_table({name: draft.calibration(part) for name, part in parts.items()})
    scores = _table("tokens of", "tokens", "accepted", "confidence", "ECE", "adaptive ECE", "Brier", "ROC area")
    for row in frame.itertuples():
        scores.add_row(
            row.part,
            str(row.tokens),
            f"{row.acceptance:.3f}",
            f"{row.confidence:.3f}",
            f"{row.ece:.3f}",
            f"{row.adaptive_ece:.3f}",
            f"{row.brier:.3f}",
            f"{row.roc_confidence:.3f}",
        )
    console.print()
    console.print(scores)
    _write(frame, options.csv)


# --- tune ----------------------------------------------------------------------------------------------------------


def _add_tune(commands, add_pair_options) -> None:
    parser = commands.add_parser(
        "tune",
        help="choose threshold and draft length for a pair, with ready settings for other programs",
        description="Choose threshold and draft length together, cross-validated over prompts. Give a recording set, "
        "or a pair and prompts, which are then recorded first.",
    )
    parser.add_argument("recordings", type=input_file, nargs="*", metavar="FILE.parquet", help="recording sets")
    parser.add_argument(
        "--pair",
        type=cli_names.catalogue_pair,
        metavar="NAME",
        help="a pair of the catalogue, instead of --target and --draft",
    )
    parser.add_argument("--prompts", type=input_file, metavar="FILE", help="record these (default: the set of SpecViz)")
    parser.add_argument(
        "--out", type=recording_file, metavar="FILE.parquet", help="record there (default: a name from the pair)"
    )
    parser.add_argument(
        "-n", "--max-new-tokens", type=limits.MAX_NEW_TOKENS.read, default=128, help="when recording (default 128)"
    )
    parser.add_argument(
        "--pass-mode",
        type=limits.PASS_MODE.read,
        default=PASS_MODE,
        help=f"when recording: fast or invariant (default {PASS_MODE})",
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="run the best setting for real on up to 10 of the prompts, beside plain decoding, and compare it with the "
        "prediction; a recording set needs its pair named by --target and --draft",
    )
    parser.add_argument("--html", type=output_file, metavar="FILE", help="write a report that works offline")
    parser.add_argument("--csv", type=output_file, metavar="FILE", help="write the choices as a table")
    add_cost_option(parser)
    add_pair_options(parser)
    parser.set_defaults(command=run_tune)


def run_tune(options: argparse.Namespace) -> None:
    """`tune`: the recommendation, what is known of it, and settings to paste."""
    from specviz.analysis.ready_settings import ready_settings
    from specviz.analysis.tuning import tune, tuning_table
    from specviz.analysis.tuning_report import flat_words, tuning_html
    from specviz.analysis.verdict import advise
    from specviz.plots.offline import charts_html
    from specviz.plots.policy_figures import tuning_figures
    from specviz.trace.files import whole_file

    if options.recordings and options.measure_costs_again:
        raise SpecVizError("--measure-costs-again goes with recording; record the set again to give it new pass times.")
    if options.recordings and (options.prompts or options.pair or options.out):
        raise SpecVizError("Give either a recording set, or a pair and prompts to record; not both.")
    recordings, cost = priced_sets(options.recordings or [_record(options)])
    result = tune(recordings, cost)
    console.print(f"Tuned for {_described(result.pair, result.prompts)}", markup=False)
    table = _table("failing token", "τ", "γ", "speedup", "on new prompts", "95 % interval", "regret", "flat top, τ")
    names = {"drop": "withheld", "keep": "proposed", "fixed": "no threshold"}
    for choice in result.choices:
        table.add_row(
            names[choice.name],
            f"{choice.threshold:.2f}",
            str(choice.max_draft),
            f"{choice.speedup.value:.3f}",
            f"{choice.held_out.value:.3f}",
            f"{choice.held_out.low:.3f} to {choice.held_out.high:.3f}",
            f"{choice.regret:.1%}",
            flat_words(choice),
        )
    console.print(table)
    print_origin(cost)
    advice = advise(result, [_measured_check(options, recordings, cost, result.best)] if options.measure else ())
    print_advice(advice)
    for ready in ready_settings(advice):
        console.print(f"\n{ready.program}", style="bold")
        if ready.text:
            console.print(ready.text, markup=False, soft_wrap=True)
        console.print(ready.note, markup=False, soft_wrap=True, style="dim")
    if options.html:
        with whole_file(options.html) as temporary:
            temporary.write_text(tuning_html(advice, charts_html(tuning_figures(result))), "utf-8")
        console.print(f"\nReport written to {options.html}", markup=False)
    _write(tuning_table(result), options.csv)


def _sources(options: argparse.Namespace) -> tuple[str, str]:
    """The target and the draft that the options name."""
    from specviz.models.catalogue import find_pair

    if not options.pair:
        return options.target, options.draft
    chosen = find_pair(options.pair)
    return chosen.target.source, chosen.draft.source


def _measured_check(options: argparse.Namespace, recordings: list, cost, choice):
    """Run a tuned setting for real on the first prompts, and put it beside its prediction."""
    from specviz.analysis.checks import check
    from specviz.analysis.comparison import measured_point
    from specviz.analysis.fidelity_report import check_prices
    from specviz.cli import stops_softly
    from specviz.engine.engine import Engine, Settings
    from specviz.engine.measurement import MOST_PROMPTS, measure, repeats_of
    from specviz.models.loading import load_pair
    from specviz.replay import ConfidenceThreshold

    pair, measured = recordings[0].pair, recordings[:MOST_PROMPTS]
    policy = ConfidenceThreshold(choice.threshold, choice.on_fail)
    settings = Settings.as_recorded(measured[0], policy, choice.max_draft, max(len(r.output_ids) for r in measured))
    with stops_softly() as stopped, stage_progress() as report:
        loaded = load_pair(
            *_sources(options), pair.target_precision, pair.draft_precision, options.device, progress=report
        )
        engine = Engine(
            loaded,
            pass_mode=measured[0].settings["pass_mode"],
            widest_draft=measured[0].settings["widest_draft"],
            compiled=cost.mode(measured[0].settings["pass_mode"]).compiled,
        )
        check_prices(engine.pair_info(), cost)
        found = measure(
            engine,
            [recording.prompt_ids.tolist() for recording in measured],
            [settings],
            repeats=repeats_of(len(measured)),
            stopped=stopped,
            progress=lambda stage, share: report(stage, share, 1.0),
        )
    point = measured_point(
        choice.threshold, choice.max_draft, found.plain_seconds, found.speculative_seconds[0], choice.on_fail
    )
    return check(point, recordings, cost)


def _record(options: argparse.Namespace) -> Path:
    """Record the prompts with the pair that the options name; the file of the set."""
    from specviz.cli import main

    target, draft = _sources(options)
    out = options.out
    if not out:
        name = options.pair or f"{Path(target).name}-{Path(draft).name}"
        out = Path(f"tune-{re.sub(r'[^A-Za-z0-9._]+', '-', name)}.parquet")
        if out.exists():
            raise SpecVizError(f"{out} exists: tune it as it is (tune {out}), or say with --out where to record again.")
    arguments = ["record", "--out", str(out), "-n", str(options.max_new_tokens), "--target", target, "--draft", draft]
    arguments += ["--pass-mode", options.pass_mode, "--precision", options.precision, "--device", options.device]
    if options.draft_precision:
        arguments += ["--draft-precision", options.draft_precision]
    if options.prompts:
        arguments += ["--prompts", str(options.prompts)]
    if options.measure_costs_again:
        arguments.append("--measure-costs-again")
    status = main(arguments)
    if status not in (0, 1):  # 1: some prompts were left out, with their reasons
        raise SystemExit(status)
    return out
