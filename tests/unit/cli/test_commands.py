"""The command line: quick to start, clear when it cannot, and orderly when it ends."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from barnabas.cli.main import main
from tests.support.waiting import wait_until

SOURCE = Path(__file__).resolve().parents[3] / "src"
PAGE = SOURCE.parent / "docs" / "commands.md"
COMMAND = [sys.executable, "-m", "barnabas.cli"]
HEAVY = {
    "aiohttp", "asyncio", "confluent_kafka", "cramjam", "crc32c", "fastapi", "nicegui", "prometheus_client", "pyarrow",
    "pyspark", "rich", "sqlglot", "starlette", "uvicorn", "uvloop", "yaml",
}  # fmt: skip
READY_SECONDS = 20.0


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE)}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=60, env=environment(), check=False
    )


class CoordinatorProcess:
    """`barnabas coordinator` until it is ready."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "coordinator", "--data", str(directory), "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], READY_SECONDS)
        assert readable, "the coordinator does not become ready"
        self.ready_line = self.process.stdout.readline()

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from barnabas.cli.main import main\n"
        "try:\n    main(['--help'], prog_name='barnabas')\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print('modules:', *sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment(), check=True
    )
    shown, _, modules = done.stdout.partition("modules:")
    assert "coordinator" in shown
    assert HEAVY.isdisjoint(modules.split())


@pytest.mark.parametrize(
    ("command", "option"), [("broker", "--override"), ("coordinator", "--data"), ("up", "--brokers")]
)
def test_every_command_has_its_own_help(command: str, option: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert option in done.stdout
    assert "--stop-with-parent" not in done.stdout


def leaf_commands() -> list[tuple[str, ...]]:
    """Every command that does something, as its words."""

    def below(group: click.Group, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                yield from below(command, (*words, name))
            else:
                yield (*words, name)

    return list(below(main, ()))


@pytest.mark.parametrize("words", leaf_commands(), ids=" ".join)
def test_every_command_says_what_it_does_in_its_help_and_is_on_the_page(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*words, "--help"])
    assert result.exit_code == 0
    usage, _, meaning, *_ = result.output.splitlines()
    assert usage.startswith(f"Usage: barnabas {' '.join(words)} ")
    assert len(meaning.strip()) > 20
    assert re.search(rf"(`|barnabas ){' '.join(words)}\b", PAGE.read_text("utf-8")), "docs/commands.md must say it too"


def test_a_broker_says_everything_that_is_wrong_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("broker.id=x\nlog.retention.hours=soon\n")
    done = run("broker", str(file), "--override", "nonsense")
    assert done.returncode == 1
    for problem in ("broker.id", "log.retention.hours", "'nonsense' must have the form key=value", "zookeeper.connect"):
        assert problem in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("as_json", [False, True])
def test_a_broker_says_what_it_does_not_know_and_why_it_cannot_start(tmp_path: Path, as_json: bool) -> None:
    (tmp_path / "file").touch()
    file = tmp_path / "server.properties"
    file.write_text(
        f"zookeeper.connect=127.0.0.1:1\nlog.dirs={tmp_path / 'file'}\nbarnabas.logs.directory={tmp_path / 'logs'}\n"
    )
    done = run("broker", str(file), "--override", "log.retention.hourz=7", *(["--json"] if as_json else []))
    assert done.returncode == 1
    noticed, said = done.stderr.splitlines()
    assert "Unknown config log.retention.hourz" in noticed
    assert "did you mean log.retention.hours?" in noticed
    why = f"no log directory can be used: {tmp_path / 'file'}: a file of this name exists already"
    assert said == f"barnabas broker: {why}"
    assert done.stdout == (json.dumps({"error": why}, separators=(",", ":")) + "\n" if as_json else "")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_coordinator_says_why_it_cannot_start(tmp_path: Path, as_json: bool) -> None:
    (tmp_path / "file").touch()
    done = run("coordinator", "--data", str(tmp_path / "file"), "--port", "0", *(["--json"] if as_json else []))
    assert done.returncode == 1
    why = f"the data directory {tmp_path / 'file'} cannot be used: "
    assert done.stderr.startswith(f"barnabas coordinator: {why}")
    assert "Errno" not in done.stderr
    assert (json.loads(done.stdout)["error"].startswith(why)) if as_json else done.stdout == ""


def test_a_broker_without_its_coordinator_waits_and_stops_when_it_is_told(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        f"zookeeper.connect=127.0.0.1:1\nlog.dirs={tmp_path / 'data'}\nlisteners=PLAINTEXT://127.0.0.1:0\n"
        f"barnabas.logs.directory={tmp_path / 'logs'}\nbarnabas.logs.levels=kafka.server=DEBUG\n"
    )
    process = subprocess.Popen(
        [*COMMAND, "broker", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    log = tmp_path / "logs" / "server.log"
    wait_until(lambda: log.exists() and "Starting" in log.read_text(), "it starts")
    process.send_signal(signal.SIGTERM)
    said, errors = process.communicate(timeout=60)
    assert (process.returncode, said, errors) == (0, "", "")
    assert (tmp_path / "logs" / "state-change.log").read_text() == ""
    assert "Stopped" in log.read_text()


def test_levels_that_there_are_not_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("zookeeper.connect=127.0.0.1:1\nbarnabas.logs.levels=root=LOUD\n")
    done = run("broker", str(file))
    assert done.returncode == 1
    assert "'LOUD' is not a log level" in done.stderr


def test_an_unknown_command_is_named() -> None:
    done = run("brokers")
    assert done.returncode == 2
    assert "brokers" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--data"),
        (["--data", "/tmp/x", "--port", "70000"], "70000"),
        (["--data", "/tmp/x", "--tick-time", "0"], "tick_time_ms must be at least 1"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], complaint: str) -> None:
    done = run("coordinator", *arguments)
    assert done.returncode == 2
    assert complaint in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_coordinator_says_when_it_is_ready_and_stops_in_order(tmp_path: Path, number: int) -> None:
    coordinator = CoordinatorProcess(tmp_path / "data")
    assert "ready on 127.0.0.1:" in coordinator.ready_line
    status, errors = coordinator.stop(number)
    # On a machine that is busy a turn of the loop may take long, which is said.
    assert (status, [line for line in errors.splitlines() if "One turn of the loop took" not in line]) == (0, [])


def test_a_second_coordinator_on_the_same_data_is_refused(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    done = run("coordinator", "--data", str(tmp_path), "--port", "0")
    assert coordinator.stop()[0] == 0
    assert done.returncode == 1
    assert "in use by another coordinator" in done.stderr


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path / "one")
    port = coordinator.ready_line.split(":")[2].partition(",")[0]
    done = run("coordinator", "--data", str(tmp_path / "two"), "--port", port)
    assert coordinator.stop()[0] == 0
    assert done.returncode == 1
    assert port in done.stderr


def test_damaged_data_are_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / f"snapshot.{5:016x}").write_bytes(b"damaged")
    done = run("coordinator", "--data", str(tmp_path), "--port", "0")
    assert done.returncode == 1
    assert "restore the data directory" in done.stderr
