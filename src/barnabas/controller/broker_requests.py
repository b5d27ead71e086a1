"""Builds the requests of one call of a state machine: at most one LeaderAndIsr, one UpdateMetadata and one StopReplica
for each broker, in this order.

The versions follow inter.broker.protocol.version (`protocol.py`); before 2.6 there are two StopReplica. The requests
tell brokers of each other too, so an UpdateMetadata with no partition must have reached the brokers before their first
LeaderAndIsr.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from barnabas.controller.context import ControllerContext
from barnabas.controller.effects import (
    CHANGES_PER_PIECE,
    BrokerRequest,
    Effect,
    SendRequests,
    StateChange,
    Steps,
    give_way,
    pieces,
)
from barnabas.controller.leadership import INITIAL_LEADER_EPOCH, INITIAL_PARTITION_EPOCH, LeaderAndIsr
from barnabas.controller.live_broker import LiveBroker
from barnabas.controller.protocol import (
    LEADER_AND_ISR_WITH_RECOVERY_STATE,
    STOP_REPLICA_WITH_STATES,
    UPDATE_METADATA_WITH_TYPE,
)
from barnabas.controller.settings import ControllerSettings
from barnabas.kernel.ids import ZERO_UUID
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.endpoints import BrokerEndpoint
from barnabas.wire.messages import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from barnabas.wire.sentinels import LEADER_DURING_DELETE
from barnabas.wire.topics import TopicPartition

FULL = 2
"""The type of an UpdateMetadata which names every partition that there is, so that what it does not name is gone.

Apache Kafka's brokers read the type only in requests of KRaft controllers (KIP-866), and keep what they know.
"""
_SHARED_LISTS_MAX: Final = 10_000
"""How many lists of brokers a batch remembers to share; more than that many different ones are rare."""
_SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


@dataclass(frozen=True, slots=True)
class _PartitionLeadership:
    leader_and_isr: LeaderAndIsr
    is_new: bool


@dataclass(frozen=True, slots=True)
class _Stop:
    leader_epoch: int
    delete: bool


class RequestBatch:
    """Collects the requests for brokers, and turns them into effects once.

    The settings say in which versions, and by which listener LeaderAndIsr names the addresses of leaders.
    """

    def __init__(self, context: ControllerContext, settings: ControllerSettings) -> None:
        self._context = context
        self._controller_id = settings.broker_id
        self._listener_name = settings.inter_broker_listener_name
        self._protocol = settings.protocol
        self._knows_recovery = self._protocol.leader_and_isr_version >= LEADER_AND_ISR_WITH_RECOVERY_STATE
        self._leader_and_isr: dict[int, dict[TopicPartition, _PartitionLeadership]] = {}
        self._update_metadata_brokers: dict[int, None] = {}
        self._update_metadata_partitions: dict[TopicPartition, None] = {}
        self._is_full_metadata = False
        self._stop_replica: dict[int, dict[TopicPartition, _Stop]] = {}
        # Of very many partitions few have replicas of their own; a list for each would be most of a full request.
        self._lists: dict[tuple[int, ...], list[int]] = {}

    def add_leader_and_isr(
        self, broker_ids: Iterable[int], partition: TopicPartition, leader_and_isr: LeaderAndIsr, *, is_new: bool
    ) -> None:
        """Tells the brokers to lead or follow, and all brokers of the change. `is_new` allows them to make the log;
        once set it stays set in this batch.
        """
        for broker_id in broker_ids:
            if broker_id >= 0:
                partitions = self._leader_and_isr.setdefault(broker_id, {})
                known = partitions.get(partition)
                still_new = is_new or (known is not None and known.is_new)
                partitions[partition] = _PartitionLeadership(leader_and_isr, still_new)
        self.add_update_metadata(self._context.live_or_shutting_down_brokers, [partition])

    def add_update_metadata(self, broker_ids: Iterable[int], partitions: Iterable[TopicPartition] = ()) -> None:
        """Tells the brokers of all live brokers, and of those of the partitions that ever had a leader, as they are
        when the batch is sent.
        """
        self._update_metadata_brokers.update((broker_id, None) for broker_id in broker_ids if broker_id >= 0)
        for partition in partitions:
            if self._context.leadership(partition) is not None:
                self._update_metadata_partitions[partition] = None

    def full_metadata(self, broker_ids: Iterable[int]) -> Steps[tuple[Effect, ...]]:
        """The effects of a batch that tells the brokers of all live brokers, and of every partition that ever had a
        leader; whatever else a broker knows, because it was away when a topic was deleted, is gone.

        Where the context is not complete it is no full request: what cannot be read is not gone. Nor is it before
        version 8, which has no type: then a broker keeps what it knows, as in Kafka.
        """
        self._is_full_metadata = (
            self._context.is_complete and self._protocol.update_metadata_version >= UPDATE_METADATA_WITH_TYPE
        )
        topics: dict[str, UpdateMetadataRequest.UpdateMetadataTopicState] = {}
        count = 0
        for piece in pieces(self._context.partitions_with_leadership, CHANGES_PER_PIECE):
            self._add_topic_states(topics, piece)
            count += len(piece)
            if len(piece) == CHANGES_PER_PIECE:
                yield from give_way()
        self.add_update_metadata(broker_ids)
        requests = tuple(self._update_metadata_requests(list(topics.values())))
        lines = tuple(self._other_lines(count))
        self._clear()
        return (*lines, SendRequests(requests)) if requests else ()

    def add_stop_replica(self, broker_ids: Iterable[int], partition: TopicPartition, *, delete: bool) -> None:
        """Tells the brokers to stop their replicas; to delete them too if any call of this batch says so.

        The leader epoch is the present one: a later change in the batch is not meant for a replica that stops.
        """
        leader_epoch = self._context.leader_epoch(partition)
        for broker_id in broker_ids:
            if broker_id >= 0:
                partitions = self._stop_replica.setdefault(broker_id, {})
                known = partitions.get(partition)
                partitions[partition] = _Stop(leader_epoch, delete or (known is not None and known.delete))

    def effects(self) -> Steps[tuple[Effect, ...]]:
        """The requests, to brokers that are live or shutting down, and their lines in the state-change log; none when
        there is nothing to send. The batch is empty afterwards.

        They are made in pieces, and sent together: what is sent first is of the same moment as what is sent last.
        """
        leader_and_isr: list[BrokerRequest] = []
        for broker in self._live(self._leader_and_isr):
            leader_and_isr.append((yield from self._leader_and_isr_request(broker)))
        topics: dict[str, UpdateMetadataRequest.UpdateMetadataTopicState] = {}
        for piece in pieces(self._update_metadata_partitions, CHANGES_PER_PIECE):
            self._add_topic_states(topics, piece)
            if len(piece) == CHANGES_PER_PIECE:
                yield from give_way()
        requests = (
            *leader_and_isr,
            *self._update_metadata_requests(list(topics.values())),
            *self._stop_replica_requests(),
        )
        lines = (*self._leader_and_isr_lines(), *self._other_lines(len(self._update_metadata_partitions)))
        self._clear()
        return (*lines, SendRequests(requests)) if requests else ()

    def _clear(self) -> None:
        self._leader_and_isr, self._stop_replica = {}, {}
        self._update_metadata_brokers, self._update_metadata_partitions = {}, {}
        self._is_full_metadata = False
        self._lists = {}

    def _live(self, broker_ids: Iterable[int]) -> Iterator[LiveBroker]:
        live = self._context.live_or_shutting_down_brokers
        return (live[broker_id] for broker_id in sorted(broker_ids) if broker_id in live)

    def _leader_and_isr_request(self, broker: LiveBroker) -> Steps[BrokerRequest]:
        partitions = self._leader_and_isr[broker.broker_id]
        topics: dict[str, LeaderAndIsrRequest.LeaderAndIsrTopicState] = {}
        for piece in pieces(partitions.items(), CHANGES_PER_PIECE):
            for partition, leadership in piece:
                topic = topics.get(partition.topic)
                if topic is None:
                    topic = topics[partition.topic] = LeaderAndIsrRequest.LeaderAndIsrTopicState(
                        topic_name=partition.topic, topic_id=self._context.topic_id(partition.topic) or ZERO_UUID
                    )
                topic.partition_states.append(self._state_for_replica(partition, leadership))
            if len(piece) == CHANGES_PER_PIECE:
                yield from give_way()
        leaders = {leadership.leader_and_isr.leader for leadership in partitions.values()}
        request = LeaderAndIsrRequest(
            controller_id=self._controller_id,
            controller_epoch=self._context.epoch,
            broker_epoch=broker.epoch,
            topic_states=list(topics.values()),
            live_leaders=list(self._live_leaders(leaders)),
        )
        return BrokerRequest(broker.broker_id, ApiKey.LEADER_AND_ISR, self._protocol.leader_and_isr_version, request)

    def _state_for_replica(
        self, partition: TopicPartition, leadership: _PartitionLeadership
    ) -> LeaderAndIsrRequest.LeaderAndIsrPartitionState:
        known = leadership.leader_and_isr
        assignment = self._context.assignment(partition)
        return LeaderAndIsrRequest.LeaderAndIsrPartitionState(
            partition_index=partition.partition,
            controller_epoch=known.controller_epoch,
            leader=known.leader,
            leader_epoch=known.leader_epoch,
            isr=list(known.isr),
            partition_epoch=known.partition_epoch,
            replicas=list(assignment.replicas),
            adding_replicas=list(assignment.adding_replicas),
            removing_replicas=list(assignment.removing_replicas),
            is_new=leadership.is_new,
            leader_recovery_state=int(known.leader_recovery_state) if self._knows_recovery else 0,
        )

    def _live_leaders(self, leaders: Iterable[int]) -> Iterator[LeaderAndIsrRequest.LeaderAndIsrLiveLeader]:
        for leader in self._live(leaders):
            # A leader without the listener cannot be followed, which is its own fault and must not keep the others
            # from being told; it is left out.
            for endpoint in leader.registration.endpoints:
                if endpoint.listener_name == self._listener_name:
                    yield LeaderAndIsrRequest.LeaderAndIsrLiveLeader(
                        broker_id=leader.broker_id, host_name=endpoint.host, port=endpoint.port
                    )

    def _metadata_of(
        self, partition: TopicPartition, known: LeaderAndIsr
    ) -> UpdateMetadataRequest.UpdateMetadataPartitionState:
        deleted = self._context.is_queued_for_deletion(partition.topic)
        replicas = self._context.assignment(partition).replicas
        return UpdateMetadataRequest.UpdateMetadataPartitionState(
            partition_index=partition.partition,
            controller_epoch=known.controller_epoch,
            leader=LEADER_DURING_DELETE if deleted else known.leader,
            leader_epoch=INITIAL_LEADER_EPOCH if deleted else known.leader_epoch,
            isr=self._listed(known.isr),
            zk_version=INITIAL_PARTITION_EPOCH if deleted else known.partition_epoch,
            replicas=self._listed(replicas),
            offline_replicas=self._listed(
                tuple([replica for replica in replicas if not self._context.is_replica_online(replica, partition)])
            ),
        )

    def _listed(self, broker_ids: tuple[int, ...]) -> list[int]:
        """One list for all partitions with the same brokers: nobody changes a request after it was built."""
        found = self._lists.get(broker_ids)
        if found is None:
            if len(self._lists) >= _SHARED_LISTS_MAX:
                self._lists = {}
            found = self._lists[broker_ids] = list(broker_ids)
        return found

    def _add_topic_states(
        self,
        topics: dict[str, UpdateMetadataRequest.UpdateMetadataTopicState],
        partitions: Iterable[TopicPartition],
    ) -> None:
        for partition in partitions:
            known = self._context.leadership(partition)
            if known is None:
                continue
            topic = topics.get(partition.topic)
            if topic is None:
                topic = topics[partition.topic] = UpdateMetadataRequest.UpdateMetadataTopicState(
                    topic_name=partition.topic, topic_id=self._context.topic_id(partition.topic) or ZERO_UUID
                )
            topic.partition_states.append(self._metadata_of(partition, known))

    def _update_metadata_requests(
        self, topic_states: list[UpdateMetadataRequest.UpdateMetadataTopicState]
    ) -> Iterator[BrokerRequest]:
        live_brokers = [_broker(broker) for broker in self._live(self._context.live_or_shutting_down_brokers)]
        version = self._protocol.update_metadata_version
        for broker in self._live(self._update_metadata_brokers):
            # All requests share one list; nobody changes a request after it was built.
            request = UpdateMetadataRequest(
                controller_id=self._controller_id,
                controller_epoch=self._context.epoch,
                broker_epoch=broker.epoch,
                type=FULL if self._is_full_metadata else 0,
                topic_states=topic_states,
                live_brokers=live_brokers,
            )
            yield BrokerRequest(broker.broker_id, ApiKey.UPDATE_METADATA, version, request)

    def _stop_replica_requests(self) -> Iterator[BrokerRequest]:
        version = self._protocol.stop_replica_version
        for broker in self._live(self._stop_replica):
            stops = self._stop_replica[broker.broker_id]
            if version >= STOP_REPLICA_WITH_STATES:
                messages = [StopReplicaRequest(topic_states=_topic_states(stops))]
            else:
                messages = [
                    StopReplicaRequest(delete_partitions=delete, topics=topics)
                    for delete in (True, False)
                    if (topics := _topics_with(stops, delete=delete))
                ]
            for message in messages:
                message.controller_id = self._controller_id
                message.controller_epoch = self._context.epoch
                message.broker_epoch = broker.epoch
                yield BrokerRequest(broker.broker_id, ApiKey.STOP_REPLICA, version, message)

    def _leader_and_isr_lines(self) -> Iterator[StateChange]:
        for broker in self._live(self._leader_and_isr):
            partitions: Mapping[TopicPartition, _PartitionLeadership] = self._leader_and_isr[broker.broker_id]
            led = sum(known.leader_and_isr.leader == broker.broker_id for known in partitions.values())
            yield self._line(
                f"LeaderAndIsr to broker {broker.broker_id}: {led} partitions led, {len(partitions) - led} followed"
            )

    def _other_lines(self, changed: int) -> Iterator[StateChange]:
        told = [broker.broker_id for broker in self._live(self._update_metadata_brokers)]
        if told:
            yield self._line(f"UpdateMetadata to brokers {told}: {changed} partitions changed")
        for broker in self._live(self._stop_replica):
            partitions = self._stop_replica[broker.broker_id]
            yield self._line(
                f"StopReplica to broker {broker.broker_id}: {len(partitions)} replicas, "
                f"{sum(stop.delete for stop in partitions.values())} to delete"
            )

    def _line(self, text: str) -> StateChange:
        return StateChange(logging.INFO, f"controller {self._controller_id} epoch {self._context.epoch}: {text}")


def _topic_states(stops: Mapping[TopicPartition, _Stop]) -> list[StopReplicaRequest.StopReplicaTopicState]:
    topics: dict[str, StopReplicaRequest.StopReplicaTopicState] = {}
    for partition, stop in stops.items():
        topic = topics.get(partition.topic)
        if topic is None:
            topic = topics[partition.topic] = StopReplicaRequest.StopReplicaTopicState(topic_name=partition.topic)
        topic.partition_states.append(
            StopReplicaRequest.StopReplicaPartitionState(
                partition_index=partition.partition, leader_epoch=stop.leader_epoch, delete_partition=stop.delete
            )
        )
    return list(topics.values())


def _topics_with(stops: Mapping[TopicPartition, _Stop], *, delete: bool) -> list[StopReplicaRequest.StopReplicaTopicV1]:
    topics: dict[str, StopReplicaRequest.StopReplicaTopicV1] = {}
    for partition, stop in stops.items():
        if stop.delete == delete:
            topic = topics.get(partition.topic)
            if topic is None:
                topic = topics[partition.topic] = StopReplicaRequest.StopReplicaTopicV1(name=partition.topic)
            topic.partition_indexes.append(partition.partition)
    return list(topics.values())


def _broker(broker: LiveBroker) -> UpdateMetadataRequest.UpdateMetadataBroker:
    return UpdateMetadataRequest.UpdateMetadataBroker(
        id=broker.broker_id,
        endpoints=[_endpoint(endpoint) for endpoint in broker.registration.endpoints],
        rack=broker.registration.rack,
    )


def _endpoint(endpoint: BrokerEndpoint) -> UpdateMetadataRequest.UpdateMetadataEndpoint:
    return UpdateMetadataRequest.UpdateMetadataEndpoint(
        port=endpoint.port,
        host=endpoint.host,
        listener=endpoint.listener_name,
        security_protocol=_SECURITY_PROTOCOLS[endpoint.security_protocol],
    )
