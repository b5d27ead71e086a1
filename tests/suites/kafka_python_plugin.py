"""A pytest plugin that runs kafka-python's integration tests, unchanged, on a cluster that runs already.

Their fixtures start a broker from an unpacked Kafka. In place of it this gives one that is there, and the module that
the source archive lacks (`test.service`, which starts processes) is an empty one.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.suites.processes import BOOTSTRAP_VARIABLE, KEYS_VARIABLE, PORT_VARIABLE, WANTED_VARIABLE
from tests.suites.reports import name_of_node


class _ExternalService:
    """A broker that somebody else started, as the fixtures see it."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def dump_logs(self) -> None: ...


def _put_in_place() -> None:
    # The archive lacks `test/__init__.py`, and the standard library has a package of that name.
    package = types.ModuleType("test")
    package.__path__ = [os.path.abspath("test")]
    sys.modules["test"] = package
    service = types.ModuleType("test.service")
    service.ExternalService = _ExternalService  # type: ignore[attr-defined]
    service.SpawnedService = None  # type: ignore[attr-defined]
    sys.modules["test.service"] = service
    fixtures: Any = importlib.import_module("test.integration.fixtures")

    def running(broker_id: int, **settings: Any) -> Any:
        host, _, port = os.environ[BOOTSTRAP_VARIABLE].split(",")[0].rpartition(":")
        for own in ("host", "port", "external", "zookeeper", "zk_chroot", "tmp_dir"):
            settings.pop(own, None)
        secured = os.environ.get(f"{PORT_VARIABLE}_{settings.get('transport', '')}")
        if secured is not None:
            host, port = "localhost", secured
        made = fixtures.KafkaFixture(host, int(port), broker_id, external=True, **settings)
        made.ssl_dir = os.environ.get(KEYS_VARIABLE)
        return made

    def topic_names(fixture: Any) -> list[str]:
        # By one of the tools of the Kafka that it would have started.
        with fixtures.KafkaAdminClient(**fixture._enrich_client_params({"client_id": "topics"})) as admin:
            return list(admin.list_topics())

    fixtures.KafkaFixture.instance = staticmethod(running)
    fixtures.KafkaFixture.get_topic_names = topic_names


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if file := os.environ.get(WANTED_VARIABLE):
        wanted = set(Path(file).read_text("utf-8").splitlines())
        items[:] = [item for item in items if name_of_node(item.nodeid) in wanted]


# When pytest loads the plugin, which is before the conftest that imports all this.
_put_in_place()
