"""The command line: the same functions as the app, without a browser.

A sentence on standard error and exit status 2 mean that something the user gave cannot be used; 130 means stopped.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from specviz import cli_names, cli_policies, limits
from specviz.cli_parser import CommandParser
from specviz.cli_parts import kept_parts
from specviz.cli_paths import (
    comparison_folder,
    input_file,
    model_name,
    output_file,
    output_folder,
    recording_file,
)
from specviz.cli_progress import command_progress, errors, stage_progress
from specviz.errors import SpecVizError
from specviz.models.defaults import PASS_MODE, PRECISION

if TYPE_CHECKING:
    from specviz.analysis import CostModel
    from specviz.replay import Sampling

console = Console(highlight=False)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    try:
        options = build_parser().parse_args(arguments)
        with command_progress(" ".join(filter(None, (options.command_name, getattr(options, "bench_kind", None))))):
            return options.command(options) or 0
    except SpecVizError as error:
        errors.print(str(error), style="bold", markup=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        errors.print("Stopped.")
        return 130


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="python -m specviz",
        description="Speculative decoding with a confidence threshold: run it, record it, replay it, measure it.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command_name")
    _add_run(commands)
    _add_record(commands)
    _add_sweep(commands)
    _add_compare(commands)
    _add_fidelity(commands)
    cli_policies.add_commands(commands, _add_pair_options)
    _add_distill(commands)
    _add_bench(commands)
    return parser


# --- options that several commands share ---------------------------------------------------------------------------


def _add_pair_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("pair")
    group.add_argument(
        "--target",
        type=model_name,
        default="builtin-target",
        help="hub id, folder or GGUF file (default: the built-in)",
    )
    group.add_argument(
        "--draft",
        type=model_name,
        default="builtin-draft",
        help="hub id, folder or GGUF file (default: the built-in)",
    )
    group.add_argument(
        "--precision",
        type=cli_names.precision,
        default=PRECISION,
        help="of both models: fp32, bf16, fp16, int8, nf4, fp4, with options such as nf4+double or int8+t0; or auto "
        "(default): bf16 where the device computes in it, else fp32",
    )
    group.add_argument("--draft-precision", type=cli_names.precision, help="of the draft, if another")
    group.add_argument("--device", type=cli_names.device, default="auto", help="cpu, cuda, or auto (default)")


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--pass-mode", type=limits.PASS_MODE.read, default=PASS_MODE, help=f"fast or invariant (default {PASS_MODE})"
    )
    group.add_argument(
        "--compile",
        action="store_true",
        help="compile the passes first (minutes)",
    )


def _add_setting_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings")
    group.add_argument(
        "-t",
        "--threshold",
        type=limits.THRESHOLD.read,
        default=0.5,
        help="confidence threshold (default 0.5)",
    )
    group.add_argument(
        "-g",
        "--max-draft",
        type=limits.MAX_DRAFT.read,
        default=5,
        help="most tokens proposed in a round (default 5)",
    )
    group.add_argument(
        "-n",
        "--max-new-tokens",
        type=limits.MAX_NEW_TOKENS.read,
        default=128,
        help="most tokens to generate (default 128)",
    )
    group.add_argument(
        "--keep",
        action="store_true",
        help="propose the token that fails the threshold, then stop",
    )
    group.add_argument(
        "--raw",
        action="store_true",
        help="continue the text as it is, without the chat template",
    )


def _add_sampling_options(parser: argparse.ArgumentParser, temperature: float = 0.0, rule: bool = True) -> None:
    group = parser.add_argument_group("sampling, of target and draft alike, in the order in which it is applied")
    group.add_argument(
        "--repetition-penalty",
        type=limits.REPETITION_PENALTY.read,
        help="1 is none (default: what the target's generation config asks for)",
    )
    group.add_argument(
        "--temperature",
        type=limits.TEMPERATURE.read,
        default=temperature,
        help=f"0 takes the likeliest token (default {temperature:g})",
    )
    group.add_argument(
        "--top-k", type=limits.TOP_K.read, default=0, help="keep the k likeliest tokens (default 0: all)"
    )
    group.add_argument(
        "--top-p", type=limits.TOP_P.read, default=1.0, help="keep the likeliest up to this probability (default 1)"
    )
    group.add_argument(
        "--min-p", type=limits.MIN_P.read, default=0.0, help="least share of the likeliest's probability (default 0)"
    )
    if rule:
        group.add_argument(
            "--rule",
            type=cli_names.rule,
            help="acceptance rule: greedy (default at temperature 0), coupled (default above), rejection, "
            "target_sample_match; lossy, with their number: lenient=0.5, top_k=3, typical=0.09",
        )
        parser.add_argument(
            "--stop",
            type=cli_names.stop_string,
            action="append",
            metavar="STRING",
            help="end the text with the token that completes this string; may be given several times (default: what "
            "the target's generation config asks for)",
        )
    group.add_argument("--seed", type=limits.SEED.read, default=0, help="of everything drawn (default 0)")


def _sampling(options: argparse.Namespace) -> Sampling:
    from specviz.replay import Sampling

    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    return Sampling(**{name: getattr(options, name) for name in names})


def _drawing(options: argparse.Namespace) -> dict:
    """Sampling, rule, seed and stop strings as `Settings` and `record` take them."""
    from specviz.replay.stop_strings import check_stop_strings

    stop = check_stop_strings(options.stop) if options.stop else None
    return {"sampling": _sampling(options), "rule": options.rule, "seed": options.seed, "stop": stop}


def _load(options: argparse.Namespace):
    from specviz.models.loading import load_pair
    from specviz.models.precision import chosen_precision

    precision = _precision(options)
    with stage_progress() as report:
        pair = load_pair(
            options.target,
            options.draft,
            precision,
            chosen_precision(options.draft_precision or precision, options.device),
            options.device,
            progress=report,
            max_draft=options.max_draft,
        )
    for warning in pair.warnings:
        errors.print(warning, markup=False)
    return pair


def _print_notes(engine) -> None:
    """What the user should know of how this pair's models run."""
    for note in engine.notes:
        errors.print(note, markup=False)


def _precision(options: argparse.Namespace) -> str:
    from specviz.models.precision import chosen_precision

    return chosen_precision(options.precision, options.device)


@contextmanager
def stops_softly() -> Iterator[Callable[[], bool]]:
    """Ctrl-C once: the function yielded answers True from then on; twice: KeyboardInterrupt."""
    asked = []

    def stop_soon(*_: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)

    previous = signal.signal(signal.SIGINT, stop_soon)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, previous)


# --- run -----------------------------------------------------------------------------------------------------------


def _add_run(commands) -> None:
    parser = commands.add_parser(
        "run",
        help="generate speculatively, show accept and reject runs, measure the speedup",
        description="Generate after PROMPT with speculative decoding under a confidence threshold.",
    )
    parser.add_argument("prompt", type=cli_names.prompt, metavar="PROMPT")
    _add_setting_options(parser)
    _add_sampling_options(parser)
    _add_engine_options(parser)
    _add_pair_options(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--csv",
        metavar="DIR",
        type=output_folder,
        help="write the trace: steps.csv, rounds.csv, run.json",
    )
    group.add_argument("--ghosts", action="store_true", help="also print rejected and discarded tokens")
    group.add_argument(
        "--repeats",
        type=limits.REPEATS.read,
        default=1,
        metavar="N",
        help="measured runs of each kind, interleaved (default 1)",
    )
    group.add_argument(
        "--no-baseline",
        action="store_true",
        help="skip plain decoding, and so the measured speedup",
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> None:
    """`run`: the text with its accept and reject runs, a summary, and the trace."""
    from specviz.engine.engine import DEFAULT_MAX_DRAFT, Engine, Settings, observe_all
    from specviz.engine.terminal_view import TerminalView
    from specviz.models.loading import encode_prompt
    from specviz.models.token_text import TokenText
    from specviz.replay import ConfidenceThreshold
    from specviz.trace import write_trace_csv

    policy = ConfidenceThreshold(options.threshold, "keep" if options.keep else "drop")
    settings = Settings(policy, options.max_draft, options.max_new_tokens, **_drawing(options))
    pair = _load(options)
    prompt_ids = encode_prompt(pair, options.prompt, chat=False if options.raw else None)
    engine = Engine(
        pair,
        pass_mode=options.pass_mode,
        widest_draft=max(DEFAULT_MAX_DRAFT, options.max_draft),
        compiled=options.compile,
    )
    _print_notes(engine)
    token_text = TokenText(pair.tokenizer)
    if options.compile:
        with stage_progress() as report:
            report("Compiling one graph for each model")
            engine.warm_up(prompt_ids)

    console.print(TerminalView.key())
    console.print()
    stop = engine.settled(settings).stop
    view = TerminalView(console, token_text, options.ghosts, stop)
    trace = engine.trace(prompt_ids, settings, prompt=options.prompt, observers=(view.observe,))
    console.print()
    if options.csv:
        write_trace_csv(trace, options.csv, token_text.bytes_of)
    plain_seconds, speculative_seconds = [], [trace.run.total_seconds]
    if not options.no_baseline:
        with stage_progress() as report:
            for repeat in range(options.repeats):
                report("Plain decoding, for comparison", repeat, options.repeats)
                plain = engine.plain(prompt_ids, options.max_new_tokens, **settings.of_text())
                plain_seconds.append(observe_all(plain, ()).total_seconds)
                if repeat:
                    again = observe_all(engine.speculative(prompt_ids, settings), ())
                    speculative_seconds.append(again.total_seconds)
    console.print(_summary(trace, plain_seconds, speculative_seconds))
    _say_not_honoured(trace.run.settings)
    if options.csv:
        console.print(f"Trace written to {options.csv}", markup=False)


def _summary(trace, plain_seconds: list[float], speculative_seconds: list[float]) -> Table:
    from specviz.replay.generation import honoured_names
    from specviz.replay.rules import LOSSLESS, recorded_rule

    rounds, run = trace.rounds, trace.run
    proposed, tested, accepted = (int(rounds[name].sum()) for name in ("proposed", "tested", "accepted"))
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column(style="dim")

    def share(part: int, whole: int) -> str:
        return f"{part / whole:.2f}" if whole else "none proposed"

    count = len(rounds["round"])
    rule = recorded_rule(run.settings)
    claim = "lossless" if rule.claim == LOSSLESS else "lossy: not distributed as the target's own text"
    table.add_row("acceptance rule", rule.name, claim)
    shown = "; shown up to the stop string" if run.finish_reason == "stop" else ""
    table.add_row("tokens", str(len(run.output_ids)), f"ended by {run.finish_reason}{shown}")
    if honoured := honoured_names(run.settings):
        table.add_row("generation config", "honoured", ", ".join(honoured))
    penalty = run.settings.get("sampling", {}).get("repetition_penalty", 1)
    if penalty != 1:  # an option of the run, or what the generation config asks for where the option is not given
        table.add_row("repetition penalty", f"{penalty:g}", "")
    table.add_row("rounds (target passes)", str(count), "")
    table.add_row(
        "tokens per target pass",
        f"{len(run.output_ids) / count:.2f}" if count else "–",
        "",
    )
    table.add_row(
        "acceptance rate",
        share(accepted, proposed),
        f"{accepted} accepted of {proposed} proposed",
    )
    table.add_row(
        "accepted / tested",
        share(accepted, tested),
        f"{tested} tested, up to each first rejection",
    )
    table.add_row(
        "draft steps",
        str(int(rounds["draft_steps"].sum())),
        f"{int(rounds['withheld'].sum())} withheld",
    )
    table.add_row(
        "time",
        f"{median(speculative_seconds):.2f} s",
        f"prefill included, n = {len(speculative_seconds)}",
    )
    if plain_seconds:
        table.add_row(
            "plain decoding",
            f"{median(plain_seconds):.2f} s",
            f"same target, n = {len(plain_seconds)}",
        )
        ratio = median(plain_seconds) / median(speculative_seconds)
        table.add_row(
            "measured speedup",
            f"{ratio:.2f} ×",
            f"pass mode {run.settings['pass_mode']}, {run.pair.device}",
        )
    return table


# --- record and sweep ----------------------------------------------------------------------------------------------


def _add_record(commands) -> None:
    parser = commands.add_parser(
        "record",
        help="record a set of prompts, with the pair's cost model, into one Parquet file",
        description="Record prompts so that every threshold and draft length can be replayed without a model. "
        "Finished prompts are kept beside the output file; the same command continues after an interruption.",
    )
    parser.add_argument(
        "--prompts", type=input_file, metavar="FILE", help="text (a prompt a line) or JSONL with prompt or turns"
    )
    parser.add_argument("--out", type=recording_file, required=True, metavar="FILE.parquet")
    parser.add_argument(
        "-n",
        "--max-new-tokens",
        type=limits.MAX_NEW_TOKENS.read,
        default=128,
        help="most tokens to generate (default 128)",
    )
    parser.add_argument(
        "-g", "--max-draft", type=limits.MAX_DRAFT.read, default=16, help="longest draft length to cover (default 16)"
    )
    parser.add_argument("--exact", action="store_true", help="every draft step in a pass of the engine's own shape")
    parser.add_argument("--raw", action="store_true", help="continue the texts as they are, without the chat template")
    parser.add_argument("--no-cost-model", action="store_true", help="do not measure pass times")
    cli_policies.add_cost_option(parser)
    _add_sampling_options(parser)
    _add_engine_options(parser)
    _add_pair_options(parser)
    parser.set_defaults(command=record)


def record(options: argparse.Namespace) -> int:
    """`record`: a recording set of many prompts."""
    with kept_parts(options, leave_free=("prompts", "no_cost_model", "measure_costs_again")) as parts:
        return _record(options, parts)


def _record(options: argparse.Namespace, parts: Path) -> int:
    from specviz.analysis.calibrated import MachineBusy
    from specviz.analysis.prompts import default_prompts, load_prompts
    from specviz.engine.engine import DEFAULT_MAX_DRAFT, Engine
    from specviz.engine.record_many import record_many
    from specviz.measure.costs import spanned
    from specviz.models.token_text import TokenText
    from specviz.trace import used_tokens, write_recordings

    drawing = _drawing(options)
    prompts = load_prompts(options.prompts) if options.prompts else default_prompts()
    engine = Engine(
        _load(options), pass_mode=options.pass_mode, widest_draft=DEFAULT_MAX_DRAFT, compiled=options.compile
    )
    _print_notes(engine)
    with stops_softly() as stopped, stage_progress() as report:
        made = record_many(
            engine,
            prompts,
            parts,
            max_new_tokens=options.max_new_tokens,
            max_draft=options.max_draft,
            method="exact" if options.exact else "fast",
            **drawing,
            chat=False if options.raw else None,
            stopped=stopped,
            progress=report,
        )
        for prompt, why in made.failures.items():
            errors.print(f"Prompt {prompt} was left out: {why}", markup=False)
        if not made.complete:
            raise KeyboardInterrupt
        if made.recordings is None:
            raise SpecVizError("No prompt could be recorded; see the reasons above.")
        recordings = made.recordings
        if not options.no_cost_model:
            try:
                cost = _costs(options, engine, spanned(recordings.recordings), options.max_draft, stopped, report)
            except MachineBusy as error:
                raise SpecVizError(f"{error} The recordings are kept; the same command continues there.") from error
            recordings = recordings.with_cost_model(cost.to_json())
    bytes_of = TokenText(engine.pair.tokenizer).bytes_of
    tokens = {token: bytes_of(token) for token in used_tokens(recordings.recordings)}
    write_recordings(recordings.with_tokens(tokens), options.out)
    console.print(f"{len(recordings.recordings)} prompts recorded in {options.out}", markup=False)
    _say_not_honoured(recordings.settings)
    return 1 if made.failures else 0


def _costs(options: argparse.Namespace, engine, span: tuple[int, int], max_draft: int, stopped, report) -> CostModel:
    """The costs kept for this engine, unless they are to be measured again or do not cover what is asked."""
    from specviz.measure.costs import kept_costs, measure_costs

    def say(sentence: str) -> None:
        errors.print(sentence, markup=False)

    kept = None if options.measure_costs_again else kept_costs(engine, span, max_draft, say=say)
    if kept is not None:
        say(f"{kept.origin} They are taken again; --measure-costs-again replaces them.")
        return kept
    return measure_costs(
        engine,
        span,
        max_draft,
        stopped=stopped,
        progress=lambda stage, share: report(stage, share, 1.0),
        say=say,
    )


def _say_not_honoured(settings: Mapping) -> None:
    from specviz.replay.generation import not_honoured_words

    if words := not_honoured_words(settings):
        errors.print(words, markup=False, soft_wrap=True)


def _add_sweep(commands) -> None:
    parser = commands.add_parser(
        "sweep",
        help="every threshold and draft length of a recording set, priced with its cost model",
        description="Replay recording sets over thresholds and draft lengths; no model runs. Several sets that share a "
        "cost model are pooled.",
    )
    parser.add_argument("recordings", type=input_file, nargs="+", metavar="FILE.parquet")
    parser.add_argument("--csv", type=output_file, metavar="FILE", help="write the whole table")
    parser.add_argument("--keep", action="store_true", help="propose the token that fails the threshold, then stop")
    parser.set_defaults(command=sweep)


def sweep(options: argparse.Namespace) -> None:
    """`sweep`: the table of a recording set."""
    from specviz.analysis.curves import grid
    from specviz.analysis.report import describe, sweep_table, write_table
    from specviz.analysis.tuning import tune
    from specviz.analysis.verdict import advise

    recordings, cost = cli_policies.priced_sets(options.recordings)
    cells = grid(recordings, cost, on_fail="keep" if options.keep else "drop")
    console.print(describe(cells), markup=False, soft_wrap=True)
    cli_policies.print_origin(cost)
    console.print()
    cli_policies.print_advice(advise(tune(recordings, cost)))
    if options.csv:
        write_table(sweep_table(cells), options.csv)
        console.print(f"Table written to {options.csv}", markup=False)


# --- compare -------------------------------------------------------------------------------------------------------


def _add_compare(commands) -> None:
    parser = commands.add_parser(
        "compare",
        help="the same pair at several precisions, side by side",
        description="Record the same prompts at several precisions of target and draft, calibrate them together, and "
        "measure what quantisation changes. Writes recording sets, tables (CSV) and what the Precision page shows. "
        "Finished prompts are kept beside the folder; the same command continues after an interruption.",
    )
    parser.add_argument(
        "--pairs",
        type=cli_names.combinations,
        default="bf16:bf16,nf4:bf16,int8:int8,nf4:nf4",
        metavar="TARGET:DRAFT,...",
        help="precisions of target and draft, such as bf16:bf16,nf4+double:bf16,int8+t0:bf16 (this is how "
        "options are given: double, t0, head, and fp32, bf16 or fp16 to compute in)",
    )
    parser.add_argument("--out", type=comparison_folder, required=True, metavar="DIR")
    parser.add_argument(
        "--prompts", type=input_file, metavar="FILE", help="text or JSONL (default: the set that comes with SpecViz)"
    )
    parser.add_argument(
        "--limit", type=limits.PROMPTS.read, default=6, metavar="N", help="use N prompts, spread evenly (default 6)"
    )
    parser.add_argument(
        "-n",
        "--max-new-tokens",
        type=limits.MAX_NEW_TOKENS.read,
        default=48,
        help="most tokens to generate (default 48)",
    )
    parser.add_argument(
        "-g", "--max-draft", type=limits.MAX_DRAFT.read, default=8, help="longest draft length to cover (default 8)"
    )
    parser.add_argument(
        "--pass-mode", type=limits.PASS_MODE.read, default=PASS_MODE, help=f"fast or invariant (default {PASS_MODE})"
    )
    parser.add_argument("--target", type=model_name, default="builtin-target", help="hub id, folder or GGUF file")
    parser.add_argument("--draft", type=model_name, default="builtin-draft", help="hub id, folder or GGUF file")
    parser.add_argument("--device", type=cli_names.device, default="auto", help="cpu, cuda, or auto (default)")
    parser.add_argument(
        "--random",
        type=limits.RANDOM_SIZE.read,
        metavar="SIZE",
        help="instead of a real pair: random weights of a real size (7b: a 7B target with a 0.5B draft), made on the "
        "device, with forced agreement; times only",
    )
    parser.set_defaults(command=compare)


def compare(options: argparse.Namespace) -> None:
    """`compare`: a comparison of precisions as a folder, and its tables."""
    from specviz.analysis.precision_files import write_comparison
    from specviz.analysis.precisions import describe_comparison, precision_comparison
    from specviz.engine.precision_comparison import compare_precisions

    if options.random:
        return _compare_random(options)
    with kept_parts(options, leave_free=("prompts", "limit", "pairs")) as parts:
        with stops_softly() as stopped, stage_progress() as report:
            measured = compare_precisions(
                options.target,
                options.draft,
                options.pairs,
                _prompts(options),
                parts,
                device=options.device,
                pass_mode=options.pass_mode,
                max_new_tokens=options.max_new_tokens,
                max_draft=options.max_draft,
                stopped=stopped,
                progress=lambda stage, share: report(stage, share, 1.0),
            )
        if measured is None:
            raise KeyboardInterrupt
        comparison = precision_comparison(measured)
        write_comparison(comparison, options.out)
    console.print(describe_comparison(comparison), markup=False, soft_wrap=True)
    cli_policies.print_origin(comparison.baseline.cost)
    console.print(f"Written to {options.out}", markup=False)


def _compare_random(options: argparse.Namespace) -> None:
    from specviz.analysis.report import write_table
    from specviz.bench import real_size

    with stops_softly() as stopped, stage_progress() as report:
        found = real_size.run(
            options.random,
            options.pairs,
            device=options.device,
            pass_mode=options.pass_mode,
            max_draft=options.max_draft,
            stopped=stopped,
            progress=lambda stage, share: report(stage, share, 1.0),
        )
    write_table(found, options.out / "random.csv")
    console.print(found.to_string(index=False, float_format="{:.2f}".format), markup=False, soft_wrap=True)
    console.print(f"Agreement is forced, the weights are random. Written to {options.out / 'random.csv'}", markup=False)


# --- fidelity ------------------------------------------------------------------------------------------------------


def _add_fidelity(commands) -> None:
    parser = commands.add_parser(
        "fidelity",
        help="is the output the target's own? tests with verdicts, and what lossy rules gain and change",
        description="Three tests (greedy outputs beside plain ones, the first three tokens on a small pair of known "
        "distribution, the first token on this pair), every acceptance rule's speedup and drift along texts of the "
        "target, and outputs beside each other. Exit status 1 if a test fails that has to pass.",
    )
    parser.add_argument(
        "--prompts", type=input_file, metavar="FILE", help="text or JSONL (default: the set that comes with SpecViz)"
    )
    parser.add_argument(
        "--limit", type=limits.PROMPTS.read, default=6, metavar="N", help="use N prompts, spread evenly (default 6)"
    )
    parser.add_argument(
        "-n", "--max-new-tokens", type=limits.MAX_NEW_TOKENS.read, default=48, help="tokens of each text (default 48)"
    )
    parser.add_argument(
        "-t", "--threshold", type=limits.THRESHOLD.read, default=0.2, help="confidence threshold (default 0.2)"
    )
    parser.add_argument(
        "-g", "--max-draft", type=limits.MAX_DRAFT.read, default=4, help="most tokens proposed in a round (default 4)"
    )
    parser.add_argument(
        "--samples", type=limits.SAMPLES.read, default=50_000, help="of each test of a distribution (default 50000)"
    )
    parser.add_argument("--raw", action="store_true", help="continue the texts as they are, without the chat template")
    parser.add_argument(
        "--out", type=output_folder, metavar="DIR", help="write the report, as the page Fidelity shows it"
    )
    parser.add_argument(
        "--costs",
        type=input_file,
        metavar="FILE.parquet",
        help="take the times from this recording set of the same pair instead of measuring them",
    )
    parser.add_argument(
        "--pass-mode", type=limits.PASS_MODE.read, default=PASS_MODE, help=f"fast or invariant (default {PASS_MODE})"
    )
    cli_policies.add_cost_option(parser)
    _add_sampling_options(parser, temperature=0.8, rule=False)
    _add_pair_options(parser)
    parser.set_defaults(command=fidelity)


def fidelity(options: argparse.Namespace) -> int:
    """`fidelity`: tests and drift of the acceptance rules on a pair."""
    from specviz.analysis.fidelity_files import write_fidelity
    from specviz.analysis.fidelity_report import check_prices, describe_fidelity, fidelity_report
    from specviz.bench.rules import on_a_small_pair
    from specviz.engine.engine import DEFAULT_MAX_DRAFT, Engine
    from specviz.engine.fidelity import TESTED_RULES, measure_fidelity

    sampling = _sampling(options)
    cost = cli_policies.priced_sets([options.costs])[1] if options.costs else None
    prompts = _prompts(options)
    engine = Engine(_load(options), pass_mode=options.pass_mode, widest_draft=max(DEFAULT_MAX_DRAFT, options.max_draft))
    if cost is not None:
        check_prices(engine.pair_info(), cost)
    with stops_softly() as stopped, stage_progress() as report:
        measured = measure_fidelity(
            engine,
            prompts,
            sampling=sampling,
            seed=options.seed,
            threshold=options.threshold,
            max_draft=options.max_draft,
            max_new_tokens=options.max_new_tokens,
            samples=options.samples,
            chat=False if options.raw else None,
            stopped=stopped,
            progress=lambda stage, share: report(stage, share, 1.0),
        )
        if measured is None:
            raise KeyboardInterrupt
        report("First three tokens on a small pair")
        first_three = [(rule, on_a_small_pair(rule, options.samples)) for rule in TESTED_RULES]
        if cost is None:
            span = min(measured.prompt_tokens), max(measured.prompt_tokens) + options.max_new_tokens
            cost = _costs(options, engine, span, max(DEFAULT_MAX_DRAFT, options.max_draft), stopped, report)
    found = fidelity_report(measured, cost, first_three)
    console.print(describe_fidelity(found), markup=False, soft_wrap=True)
    cli_policies.print_origin(cost)
    if options.out:
        write_fidelity(found, options.out)
        console.print(f"Written to {options.out}", markup=False)
    return 0 if found.sound else 1


# --- distill -------------------------------------------------------------------------------------------------------


def _add_distill(commands) -> None:
    parser = commands.add_parser(
        "distill",
        help="make a draft for a target: data, training, evaluation",
        description="Distil a small draft from a causal language model: the target writes texts, a few of its own "
        "layers learn to predict them. The same command continues after an interruption.",
    )
    parser.add_argument(
        "--target", type=model_name, default="builtin-target", help="hub id or folder with safetensors weights"
    )
    parser.add_argument("--out", required=True, type=output_folder, help="folder of the draft")
    parser.add_argument(
        "--layers",
        type=cli_names.layers,
        help="target layers to start from, such as 0,1,16,17,18 (default: chosen by measurement)",
    )
    parser.add_argument(
        "--head-size", type=limits.HEAD_SIZE.read, default=12288, help="tokens the draft can produce (default 12288)"
    )
    parser.add_argument("--texts", type=limits.TEXTS.read, default=4000, help="texts the target writes (default 4000)")
    parser.add_argument("--steps", type=limits.STEPS.read, default=4000, help="training steps (default 4000)")
    parser.add_argument("--seed", type=limits.SEED.read, default=0)
    parser.add_argument("--device", type=cli_names.device, default="auto")
    parser.set_defaults(command=distill)


def distill(options: argparse.Namespace) -> None:
    """`distill`: data, training and evaluation in one resumable call."""
    from specviz.models.distill.distill import distill as run_distillation
    from specviz.models.distill.train import TrainSettings
    from specviz.models.precision import resolve_device

    with stage_progress() as report:
        made = run_distillation(
            options.target,
            options.out,
            layers=options.layers,
            head_size=options.head_size,
            texts=options.texts,
            settings=TrainSettings(steps=options.steps, seed=options.seed),
            device=resolve_device(options.device),
            seed=options.seed,
            progress=lambda p: report(p.stage, p.done, p.total, f"{p.done} of {p.total} {p.note}".strip()),
        )
    if made is not None:
        console.print(f"Draft written to {made.folder}; held-out agreement {made.agreement.rate():.3f}", markup=False)


# --- bench ---------------------------------------------------------------------------------------------------------


def _add_bench(commands) -> None:
    parser = commands.add_parser(
        "bench",
        help="run a full measurement and print its table and verdict",
        description="Measurements with verdicts; exit status 1 if a bar is not met.",
    )
    kinds = parser.add_subparsers(required=True, metavar="KIND", dest="bench_kind")

    def add(name: str, measurement: Callable[[argparse.Namespace], bool], tokens: int, help_text: str):
        kind = kinds.add_parser(name, help=help_text)
        kind.add_argument("--prompts", type=input_file, metavar="FILE", help="default: the set that comes with SpecViz")
        kind.add_argument(
            "--limit", type=limits.PROMPTS.read, metavar="N", help="use N prompts, spread evenly over the file"
        )
        kind.add_argument(
            "-n", "--max-new-tokens", type=limits.MAX_NEW_TOKENS.read, default=tokens, help=f"default {tokens}"
        )
        _add_pair_options(kind)
        kind.set_defaults(command=lambda options: 0 if measurement(options) else 1)
        return kind

    rules = kinds.add_parser("rules", help="acceptance rules on small pairs of known distribution; no model runs")
    rules.add_argument("--samples", type=limits.SAMPLES.read, default=50_000, help="a test (default 50000)")
    rules.set_defaults(command=lambda options: 0 if bench_rules(options) else 1)

    families = kinds.add_parser(
        "families", help="a tiny model of every family that transformers offers, against generate; some 15 minutes"
    )
    families.add_argument("--out", type=output_file, metavar="FILE.md", help="write the table")
    families.add_argument(
        "--only", type=cli_names.families, metavar="NAMES", help="such as gpt_neo,cohere (default: all)"
    )
    families.set_defaults(command=lambda options: 0 if bench_families(options) else 1)

    add("exact", bench_exact, 64, "outputs and logits across all settings, and against generate")

    draft = add("draft", bench_draft, 96, "agreement and acceptance of a distilled draft, by category")
    draft.add_argument(
        "--keep-answers", type=output_folder, metavar="DIR", help="keep the target's answers there, and reuse them"
    )

    engine = add("engine", bench_engine, 48, "speed beside transformers' generate and assisted generation")
    engine.add_argument("-t", "--threshold", type=limits.THRESHOLD.read, default=0.5)
    engine.add_argument("-g", "--max-draft", type=limits.MAX_DRAFT.read, default=5)
    engine.add_argument("--repeats", type=limits.REPEATS.read, default=3)
    engine.add_argument("--compile", action="store_true", help="measure compiled passes too")

    speedup = add("speedup", bench_speedup, 48, "the best fixed setting, really run, by category of prompt")
    speedup.add_argument("--pass-mode", type=limits.PASS_MODE.read, default=PASS_MODE)
    speedup.add_argument("--compile", action="store_true", help="compile the passes first")
    speedup.add_argument(
        "--longest-draft",
        type=limits.MAX_DRAFT.read,
        default=8,
        metavar="N",
        help="longest draft length to choose from; in pass mode invariant the width of all passes (default 8)",
    )
    speedup.add_argument("--repeats", type=limits.REPEATS.read, default=1)

    replay = add("replay", bench_replay, 48, "replay against the engine, cost of recording, speed of whole grids")
    replay.add_argument("--pass-mode", type=limits.PASS_MODE.read, default=PASS_MODE)
    replay.add_argument("--exact", action="store_true", help="record exactly and ask for confidences equal to the bit")
    replay.add_argument(
        "--cost-tokens",
        type=limits.TIMED_TOKENS.read,
        default=256,
        help="tokens of the recording that is timed (default 256)",
    )
    replay.add_argument(
        "--speed-only", action="store_true", help="only time grids on made-up recordings; no model runs"
    )

    policies = add("policies", bench_policies, 48, "stopping policies: engine, transformers, oracle, time of an arena")
    policies.add_argument("--pass-mode", type=limits.PASS_MODE.read, default=PASS_MODE)

    sampling = add("sampling", bench_sampling, 24, "coupled replay, expectations of rejection, cost of a round")
    sampling.add_argument(
        "--parts", nargs="+", choices=("replay", "expectation", "rounds"), help="which parts to run (default: all)"
    )
    sampling.add_argument(
        "--runs", type=limits.RUNS.read, default=400, help="real runs at each of five settings (default 400)"
    )
    sampling.add_argument(
        "--first-seed", type=limits.SEED.read, default=0, metavar="SEED", help="of these runs (default 0)"
    )

    predict = add("predict", bench_predict, 48, "predicted against measured speedups over 12 settings")
    predict.add_argument("--pass-mode", type=limits.PASS_MODE.read, default=PASS_MODE)
    predict.add_argument("--repeats", type=limits.REPEATS.read, default=1)

    precision = add("precision", bench_precision, 48, "outputs across all settings at each precision; LLM.int8's flips")
    precision.add_argument("--precisions", type=cli_names.precisions, help="default: bf16,nf4,fp4,int8+t0,int8")


def _prompts(options: argparse.Namespace) -> list:
    """The chosen prompts; with a limit, spread evenly over the file."""
    from specviz.analysis.prompts import default_prompts, load_prompts

    prompts = load_prompts(options.prompts) if options.prompts else default_prompts()
    if options.limit:
        prompts = prompts[:: max(1, len(prompts) // options.limit)][: options.limit]
    return prompts


def _prompt_ids(options: argparse.Namespace) -> list[list[int]]:
    """The chosen prompts as the target is prompted with them."""
    from specviz.models.loading import encode_prompt, load_model

    prompts = _prompts(options)
    with stage_progress() as report:
        target = load_model(options.target, _precision(options), options.device, progress=report)
    return [encode_prompt(target, prompt.text) for prompt in prompts]


def _bench_pair(options: argparse.Namespace):
    from specviz.bench.pair import BenchPair

    return BenchPair(options.target, options.draft, _precision(options), options.device)


def bench_rules(options: argparse.Namespace) -> bool:
    from specviz.bench import rules

    return rules.run(samples=options.samples)


def bench_families(options: argparse.Namespace) -> bool:
    from specviz.bench import families

    return families.run(options.out, only=options.only)


def bench_exact(options: argparse.Namespace) -> bool:
    from specviz.bench import exact

    return exact.run(_prompt_ids(options), _bench_pair(options), max_new_tokens=options.max_new_tokens)


def bench_draft(options: argparse.Namespace) -> bool:
    from specviz.analysis.prompts import load_prompts
    from specviz.bench import draft

    if options.prompts is None:
        raise SpecVizError("bench draft needs --prompts: JSON lines with category and turns, such as Spec-Bench.")
    every = max(1, len(load_prompts(options.prompts)) // options.limit) if options.limit else 1
    return draft.run(
        options.prompts,
        target=options.target,
        draft=options.draft,
        precision=_precision(options),
        device=options.device,
        max_new_tokens=options.max_new_tokens,
        every=every,
        texts_folder=options.keep_answers,
    )


def bench_engine(options: argparse.Namespace) -> bool:
    from specviz.bench import engine

    return engine.run(
        _prompt_ids(options),
        _bench_pair(options),
        threshold=options.threshold,
        max_draft=options.max_draft,
        max_new_tokens=options.max_new_tokens,
        repeats=options.repeats,
        compiled=options.compile,
    )


def bench_speedup(options: argparse.Namespace) -> bool:
    from specviz.bench import speedup

    return speedup.run(
        _prompt_ids(options),
        [prompt.category or "uncategorised" for prompt in _prompts(options)],
        _bench_pair(options),
        pass_mode=options.pass_mode,
        compiled=options.compile,
        longest_draft=options.longest_draft,
        max_new_tokens=options.max_new_tokens,
        repeats=options.repeats,
    )


def bench_replay(options: argparse.Namespace) -> bool:
    from specviz.bench import equality, replay

    fast_enough = replay.run(say=console.print)
    if options.speed_only:
        return fast_enough
    equal = equality.run(
        _prompt_ids(options),
        _bench_pair(options),
        pass_mode=options.pass_mode,
        exact=options.exact,
        max_new_tokens=options.max_new_tokens,
        cost_tokens=options.cost_tokens,
    )
    return fast_enough and equal


def bench_precision(options: argparse.Namespace) -> bool:
    from specviz.bench import precision

    precisions = options.precisions or precision.PRECISIONS
    return precision.run(
        _prompt_ids(options),
        _bench_pair(options),
        precisions=precisions,
        max_new_tokens=options.max_new_tokens,
    )


def bench_policies(options: argparse.Namespace) -> bool:
    from specviz.bench import policies

    return policies.run(
        _prompt_ids(options),
        _bench_pair(options),
        pass_mode=options.pass_mode,
        max_new_tokens=options.max_new_tokens,
    )


def bench_sampling(options: argparse.Namespace) -> bool:
    from specviz.bench import sampling

    return sampling.run(
        _prompt_ids(options),
        _bench_pair(options),
        parts=options.parts or sampling.PARTS,
        max_new_tokens=options.max_new_tokens,
        runs=options.runs,
        first_seed=options.first_seed,
    )


def bench_predict(options: argparse.Namespace) -> bool:
    from specviz.bench import predict

    return predict.run(
        _prompt_ids(options),
        _bench_pair(options),
        pass_mode=options.pass_mode,
        max_new_tokens=options.max_new_tokens,
        repeats=options.repeats,
    )
