"""What the engine and the analyses write, frozen before a change and compared after it.

    PYTHONPATH=. python tests/frozen_reference.py write FOLDER      # on the commit before the change
    PYTHONPATH=. python tests/frozen_reference.py compare FOLDER    # after it, on the same machine

Twenty-four traces as CSV (the built-in pair in two precisions and pass modes under four acceptance rules, three more
policies, and a small pair whose models have different vocabularies) and the tables of `sweep`, `tune`, `arena` and
`calibration` on the gallery. They must be equal byte for byte; times are left out and columns may be added.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import tiny_models
from engine_helpers import loaded_pair

from specviz.cli import main
from specviz.engine.engine import Engine, Settings
from specviz.models.loading import LoadedPair, encode_prompt, load_pair
from specviz.replay import policy_from_settings, rule_from_text
from specviz.replay.sampling import Sampling
from specviz.trace import write_trace_csv

PROMPT = "List three uses of a paper clip, then say which you like best."
SMALL_PROMPT = [11, 7, 42, 99, 5, 60, 61]
DROP, KEEP = ({"policy": "threshold", "threshold": 0.4, "on_fail": on_fail} for on_fail in ("drop", "keep"))
GALLERY = sorted((Path(__file__).parent.parent / "specviz" / "ui" / "gallery").glob("*.parquet"))
TABLES = {
    "sweep": ["sweep", *map(str, GALLERY)],
    "sweep-keep": ["sweep", "--keep", *map(str, GALLERY)],
    "tune": ["tune", *map(str, GALLERY)],
    "arena": ["arena", *map(str, GALLERY)],
    "calibration": ["calibration", *map(str, GALLERY)],
}


@dataclass(frozen=True)
class Case:
    """One run: where, and with which settings."""

    pair: str  # "fp32" or "bf16": the built-in pair at that precision; "small": the pair made here
    pass_mode: str = "invariant"
    rule: str = "greedy"
    policy: str = json.dumps(DROP)
    tokens: int = 24

    @property
    def name(self) -> str:
        policy = json.loads(self.policy)
        return "-".join((self.pair, self.pass_mode, self.rule, policy["policy"], policy.get("on_fail", "own")))

    def settings(self) -> Settings:
        greedy = self.rule == "greedy"
        return Settings(
            policy_from_settings(json.loads(self.policy)),
            max_draft=5,
            max_new_tokens=self.tokens,
            sampling=Sampling() if greedy else Sampling(temperature=0.8, top_k=40),
            rule=None if greedy else rule_from_text(self.rule),
            seed=3,
        )


OTHER_POLICIES = (KEEP, {"policy": "draft_verify"}, {"policy": "dynamic"})
CASES = [
    *itertools.starmap(
        Case,
        itertools.product(("fp32", "bf16"), ("invariant", "fast"), ("greedy", "coupled", "rejection", "lenient=0.5")),
    ),
    *(Case(pair, "invariant", policy=json.dumps(policy)) for pair in ("fp32", "bf16") for policy in OTHER_POLICIES),
    *(Case("small", "fast", rule, tokens=48) for rule in ("greedy", "coupled")),
]


def small_pair() -> LoadedPair:
    """A pair whose embeddings are padded differently, so that target and draft know different numbers of tokens."""
    return loaded_pair(tiny_models.tiny_pair("qwen2", ends=True))


def write_case(case: Case, pair: LoadedPair, folder: Path) -> None:
    """Run one case and write its trace, times left out."""
    small = case.pair == "small"
    prompt = SMALL_PROMPT if small else encode_prompt(pair, PROMPT)
    engine = Engine(pair, pass_mode=case.pass_mode)
    trace = engine.trace(prompt, case.settings(), prompt="" if small else PROMPT)
    write_trace_csv(trace, folder / case.name, lambda token: str(token))


def write(folder: Path) -> None:
    """Write all traces and tables into `folder`."""
    for kind, cases in itertools.groupby(CASES, key=lambda case: case.pair):
        pair = small_pair() if kind == "small" else load_pair("builtin-target", "builtin-draft", kind, kind, "cpu")
        for case in cases:
            print(case.name, flush=True)
            write_case(case, pair, folder)
    for name, arguments in TABLES.items():
        print(name, flush=True)
        if main([*arguments, "--csv", str(folder / f"{name}.csv")]) != 0:
            raise SystemExit(f"{name} failed")


def differences(before: Path, after: Path) -> Iterator[str]:
    """One sentence for each file of `before` that `after` lacks or has otherwise; columns may have been added."""
    for old in sorted(before.rglob("*.csv")):
        name = old.relative_to(before)
        if not (after / name).exists():
            yield f"{name} is missing"
            continue
        old_table, new_table = (pd.read_csv(path, dtype=str, keep_default_na=False) for path in (old, after / name))
        for column in old_table.columns:
            if column.endswith("_seconds") and name.parent != Path("."):
                continue
            if column not in new_table:
                yield f"{name} has lost its column {column}"
            elif old_table[column].tolist() != new_table[column].tolist():
                yield f"{name}: column {column} differs"
    for old in sorted(before.rglob("run.json")):
        name = old.relative_to(before)
        ids = [json.loads(path.read_text())["output_ids"] for path in (old, after / name) if path.exists()]
        if len(ids) != 2 or ids[0] != ids[1]:
            yield f"{name}: another output"


def run(action: str, folder: Path) -> int:
    """Write, or compare with what was written; the exit status."""
    if action == "write":
        write(folder)
        return 0
    temporary = Path(tempfile.mkdtemp())
    try:
        write(temporary)
        lines = list(differences(folder, temporary))
    finally:
        shutil.rmtree(temporary)
    print("\n".join(lines) or "Everything is equal.")
    return 1 if lines else 0


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "compare"):
        raise SystemExit(__doc__)
    raise SystemExit(run(sys.argv[1], Path(sys.argv[2])))
