"""The collector's policy, in a process of its own.

A look at all that there is, and as many objects again as there are, take half a minute in a process that has collected
every unit test, and what its start had set aside would be looked at from then on: this was a tenth of all units' time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CASES = Path(__file__).with_name("collector_cases.py")
PROJECT = Path(__file__).parents[3]
LEAST_CASES = 16


def test_the_cases_pass_in_a_young_process() -> None:
    """Those of `collector_cases.py`; what they say is shown when one does not."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:xdist.looponfail", str(CASES)]
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=PROJECT, env=environment, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-5_000:]
    passed = int(ended.stdout.rsplit(" passed", 1)[0].rsplit(maxsplit=1)[-1])
    assert passed >= LEAST_CASES, ended.stdout
