"""What every bench prints the same way: the device, tables, verdicts."""

from __future__ import annotations

from statistics import quantiles

from rich.console import Console
from rich.table import Table

console = Console(highlight=False, width=120)


def table(title: str, *columns: str) -> Table:
    """An empty table; numbers go to the right, the first column to the left."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(columns):
        made.add_column(name, justify="left" if place == 0 else "right")
    return made


def spread(values: list[float], digits: int = 2) -> str:
    """Median and quartiles of repeated measurements, such as "1.23 (1.20 to 1.27)"."""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    lower, middle, upper = quantiles(values, n=4, method="inclusive")
    return f"{middle:.{digits}f} ({lower:.{digits}f} to {upper:.{digits}f})"


def progress(stage: str, share: float) -> None:
    """Print how far long work has come."""
    console.print(f"{stage}: {share:.0%}")


class Verdicts:
    """Collects bars and whether each is met."""

    def __init__(self) -> None:
        self.all_met = True

    def check(self, what: str, met: bool, figure: str) -> None:
        """Print one bar with its figure."""
        self.all_met &= met
        console.print(f"{'met    ' if met else 'NOT MET'}  {what}: {figure}", markup=False)
