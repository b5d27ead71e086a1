"""Log directories of replicas: which a file asks for, what brokers are told, and where the logs are (KIP-113)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from barnabas.cli.connection import CommandError, ExitStatus
from barnabas.cli.output import printable
from barnabas.cli.reassignment_view import Sizes, State
from barnabas.client.log_directories import LogDirectory, log_directories_of
from barnabas.kernel.facts import fact
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.cli.reassignment_files import Directories
    from barnabas.client.admin import Admin
    from barnabas.client.client import Client

TIMEOUT_MS: Final = 10_000
"""How long one broker is asked where its logs are."""

Replica = tuple[TopicPartition, int]
"""A partition, and the broker that has the replica."""


@fact
class Located:
    """Where the log of a replica is, and the copy that is to take its place; None where there is none."""

    current: str | None = None
    future: str | None = None
    size_bytes: int = 0
    copied_bytes: int = 0

    def state(self, target: str) -> State:
        """How far it is on its way to a directory."""
        if self.future is None:
            return State.DONE if self.current == target else State.NEITHER
        return State.MOVING if self.future == target else State.NEITHER


NOWHERE: Final = Located()


@fact
class Map:
    """What brokers have told of their logs."""

    replicas: Mapping[Replica, Located]
    told: Mapping[int, tuple[LogDirectory, ...]]
    """The directories of each broker that has answered."""

    def at(self, replica: Replica) -> Located:
        """Where the replica is, as far as its broker has told."""
        return self.replicas.get(replica, NOWHERE)

    def not_in(self, directories: Directories) -> Directories:
        """Those of the directories that do not have their replica yet."""
        return {
            replica: path for replica, path in directories.items() if self.at(replica).state(path) is not State.DONE
        }

    def paths(self) -> Directories:
        """Where all replicas are."""
        return {replica: at.current for replica, at in self.replicas.items() if at.current is not None}

    def futures(self) -> Directories:
        """Where replicas are that are on their way to another directory of their broker."""
        return {replica: path for replica, path in self.paths().items() if self.replicas[replica].future is not None}

    def sizes(self) -> Sizes:
        """The bytes of each replica's current log."""
        return {replica: located.size_bytes for replica, located in self.replicas.items()}


async def locate(admin: Admin, node_ids: Iterable[int], timeout_ms: float = TIMEOUT_MS) -> Map:
    """Where these brokers have their logs."""
    found: dict[Replica, Located] = {}
    told: dict[int, tuple[LogDirectory, ...]] = {}
    for node_id, directories in (await log_directories_of(admin, node_ids, timeout_ms)).items():
        if directories is None:
            continue
        told[node_id] = directories
        for directory in directories:
            for log in directory.logs:
                known = found.get((log.partition, node_id), NOWHERE)
                found[log.partition, node_id] = (
                    replace(known, future=directory.path, copied_bytes=log.size_bytes)
                    if log.is_future
                    else replace(known, current=directory.path, size_bytes=log.size_bytes)
                )
    return Map(found, told)


async def check_directories(
    client: Client, admin: Admin, wanted: Directories, current: Mapping[TopicPartition, Iterable[int]]
) -> Map:
    """Where the replicas are now of partitions that have directories named. Raises CommandError for a directory that
    its broker does not have, or cannot use.
    """
    alive = client.cluster.brokers
    asked = {node_id for _, node_id in wanted}.union(*(current[partition] for partition, _ in wanted))
    where = await locate(admin, asked.intersection(alive))
    for (_, node_id), path in sorted(wanted.items()):
        if node_id not in alive:
            raise CommandError(
                f"broker {node_id} is not in the cluster, and cannot be told a log directory: start it, or write "
                '"any" for its replicas'
            )
        if node_id not in where.told:
            raise CommandError(
                f"broker {node_id} does not tell its log directories: try again when it answers", ExitStatus.UNREACHABLE
            )
        known = {directory.path: directory for directory in where.told[node_id]}
        if path not in known:
            raise CommandError(
                f"broker {node_id} has no log directory {printable(path)}; it has {printable(', '.join(known))}",
                ExitStatus.MISSING,
            )
        if known[path].error is not None:
            raise CommandError(
                f"log directory {printable(path)} of broker {node_id} cannot be used ({known[path].error}): choose "
                "another one"
            )
    return where


async def tell(admin: Admin, wanted: Directories) -> set[Replica]:
    """Has brokers move replicas to their directories; returns those that are not there yet. A broker makes such a one
    in its directory when it comes, unless it stops before. Raises the first KafkaError when all have been told.
    """
    from barnabas.wire.errors import ErrorCode

    by_broker: dict[int, dict[TopicPartition, str]] = {}
    for (partition, node_id), path in sorted(wanted.items()):
        by_broker.setdefault(node_id, {})[partition] = path
    answers = await asyncio.gather(
        *(admin.alter_replica_log_dirs(node_id, by_broker[node_id]) for node_id in by_broker)
    )
    to_come: set[Replica] = set()
    for node_id, outcomes in zip(by_broker, answers, strict=True):
        for partition, error in outcomes.items():
            if error is None:
                continue
            if error.code is not ErrorCode.REPLICA_NOT_AVAILABLE:
                raise error
            to_come.add((partition, node_id))
    return to_come
