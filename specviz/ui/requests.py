"""What a session may ask of a loaded pair, and what it gets."""

from dataclasses import dataclass, field

from specviz.analysis.comparison import MeasuredPoint
from specviz.analysis.prompts import Prompt
from specviz.replay import AcceptanceRule, Sampling
from specviz.replay.generation import LogitRequests
from specviz.replay.rules import recorded_drawing
from specviz.trace import Recording


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
class Drawing:
    """How tokens are drawn and what ends the text, as the engine's `Settings` take it; greedy by default."""

    sampling: Sampling = field(default_factory=Sampling)
    rule: AcceptanceRule | None = None
    seed: int = 0
    requests: LogitRequests | None = None
    stop: tuple[str, ...] | None = None

    @classmethod
    def of(cls, recording: Recording) -> "Drawing":
        """As a recording was made.

        Raises:
            SpecVizError: its settings are not those of a recording.
        """
        return cls(*recorded_drawing(recording))

    def arguments(self) -> dict:
        names = ("sampling", "rule", "seed", "requests", "stop")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class RunRequest:
    """Generate and record."""

    pair: PairChoice
    prompt: str
    max_new_tokens: int
    max_draft: int
    drawing: Drawing = Drawing()


@dataclass(frozen=True)
class SweepRequest:
    """Record many prompts."""

    pair: PairChoice
    prompts: tuple[Prompt, ...]
    max_new_tokens: int
    max_draft: int
    drawing: Drawing = Drawing()


@dataclass(frozen=True)
class RaceRequest:
    """Time one plain and one speculative run of the same prompt."""

    pair: PairChoice
    prompt: str
    max_new_tokens: int
    tau: float
    max_draft: int
    drawing: Drawing = Drawing()
    on_fail: str = "drop"


@dataclass(frozen=True)
class MeasureRequest:
    """Really run one setting on some prompts, each beside a plain run."""

    pair: PairChoice
    prompt_ids: tuple[tuple[int, ...], ...]  # token ids, as recorded: with a chat template or without
    max_new_tokens: int
    tau: float
    max_draft: int
    drawing: Drawing = Drawing()
    on_fail: str = "drop"


@dataclass(frozen=True)
class CompareRequest:
    """Measure the same pair at several combinations of precisions, each such as "nf4:bf16"."""

    pair: PairChoice  # its precisions are not used
    combinations: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    max_new_tokens: int
    max_draft: int


@dataclass(frozen=True)
class FidelityRequest:
    """Test the pair's output and measure the drift of every acceptance rule; see `specviz.engine.fidelity`."""

    pair: PairChoice
    prompts: tuple[Prompt, ...]
    max_new_tokens: int
    tau: float
    max_draft: int
    sampling: Sampling
    seed: int = 0


@dataclass(frozen=True)
class CostRequest:
    """Measure the times of the pair's passes again.

    Attributes:
        span: the shortest and the longest context to price, in tokens.
        max_draft: the longest draft length to price; in pass mode `invariant` that of the one width.
    """

    pair: PairChoice
    pass_mode: str
    span: tuple[int, int]
    max_draft: int


@dataclass(frozen=True)
class MeasuredRace:
    """Moments of both runs ([seconds, tokens committed by then], prefill left out), and the output as shown."""

    plain: list[list[float]]
    speculative: list[list[float]]
    tokens: list[str]
    device: str
    same_output: bool


Request = RunRequest | SweepRequest | RaceRequest | MeasureRequest | CompareRequest | FidelityRequest | CostRequest
__all__ = [
    "CompareRequest",
    "CostRequest",
    "Drawing",
    "FidelityRequest",
    "MeasureRequest",
    "MeasuredPoint",
    "MeasuredRace",
    "PairChoice",
    "RaceRequest",
    "Request",
    "RunRequest",
    "SweepRequest",
]
