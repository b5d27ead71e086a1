"""What commands load besides what they are made of: each module costs, and a command is to start in 0.15 s."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from barnabas.testing import KafkaCluster
from benchmarks.commands.starts import COMMANDS, EMPTY, FULL, PREPARATION

# OpenSSL with what looks into it, the parts of a compiler, compressors, and the pages of a terminal.
HEAVY = {"ssl", "ast", "dis", "bz2", "lzma", "decimal", "email", "http", "rich", "pydoc", "zoneinfo"}
NEEDED = {"--help": {"bz2", "lzma"}}
"""click asks `shutil` for the width of the terminal."""
BY_DAY = ("topic alter", "config set", "config diff", "acl list", "doctor")
"""Those that have loaded too much before."""
_PROGRAM = """
import atexit, sys
names = sys.argv.pop(1)
def tell():
    with open(names, "w") as stream:
        stream.write(" ".join(sys.modules))
atexit.register(tell)
from barnabas.cli.entry import run
run()
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    config = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:ANONYMOUS"}
    with KafkaCluster(config=config) as cluster:
        cluster.create_topic(EMPTY)
        cluster.create_topic(FULL)
        yield cluster.bootstrap_servers


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in BY_DAY
        else pytest.param(name, marks=pytest.mark.night("a process each, eight seconds, and found ssl in four"))
        for name in COMMANDS
    ],
)
def test_a_command_loads_nothing_heavy(servers: str, name: str, tmp_path: Path) -> None:
    if name.startswith("group "):
        loaded_by(servers, PREPARATION, tmp_path)
    loaded = loaded_by(servers, COMMANDS[name], tmp_path)
    assert "barnabas.cli.main" in loaded
    assert loaded & HEAVY == NEEDED.get(name, set())


def test_a_log_is_shown_without_the_messages_of_the_protocol(tmp_path: Path) -> None:
    """Of which only records of internal topics are made."""
    (tmp_path / "flights-0").mkdir()
    loaded = loaded_by("", ("log", "dump", "--records", str(tmp_path / "flights-0")), tmp_path)
    assert "barnabas.cli.log_report" in loaded
    assert not {"asyncio", "barnabas.wire.messages", "barnabas.wire.classes", "barnabas.client.client"} & loaded


def loaded_by(servers: str, command: Sequence[str], folder: Path) -> set[str]:
    """The modules that a process has at its end."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(folder / "modules"), *command],
        env={**os.environ, "BARNABAS_BOOTSTRAP_SERVERS": servers},
        input="one\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr  # a doctor may find something
    return set((folder / "modules").read_text().split())
