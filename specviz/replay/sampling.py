"""How tokens are drawn: the settings that turn a model's logits into the distribution it samples from."""

from dataclasses import asdict, dataclass

from specviz import limits
from specviz.errors import SpecVizError

LOWEST_TEMPERATURE = 1e-6
RANGES = {
    "temperature": limits.TEMPERATURE,
    "top_k": limits.TOP_K,
    "top_p": limits.TOP_P,
    "min_p": limits.MIN_P,
    "repetition_penalty": limits.REPETITION_PENALTY,
}


@dataclass(frozen=True)
class Sampling:
    """Applied to target and draft alike, in the order in which `transformers` applies them: repetition penalty,
    temperature, top-k, top-p, min-p.

    Attributes:
        temperature: 0 takes the likeliest token (greedy decoding); what follows then has no effect.
        top_k: keep the `top_k` likeliest tokens; 0 keeps all.
        top_p: keep the likeliest tokens whose probabilities add up to `top_p`; 1 keeps all (Holtzman et al. 2020).
        min_p: keep tokens at least `min_p` times as likely as the likeliest; 0 keeps all (Nguyen et al. 2024).
        repetition_penalty: divides the positive and multiplies the negative logits of tokens that the text holds
            already, prompt included; 1 leaves them (Keskar et al. 2019). Works at temperature 0 too. None takes what
            the target's generation config asks for, or 1.

    Raises:
        SpecVizError: a value is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float | None = None

    def __post_init__(self) -> None:
        for name, allowed in RANGES.items():
            value = getattr(self, name)
            if value is not None or name != "repetition_penalty":
                object.__setattr__(self, name, allowed.check(value))
        if 0 < self.temperature < LOWEST_TEMPERATURE:
            raise SpecVizError(f"A temperature of {self.temperature} has the same effect as 0; give 0.")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, so that nothing is drawn."""
        return self.temperature == 0

    def settings(self) -> dict:
        """As JSON-able values, for traces and recordings."""
        return asdict(self)
