"""The coordinators of one broker, and how they learn which partitions they have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from barnabas.cluster.metadata_cache import MetadataCache, MetadataChange
from barnabas.config.broker_config import BrokerConfig
from barnabas.config.settings import take
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.coordinators.group.settings import GroupSettings
from barnabas.coordinators.group.zookeeper_offsets import ZookeeperOffsets
from barnabas.coordinators.ports import InternalLog, MarkerChannel, PartitionLeaders
from barnabas.coordinators.transaction.coordinator import TransactionCoordinator
from barnabas.coordinators.transaction.markers import MarkerSender
from barnabas.coordinators.transaction.producer_ids import ProducerIdManager
from barnabas.coordinators.transaction.settings import TransactionSettings
from barnabas.leader.partition import Partition
from barnabas.server.consumer_protocol import ApisOfBrokers, ConsumerProtocol
from barnabas.server.controller_channel import ControllerChannel
from barnabas.server.coordination_session import CoordinationSession
from barnabas.server.group_topics import MetadataTopics
from barnabas.server.internal_topic import Coordinator, InternalTopic
from barnabas.server.shared_services import SharedServices
from barnabas.wire.messages import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from barnabas.wire.topics import OFFSETS_TOPIC, TRANSACTION_TOPIC, TopicPartition


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
    """The coordinators of groups and of transactions, and producer ids."""

    def __init__(
        self,
        shared: SharedServices,
        config: BrokerConfig,
        broker_id: int,
        session: CoordinationSession,
        internal_log: InternalLog,
        allocator: ChannelAllocator,
        leaders: PartitionLeaders,
        marker_channel: MarkerChannel,
        metadata: MetadataCache,
        brokers: ApisOfBrokers,
    ) -> None:
        host, logs = shared.host, shared.logs
        group_settings = take(GroupSettings, config.values)
        self.consumer_protocol = ConsumerProtocol(
            broker_id,
            metadata,
            brokers,
            shared.scheduler,
            host.loop,
            logs.logger("kafka.coordinator.group.GroupCoordinator"),
            is_offered=group_settings.offers_consumer_protocol,
        )
        self.groups = GroupCoordinator(
            broker_id,
            group_settings,
            host=host,
            timers=shared.timers,
            scheduler=shared.scheduler,
            steps=shared.steps,
            log=internal_log,
            metrics=shared.metrics,
            logs=logs,
            topics=MetadataTopics(metadata),
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
        self.transactions = TransactionCoordinator(
            take(TransactionSettings, config.values),
            host=host,
            timers=shared.timers,
            scheduler=shared.scheduler,
            steps=shared.steps,
            log=internal_log,
            producer_ids=self.producer_ids,
            markers=MarkerSender(
                leaders,
                marker_channel,
                host=host,
                timers=shared.timers,
                steps=shared.steps,
                logger=logs.logger("kafka.coordinator.transaction.TransactionMarkerChannelManager"),
            ),
            metrics=shared.metrics,
            logs=logs,
        )
        self._topics = self._internal_topics(shared, config, session)

    def _internal_topics(
        self, shared: SharedServices, config: BrokerConfig, session: CoordinationSession
    ) -> dict[str, InternalTopic]:
        coordinators: tuple[tuple[str, str, Coordinator, str], ...] = (
            (OFFSETS_TOPIC, "offsets.topic.num.partitions", self.groups, "kafka.coordinator.group.GroupCoordinator"),
            (
                TRANSACTION_TOPIC,
                "transaction.state.log.num.partitions",
                self.transactions,
                "kafka.coordinator.transaction.TransactionCoordinator",
            ),
        )
        return {
            name: InternalTopic(
                name,
                int(config.values[count]),
                coordinator,
                session,
                loop=shared.host.loop,
                timers=shared.timers,
                logger=shared.logs.logger(logger),
            )
            for name, count, coordinator, logger in coordinators
        }

    async def start(self) -> None:
        """Takes shards on from now on. Raises CoordinationError when the coordination service cannot be asked."""
        for topic in self._topics.values():
            await topic.start()

    def broker_registered(self) -> None:
        """The controller takes requests of this broker from now on."""
        self.producer_ids.start()
        self.consumer_protocol.start()

    async def stop(self) -> None:
        """Answers all parked requests."""
        await asyncio.gather(*(topic.stop() for topic in self._topics.values()))
        await asyncio.gather(
            self.transactions.stop(), self.groups.stop(), self.producer_ids.stop(), self.consumer_protocol.stop()
        )

    def metadata_changed(self, change: MetadataChange) -> None:
        """For the metadata cache: offsets of partitions that are deleted go too; those of partitions that a request
        merely does not name stay, as in Apache Kafka.
        """
        if change.changed or change.deleted or change.forgotten or change.brokers_changed:
            self.groups.topics_changed()
        if change.deleted:
            self.groups.on_partitions_deleted(change.deleted)
        for name, topic in self._topics.items():
            topic_id = change.image.topic_id(name)
            if topic_id != change.previous.topic_id(name):
                topic.metadata_changed(topic_id)

    def leadership_changed(self, became_leader: list[Partition], became_follower: list[Partition]) -> None:
        """For the replica manager: this broker leads or follows other partitions than before."""
        topics = self._topics
        for partition in became_leader:
            if partition.topic in topics:
                topics[partition.topic].elected(partition)
        for partition in became_follower:
            if partition.topic in topics:
                topics[partition.topic].resigned(partition)

    def replicas_stopped(self, stopped: list[tuple[TopicPartition, int, bool]]) -> None:
        """For the replica manager: these partitions are here no more, as of a leader epoch."""
        for (topic, number), leader_epoch, is_deleted in stopped:
            if topic in self._topics:
                self._topics[topic].stopped(number, leader_epoch, is_deleted=is_deleted)
