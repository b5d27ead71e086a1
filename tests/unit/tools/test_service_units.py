"""The units in contrib/systemd: systemd takes them, and the commands in them are ours."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from barnabas.cli import broker, coordinator

UNITS: Final = sorted((Path(__file__).resolve().parents[3] / "contrib" / "systemd").glob("*.service"))
EXECUTABLE: Final = "/opt/barnabas/bin/barnabas"
_COMMANDS: Final = {"broker": broker.command, "coordinator": coordinator.command}


def command_line(unit: Path) -> list[str]:
    """What the unit runs, without variables of its environment."""
    found = re.search(r"^ExecStart=(.*)$", unit.read_text("utf-8"), re.MULTILINE)
    assert found is not None
    return [word for word in found[1].split() if not word.startswith("$")]


def test_there_are_units() -> None:
    assert [unit.stem for unit in UNITS] == ["barnabas-broker", "barnabas-coordinator"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd to ask")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        # It looks for the executable, which is not installed here.
        (tmp_path / unit.name).write_text(unit.read_text("utf-8").replace(EXECUTABLE, sys.executable), "utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, sorted(tmp_path.glob("*.service")))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_runs_a_command_that_there_is(unit: Path, tmp_path: Path) -> None:
    executable, name, *arguments = command_line(unit)
    assert executable == EXECUTABLE
    file = tmp_path / "server.properties"
    file.write_text("")
    arguments = [str(file) if argument == "/etc/barnabas/server.properties" else argument for argument in arguments]
    context = _COMMANDS[name].make_context(name, arguments)
    assert context.params["data_directory" if name == "coordinator" else "file"]
    assert "Type=notify" in unit.read_text("utf-8")
