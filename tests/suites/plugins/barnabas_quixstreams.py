"""A pytest plugin by which the tests of Quix Streams find brokers that run already, in place of containers.

It runs in the project's own environment, where nothing of this repository is but this folder.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

SERVERS = os.environ["BARNABAS_SUITE_BOOTSTRAP"].split(";")
"""Of each cluster: those of the first are for all tests, those of the second for what is copied from elsewhere."""


class Running:
    """As much of a container as `ContainerHelper.start_kafka_container` and the fixture ask for."""

    def start(self) -> None:
        """It runs already."""

    def stop(self) -> None:
        """Others may need it still."""

    def get_logs(self) -> Sequence[bytes]:
        return [b"Kafka Server started"]


def pytest_collection_modifyitems() -> None:
    """When the modules of the tests are there, and no fixture has run."""
    replace(sys.modules["tests.conftest"], sys.modules["tests.containerhelper"])


def replace(conftest: Any, helper: Any) -> None:
    """Each container of Kafka is the next cluster, the last one again and again; there is no network of Docker's."""
    left = list(SERVERS)

    def create_kafka_container(_network: object) -> tuple[Running, str, str]:
        servers = left.pop(0) if len(left) > 1 else left[0]
        return Running(), servers, servers

    helper.ContainerHelper.create_kafka_container = staticmethod(create_kafka_container)
    conftest.Network = contextlib.nullcontext
