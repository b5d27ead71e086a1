"""What a broker reads or creates in ZooKeeper before it registers: the paths of Kafka's layout, the cluster's id, and
an id for itself if it has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from barnabas.coordination.errors import CoordinationError, NodeExistsError, NoNodeError
from barnabas.coordination.layout.admin import ADMIN_PATH, DELETE_TOPICS_PATH
from barnabas.coordination.layout.brokers import BROKER_IDS_PATH, BROKER_SEQUENCE_ID_PATH, BROKERS_PATH
from barnabas.coordination.layout.cluster import (
    CLUSTER_ID_PATH,
    CLUSTER_PATH,
    CONSUMERS_PATH,
    MIGRATION_PATH,
    PRODUCER_ID_BLOCK_PATH,
    ClusterId,
    MigrationState,
)
from barnabas.coordination.layout.configs import CONFIG_CHANGES_PATH, CONFIG_PATH, ConfigEntityType, config_type_path
from barnabas.coordination.layout.notifications import ISR_CHANGES_PATH, LOG_DIR_EVENTS_PATH
from barnabas.coordination.layout.topics import TOPICS_PATH
from barnabas.coordination.operations import Create, Exists, GetData, Operation, SetData
from barnabas.kernel.host import Entropy
from barnabas.kernel.ids import Uuid
from barnabas.server.coordination_session import CoordinationSession
from barnabas.server.errors import BrokerStartError

PERSISTENT_PATHS: Final[tuple[str, ...]] = (
    CONSUMERS_PATH,
    BROKERS_PATH,
    BROKER_IDS_PATH,
    TOPICS_PATH,
    BROKER_SEQUENCE_ID_PATH,
    CONFIG_PATH,
    CONFIG_CHANGES_PATH,
    *(config_type_path(entity_type) for entity_type in ConfigEntityType),
    ADMIN_PATH,
    DELETE_TOPICS_PATH,
    ISR_CHANGES_PATH,
    PRODUCER_ID_BLOCK_PATH,
    LOG_DIR_EVENTS_PATH,
    CLUSTER_PATH,
)
"""The znodes that every Kafka broker creates at its start, parents first."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The broker's identity."""

    broker_id: int
    cluster_id: str


async def join_cluster(session: CoordinationSession, entropy: Entropy) -> str:
    """Creates what is missing of Kafka's layout and returns the cluster id, which the first broker generates.

    Raises BrokerStartError when the cluster has begun to migrate to KRaft.
    """
    reads: list[Operation[Any]] = [GetData(MIGRATION_PATH), GetData(CLUSTER_ID_PATH)]
    reads += [Exists(path) for path in PERSISTENT_PATHS]
    migration, cluster_id, *stats = await session.until_connected(lambda: _submit(session, reads))
    if not isinstance(migration, NoNodeError) and MigrationState.decode(migration.data, MIGRATION_PATH).has_begun:
        raise BrokerStartError(
            f"This cluster has begun to migrate to KRaft ({MIGRATION_PATH} says so), and Barnabas stays with ZooKeeper:"
            " a broker of Barnabas must not serve it"
        )
    missing = [path for path, stat in zip(PERSISTENT_PATHS, stats, strict=True) if stat is None]
    if missing:
        await session.until_connected(lambda: _make(session, missing))
    if isinstance(cluster_id, NoNodeError):
        return await _draw_cluster_id(session, entropy)
    return ClusterId.decode(cluster_id.data).id


async def generate_broker_id(session: CoordinationSession, reserved_broker_id_max: int) -> int:
    """An id that no broker has had: each write of `/brokers/seqid` counts its version up. Source: KAFKA-1070."""
    write = SetData(BROKER_SEQUENCE_ID_PATH, b"")
    stat = await session.until_connected(lambda: session.perform(write))
    return reserved_broker_id_max + stat.version


async def _draw_cluster_id(session: CoordinationSession, entropy: Entropy) -> str:
    drawn = ClusterId(str(Uuid.generate(entropy)))
    try:
        await session.until_connected(lambda: session.perform(Create(CLUSTER_ID_PATH, drawn.encode())))
    except NodeExistsError:
        # Another broker's, or our own, of an attempt whose answer was lost.
        found = await session.until_connected(lambda: session.perform(GetData(CLUSTER_ID_PATH)))
        return ClusterId.decode(found.data).id
    return drawn.id


async def _make(session: CoordinationSession, paths: list[str]) -> None:
    """Creates the znodes in one pipeline; creates the root first if the first answer shows that it is missing."""
    creations: list[Operation[Any]] = [Create(path, None) for path in paths]
    outcomes = await session.submit(creations)
    if isinstance(outcomes[0], NoNodeError):
        await session.make_root()
        outcomes = await session.submit(creations)
    for outcome in outcomes:
        if isinstance(outcome, CoordinationError) and not isinstance(outcome, NodeExistsError):
            raise outcome


async def _submit(session: CoordinationSession, operations: list[Operation[Any]]) -> list[Any]:
    """Answers and errors as `Store.submit`; but raises any error other than that a znode is missing."""
    outcomes = await session.submit(operations)
    for outcome in outcomes:
        if isinstance(outcome, CoordinationError) and not isinstance(outcome, NoNodeError):
            raise outcome
    return outcomes
