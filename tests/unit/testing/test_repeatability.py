"""One seed, one run, bit for bit: in other processes, under other hash seeds, with other addresses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def _start(seed: int, hash_seed: str) -> subprocess.Popen[str]:
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    # Something of another size in the environment moves the addresses of what comes after.
    padding = "x" * (100 * int(hash_seed))
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path, "BARNABAS_TEST_PADDING": padding}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.unit.testing.repeatable_scenario", str(seed)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _trace(process: subprocess.Popen[str]) -> list[str]:
    output, errors = process.communicate(timeout=250)
    assert process.returncode == 0, errors
    assert errors == ""
    return output.splitlines()


def test_two_processes_with_different_hash_seeds_give_one_trace() -> None:
    one, two = _start(4, "1"), _start(4, "31")
    first, second = _trace(one), _trace(two)
    assert len(first) > 10_000
    for number, (left, right) in enumerate(zip(first, second, strict=False)):
        assert left == right, f"event {number} differs"
    assert len(first) == len(second)
    text = "\n".join(first)
    wanted = ("nemesis crash", "nemesis power", "nemesis pause", "nemesis partition", "nemesis cut", "nemesis reset")
    for fault in (*wanted, "nemesis slow-disk", "nemesis clock-step", "child_ended", "offload_finished", "survival"):
        assert fault in text


def test_another_seed_gives_another_trace() -> None:
    one, two = _start(6, "1"), _start(7, "1")
    assert _trace(one)[-1] != _trace(two)[-1]
