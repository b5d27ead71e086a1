"""What serving asks of remote storage, which is a matter of `tiered`: records and offsets before the local log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from barnabas.log.partition.partition_log import PartitionLog
    from barnabas.log.partition.timestamp_lookup import ListedOffset
    from barnabas.log.segments.indexes import AbortedTransaction


class RemoteFetch(NamedTuple):
    """What a consumer asks for that is in remote storage only."""

    log: PartitionLog
    offset: int
    bytes_max: int
    has_minimum: bool
    """The first batch may be larger than that."""
    is_committed: bool
    """It is told of aborted transactions. All that is in remote storage is stable."""


class RemoteRecords(NamedTuple):
    """What it gets."""

    data: bytes
    aborted: Sequence[AbortedTransaction] | None


class RemoteReader(Protocol):
    """Reads from remote storage; `tiered.remote_reads` has one."""

    async def read(self, fetch: RemoteFetch) -> RemoteRecords:
        """Whole batches from an offset on, or none where it takes too long. Raises KafkaError."""
        ...

    async def find_timestamp(self, log: PartitionLog, timestamp_ms: int) -> ListedOffset | None:
        """The first record before the local log that is not older. Raises KafkaError."""
        ...
