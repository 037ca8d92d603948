"""Measured costs kept between sessions, for app and command line alike: one file for what was measured on what.

The files lie in the folder `costs` of the user's project folder. Each holds its key beside its cost model, so that a
file is never taken for another measurement than its own.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from specviz.analysis.cost_model import CostModel
from specviz.errors import SpecVizError
from specviz.trace import PairInfo
from specviz.trace.files import whole_file
from specviz.trace.project import project_folder

LARGEST_FILE = 1 << 22  # bytes


@dataclass(frozen=True)
class CostKey:
    """What decides how long passes take.

    Attributes:
        pair: names, revisions and precisions of the models, device with its threads, library versions.
        architecture: a digest of both models' configurations: two folders may have one name.
        pass_mode: of the passes.
        width: of every target pass in pass mode `invariant`; 0 in `fast`.
        compiled: whether the passes were compiled.
    """

    pair: PairInfo
    architecture: str
    pass_mode: str
    width: int = 0
    compiled: bool = False

    def to_json(self) -> dict:
        return asdict(self)

    @property
    def path(self) -> Path:
        """The file of this key. Names of models come from files and are not trusted: only letters and digits stay."""
        digest = hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:24]
        name = re.sub(r"[^A-Za-z0-9]+", "-", f"{self.pair.target} {self.pair.draft}").strip("-")[:60]
        return project_folder() / "costs" / f"{name}-{digest}.json"


def load_cost(key: CostKey) -> CostModel | None:
    """The cost model kept under this key; None where there is none.

    Raises:
        SpecVizError: the file is damaged; measuring again replaces it.
    """
    path = key.path
    damaged = f"The kept pass times in {path} are damaged, so they are measured again."
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > LARGEST_FILE:
            raise SpecVizError(damaged)
        values = json.loads(path.read_text("utf-8"))
        if values["key"] != json.loads(json.dumps(key.to_json())):
            raise SpecVizError(damaged)
        return CostModel.from_json(values["cost"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SpecVizError) as error:
        raise SpecVizError(damaged) from error


def save_cost(key: CostKey, cost: CostModel) -> None:
    """Keep a cost model in place of what was kept under this key.

    Raises:
        SpecVizError: the file cannot be written.
    """
    text = json.dumps({"key": key.to_json(), "cost": cost.to_json()}, allow_nan=False)
    with whole_file(key.path) as temporary:
        temporary.write_text(text, "utf-8")
