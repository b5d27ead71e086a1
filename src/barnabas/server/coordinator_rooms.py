"""The coordinators of one broker, and what tells them which partitions they have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from barnabas.cluster.metadata_cache import MetadataChange
from barnabas.config.broker_config import BrokerConfig
from barnabas.config.settings import take
from barnabas.coordination.errors import NoNodeError
from barnabas.coordination.layout.topics import OFFSETS_TOPIC, TopicAssignment, TopicPartition, topic_path
from barnabas.coordination.operations import GetData
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.coordinators.group.settings import GroupSettings
from barnabas.coordinators.group.zookeeper_offsets import ZookeeperOffsets
from barnabas.coordinators.ports import InternalLog
from barnabas.coordinators.transaction.producer_ids import ProducerIdManager
from barnabas.replication.partition import Partition
from barnabas.server.controller_channel import ControllerChannel
from barnabas.server.coordination_session import CoordinationSession
from barnabas.server.foundation import Foundation
from barnabas.wire.messages import AllocateProducerIdsRequest, AllocateProducerIdsResponse


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


class CoordinatorRooms:
    """Group coordinator and producer ids."""

    def __init__(
        self,
        foundation: Foundation,
        config: BrokerConfig,
        broker_id: int,
        session: CoordinationSession,
        internal_log: InternalLog,
        allocator: ChannelAllocator,
    ) -> None:
        self._config = config
        self._session = session
        host, logs = foundation.host, foundation.logs
        self.groups = GroupCoordinator(
            broker_id,
            take(GroupSettings, config.values),
            host=host,
            timers=foundation.timers,
            scheduler=foundation.scheduler,
            log=internal_log,
            metrics=foundation.metrics,
            logs=logs,
        )
        self.zookeeper_offsets = ZookeeperOffsets(
            lambda: session, logs.logger("kafka.coordinator.group.GroupMetadataManager")
        )
        self.producer_ids = ProducerIdManager(
            allocator,
            host=host,
            timers=foundation.timers,
            logger=logs.logger("kafka.coordinator.transaction.RPCProducerIdManager"),
        )

    async def read_partition_count(self) -> int:
        """Of `__consumer_offsets`, or what it will be made with. The placement of groups depends on it, for good."""
        path = topic_path(OFFSETS_TOPIC)
        try:
            found = await self._session.until_connected(lambda: self._session.perform(GetData(path)))
        except NoNodeError:
            return int(self._config.values["offsets.topic.num.partitions"])
        return len(TopicAssignment.decode(found.data, path).partitions)

    def start(self, partition_count: int) -> None:
        """Takes shards on from now on."""
        self.groups.start(partition_count)

    def broker_registered(self) -> None:
        """The controller takes requests of this broker from now on."""
        self.producer_ids.start()

    async def stop(self) -> None:
        """Answers everything that waits."""
        await asyncio.gather(self.groups.stop(), self.producer_ids.stop())

    def metadata_changed(self, change: MetadataChange) -> None:
        """For the metadata cache: offsets of partitions that are gone go too."""
        if change.deleted:
            self.groups.on_partitions_deleted(change.deleted)

    def leadership_changed(self, became_leader: list[Partition], became_follower: list[Partition]) -> None:
        """For the replica manager: this broker leads or follows other partitions than before."""
        for partition in became_leader:
            if partition.topic == OFFSETS_TOPIC:
                self.groups.on_elected(partition.number, partition.leader_epoch)
        for partition in became_follower:
            if partition.topic == OFFSETS_TOPIC:
                self.groups.on_resigned(partition.number, partition.leader_epoch)

    def replicas_stopped(self, stopped: list[tuple[TopicPartition, int, bool]]) -> None:
        """For the replica manager: these partitions are here no more, as of a leader epoch."""
        for (topic, number), leader_epoch, _deleted in stopped:
            if topic == OFFSETS_TOPIC:
                # Below 0 are the marks of a deletion, and of a controller that names none: they are above every epoch.
                self.groups.on_resigned(number, leader_epoch if leader_epoch >= 0 else None)
