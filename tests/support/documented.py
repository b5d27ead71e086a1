"""Blocks of the docs, and a folder in which they are run as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.processes import ServerProcess
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).resolve().parents[2]
COMMAND_SECONDS: Final = 120.0
READY_SECONDS: Final = 120.0
_BLOCK: Final = re.compile(r"^( *)```\w*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def blocks_of(page: str) -> list[str]:
    """What is between fences on a page of docs/, in order, without the indentation of a list."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    return [textwrap.dedent(block) for _, block in _BLOCK.findall(text)]


def placed(text: str, places: Mapping[str, object]) -> str:
    """The text with other places (ports, hosts, files, passwords), each of which has to be in it."""
    for place in places:
        assert place in text, f"{place} is not in:\n{text}"
    return re.sub("|".join(map(re.escape, places)), lambda found: str(places[found[0]]), text)


def commands_of(block: str) -> list[tuple[str, str]]:
    """The commands behind the prompts of a block, each with the output that stands below it."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
    assert not parts[0], f"output of no command:\n{block}"
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts[1:])]


def prints(documented: str, output: str, varying: Mapping[str, str] | None = None) -> bool:
    """Whether output is as documented, whatever the widths of columns.

    A line `...` stands for any lines, and a part of a line that is among `varying` for what its expression matches.
    """
    known = {" ".join(part.split()): expression for part, expression in (varying or {}).items()}
    parts = re.compile("|".join(map(re.escape, sorted(known, key=len, reverse=True))) or r"(?!)")
    expressions = []
    for line in documented.splitlines():
        if line == "...":
            expressions.append(r"(?:.*\n)*?")
            continue
        line, end, expression = " ".join(line.split()), 0, ""
        for found in parts.finditer(line):
            expression += re.escape(line[end : found.start()]) + f"(?:{known[found[0]]})"
            end = found.end()
        expressions.append(expression + re.escape(line[end:]) + r"\n")
    collapsed = "".join(f"{' '.join(line.split())}\n" for line in output.splitlines())
    return re.fullmatch("".join(expressions), collapsed) is not None


class Folder:
    """A folder with `barnabas` on the PATH, which is that of this source; servers that were started end with it."""

    def __init__(self, directory: Path, bootstrap: str | None = None) -> None:
        self.directory = directory
        command = directory / "bin" / "barnabas"
        command.parent.mkdir(parents=True, exist_ok=True)
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m barnabas.cli "$@"\n')
        command.chmod(0o755)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "PATH": f"{command.parent}:{os.environ['PATH']}",
            **({} if bootstrap is None else {"BARNABAS_BOOTSTRAP_SERVERS": bootstrap}),
        }
        self._servers: list[ServerProcess] = []

    def write(self, name: str, text: str) -> Path:
        """A file, which only its owner may read."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
        return path

    def run(self, script: str, given: str = "", **variables: object) -> tuple[str, str]:
        """Output and errors of a script, in which every command must succeed; `given` is its standard input."""
        done = subprocess.run(
            ["/bin/sh", "-e", "-c", script],
            cwd=self.directory,
            env={**self.environment, **{name: str(value) for name, value in variables.items()}},
            input=given,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stderr}"
        return done.stdout, done.stderr

    def typed(self, command: str, seconds: float = COMMAND_SECONDS, **variables: object) -> tuple[int, str]:
        """The exit status of a command, and all that it says, errors among it, as one sees it."""
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.directory,
            env={**self.environment, **{name: str(value) for name, value in variables.items()}},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        return done.returncode, done.stdout

    def serve(self, name: str, command: str, **variables: object) -> ServerProcess:
        """Starts the one command, which goes on."""
        server = ServerProcess(
            name,
            ["/bin/sh", "-c", f'cd "{self.directory}" && exec {command.strip()}'],
            self.directory / f"{name}.log",
            {**self.environment, **{variable: str(value) for variable, value in variables.items()}},
        )
        server.start()
        self._servers.append(server)
        return server

    def close(self) -> None:
        """Ends what runs, the latest first."""
        for server in reversed(self._servers):
            server.stop()


def said(server: ServerProcess, text: str) -> str:
    """All that a server has said, once this is among it."""

    def has_come() -> str | None:
        words = server.log_path.read_text("utf-8", "replace")
        if text not in words:
            assert server.is_running, server.log_tail()
            return None
        return words

    return wait_until(has_come, f"{server.name} says {text!r}", READY_SECONDS, server.log_tail)
