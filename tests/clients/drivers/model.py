"""What every client must be able to do, as one small interface; each driver does it with its client, unmodified."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable


class Capability(enum.Enum):
    """A column of the table client x capability; the value is its heading."""

    PLAIN = "produce, consume"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"
    HEADERS = "headers"
    NULLS = "null keys, values"
    SIZES = "1 B and 900 KB"
    EMPTY_TOPIC = "empty topic"
    SEEK_BY_TIME = "seek by time"
    REBALANCE = "group, rebalance"
    COMMITTED = "resumes at commits"
    ADMIN = "admin calls"
    READ_OTHERS = "reads all others"
    TRANSACTIONS = "transactions"


COMPRESSIONS = {
    Capability.GZIP: "gzip",
    Capability.SNAPPY: "snappy",
    Capability.LZ4: "lz4",
    Capability.ZSTD: "zstd",
}


@dataclass(frozen=True, slots=True)
class Record:
    """A record as a client gives or gets it. Without `timestamp_ms` the client sets the time itself."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = field(default=None, compare=False)
    partition: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record was read."""

    partition: int
    offset: int


class GroupMember(Protocol):
    """One member of a group, which polls in the background until it is closed."""

    def assigned(self) -> frozenset[int]:
        """The partitions it has now."""
        ...

    def received(self) -> list[tuple[Place, bytes | None]]:
        """Places and values of all records so far."""
        ...

    def close(self) -> None:
        """Commits, leaves the group, and returns when it has."""
        ...


class Client(Protocol):
    """One real client against the cluster at `bootstrap_servers`."""

    name: ClassVar[str]
    missing: ClassVar[Mapping[Capability, str]]
    """What cannot be asked of this client, and why."""

    def __init__(self, bootstrap_servers: str) -> None: ...
    def produce(self, topic: str, records: Sequence[Record], compression: str = "none") -> None:
        """Returns when all records are acknowledged (acks=all)."""
        ...

    def read(self, topic: str, count: int, *, partition: int = 0) -> list[Record]:
        """The first `count` records of a partition, without a group; fewer when it has no more."""
        ...

    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        """The offset of the first record that is not older; None where there is none."""
        ...

    def join(self, topic: str, group: str) -> GroupMember:
        """A new member, which begins at the earliest offset where the group has committed none."""
        ...

    def administer(self, topic: str) -> None:
        """Makes the topic with 2 partitions, sets retention.ms, adds a partition, deletes it, and sees all that."""
        ...


class Fenced(Exception):
    """Another producer has the transactional id now; this one will do nothing more."""


class TransactionalProducer(Protocol):
    """A producer with a transactional id, whose former transactions have ended."""

    def begin(self) -> None: ...
    def send(self, topic: str, values: Sequence[bytes], *, partition: int = 0) -> None:
        """Returns when all records are acknowledged, within the transaction."""
        ...

    def commit(self) -> None:
        """Raises `Fenced`, or what the client raises when the transaction was aborted by the coordinator."""
        ...

    def abort(self) -> None: ...
    def close(self) -> None: ...


@runtime_checkable
class TransactionalClient(Client, Protocol):
    """What a client without `Capability.TRANSACTIONS` lacks."""

    def transactional(self, transactional_id: str, timeout_ms: int = 60_000) -> TransactionalProducer: ...
    def read_committed(self, topic: str, *, partition: int = 0) -> list[bytes]:
        """The values of all committed records of a partition, up to its last stable offset."""
        ...

    def copy(self, source: str, target: str, group: str, transactional_id: str, count: int) -> None:
        """Reads `count` records of partition 0 of `source` as a member of the group, and sends their values to `target`
        in transactions that commit the offsets too. Some transactions are aborted, and their records read again.
        """
        ...
