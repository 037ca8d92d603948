"""What a session may ask of a loaded pair, and what it gets."""

from dataclasses import dataclass

from specviz.analysis.comparison import MeasuredPoint
from specviz.analysis.prompts import Prompt


@dataclass(frozen=True)
class PairChoice:
    """Which two models, each at which precision ("auto": what the machine computes in by nature).

    Sources are what `specviz.models.sources.find_model` takes.
    """

    target: str
    draft: str
    target_precision: str = "auto"
    draft_precision: str = "auto"


@dataclass(frozen=True)
class RunRequest:
    """Generate and record."""

    pair: PairChoice
    prompt: str
    max_new_tokens: int
    max_draft: int


@dataclass(frozen=True)
class SweepRequest:
    """Record many prompts."""

    pair: PairChoice
    prompts: tuple[Prompt, ...]
    max_new_tokens: int
    max_draft: int


@dataclass(frozen=True)
class RaceRequest:
    """Time one plain and one speculative run of the same prompt."""

    pair: PairChoice
    prompt: str
    max_new_tokens: int
    tau: float
    max_draft: int


@dataclass(frozen=True)
class MeasureRequest:
    """Really run one setting on some prompts, each beside a plain run."""

    pair: PairChoice
    prompts: tuple[str, ...]
    max_new_tokens: int
    tau: float
    max_draft: int


@dataclass(frozen=True)
class CompareRequest:
    """Measure the same pair at several combinations of precisions, each such as "nf4:bf16"."""

    pair: PairChoice  # its precisions are not used
    combinations: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    max_new_tokens: int
    max_draft: int


@dataclass(frozen=True)
class MeasuredRace:
    """Moments of both runs ([seconds, tokens committed by then], prefill left out), and the output as shown."""

    plain: list[list[float]]
    speculative: list[list[float]]
    tokens: list[str]
    device: str
    same_output: bool


Request = RunRequest | SweepRequest | RaceRequest | MeasureRequest | CompareRequest
__all__ = [
    "CompareRequest",
    "MeasureRequest",
    "MeasuredPoint",
    "MeasuredRace",
    "PairChoice",
    "RaceRequest",
    "Request",
    "RunRequest",
    "SweepRequest",
]
