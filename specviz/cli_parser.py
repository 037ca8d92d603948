"""The parser of every command: whatever it refuses is a SpecVizError of one sentence."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import NoReturn

from specviz.cli_paths import INPUTS, OUTPUTS
from specviz.errors import SpecVizError


class CommandParser(argparse.ArgumentParser):
    """An argument parser that refuses in one sentence, and refuses outputs that would overwrite each other."""

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ").rstrip(".")
        raise SpecVizError(f"{self.prog.removeprefix('python -m specviz ')}: {message}; see {self.prog} --help.")

    def parse_known_args(self, args=None, namespace=None):
        options, rest = super().parse_known_args(args, namespace)
        self._refuse_shared_paths(options)
        return options, rest

    def _refuse_shared_paths(self, options: argparse.Namespace) -> None:
        """No output may be an input, or another output."""
        taken: dict[str, str] = {}
        for kinds in (INPUTS, OUTPUTS):
            for action in self._actions:
                if action.type not in kinds:
                    continue
                named = getattr(options, action.dest, None)
                for path in [named] if isinstance(named, Path) else named or []:
                    option = action.option_strings[-1] if action.option_strings else f"the {action.metavar}"
                    place = os.path.realpath(path)
                    if kinds is OUTPUTS and place in taken:
                        raise SpecVizError(f"{option} and {taken[place]} are both {path}; name another {option}.")
                    taken[place] = option
