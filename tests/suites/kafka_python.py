"""kafka-python's integration tests, out of its source archive: `test/integration`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.suites.fetching import called, source_archive
from tests.suites.model import Result
from tests.suites.processes import BOOTSTRAP_VARIABLE, WANTED_VARIABLE, plain_environment, run_bounded
from tests.suites.reports import junit, name_of_node

_ROOT = Path(__file__).resolve().parents[2]
_BROKERS_OF_ITS_OWN = "starts a broker of its own, from an unpacked Kafka, to give it keys or users"
_TEST_SECONDS_MAX = 120


class KafkaPython:
    """kafka-python, as if against Apache Kafka 3.9."""

    name = "kafka-python"
    version = "3.0.12"
    source = "the source archive on PyPI"
    # What its own scripts start, and its tests suppose: records of all partitions by one fetch, a broker 0.
    broker_ids = (0,)
    overrides: Mapping[str, object] = {}
    seconds_max = 900.0
    excluded: Mapping[str, str] = {
        "test_sasl_integration::*": _BROKERS_OF_ITS_OWN,
        "TestSSLConnection::*": _BROKERS_OF_ITS_OWN,
    }

    def prepare(self) -> None:
        source_archive(self.name, self.version)

    def tests(self) -> Sequence[str]:
        shown = called(
            [*self._pytest(), "--collect-only", "-q"], self._directory, environment=self._environment("127.0.0.1:1")
        )
        return [name_of_node(line) for line in shown.splitlines() if "::" in line]

    def run(self, bootstrap_servers: str, directory: Path, names: Sequence[str]) -> Mapping[str, Result]:
        report, log = directory / "report.xml", directory / "pytest.log"
        wanted = directory / "wanted.txt"
        wanted.write_text("\n".join(names))
        run_bounded(
            [*self._pytest(), f"--junit-xml={report}", "-q", "-o", "log_level=WARNING"],
            self._directory,
            log,
            seconds_max=self.seconds_max,
            environment={**self._environment(bootstrap_servers), WANTED_VARIABLE: str(wanted)},
        )
        return junit(report.read_text()) if report.exists() else {}

    @property
    def _directory(self) -> Path:
        return source_archive(self.name, self.version)

    def _pytest(self) -> list[str]:
        plugin = "tests.suites.kafka_python_plugin"
        # Their own time-out ends the whole run.
        own = ["-o", "addopts=", f"--timeout={_TEST_SECONDS_MAX}", "--timeout-method=signal"]
        return [sys.executable, "-m", "pytest", "-p", plugin, "-p", "no:cacheprovider", *own, "test/integration"]

    def _environment(self, bootstrap_servers: str) -> dict[str, str]:
        path = os.pathsep.join([str(self._directory), str(_ROOT / "src"), str(_ROOT)])
        own = {"KAFKA_VERSION": "3.9.1", "KAFKA_ROOT": str(self._directory), BOOTSTRAP_VARIABLE: bootstrap_servers}
        return {**plain_environment(), **own, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
