"""A pytest plugin that runs kazoo's own tests, unchanged, on one server instead of kazoo's ensemble.

kazoo's harness builds a cluster of ZooKeeper processes (`kazoo.testing.common.ZookeeperCluster`). This plugin puts a
cluster of the same shape with a single server in its place: the embedded coordinator, or a lone real ZooKeeper to see
what kazoo's tests expect of one.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.embedded_coordinator import EmbeddedCoordinator
from tests.support.processes import tail
from tests.support.zookeeper import FAST_START_OPTIONS, ZooKeeperServer

SERVER_VARIABLE = "BARNABAS_KAZOO_SUITE_SERVER"
# The digest of the password `test`, which kazoo's tests use for the user `super`.
_SUPER_USER_OPTION = "-Dzookeeper.DigestAuthenticationProvider.superDigest=super:D/InIHSb7yEEbrWz8b9l71RjZJU="


class SingleServer:
    """What kazoo's harness calls a managed ZooKeeper."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="kazoo-suite-"))
        self._server: EmbeddedCoordinator | ZooKeeperServer
        if os.environ[SERVER_VARIABLE] == "zookeeper":
            # The tick is ZooKeeper's default, as in kazoo's own configuration: it bounds the session time-outs.
            configuration = {"tickTime": 2000, "minSessionTimeout": 4000, "reconfigEnabled": "true"}
            self._server = ZooKeeperServer(
                self._directory, configuration=configuration, java_options=(*FAST_START_OPTIONS, _SUPER_USER_OPTION)
            )
        else:
            self._server = EmbeddedCoordinator(self._directory)

    @property
    def running(self) -> bool:
        return self._server.process.is_running

    @property
    def client_port(self) -> int:
        return self._server.port

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def secure_address(self) -> str:
        """There is no TLS here; a test that asks is one of the listed exceptions."""
        return self._server.address

    def run(self) -> None:
        if not self.running:
            self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def reset(self) -> None:
        self.stop()
        shutil.rmtree(self._directory / "data", ignore_errors=True)

    def destroy(self) -> None:
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def get_logs(self, num_lines: int = 100) -> list[str]:
        return tail(self._server.process.log_path, num_lines).splitlines(keepends=True)


class SingleServerCluster:
    """A cluster of one, with the methods that kazoo's harness and tests call."""

    def __init__(self, **_ignored: Any) -> None:
        self._servers = [SingleServer()]

    def __getitem__(self, index: int) -> SingleServer:
        return self._servers[index]

    def __iter__(self) -> Iterator[SingleServer]:
        return iter(self._servers)

    def start(self) -> None:
        for server in self:
            server.run()

    def stop(self) -> None:
        for server in self:
            server.stop()

    def terminate(self) -> None:
        for server in self:
            server.destroy()
        self._servers = [SingleServer()]

    def reset(self) -> None:
        for server in self:
            server.reset()

    def get_logs(self) -> list[str]:
        return [line for server in self for line in server.get_logs()]

    def get_ssl_client_configuration(self) -> dict[str, str]:
        raise RuntimeError("the server under test has no TLS")


def pytest_configure() -> None:
    """Puts the cluster of one into kazoo's harness before any test module is imported."""
    # kazoo's harness imports these two at the top, to make certificates; the tests that use them are exceptions.
    for absent in ("OpenSSL", "jks"):
        sys.modules.setdefault(absent, types.ModuleType(absent))
    os.environ.setdefault("ZOOKEEPER_VERSION", "3.8.4")
    import kazoo.testing.harness

    kazoo.testing.harness.ZookeeperCluster = SingleServerCluster
