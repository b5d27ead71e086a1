"""`barnabas produce` and `barnabas consume` beside kcat (librdkafka, in C), taking turns on one broker.

    python -m benchmarks.commands [--records N] [--rounds N] [--shape WORD ...] [--on WORD] [--json FILE]

A file of lines goes into a new topic of one partition, and out of it into a file, which must be the same. Fixed lines
have 55 bytes each, varied ones 20 to 90, 55 on average. Timed is the whole process, its start included; processor time
and memory are the client's own. Without kcat our figures are shown alone. The table that is printed is the one of
docs/performance.md.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.brokers.servers import BARNABAS, KAFKA, cluster
from benchmarks.ratios import Row, table
from benchmarks.startup import BARNABAS as COMMAND
from benchmarks.startup import compiled_environment
from tests.support import wire_calls
from tests.support.waiting import wait_until

OURS, KCAT = "ours", "kcat"
START_SECONDS_MAX = 60.0
SHAPES = {"fixed": (55, 55), "varied": (20, 90)}
"""Bytes of a line, at least and at most."""
_MEMORY_MS = 10
_UNITS = {"wall": "s", "cpu": "s", "memory": "MiB"}


@dataclass(frozen=True, slots=True)
class Run:
    """What a process took."""

    wall: float
    cpu: float
    memory: float
    """The largest resident memory, in MiB."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commands", description="Time commands beside kcat.")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--on", choices=["barnabas", "kafka"], default="barnabas", help="whose broker")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every figure")
    options = parser.parse_args(arguments)
    kinds = [OURS, KCAT] if shutil.which("kcat") else [OURS]
    figures: dict[str, dict[str, list[float]]] = {}
    broker = BARNABAS if options.on == "barnabas" else KAFKA
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        environment = compiled_environment(str(place / "compiled"))
        with cluster(broker, place / "cluster", 1) as running:
            port = running.brokers[0].port
            for shape in options.shape:
                lines = place / f"{shape}.txt"
                write_lines(lines, options.records, *SHAPES[shape])
                for turn in range(-1, options.rounds):
                    for kind in kinds if turn % 2 else kinds[::-1]:
                        for what, run in round_of(kind, port, f"{shape}-{kind}-{turn + 1}", lines, environment).items():
                            if turn >= 0:  # the first warms up
                                _keep(figures, f"{shape} {what}", kind, run)
    if options.json:
        options.json.write_text(json.dumps(figures))
    print(f"{options.records:,} records, {options.rounds} rounds, on a broker of {broker}; {kcat_version()}")
    if len(kinds) > 1:
        print(table(rows(options.shape), figures, OURS, KCAT, "ours / kcat's"))
    else:
        for name, measured in figures.items():
            print(f"{name}: {sorted(measured[OURS])[len(measured[OURS]) // 2]:.4g}")
    return 0


def rows(shapes: Sequence[str]) -> Mapping[str, Row]:
    """A row for each figure; those of memory are only told."""
    found = {}
    for shape in shapes:
        least, most = SHAPES[shape]
        size = f"{least} bytes" if least == most else f"{least} to {most} bytes"
        for what in ("produce", "consume"):
            found[f"{shape} {what} wall"] = Row(f"{what}, lines of {size}", "s", 1.5, False)
            found[f"{shape} {what} cpu"] = Row("... processor time of the client", "s", 1.5, False)
            found[f"{shape} {what} memory"] = Row("... resident memory at most", "MiB", None, False)
    return found


def write_lines(path: Path, count: int, least: int, most: int) -> None:
    """Lines of hexadecimal digits, none like another."""
    draw = random.Random(5)
    with path.open("w") as file:
        for number in range(count):
            size = draw.randint(least, most)
            file.write(f"{number:012d} {draw.getrandbits(320):080x}"[:size] + "\n")


def round_of(kind: str, port: int, topic: str, lines: Path, environment: dict[str, str]) -> dict[str, Run]:
    """Writes the lines to a new topic and reads them from it; raises ValueError where something else comes out."""
    wire_calls.create_topic(port, topic, 1, 1)
    wait_until(lambda: len(wire_calls.leaders(port, topic)) == 1, f"{topic} has a leader", START_SECONDS_MAX)
    address = f"127.0.0.1:{port}"
    out = lines.with_suffix(".out")
    if kind == OURS:
        produce = [COMMAND, "produce", topic, "--bootstrap-server", address, "--file", str(lines)]
        consume = [COMMAND, "consume", topic, "--bootstrap-server", address, "--until-end"]
    else:
        produce = ["kcat", "-P", "-b", address, "-t", topic, "-l", str(lines)]
        consume = ["kcat", "-C", "-b", address, "-t", topic, "-e", "-q", "-o", "beginning"]
    runs = {"produce": timed(produce, Path(os.devnull), environment), "consume": timed(consume, out, environment)}
    if not filecmp.cmp(lines, out, shallow=False):
        raise ValueError(f"{kind} read something else than it has written")
    out.unlink()
    wire_calls.delete_topic(port, topic)
    return runs


def timed(command: list[str], out: Path, environment: dict[str, str]) -> Run:
    """Runs a command to its end, its output into a file. Raises CalledProcessError where it fails."""
    with out.open("wb") as output, tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        with subprocess.Popen(command, stdout=output, stderr=errors, env=environment) as process:
            memory = _largest_memory(process.pid)
            _, status, usage = os.wait4(process.pid, 0)
            wall = time.perf_counter() - began
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise subprocess.CalledProcessError(process.returncode, command, stderr=errors.read())
    return Run(wall, usage.ru_utime + usage.ru_stime, memory)


def _largest_memory(pid: int) -> float:
    """Waits for the end of a process, and tells the largest resident memory that it has had, in MiB: as Linux tells it
    of the process now and then. What `wait4` tells is that of this process where that is larger, of which it was begun.
    """
    largest = 0
    descriptor = os.pidfd_open(pid)
    try:
        end = select.poll()
        end.register(descriptor, select.POLLIN)
        while not end.poll(_MEMORY_MS):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    largest = int(line.split()[1])
    finally:
        os.close(descriptor)
    return largest / 1024


def kcat_version() -> str:
    """As it says itself, in one line."""
    if not shutil.which("kcat"):
        return "kcat is not installed"
    said = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True).stdout
    return " ".join(line.strip() for line in said.splitlines() if "ersion" in line)


def _keep(figures: dict[str, dict[str, list[float]]], name: str, kind: str, run: Run) -> None:
    for what in _UNITS:
        figures.setdefault(f"{name} {what}", {}).setdefault(kind, []).append(getattr(run, what))


if __name__ == "__main__":
    sys.exit(main())
