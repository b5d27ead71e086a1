"""What brokers tell of their log directories: the room in them, and the logs, also those on their way (KIP-113)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from barnabas.kernel.facts import fact

if TYPE_CHECKING:
    from barnabas.client.admin import Admin
    from barnabas.wire.topics import TopicPartition

TIMEOUT_MS: Final = 5_000
"""How long one broker is asked."""


@fact
class ReplicaLog:
    """A log in a directory; with `is_future` a copy that takes the place of the current log when it has all of it."""

    partition: TopicPartition
    size_bytes: int
    offset_lag: int | None
    """By how many offsets a future log is behind the current one, or that one behind the high watermark; None where the
    broker does not know.
    """
    is_future: bool


@fact
class LogDirectory:
    """A log directory; total and usable bytes are None where the broker is too old to tell, or the directory cannot be
    used.
    """

    path: str
    error: str | None
    logs: tuple[ReplicaLog, ...]
    total_bytes: int | None
    usable_bytes: int | None

    @property
    def size_bytes(self) -> int:
        """The size of all its logs."""
        return sum(log.size_bytes for log in self.logs)


async def log_directories(
    admin: Admin, node_id: int, timeout_ms: float = TIMEOUT_MS
) -> tuple[LogDirectory, ...] | None:
    """The log directories of a broker, by path; None for one that does not answer, or does not permit it."""
    from barnabas.client.errors import ClientTimeoutError
    from barnabas.wire.errors import KafkaError

    try:
        results = await admin.describe_log_dirs(node_id, timeout_ms)
    except (ClientTimeoutError, KafkaError):
        return None
    return tuple(_log_directory(result) for result in sorted(results, key=lambda result: str(result.log_dir)))


async def log_directories_of(
    admin: Admin, node_ids: Iterable[int], timeout_ms: float = TIMEOUT_MS
) -> dict[int, tuple[LogDirectory, ...] | None]:
    """Those of several brokers, in the order of their ids."""
    import asyncio

    asked = sorted({*node_ids})
    found = await asyncio.gather(*(log_directories(admin, node_id, timeout_ms) for node_id in asked))
    return dict(zip(asked, found, strict=True))


# Inside.


def _log_directory(result: Any) -> LogDirectory:
    from barnabas.wire.errors import ErrorCode
    from barnabas.wire.topics import TopicPartition

    return LogDirectory(
        result.log_dir,
        ErrorCode.for_code(result.error_code).name if result.error_code else None,
        tuple(
            ReplicaLog(
                TopicPartition(topic.name, log.partition_index),
                log.partition_size,
                log.offset_lag if log.offset_lag >= 0 else None,
                log.is_future_key,
            )
            for topic in result.topics
            for log in topic.partitions
        ),
        result.total_bytes if result.total_bytes >= 0 else None,
        result.usable_bytes if result.usable_bytes >= 0 else None,
    )
