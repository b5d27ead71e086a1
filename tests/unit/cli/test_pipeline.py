"""`barnabas pipeline`: the order of its checks, its exit statuses, and what signals do. Without Spark and a cluster."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from barnabas.cli import pipeline_checks, pipeline_status
from barnabas.cli.connection import BOOTSTRAP_VARIABLE, CommandError, ExitStatus
from barnabas.cli.pipeline import command
from barnabas.cli.pipeline_signals import stopping_on_signals
from barnabas.pipelines.definition import PipelineError, PipelineUnreachableError
from barnabas.pipelines.progress import RunSummary
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.state_directory import StateDirectory
from tests.unit.pipelines.pipeline_files import flights

NOBODY = "no broker answers"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The bootstrap servers that were asked; every topic is there."""
    asked: list[str] = []

    def ask(_pipeline: Any, bootstrap: str, body: Any) -> Any:
        asked.append(bootstrap)
        return ()

    monkeypatch.setattr(pipeline_checks, "ask_cluster_of", ask)
    monkeypatch.setattr(pipeline_status, "ask_cluster_of", ask)
    monkeypatch.delenv(BOOTSTRAP_VARIABLE, raising=False)
    return asked


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(_pipeline: Any, bootstrap: str, body: Any) -> Any:
        raise CommandError(NOBODY, ExitStatus.UNREACHABLE)

    monkeypatch.setattr(pipeline_checks, "ask_cluster_of", ask)
    monkeypatch.setattr(pipeline_status, "ask_cluster_of", ask)


def test_the_cluster_is_that_of_the_file_unless_the_command_line_names_another(
    cluster: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = flights(tmp_path, ("name: delays\n", "name: delays\ncluster: {bootstrap_servers: one}\n"))
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "environment:1")
    for arguments in ([], ["--bootstrap-server", "two"]):
        invoke("status", path, *arguments)
    assert cluster == ["one:9092", "two:9092"]


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_init_writes_a_file_once(tmp_path: Path) -> None:
    path = tmp_path / "sales.yaml"
    answer = invoke("init", path)
    assert (answer.exit_code, answer.stdout) == (0, "")
    assert answer.stderr == f"{path} is written; its comments say how to run it\n"
    assert read_pipeline(path).name == "sales"
    answer = invoke("init", path)
    assert answer.exit_code == 1
    assert answer.stderr == f"pipeline init: {path} exists already: name another file, or remove it\n"


def test_init_has_a_name_of_its_own_for_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke("init").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline.yaml"]


@pytest.mark.usefixtures("cluster")
def test_check_without_spark_says_what_is_there(tmp_path: Path) -> None:
    path = flights(tmp_path)
    answer = invoke("check", path, "--no-spark")
    assert answer.exit_code == 0
    assert answer.stdout == f"{path} is right as far as can be seen without Spark: 2 sources, 2 steps, 2 sinks\n"
    assert answer.stderr == ""
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("subcommand", ["check", "run", "status"])
def test_a_fault_of_the_file_comes_before_the_cluster_is_asked(
    tmp_path: Path, cluster: list[str], subcommand: str
) -> None:
    path = flights(tmp_path, ("sinks:\n", "sink:\n"))
    answer = invoke(subcommand, path)
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert answer.stderr == f'pipeline {subcommand}: {path}:22: unknown key "sink"; did you mean "sinks"?\n'
    assert cluster == []


@pytest.mark.parametrize("subcommand", ["check", "run", "status"])
def test_a_file_that_is_not_there_has_its_own_status(tmp_path: Path, subcommand: str) -> None:
    answer = invoke(subcommand, tmp_path / "no.yaml")
    assert answer.exit_code == 4
    assert "does not exist: `barnabas pipeline init" in answer.stderr


IN_PYTHON = """\
from barnabas.pipelines import pipeline
raise ValueError("this was run")
@pipeline(sources={"flights": {"topic": "flights", "schema": "id INT"}}, sinks=[{"topic": "out"}])
def passed(flights):
    return flights
"""


@pytest.mark.parametrize("arguments", [("check", "--no-spark"), ("check",), ("run", "--once")])
def test_a_file_of_python_is_run_before_the_cluster_is_asked(
    tmp_path: Path, cluster: list[str], arguments: tuple[str, ...]
) -> None:
    path = tmp_path / "passed.py"
    path.write_text(IN_PYTHON)
    answer = invoke(*arguments, path)
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert answer.stderr == f"pipeline {arguments[0]}: {path}:2: ValueError: this was run\n"
    assert cluster == []


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("subcommand", ["graph", "status"])
def test_a_file_of_python_is_not_run_to_look_at_it(tmp_path: Path, subcommand: str) -> None:
    path = tmp_path / "passed.py"
    path.write_text(IN_PYTHON)
    answer = invoke(subcommand, path)
    assert "this was run" not in answer.output
    assert "passed" in answer.stdout


def test_directories_come_before_the_cluster(tmp_path: Path, cluster: list[str]) -> None:
    (tmp_path / "out").touch()
    answer = invoke("check", flights(tmp_path))
    assert answer.exit_code == 1
    assert f"{tmp_path}/out is a file" in answer.stderr
    assert cluster == []


def test_warns_of_what_is_probably_not_meant(tmp_path: Path, cluster: list[str]) -> None:
    path = flights(tmp_path, ("    watermark: {column: time, delay: 1 hour}\n", ""))
    answer = invoke("check", path, "--no-spark", "--bootstrap-server", "b:1")
    assert answer.exit_code == 0
    assert answer.stderr.startswith(f'warning: {path}:16: "by_hour" groups a stream without a watermark')
    assert cluster == ["b:1"]


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.parametrize("subcommand", ["check", "run"])
def test_a_cluster_out_of_reach_has_its_own_status(tmp_path: Path, subcommand: str) -> None:
    answer = invoke(subcommand, flights(tmp_path))
    assert (answer.exit_code, answer.stderr) == (3, f"pipeline {subcommand}: {NOBODY}\n")


def test_without_the_extra_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    answer = invoke("check", flights(tmp_path))
    assert answer.exit_code == 1
    assert answer.stderr == (
        "pipeline check: pipelines run on Spark, which is not installed: pip install 'barnabas[spark]'\n"
    )


class FakeRun:
    """Stands in the place of Spark."""

    def __init__(self, outcome: RunSummary | Exception, signals: int = 0) -> None:
        self.outcome = outcome
        self.signals = signals
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, pipeline: Any, options: Any, progress: Any, stop: threading.Event) -> RunSummary:
        self.calls.append((pipeline, options))
        for _ in range(self.signals):
            signal.raise_signal(signal.SIGTERM)
        assert stop.is_set() is bool(self.signals)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def summary(*, was_stopped: bool) -> RunSummary:
    return RunSummary("delays", was_stopped, 3, 30, 20, 0, {"flights": 0}, 1_000)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("arguments", "outcome", "signals", "status"),
    [
        (["--once"], summary(was_stopped=False), 0, 0),
        (["--once"], summary(was_stopped=True), 1, 130),
        ([], summary(was_stopped=True), 1, 0),
        ([], summary(was_stopped=False), 2, 130),
        ([], PipelineError("a record does not fit"), 0, 1),
        ([], PipelineUnreachableError("no broker"), 0, 3),
    ],
)
def test_run_ends_with_the_status_of_how_it_went(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    outcome: RunSummary | Exception,
    signals: int,
    status: int,
) -> None:
    fake = FakeRun(outcome, signals)
    monkeypatch.setattr("barnabas.pipelines.runner.run_pipeline", fake)
    answer = invoke("run", flights(tmp_path), "--bootstrap-server", "b:1", "--jars", tmp_path, *arguments)
    assert answer.exit_code == status
    ((pipeline, options),) = fake.calls
    assert pipeline.name == "delays"
    assert (options.bootstrap_servers, options.once, options.jars_directory) == ("b:1", bool(arguments), tmp_path)
    if isinstance(outcome, Exception):
        assert answer.stderr.endswith(f"pipeline run: {outcome}\n")


def test_signals_have_their_handlers_back_afterwards(capfd: pytest.CaptureFixture[str]) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    stop = threading.Event()
    with stopping_on_signals(stop):
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        assert capfd.readouterr().err == "\rstopping; Ctrl-C again cuts it short\n"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        logging.getLogger("py4j").critical("the call to Spark was cut short")
    assert "py4j" not in capfd.readouterr().err
    assert logging.getLogger().isEnabledFor(logging.CRITICAL)
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.fixture
def hang_up_heard() -> Iterator[None]:
    """Also where the tests themselves run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("cluster", "hang_up_heard")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_check_that_is_told_to_stop_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.setattr("barnabas.pipelines.connector.jars_of", lambda *_: ())
    monkeypatch.setattr("barnabas.pipelines.java.find_java", lambda: None)

    @contextlib.contextmanager
    def session(options: Any) -> Iterator[None]:
        assert options.log_directory.parent == scratch
        signal.raise_signal(number)
        yield

    monkeypatch.setattr("barnabas.pipelines.session.spark_session", session)
    before = signal.getsignal(number)
    answer = invoke("check", flights(tmp_path))
    assert (answer.exit_code, answer.stderr.splitlines()[-1]) == (130, "pipeline check: interrupted")
    assert list(scratch.iterdir()) == []
    assert signal.getsignal(number) is before


@pytest.fixture
def hang_up_ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hang_up_ignored")
def test_a_run_under_nohup_outlives_its_terminal() -> None:
    stop = threading.Event()
    with stopping_on_signals(stop):
        signal.raise_signal(signal.SIGHUP)
    assert not stop.is_set()


def test_a_run_ends_with_its_parent(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent_broker:
        server = f"127.0.0.1:{silent_broker.getsockname()[1]}"
        arguments = ["pipeline", "run", str(flights(tmp_path)), "--bootstrap-server", server, "--stop-with-parent"]
        with subprocess.Popen([sys.executable, "-m", "barnabas.cli", *arguments], stdin=subprocess.PIPE) as process:
            silent_broker.settimeout(60)
            connection, _ = silent_broker.accept()
            assert process.stdin is not None
            process.stdin.close()
            # It would wait for an answer for longer, and end with another status.
            assert process.wait(60) == 130
            connection.close()


@pytest.mark.usefixtures("cluster")
def test_status_of_a_pipeline_that_never_ran(tmp_path: Path) -> None:
    answer = invoke("status", flights(tmp_path))
    assert answer.exit_code == 0
    lines = [" ".join(line.split()) for line in answer.stdout.splitlines()]
    assert "State never ran" in lines
    assert "Group barnabas-pipeline-delays" in lines


@pytest.mark.usefixtures("no_cluster")
def test_status_without_the_cluster_leaves_out_the_lag(tmp_path: Path) -> None:
    path = flights(tmp_path)
    state = StateDirectory(read_pipeline(path).state_directory)
    state.directory.mkdir(parents=True)
    state.begin()
    answer = invoke("status", path, "--json")
    assert answer.exit_code == 3
    document = json.loads(answer.stdout)
    assert (document["state"], document["topics"]) == ("failed", None)
    assert "was killed" in document["reason"]
    assert answer.stderr == f"pipeline status: {NOBODY}\n"


def test_draws_the_pipeline_of_a_file_in_each_form(tmp_path: Path, no_cluster: None) -> None:
    path = flights(tmp_path)
    result = invoke("graph", path)
    assert result.exit_code == ExitStatus.DONE
    assert "   └─ named [watermark: time, 1 hour]" in result.stdout.splitlines()
    for form, beginning in (("mermaid", "flowchart LR\n"), ("dot", 'digraph "delays" {\n'), ("svg", "<svg ")):
        assert invoke("graph", path, "--format", form).stdout.startswith(beginning)
    assert invoke("graph", tmp_path / "none.yaml").exit_code == ExitStatus.MISSING


def test_prints_the_schemas_of_the_file_and_of_its_tests() -> None:
    assert set(json.loads(invoke("schema").stdout)["required"]) == {"name", "sources", "sinks"}
    assert json.loads(invoke("schema", "--tests").stdout)["required"] == ["tests"]
