"""The coordinators of one broker, and how they learn which partitions they have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from barnabas.cluster.metadata_cache import MetadataChange
from barnabas.config.broker_config import BrokerConfig
from barnabas.config.settings import take
from barnabas.coordination.errors import CoordinationError, NoNodeError
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.layout.topics import TopicAssignment, topic_path
from barnabas.coordination.operations import GetData
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.coordinators.group.settings import GroupSettings
from barnabas.coordinators.group.zookeeper_offsets import ZookeeperOffsets
from barnabas.coordinators.ports import InternalLog
from barnabas.coordinators.transaction.producer_ids import ProducerIdManager
from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.leader.partition import Partition
from barnabas.server.controller_channel import ControllerChannel
from barnabas.server.coordination_session import CoordinationSession
from barnabas.server.shared_services import SharedServices
from barnabas.wire.messages import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from barnabas.wire.topics import OFFSETS_TOPIC, TopicPartition

_READ_AGAIN_MS: Final = 1_000


class ChannelAllocator:
    """Producer ids by the channel to the controller. It is `coordinators.ports.ProducerIdAllocator`."""

    def __init__(self, broker_id: int, broker_epoch: Callable[[], int], channel: ControllerChannel) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._channel = channel

    async def allocate(self) -> AllocateProducerIdsResponse:
        """One block, or an error code. Raises OSError."""
        request = AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())
        response: AllocateProducerIdsResponse = await self._channel.send(request, 0)
        return response


class CoordinatorComponents:
    """Group coordinator and producer ids."""

    def __init__(
        self,
        shared: SharedServices,
        config: BrokerConfig,
        broker_id: int,
        session: CoordinationSession,
        internal_log: InternalLog,
        allocator: ChannelAllocator,
    ) -> None:
        self._config = config
        self._session = session
        self._offsets_topic_id = ZERO_UUID
        """The id of the topic whose partitions were counted."""
        self._reading: asyncio.Task[None] | None = None
        self._loop = shared.host.loop
        self._timers = shared.timers
        self._logger = shared.logs.logger("kafka.coordinator.group.GroupCoordinator")
        host, logs = shared.host, shared.logs
        self.groups = GroupCoordinator(
            broker_id,
            take(GroupSettings, config.values),
            host=host,
            timers=shared.timers,
            scheduler=shared.scheduler,
            steps=shared.steps,
            log=internal_log,
            metrics=shared.metrics,
            logs=logs,
        )
        self.zookeeper_offsets = ZookeeperOffsets(
            lambda: session, logs.logger("kafka.coordinator.group.GroupMetadataManager")
        )
        self.producer_ids = ProducerIdManager(
            allocator,
            host=host,
            timers=shared.timers,
            logger=logs.logger("kafka.coordinator.transaction.RPCProducerIdManager"),
        )

    async def _read_partition_count(self) -> int:
        """The partition count of `__consumer_offsets`, or the one that it will be created with. The placement of groups
        depends on it as long as the topic lives.
        """
        path = topic_path(OFFSETS_TOPIC)
        try:
            found = await self._session.until_connected(lambda: self._session.perform(GetData(path)))
        except NoNodeError:
            return int(self._config.values["offsets.topic.num.partitions"])
        assignment = TopicAssignment.decode(found.data, path)
        self._offsets_topic_id = assignment.topic_id or ZERO_UUID
        return len(assignment.partitions)

    async def start(self) -> None:
        """Takes shards on from now on. Raises CoordinationError when the coordinator cannot be asked; an assignment of
        `__consumer_offsets` that cannot be read harms groups only, until it is mended.
        """
        try:
            self.groups.start(await self._read_partition_count())
        except LayoutError:
            self.groups.start(None)
            self._begin_to_place_groups()

    def broker_registered(self) -> None:
        """The controller takes requests of this broker from now on."""
        self.producer_ids.start()

    async def stop(self) -> None:
        """Answers all parked requests."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await asyncio.gather(self.groups.stop(), self.producer_ids.stop())

    def metadata_changed(self, change: MetadataChange) -> None:
        """For the metadata cache: offsets of partitions that are deleted go too; those of partitions that a request
        merely does not name stay, as in Apache Kafka.
        """
        if change.deleted:
            self.groups.on_partitions_deleted(change.deleted)
        topic_id = change.image.topic_id(OFFSETS_TOPIC)
        if topic_id != change.previous.topic_id(OFFSETS_TOPIC):
            self._notice_offsets_topic(topic_id)

    def leadership_changed(self, became_leader: list[Partition], became_follower: list[Partition]) -> None:
        """For the replica manager: this broker leads or follows other partitions than before."""
        for partition in became_leader:
            if partition.topic == OFFSETS_TOPIC:
                self._notice_offsets_topic(partition.topic_id)
                self.groups.on_elected(partition.number, partition.leader_epoch, partition.topic_id)
        for partition in became_follower:
            if partition.topic == OFFSETS_TOPIC:
                self.groups.on_resigned(partition.number, partition.leader_epoch, partition.topic_id)

    def replicas_stopped(self, stopped: list[tuple[TopicPartition, int, bool]]) -> None:
        """For the replica manager: these partitions are here no more, as of a leader epoch."""
        for (topic, number), leader_epoch, is_deleted in stopped:
            if topic != OFFSETS_TOPIC:
                continue
            if is_deleted:
                self.groups.on_deleted(number)
            else:
                # Below 0 are the marks of a deletion, and of a controller that names none: they are above every epoch.
                self.groups.on_resigned(number, leader_epoch if leader_epoch >= 0 else None)

    def _notice_offsets_topic(self, topic_id: Uuid) -> None:
        """Reads how many partitions `__consumer_offsets` has, where it is another topic than the one that was read.

        Until that is known no group has a place, so that nothing is written to a partition where nobody will look.
        """
        if topic_id in (ZERO_UUID, self._offsets_topic_id):
            return
        self._offsets_topic_id = topic_id
        self.groups.place(None)
        self._begin_to_place_groups()

    def _begin_to_place_groups(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._reading = self._loop.create_task(self._place_groups(), name="read-offsets-topic")

    async def _place_groups(self) -> None:
        while True:
            try:
                self.groups.place(await self._read_partition_count())
            except CoordinationError as error:
                self._logger.warning("%s cannot be read; trying again: %s", OFFSETS_TOPIC, error)
                await self._timers.sleep(_READ_AGAIN_MS)
            else:
                return
