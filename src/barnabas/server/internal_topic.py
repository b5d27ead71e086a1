"""An internal topic whose partitions this broker coordinates as their leader: how many it has, and which are here."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from barnabas.coordination.errors import CoordinationError, NoNodeError
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.layout.topics import TopicAssignment, topic_path
from barnabas.coordination.operations import GetData
from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.kernel.timers import Timers
from barnabas.leader.partition import Partition
from barnabas.server.coordination_session import CoordinationSession

_READ_AGAIN_MS: Final = 1_000


class Coordinator(Protocol):
    """Who has what is in the partitions of the topic."""

    def start(self, partition_count: int | None) -> None: ...

    def place(self, partition_count: int | None) -> None: ...

    def on_elected(self, partition_index: int, leader_epoch: int, topic_id: Uuid = ...) -> None: ...

    def on_resigned(self, partition_index: int, leader_epoch: int | None, topic_id: Uuid = ...) -> None: ...

    def on_deleted(self, partition_index: int) -> None: ...


class InternalTopic:
    """Tells one coordinator of the topic. What is placed depends on the number of partitions as long as it lives."""

    def __init__(
        self,
        name: str,
        partition_count: int,
        coordinator: Coordinator,
        session: CoordinationSession,
        *,
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        logger: logging.Logger,
    ) -> None:
        """`partition_count` is what it will be created with."""
        self.name = name
        self._partition_count = partition_count
        self._coordinator = coordinator
        self._session = session
        self._loop = loop
        self._timers = timers
        self._logger = logger
        self._topic_id = ZERO_UUID
        """The id of the topic whose partitions were counted."""
        self._reading: asyncio.Task[None] | None = None
        self._is_started = False

    async def start(self) -> None:
        """Shards are taken on from now on. Raises CoordinationError when the coordination service cannot be asked; an
        assignment of the topic that cannot be read harms what is in it only, until it is mended. To be called again
        where it, or what is started with it, has failed: once is enough for the coordinator.
        """
        if self._is_started:
            return
        try:
            count: int | None = await self._read_partition_count()
        except LayoutError:
            count = None
        self._is_started = True
        self._coordinator.start(count)
        if count is None:
            self._begin_to_place()

    async def stop(self) -> None:
        """Reads no more."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def metadata_changed(self, topic_id: Uuid) -> None:
        """The topic has this id now, or none."""
        self._notice(topic_id)

    def elected(self, partition: Partition) -> None:
        """This broker leads a partition of the topic."""
        self._notice(partition.topic_id)
        self._coordinator.on_elected(partition.number, partition.leader_epoch, partition.topic_id)

    def resigned(self, partition: Partition) -> None:
        """This broker follows a partition of the topic."""
        self._coordinator.on_resigned(partition.number, partition.leader_epoch, partition.topic_id)

    def stopped(self, number: int, leader_epoch: int, *, is_deleted: bool) -> None:
        """The partition is here no more, as of a leader epoch."""
        if is_deleted:
            self._coordinator.on_deleted(number)
        else:
            # Below 0 are the marks of a deletion, and of a controller that names none: they are above every epoch.
            self._coordinator.on_resigned(number, leader_epoch if leader_epoch >= 0 else None)

    async def _read_partition_count(self) -> int:
        path = topic_path(self.name)
        try:
            found = await self._session.until_connected(lambda: self._session.perform(GetData(path)))
        except NoNodeError:
            return self._partition_count
        assignment = TopicAssignment.decode(found.data, path)
        self._topic_id = assignment.topic_id or ZERO_UUID
        return len(assignment.partitions)

    def _notice(self, topic_id: Uuid) -> None:
        """Reads how many partitions there are, where it is another topic than the one that was read.

        Until that is known nothing has a place, so that nothing is written to a partition where nobody will look.
        """
        if topic_id in (ZERO_UUID, self._topic_id):
            return
        self._topic_id = topic_id
        self._coordinator.place(None)
        self._begin_to_place()

    def _begin_to_place(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._reading = self._loop.create_task(self._place(), name=f"read-{self.name}")

    async def _place(self) -> None:
        while True:
            try:
                self._coordinator.place(await self._read_partition_count())
            except CoordinationError as error:
                self._logger.warning("%s cannot be read; trying again: %s", self.name, error)
                await self._timers.sleep(_READ_AGAIN_MS)
            else:
                return
