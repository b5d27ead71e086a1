"""What simulated runs have shown, kept for all processes of one pytest run.

Runs are long, and several tests look at the same ones.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Shown(NamedTuple):
    """Of one run: what the checkers have found, and how often it has met what."""

    findings: tuple[str, ...]
    met: Counter[str]


class KeptRuns:
    """A file for each run, by its name. Processes that begin the same one at the same time both run it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def shown(self, name: str, run: Callable[[], Shown]) -> Shown:
        """What the run with this name has shown; `run` is called when there has been none. Nothing is kept of one that
        raises.
        """
        file = self._directory / f"{name}.json"
        try:
            findings, met = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            shown = run()
        else:
            return Shown(tuple(findings), Counter(met))
        written = file.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(shown), encoding="utf-8")
        written.replace(file)
        return shown
