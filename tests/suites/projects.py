"""Runs the tests of projects that use Kafka on clusters of `barnabas.testing`, in place of the brokers that they want.

`python -m tests.suites.projects NAME CHECKOUT`: CHECKOUT is a clone of the project's repository at the commit below;
its archive in the registry has no tests. The project gets an environment of its own below `.cache`, at the versions
of `requirements/NAME.txt`. What fails is run once more, alone; exit status 1 when it fails again, unless it is among
those that are known to, or when one of those passes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from barnabas.testing import KafkaCluster
from tests.suites.fetching import SUITES_DIRECTORY, called
from tests.suites.model import Outcome, Result, SuiteUnusable
from tests.suites.processes import BOOTSTRAP_VARIABLE, plain_environment, run_bounded
from tests.suites.reports import junit

_HERE: Final = Path(__file__).resolve().parent
_TEST_SECONDS_MAX: Final = 180
_WHOLE: Final = (0, 1)
"""The exit statuses of pytest where it has run all tests, and any has failed."""
_TRIED_AGAIN_MAX: Final = 20
"""More failures are no matter of seconds, and would take hours."""

_OF_NO_KAFKA: Final = (
    "test_dataframe/test_joins/test_lookup_postgres.py",
    "test_models/test_serializers/test_schema_registry.py",
    "test_sinks/test_community/test_postgres_sink.py",
)
"""Tests of Quix Streams that want a container of something else: PostgreSQL, or Confluent's schema registry."""
_BROKER_0: Final = (
    "tests.test_quixstreams.test_internal_consumer.test_consumer.TestInternalConsumer::test_consumer_reuse",
    "tests.test_quixstreams.test_kafka.test_consumer::test_consumer_close_inner_consumer",
    "tests.test_quixstreams.test_kafka.test_consumer::test_consumer_start_close",
)


@dataclass(frozen=True, slots=True)
class Project:
    """Tests of a project at one commit of its repository."""

    version: str
    repository: str
    commit: str
    requires: Sequence[str]
    """What pip installs, in the checkout."""
    tests: Sequence[str]
    """What pytest is given."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Configs of the broker, where the project supposes them."""
    clusters: int = 1
    """How many the tests want, of a broker each."""
    fails: Mapping[str, str] = field(default_factory=dict)
    """Tests that cannot pass, and why."""


PROJECTS: Final[Mapping[str, Project]] = {
    "faststream": Project(
        "0.5.39",
        "https://github.com/ag2ai/faststream",
        "f5713c5b2",
        [
            ".[kafka,confluent,test-core]", "pytest-timeout", "fastapi==0.115.12", "pydantic-settings", "httpx==0.28.1",
            "PyYAML", "email-validator", "opentelemetry-sdk", "prometheus-client", "typer", "watchfiles",
        ],
        ["tests/brokers/kafka", "tests/brokers/confluent", "-m", "not slow"],
        # Kafka's default; tests of a group expect all of its members in the first generation.
        {"group.initial.rebalance.delay.ms": "3000"},
    ),
    "quixstreams": Project(
        "3.25.0",
        "https://github.com/quixio/quix-streams",
        "dfb63318a",
        ["-r", "requirements.txt", "-r", "tests/requirements.txt", "pytest-timeout"],
        [
            "tests", "--log-cli-level=ERROR", *(f"--ignore=tests/test_quixstreams/{path}" for path in _OF_NO_KAFKA),
        ],
        # What they give the broker that they start, as far as it is not so anyway.
        {"group.initial.rebalance.delay.ms": "10", "log.retention.ms": "-1"},
        clusters=2,
        fails=dict.fromkeys(_BROKER_0, "asks for the broker with the id 0, and ours is 1"),
    ),
}  # fmt: skip


def run_project(name: str, checkout: Path) -> dict[str, Result]:
    """What becomes of each of its tests. Raises SuiteUnusable."""
    project = PROJECTS[name]
    head = called(["git", "rev-parse", "HEAD"], checkout).strip()
    if not head.startswith(project.commit):
        raise SuiteUnusable(f"{checkout} is at {head}: have it at {project.commit} of {project.repository}")
    python = _environment(name, project, checkout)
    plugin = f"barnabas_{name}"
    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as clusters:
        running = [clusters.enter_context(KafkaCluster(config=project.config)) for _ in range(project.clusters)]
        servers = ";".join(cluster.bootstrap_servers for cluster in running)

        def run(tests: Sequence[str], seconds_max: float) -> dict[str, Result]:
            return _run(python, plugin, checkout, Path(work), servers, tests, seconds_max)

        results = run(project.tests, 3_600)
        failed = {node for node, result in results.items() if result.outcome is Outcome.FAILED} - project.fails.keys()
        if len(failed) > _TRIED_AGAIN_MAX:
            return results
        for test in sorted(set(map(_function, failed))):
            # It may run others too, whose names begin so: these are tried by themselves.
            again = run([*project.tests, "-k", test], 600)
            passed = {node for node, result in again.items() if result.outcome is Outcome.PASSED}
            results |= {node: again[node] for node in passed & failed if _function(node) == test}
    return results


def wrong_with(name: str, results: Mapping[str, Result]) -> list[str]:
    """What fails a run, a line each."""
    project = PROJECTS[name]
    failed = {node for node, result in results.items() if result.outcome is Outcome.FAILED}
    wrong = [f"{node} failed: {results[node].detail[-800:]}" for node in sorted(failed - project.fails.keys())]
    wrong += [f"{node} is said to fail, and does not" for node in sorted(project.fails.keys() - failed)]
    if not any(result.outcome is Outcome.PASSED for result in results.values()):
        wrong.append("no test passed")
    return wrong


def counted(results: Mapping[str, Result]) -> dict[str, int]:
    """How many there are of each outcome."""
    return {
        outcome.value: number
        for outcome in Outcome
        if (number := sum(result.outcome is outcome for result in results.values()))
    }


# Inside.


def _function(node: str) -> str:
    """The name of a test without its class, its module and its parameters, which may hold anything."""
    return node.partition("[")[0].rpartition("::")[2]


def _environment(name: str, project: Project, checkout: Path) -> Path:
    """The Python of the project's own environment, made once."""
    directory = SUITES_DIRECTORY / f"{name}-{project.version}-environment"
    python, done = directory / "bin" / "python", directory / "installed"
    if done.exists():
        return python
    SUITES_DIRECTORY.mkdir(parents=True, exist_ok=True)
    called([sys.executable, "-m", "venv", "--clear", directory], checkout)
    # Ours are not its versions.
    constraints = {"PIP_CONSTRAINT": str(_HERE / "requirements" / f"{name}.txt"), "PIP_BUILD_CONSTRAINT": ""}
    pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    called([*pip, *project.requires], checkout, seconds_max=1_800, environment=constraints)
    done.touch()
    return python


def _run(
    python: Path, plugin: str, checkout: Path, work: Path, servers: str, tests: Sequence[str], seconds_max: float
) -> dict[str, Result]:
    report, log = work / "report.xml", work / "pytest.log"
    report.unlink(missing_ok=True)
    command: list[str | Path] = [
        python, "-m", "pytest", "-q", "-p", plugin, "-p", "no:cacheprovider",
        f"--timeout={_TEST_SECONDS_MAX}", f"--junit-xml={report}", "-o", "junit_family=xunit1", *tests,
    ]  # fmt: skip
    path = os.pathsep.join([str(_HERE / "plugins"), str(checkout)])
    own = {BOOTSTRAP_VARIABLE: servers, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    status = run_bounded(command, checkout, log, seconds_max=seconds_max, environment={**plain_environment(), **own})
    if status not in _WHOLE or not report.exists():
        raise SuiteUnusable(f"pytest has not come to its end ({status}):\n{log.read_text('utf-8', 'replace')[-3_000:]}")
    return junit(report.read_text("utf-8"), is_whole=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PROJECTS)
    parser.add_argument("checkout", type=Path)
    given = parser.parse_args(arguments)
    try:
        results = run_project(given.name, given.checkout.resolve())
    except (SuiteUnusable, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 1
    wrong = wrong_with(given.name, results)
    print(f"{given.name} {PROJECTS[given.name].version}: {counted(results)}")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
