"""The command line: the same functions as the app, without a browser.

A sentence on standard error and exit status 2 mean that something the user gave cannot be used; 130 means stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from specviz.errors import SpecVizError

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        return options.command(options) or 0
    except SpecVizError as error:
        errors.print(str(error), style="bold", markup=False)
        return 2
    except KeyboardInterrupt:
        errors.print("Stopped.")
        return 130


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m specviz",
        description="Speculative decoding with a confidence threshold: run it, record it, replay it, measure it.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)
    _add_distill(commands)
    _add_bench(commands)
    return parser


# --- options that several commands share ---------------------------------------------------------------------------


def _add_pair_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("pair")
    group.add_argument(
        "--target",
        default="builtin-target",
        help="hub id, folder or GGUF file (default: the built-in)",
    )
    group.add_argument(
        "--draft",
        default="builtin-draft",
        help="hub id, folder or GGUF file (default: the built-in)",
    )
    group.add_argument(
        "--precision",
        default="fp32",
        help="of both models: fp32, bf16, fp16, int8, nf4, fp4",
    )
    group.add_argument("--draft-precision", help="of the draft, if another")
    group.add_argument("--device", default="auto", help="cpu, cuda, or auto (default)")


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    group.add_argument("--pass-mode", default="invariant", help="invariant (default) or fast")
    group.add_argument(
        "--compile",
        action="store_true",
        help="compile the passes first (about a minute; invariant only)",
    )


def _add_setting_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings")
    group.add_argument(
        "-t",
        "--threshold",
        type=float,
        default=0.5,
        help="confidence threshold (default 0.5)",
    )
    group.add_argument(
        "-g",
        "--max-draft",
        type=int,
        default=5,
        help="most tokens proposed in a round (default 5)",
    )
    group.add_argument(
        "-n",
        "--max-new-tokens",
        type=int,
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


def _load(options: argparse.Namespace):
    from specviz.models.loading import load_pair

    with stage_progress() as report:
        pair = load_pair(
            options.target,
            options.draft,
            options.precision,
            options.draft_precision or options.precision,
            options.device,
            progress=report,
        )
    for warning in pair.warnings:
        errors.print(warning, markup=False)
    return pair


class stage_progress:
    """A progress bar that follows (stage, done, total) reports; done and total are None where nothing can be counted."""

    def __enter__(self) -> Callable[[str, float | None, float | None], None]:
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=errors,
            transient=True,
        )
        self._bar.start()
        task = self._bar.add_task("", total=None)

        def report(stage: str, done: float | None = None, total: float | None = None) -> None:
            self._bar.update(task, description=stage, completed=done or 0, total=total)

        return report

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


# --- run -----------------------------------------------------------------------------------------------------------


def _add_run(commands) -> None:
    parser = commands.add_parser(
        "run",
        help="generate speculatively, show accept and reject runs, measure the speedup",
        description="Generate after PROMPT with speculative decoding under a confidence threshold.",
    )
    parser.add_argument("prompt", metavar="PROMPT")
    _add_setting_options(parser)
    _add_engine_options(parser)
    _add_pair_options(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--csv",
        metavar="DIR",
        type=Path,
        help="write the trace: steps.csv, rounds.csv, run.json",
    )
    group.add_argument("--ghosts", action="store_true", help="also print rejected and discarded tokens")
    group.add_argument(
        "--repeats",
        type=int,
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
    settings = Settings(policy, options.max_draft, options.max_new_tokens)
    if options.repeats < 1:
        raise SpecVizError(f"{options.repeats} repeats were asked for; ask for at least 1.")
    if not options.prompt.strip():
        raise SpecVizError("The prompt is empty: write what the model shall answer or continue.")
    pair = _load(options)
    prompt_ids = encode_prompt(pair, options.prompt, chat=False if options.raw else None)
    engine = Engine(
        pair,
        pass_mode=options.pass_mode,
        widest_draft=max(DEFAULT_MAX_DRAFT, options.max_draft),
        compiled=options.compile,
    )
    token_text = TokenText(pair.tokenizer)
    if options.compile:
        with stage_progress() as report:
            report("Compiling one graph for each model")
            engine.warm_up(prompt_ids)

    console.print(TerminalView.key())
    console.print()
    view = TerminalView(console, token_text, options.ghosts)
    trace = engine.trace(prompt_ids, settings, prompt=options.prompt, observers=(view.observe,))
    console.print()
    if options.csv:
        write_trace_csv(trace, options.csv, token_text.bytes_of)
    plain_seconds, speculative_seconds = [], [trace.run.total_seconds]
    if not options.no_baseline:
        with stage_progress() as report:
            for repeat in range(options.repeats):
                report("Plain decoding, for comparison", repeat, options.repeats)
                plain_seconds.append(observe_all(engine.plain(prompt_ids, options.max_new_tokens), ()).total_seconds)
                if repeat:
                    again = observe_all(engine.speculative(prompt_ids, settings), ())
                    speculative_seconds.append(again.total_seconds)
    console.print(_summary(trace, plain_seconds, speculative_seconds))
    if options.csv:
        console.print(f"Trace written to {options.csv}", markup=False)


def _summary(trace, plain_seconds: list[float], speculative_seconds: list[float]) -> Table:
    rounds, run = trace.rounds, trace.run
    proposed, tested, accepted = (int(rounds[name].sum()) for name in ("proposed", "tested", "accepted"))
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column(style="dim")

    def share(part: int, whole: int) -> str:
        return f"{part / whole:.2f}" if whole else "none proposed"

    count = len(rounds["round"])
    table.add_row("tokens", str(len(run.output_ids)), f"ended by {run.finish_reason}")
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


# --- distill -------------------------------------------------------------------------------------------------------


def _add_distill(commands) -> None:
    parser = commands.add_parser(
        "distill",
        help="make a draft for a target: data, training, evaluation",
        description="Distil a small draft from any causal language model, resumably.",
    )
    parser.add_argument("--target", default="builtin-target", help="hub id, folder or GGUF file")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder for data, checkpoints and the finished draft",
    )
    parser.set_defaults(command=distill)


def distill(options: argparse.Namespace) -> None:
    """`distill`: data, training and evaluation in one resumable call."""
    raise NotImplementedError


# --- bench ---------------------------------------------------------------------------------------------------------


def _add_bench(commands) -> None:
    parser = commands.add_parser(
        "bench",
        help="run a full measurement and print its table and verdict",
        description="Measurements with verdicts.",
    )
    kinds = parser.add_subparsers(required=True, metavar="KIND")
    replay = kinds.add_parser("replay", help="speed and memory of replaying whole grids")
    replay.set_defaults(command=bench_replay)


def bench_replay(options: argparse.Namespace) -> int:
    from specviz.engine import bench_replay as bench

    return 0 if bench.run() else 1


if __name__ == "__main__":
    sys.exit(main())
