"""kafka-python's integration tests, out of its source archive: `test/integration`."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka.admin import ScramMechanism

from tests.suites.clusters import OWN_PORT
from tests.suites.fetching import called, source_archive
from tests.suites.model import Result
from tests.suites.processes import (
    BOOTSTRAP_VARIABLE,
    KEYS_VARIABLE,
    PORT_VARIABLE,
    WANTED_VARIABLE,
    plain_environment,
    run_bounded,
)
from tests.suites.reports import junit, name_of_node
from tests.suites.users import make_user
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.sasl_cluster import login_module
from tests.support.tls_cluster import pem_properties

_ROOT = Path(__file__).resolve().parents[2]
_USER, _PASSWORD = "alice", "alice-secret"
"""As its fixtures have them."""
_MECHANISMS = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}
_NO_OVERRIDES: Mapping[str, object] = {}
_TEST_SECONDS_MAX = 120


class KafkaPython:
    """kafka-python, as if against Apache Kafka 3.9."""

    name = "kafka-python"
    version = "3.0.12"
    source = "the source archive on PyPI"
    # What its own scripts start, and its tests suppose: records of all partitions by one fetch, a broker 0.
    broker_ids = (0,)
    seconds_max = 900.0
    excluded: Mapping[str, str] = {}
    ours_alone = ""

    def __init__(self) -> None:
        self.overrides = _NO_OVERRIDES
        self._keys: Path | None = None
        self._ports: Mapping[str, int] = {}

    def prepare(self) -> None:
        source_archive(self.name, self.version)
        if self._keys is None:
            self._keys = Path(tempfile.mkdtemp(prefix="kafka-python-keys-"))
            atexit.register(shutil.rmtree, self._keys, ignore_errors=True)
            self._ports = {"SASL_PLAINTEXT": free_port(), "SSL": free_port()}
            self.overrides = self._listeners(Authority(self._keys / "authority"), self._keys)

    def _listeners(self, authority: Authority, keys: Path) -> dict[str, object]:
        """What its fixtures give the brokers that they start, of one broker for all of its tests."""
        # By this name, in whatever directory.
        shutil.copy(authority.certificate, keys / "ca-cert")
        where = ",".join(f"{name}://localhost:{port}" for name, port in self._ports.items())
        plain = login_module("PLAIN", username=_USER, password=_PASSWORD, **{f"user_{_USER}": _PASSWORD})
        scram = login_module("SCRAM-SHA-256", username=_USER, password=_PASSWORD)
        jaas = dict.fromkeys(_MECHANISMS, scram) | {"PLAIN": plain}
        return {
            "listeners": f"PLAINTEXT://127.0.0.1:{OWN_PORT},{where}",
            "sasl.enabled.mechanisms": ",".join(jaas),
            **{
                f"listener.name.sasl_plaintext.{mechanism.lower()}.sasl.jaas.config": module
                for mechanism, module in jaas.items()
            },
            **pem_properties(authority.sign("/CN=localhost"), authority),
        }

    def tests(self) -> Sequence[str]:
        shown = called(
            [*self._pytest(), "--collect-only", "-q"], self._directory, environment=self._environment("127.0.0.1:1")
        )
        return [name_of_node(line) for line in shown.splitlines() if "::" in line]

    def run(self, bootstrap_servers: str, directory: Path, names: Sequence[str]) -> Mapping[str, Result]:
        make_user(bootstrap_servers, _USER, _PASSWORD, _MECHANISMS.values())
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
        own |= {f"{PORT_VARIABLE}_{transport}": str(port) for transport, port in self._ports.items()}
        own[KEYS_VARIABLE] = str(self._keys)
        return {**plain_environment(), **own, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
