"""What the page Fidelity shows without a model: measured on the built-in pair by `specviz.ui.fidelity_data.make`.

`drift.parquet` has a row per output position and rule; `fidelity.json` holds everything else.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from specviz.analysis import CostModel
from specviz.analysis.fidelity import DriftedText, RuleDrift
from specviz.errors import SpecVizError
from specviz.replay.rules import AcceptanceRule, rule_from_text
from specviz.trace import PairInfo
from specviz.trace.files import whole_file
from specviz.trace.token_bytes import tokens_from_json

FOLDER = Path(__file__).parent
TABLE, FACTS = "drift.parquet", "fidelity.json"
PER_RULE = ("accept", "kl", "total_variation", "surprise")


@dataclass(frozen=True)
class Picture:
    """Both distributions at one output position: probabilities of the tokens likeliest to either, the rest left out."""

    emitted: int
    ids: list[int]
    p: list[float]
    q: list[float]


@dataclass(frozen=True)
class Text:
    """One output: how it was made, and its tokens."""

    title: str
    claim: str
    rule: str | None  # None: the target alone
    greedy: bool
    output: list[int]


@dataclass(frozen=True)
class FidelityData:
    pair: PairInfo
    temperature: float
    cost: CostModel
    pass_mode: str
    drift: RuleDrift
    tests: Mapping[str, list]  # greedy, toys, first_token: lists of {"title", "passed", "expected", "verdict"}
    prompt: str  # of texts and pictures
    texts: list[Text]
    pictures: list[Picture]
    tokens: dict[int, bytes]


def write_drift(drift: RuleDrift, path: Path) -> None:
    """One row per text, rule and position."""
    frames = []
    for number, text in enumerate(drift.texts):
        for row, rule in enumerate(drift.rules):
            columns = {name: getattr(text, name)[row].astype(np.float32) for name in PER_RULE}
            shared = {"confidence": text.confidence.astype(np.float32), "entropy": text.entropy.astype(np.float32)}
            frames.append(
                pd.DataFrame(
                    {"text": np.int16(number), "prompt_tokens": np.int16(text.prompt_tokens), "rule": str(rule)}
                    | shared
                    | columns
                )
            )
    with whole_file(path) as temporary:
        pd.concat(frames).astype({"rule": "category"}).to_parquet(temporary, index=False, compression="zstd")


def read_drift(path: Path) -> RuleDrift:
    """Invert `write_drift`."""
    table = pd.read_parquet(path)
    rules: dict[str, AcceptanceRule] = {name: rule_from_text(name) for name in dict.fromkeys(table["rule"])}
    texts = []
    for _, rows in table.groupby("text", sort=True):
        per_rule = {name: rows[rows["rule"] == name] for name in rules}
        first = next(iter(per_rule.values()))
        texts.append(
            DriftedText(
                int(first["prompt_tokens"].iloc[0]),
                first["confidence"].to_numpy(),
                first["entropy"].to_numpy(),
                *(np.stack([found[name].to_numpy() for found in per_rule.values()]) for name in PER_RULE),
            )
        )
    return RuleDrift(tuple(rules.values()), tuple(texts))


def load(folder: Path = FOLDER) -> FidelityData:
    """Read the committed data.

    Raises:
        SpecVizError: a file is missing or damaged.
    """
    try:
        facts = json.loads((folder / FACTS).read_text("utf-8"))
        return FidelityData(
            pair=PairInfo(**facts["pair"]),
            temperature=facts["temperature"],
            cost=CostModel.from_json(facts["cost_model"]),
            pass_mode=facts["pass_mode"],
            drift=read_drift(folder / TABLE),
            tests=facts["tests"],
            prompt=facts["prompt"],
            texts=[Text(**text) for text in facts["texts"]],
            pictures=[Picture(**picture) for picture in facts["pictures"]],
            tokens=tokens_from_json(facts["tokens"]),
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise SpecVizError(
            "The data of this page is missing or damaged; make it with `python -m specviz.ui.fidelity_data.make`."
        ) from error
