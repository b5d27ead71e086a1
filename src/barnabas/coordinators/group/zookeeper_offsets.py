"""Offsets in ZooKeeper, where clients of before Kafka 0.9 keep them: version 0 of OffsetCommit and OffsetFetch.

`/consumers/GROUP/offsets/TOPIC/PARTITION` holds the offset as text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from barnabas.coordination.errors import CoordinationError, NodeExistsError, NoNodeError
from barnabas.coordination.layout.cluster import consumer_offset_path, decode_consumer_offset, encode_consumer_offset
from barnabas.coordination.operations import Create, SetData
from barnabas.coordination.ports import Store
from barnabas.wire.errors import ErrorCode
from barnabas.wire.topics import TopicPartition


class ZookeeperOffsets:
    """Reads and writes offsets znode by znode. Errors are told by partition, not raised."""

    def __init__(self, store: Callable[[], Store], logger: logging.Logger) -> None:
        """`store` gives the store of the present session."""
        self._store = store
        self._logger = logger

    async def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, ErrorCode]:
        """Writes the offsets; the outcome of each."""
        return {partition: await self._write(group_id, partition, offset) for partition, offset in offsets.items()}

    async def fetch(self, group_id: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | ErrorCode]:
        """The offset of each partition, or why there is none: UNKNOWN_TOPIC_OR_PARTITION where none was committed."""
        paths = [consumer_offset_path(group_id, *partition) for partition in partitions]
        try:
            found = await self._store().get_many(paths)
        except CoordinationError as error:
            self._logger.warning("The offsets of group %s cannot be read from ZooKeeper: %s", group_id, error)
            return dict.fromkeys(partitions, ErrorCode.UNKNOWN_SERVER_ERROR)
        offsets: dict[TopicPartition, int | ErrorCode] = {}
        for partition, path, znode in zip(partitions, paths, found, strict=True):
            if isinstance(znode, NoNodeError):
                offsets[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            try:
                if isinstance(znode, CoordinationError):
                    raise znode
                offsets[partition] = decode_consumer_offset(znode.data, path)
            except CoordinationError as error:
                self._logger.warning("The offset at %s cannot be read: %s", path, error)
                offsets[partition] = ErrorCode.UNKNOWN_SERVER_ERROR
        return offsets

    async def _write(self, group_id: str, partition: TopicPartition, offset: int) -> ErrorCode:
        path = consumer_offset_path(group_id, *partition)
        data = encode_consumer_offset(offset)
        store = self._store()
        try:
            try:
                await store.perform(SetData(path, data))
            except NoNodeError:
                await self._create(store, path, data)
        except CoordinationError as error:
            self._logger.warning("The offset at %s cannot be written: %s", path, error)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.NONE

    async def _create(self, store: Store, path: str, data: bytes) -> None:
        """Makes the znode with its parents, any of which another client may make at the same time."""
        names = path.strip("/").split("/")
        parents = ["/" + "/".join(names[:depth]) for depth in range(1, len(names))]
        outcomes = await store.submit([*(Create(parent) for parent in parents), Create(path, data)])
        if isinstance(outcomes[-1], NodeExistsError):
            await store.perform(SetData(path, data))
        elif isinstance(outcomes[-1], CoordinationError):
            raise outcomes[-1]
