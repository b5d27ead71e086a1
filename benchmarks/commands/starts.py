"""What short commands take from exec to their end, beside an empty Python and `kcat -L`.

    python -m benchmarks.commands.starts [--rounds N] [--only WORD ...] [--against DIRECTORY] [--json FILE]

These are all commands that ask a cluster and end by themselves, and of several that differ in a word one. Left out is
what takes as long as it is told or has work (topic stats, copy, export and import, reassign execute), what can be done
only once (topic delete, controller move), what runs until it is stopped, and pipelines, with Spark behind them. What is
changed is the same each time: from the second round on there is nothing to be changed.

All take turns on one broker of ours, after one round that only warms up. Processor time is the user's and the system's
of the whole process, children included; where others use the cores, wall time says more about them. The goal is 150 ms
for each. With --against another checkout's commands take their turns beside ours (its `src`, on the same interpreter),
for what a change has brought. The table that is printed is the one of docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.brokers.servers import BARNABAS, cluster
from benchmarks.startup import compiled_environment
from tests.support import wire_calls
from tests.support.waiting import wait_until

GOAL_MS = 150.0
EMPTY, FULL, GROUP = "empty", "full", "committed"
_SECONDS_MAX = 60.0
_RUN = "import sys; from barnabas.cli.entry import run; sys.argv[0] = 'barnabas'; run()"
COMMANDS: dict[str, tuple[str, ...]] = {
    "--help": ("--help",),
    "--version": ("--version",),
    "completion": ("completion", "bash"),
    "profile list": ("profile", "list"),
    "topic list": ("topic", "list"),
    "topic describe": ("topic", "describe", EMPTY),
    "topic create, which is there": ("topic", "create", EMPTY, "--if-not-exists"),
    "topic alter": ("topic", "alter", EMPTY, "--config", "retention.ms=86400000"),
    "config get": ("config", "get", f"topic:{EMPTY}", "--all"),
    "config set": ("config", "set", f"topic:{EMPTY}", "retention.ms=86400000"),
    "config diff": ("config", "diff", f"topic:{EMPTY}"),
    "group list": ("group", "list"),
    "group describe": ("group", "describe", GROUP),
    "group reset, shown": ("group", "reset", GROUP, "--topic", EMPTY, "--to", "earliest"),
    "group delete, shown": ("group", "delete", GROUP, "--dry-run"),
    "txn list": ("txn", "list"),
    "txn producers": ("txn", "producers", FULL),
    "txn find-hanging": ("txn", "find-hanging", FULL),
    "acl list": ("acl", "list"),
    "acl add": ("acl", "add", f"topic:{EMPTY}", "--principal", "User:ann", "--operation", "read"),
    "acl check": ("acl", "check", "User:ann", "read", f"topic:{EMPTY}"),
    "quota list": ("quota", "list"),
    "quota set": ("quota", "set", "--user", "ann", "producer_byte_rate=1000000"),
    "user list": ("user", "list"),
    "user set": ("user", "set", "ann", "--password-file", "-"),
    "cluster describe": ("cluster", "describe"),
    "cluster health": ("cluster", "health"),
    "controller show": ("controller", "show"),
    "log-dirs describe": ("log-dirs", "describe"),
    "elect preferred": ("elect", "preferred", "--all"),
    "reassign status": ("reassign", "status"),
    "reassign plan": ("reassign", "plan", "--measure", "0s"),
    "records delete, shown": ("records", "delete", FULL, "--before", "latest"),
    "offsets": ("offsets", EMPTY),
    "produce, one record": ("produce", FULL),
    "consume --until-end, nothing": ("consume", EMPTY, "--until-end"),
    "consume --until-end, in a group": ("consume", EMPTY, "--until-end", "--group", "readers"),
    "doctor": ("doctor",),
}
PREPARATION = ("group", "reset", GROUP, "--topic", EMPTY, "--to", "earliest", "--create", "--execute")
_PROPERTIES = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",  # or there were no ACLs to list
    "super.users": "User:ANONYMOUS",
}
PYTHON, KCAT = "python -c pass", "kcat -L"

Figures = dict[str, list[tuple[float, float]]]
"""By name, for each round: milliseconds of processor time, and from exec to the end."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commands.starts", description="Time short commands.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS), metavar="WORD")
    parser.add_argument("--against", type=Path, metavar="DIRECTORY", help="a checkout to be measured beside this one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every figure")
    options = parser.parse_args(arguments)
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        environment = compiled_environment(str(place / "compiled"))
        with cluster(BARNABAS, place / "cluster", 1, properties=_PROPERTIES) as running:
            port = running.brokers[0].port
            environment["BARNABAS_BOOTSTRAP_SERVERS"] = f"127.0.0.1:{port}"
            for topic in (EMPTY, FULL):
                wire_calls.create_topic(port, topic, 1, 1)
                wait_until(lambda: len(wire_calls.leaders(port, topic)) == 1, "it has a leader", _SECONDS_MAX)  # noqa: B023
            timed([sys.executable, "-c", _RUN, *PREPARATION], environment)
            runs = {PYTHON: ([sys.executable, "-c", "pass"], environment)}
            if shutil.which("kcat"):
                runs[KCAT] = (["kcat", "-L", "-b", f"127.0.0.1:{port}"], environment)
            for name in options.only:
                runs[name] = ([sys.executable, "-c", _RUN, *COMMANDS[name]], environment)
                if options.against is not None:
                    other = {**environment, "PYTHONPATH": str(options.against.resolve() / "src")}
                    runs[f"{name} (before)"] = (runs[name][0], other)
            for turn in range(-1, options.rounds):
                for name, (command, of_run) in runs.items():
                    figure = timed(command, of_run)
                    if turn >= 0:  # the first compiles what else is imported
                        figures.setdefault(name, []).append(figure)
    if options.json is not None:
        options.json.write_text(json.dumps(figures))
    print(table(figures))
    late = [name for name in options.only if statistics.median(wall for _, wall in figures[name]) > GOAL_MS]
    print(
        f"within the goal of {GOAL_MS:.0f} ms: {len(options.only) - len(late)} of {len(options.only)} commands", end=""
    )
    print(f"; not: {', '.join(late)}" if late else "")
    print(
        f"load of the machine in the last 1, 5 and 15 minutes: {', '.join(f'{each:.1f}' for each in os.getloadavg())}"
    )
    return 0


def timed(command: Sequence[str], environment: dict[str, str]) -> tuple[float, float]:
    """Runs a command with one line as its input. Raises CalledProcessError where it fails."""
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        assert process.stdin is not None
        try:
            process.stdin.write(b"one\n")
            process.stdin.close()
        except BrokenPipeError:
            pass  # it does not read, and has ended
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return (usage.ru_utime + usage.ru_stime) * 1_000, wall * 1_000


def table(figures: Figures) -> str:
    """As Markdown: the least and the median of each."""
    lines = [
        f"| command | processor time, ms: least | median | wall, ms: least | median (goal {GOAL_MS:.0f}) |",
        "|---|---|---|---|---|",
    ]
    for name, measured in figures.items():
        cells = [f"{choose(row):.0f}" for row in zip(*measured, strict=True) for choose in (min, statistics.median)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
