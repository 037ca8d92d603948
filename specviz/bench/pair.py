"""Which pair a bench runs, and how it is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.models.loading import LoadedPair, load_pair
from specviz.models.sources import BUILTIN_DRAFT, BUILTIN_TARGET


@dataclass(frozen=True)
class BenchPair:
    """Sources as `load_pair` takes them; both models at one precision."""

    target: str = BUILTIN_TARGET
    draft: str = BUILTIN_DRAFT
    precision: str = "fp32"
    device: str = "auto"

    def load(self) -> LoadedPair:
        """A fresh copy of the pair."""
        return load_pair(self.target, self.draft, self.precision, self.precision, self.device)
