"""`barnabas topic copy` on clusters in virtual time."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from barnabas.cli.connection import CommandError
from barnabas.cli.edges import Edge
from barnabas.cli.topic_copying import Plan, copy
from barnabas.client.admin import Admin
from barnabas.client.client import Client
from barnabas.client.settings import ClientSettings
from barnabas.testing import SimulatedCluster
from barnabas.testing.simulated_host import SimulatedProcess


def plan(source: str = "s", target: str = "t", **changes: Any) -> Plan:
    wanted = Plan(
        source=source,
        numbers=None,
        target=target,
        first=Edge.EARLIEST,
        last=Edge.LATEST,
        follows=False,
        keeps_partitions=True,
        creates=False,
        replication_factor=None,
        copies_configs=False,
        reads_committed=True,
        compression="none",
        state_file=None,
        transactional=None,
        rate=None,
        skips_deleted=False,
    )
    return dataclasses.replace(wanted, **changes)


async def copied(cluster: SimulatedCluster, wanted: Plan) -> str:
    """What `barnabas topic copy` does within one cluster, and what it says where it ends by an error."""
    settings = ClientSettings(bootstrap_servers=tuple(cluster.bootstrap_servers.split(",")), request_timeout_ms=5_000)
    logger = logging.getLogger("tests.topic-copy")
    async with Client(cluster.host, settings, logger) as source, Client(cluster.host, settings, logger) as target:
        try:
            await copy(source, target, wanted, as_json=True)
        except CommandError as error:
            return str(error)
        return ""


def begun(cluster: SimulatedCluster, wanted: Plan) -> SimulatedProcess:
    return cluster.start(copied, cluster, wanted)


def run(cluster: SimulatedCluster, wanted: Plan) -> None:
    assert cluster.run(copied, cluster, wanted) == ""


def asked(cluster: SimulatedCluster, call: Any) -> Any:
    """What an `Admin` of the cluster answers."""

    async def ask() -> Any:
        settings = ClientSettings(bootstrap_servers=tuple(cluster.bootstrap_servers.split(",")))
        async with Client(cluster.host, settings, logging.getLogger("tests.admin")) as client, Admin(client) as admin:
            return await call(admin)

    return cluster.run(ask)


def values_of(cluster: SimulatedCluster, topic: str = "t") -> list[bytes | None]:
    return [record.value for record in cluster.records(topic)]


def wait_for_copied(cluster: SimulatedCluster, count: int) -> None:
    """Lets time pass until at least so many records are at the leader of the target."""
    cluster.run_until(lambda: (found := cluster.replica(1, "t")) is not None and found.high_watermark >= count)


def ended(cluster: SimulatedCluster, process: SimulatedProcess, limit_seconds: float = 300.0) -> str:
    """What a copy says that ends by an error."""
    cluster.run_until(lambda: process.ended, limit_seconds)
    return str(process.result())
