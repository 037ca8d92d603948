"""How tokens are drawn: the settings that turn a model's logits into the distribution it samples from."""

import math
from dataclasses import asdict, dataclass

from specviz.errors import SpecVizError

LOWEST_TEMPERATURE = 1e-6


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
            already, prompt included; 1 leaves them (Keskar et al. 2019). Works at temperature 0 too.

    Raises:
        SpecVizError: a value is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            object.__setattr__(self, name, float(getattr(self, name)))
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise SpecVizError(f"The temperature is {self.temperature}; it must be 0 or more.")
        if 0 < self.temperature < LOWEST_TEMPERATURE:
            raise SpecVizError(f"A temperature of {self.temperature} cannot be told from 0; give 0.")
        if not 0 <= self.top_k < math.inf or self.top_k != int(self.top_k):
            raise SpecVizError(f"top-k is {self.top_k}; give a whole number from 1, or 0 to keep all tokens.")
        for name in ("top_p", "min_p"):
            if not 0 <= getattr(self, name) <= 1:
                raise SpecVizError(f"{name.replace('_', '-')} is {getattr(self, name)}; it must lie between 0 and 1.")
        if not (self.repetition_penalty > 0 and math.isfinite(self.repetition_penalty)):
            raise SpecVizError(f"The repetition penalty is {self.repetition_penalty}; it must be above 0 (1 is none).")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, so that nothing is drawn."""
        return self.temperature == 0

    def settings(self) -> dict:
        """As JSON-able values, for traces and recordings."""
        return asdict(self)
