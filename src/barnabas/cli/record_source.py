"""Where a copy gets its records from: a topic, or the files of an export."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.cli.topic_copy_ends import SameTopic
from barnabas.client.consumer import Consumer
from barnabas.client.settings import ConsumerSettings, IsolationLevel, OffsetReset

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.records import ConsumerRecord
    from barnabas.wire.topics import TopicPartition

_FETCH_BYTES_MAX: Final = 16 * 1024 * 1024


class RecordReader(Protocol):
    """The part of a consumer that a copy needs; it raises what a consumer does."""

    def assign(self, partitions: Iterable[TopicPartition]) -> None: ...
    def seek(self, partition: TopicPartition, offset: int) -> None: ...
    def pause(self, *partitions: TopicPartition) -> None: ...
    async def poll(self, timeout_ms: float, records_max: int | None = None) -> list[ConsumerRecord]: ...
    async def position(self, partition: TopicPartition) -> int: ...
    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...
    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...


class RecordSource(Protocol):
    """What is copied."""

    def opened(self) -> AbstractAsyncContextManager[RecordReader]:
        """To be read within the block."""

    def check(self) -> None:
        """Raises CommandError where it is not what it was any more."""


class FromTopic:
    """A topic of a cluster."""

    def __init__(self, client: Client, name: str, topic_id: bytes, *, reads_committed: bool) -> None:
        self._client = client
        self._same = SameTopic(client, name, topic_id)
        self._settings = ConsumerSettings(
            offset_reset=OffsetReset.NONE,
            isolation=IsolationLevel.READ_COMMITTED if reads_committed else IsolationLevel.READ_UNCOMMITTED,
            fetch_bytes_max=_FETCH_BYTES_MAX,
        )

    def opened(self) -> AbstractAsyncContextManager[RecordReader]:
        return Consumer(self._client, self._settings)

    def check(self) -> None:
        self._same.check()
