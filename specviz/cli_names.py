"""What options of the command line name or list: precisions, devices, acceptance rules, layers.

Each function is the `type` of an argparse argument, as in `cli_paths`: it raises a SpecVizError before anything loads.
"""

from __future__ import annotations

import re

from specviz.errors import SpecVizError
from specviz.limits import LONGEST_SHOWN, Range

LAYER = Range("layer", 0, 10_000)


def device(text: str) -> str:
    """A device as `resolve_device` takes it; whether it is there is known only to torch."""
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", text):
        raise SpecVizError(f"There is no device {text[:LONGEST_SHOWN]!r}; choose auto, cpu, cuda or cuda:0.")
    return text


def precision(text: str) -> str:
    """A precision as `read_precision` takes it, or auto."""
    from specviz.models.precision import read_precision

    if text != "auto":
        read_precision(text)
    return text


def precisions(text: str) -> list[str]:
    """Several precisions with commas between them."""
    return [precision(part.strip()) for part in _parts(text, "precisions, such as bf16,nf4")]


def combinations(text: str) -> list:
    """Precisions of targets and drafts, such as bf16:bf16,nf4:bf16."""
    from specviz.models.precision import Combination

    return [Combination.parse(part) for part in _parts(text, "combinations, such as nf4:bf16")]


def layers(text: str) -> list[int]:
    """Numbers of layers with commas between them."""
    return [int(LAYER.read(part.strip())) for part in _parts(text, "layers, such as 0,1,2,3")]


def rule(text: str):
    """An acceptance rule, such as coupled or lenient=0.5."""
    from specviz.replay import rule_from_text

    return rule_from_text(text[:LONGEST_SHOWN])


def catalogue_pair(text: str) -> str:
    """The name of a pair of the catalogue."""
    from specviz.models.catalogue import find_pair

    return find_pair(text[:LONGEST_SHOWN]).name


def prompt(text: str) -> str:
    """A text to answer or to continue."""
    if not text.strip():
        raise SpecVizError("The prompt is empty: write what the model is to answer or to continue.")
    return text


def stop_string(text: str) -> str:
    """A string that ends the text."""
    from specviz.replay.stop_strings import check_stop_strings

    return check_stop_strings([text])[0]


def families(text: str) -> list[str]:
    """Names of model families with commas between them; which ones there are is known only to transformers."""
    names = [part.strip() for part in _parts(text, "model families, such as gpt_neo,cohere")]
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,80}", name):
            raise SpecVizError(f"{name[:LONGEST_SHOWN]!r} cannot be a model family; give names such as gpt_neo,cohere.")
    return names


def _parts(text: str, what: str) -> list[str]:
    if not text.strip(" ,"):
        raise SpecVizError(f"The list {text[:LONGEST_SHOWN]!r} is empty; give {what}.")
    return text.split(",")
