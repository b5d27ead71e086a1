"""How long a command takes from exec to its end: `barnabas --help` against an empty Python and against importing the
libraries that it must not load.

Run as `python -m benchmarks.startup [--runs N]`. The goal is 150 ms for `barnabas --help`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

GOAL_MS = 150.0
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "barnabas --help": [str(Path(sys.executable).parent / "barnabas"), "--help"],
    "barnabas coordinator --help": [str(Path(sys.executable).parent / "barnabas"), "coordinator", "--help"],
}


def elapsed_ms(command: list[str]) -> float:
    """Wall milliseconds of one run. Raises CalledProcessError when it fails."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return (time.perf_counter() - began) * 1000


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    runs: int = parser.parse_args(arguments).runs
    for command in COMMANDS.values():
        elapsed_ms(command)  # the first run compiles and fills the page cache
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(runs):
        for name, command in COMMANDS.items():
            times[name].append(elapsed_ms(command))
    for name, measured in times.items():
        print(f"{name:30} median {statistics.median(measured):6.1f} ms   least {min(measured):6.1f} ms")
    median = statistics.median(times["barnabas --help"])
    print(f"goal for barnabas --help: {GOAL_MS:.0f} ms, {'met' if median <= GOAL_MS else 'MISSED'} over {runs} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
