"""Handles brokers that come, go, restart, change their addresses, or are about to stop."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice

from barnabas.controller.broker_requests import RequestBatch
from barnabas.controller.context import ControllerContext
from barnabas.controller.effects import (
    ITEMS_PER_PIECE,
    ChangeChannels,
    Steps,
    each_in_pieces,
    give_way,
    pieces,
    selected,
    write_as_controller,
)
from barnabas.controller.elections import ElectionStrategy
from barnabas.controller.live_broker import LiveBroker
from barnabas.controller.live_brokers import BrokerReader
from barnabas.controller.partition_state_machine import PartitionStateMachine
from barnabas.controller.partition_states import PartitionState
from barnabas.controller.reassignment import Reassignments
from barnabas.controller.replica_state_machine import ReplicaStateMachine
from barnabas.controller.replica_states import PartitionReplica, ReplicaState
from barnabas.controller.settings import PARTITIONS_PER_BATCH, ControllerSettings
from barnabas.controller.topic_deletion import TopicDeletionManager
from barnabas.coordination.errors import BadVersionError, NoNodeError
from barnabas.coordination.layout.brokers import broker_id_path
from barnabas.coordination.operations import SetData
from barnabas.coordination.protocol import Stat
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.sentinels import NO_EPOCH
from barnabas.wire.topics import TopicPartition


class BrokerChanges:
    """Every method is a part of an event, and may raise `ControllerMovedError`."""

    def __init__(
        self,
        context: ControllerContext,
        settings: ControllerSettings,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        deletion: TopicDeletionManager,
        reassignments: Reassignments,
        logger: logging.Logger,
    ) -> None:
        self._context = context
        self._settings = settings
        self._partitions = partitions
        self._replicas = replicas
        self._deletion = deletion
        self._reassignments = reassignments
        self._logger = logger
        # These brokers have not been told yet which topics are gone, since the context was not complete.
        self._owed_full_metadata: dict[int, None] = {}

    def process(self, reader: BrokerReader) -> Steps[None]:
        """Compares the registered brokers with those before: new ones start, missing ones fail, and those with a new
        epoch do both.

        All that fail do so together, so that the ISR of a partition whose members all failed keeps them all, and one
        that has restarted can lead it.
        """
        context = self._context
        registered = yield from reader.read_all()
        known = context.live_or_shutting_down_brokers
        present = {**registered.usable}
        for broker_id, stat in registered.unreadable.items():
            # The broker is there, with the known epoch.
            if broker_id in known and known[broker_id].epoch == stat.czxid:
                present[broker_id] = known[broker_id]
        unusable = [broker_id for broker_id in registered.unusable if broker_id not in present]
        held_back = context.held_back_brokers
        context.hold_back(broker_id for broker_id in unusable if broker_id not in known)
        new = [broker for broker_id, broker in present.items() if broker_id not in known]
        bounced = [
            broker
            for broker_id, broker in present.items()
            if broker_id in known and broker.epoch > known[broker_id].epoch
        ]
        dead = [broker_id for broker_id in known if broker_id not in present]
        if not (new or bounced or dead):
            if any(broker_id not in unusable for broker_id in held_back):
                # Partitions without a leader waited for it.
                yield from self._partitions.try_online()
            return
        bounced_ids = [broker.broker_id for broker in bounced]
        self._logger.info(
            "Newly added brokers: %s, deleted brokers: %s, bounced brokers: %s, all live brokers: %s",
            [broker.broker_id for broker in new],
            dead,
            bounced_ids,
            sorted(present),
        )
        yield (ChangeChannels((*dead, *bounced_ids), (*new, *bounced)),)
        if new:
            yield from self.start_up(new)
        for broker_id in dead:
            reader.watches.forget_broker(broker_id)
        if bounced or dead:
            context.hold_back([*unusable, *bounced_ids])
            yield from self._fail([*bounced_ids, *dead])
        if bounced:
            yield from self.start_up(bounced)
        yield from self._reassignments.tell_waiting_for(dead)

    def modify(self, broker_id: int, reader: BrokerReader) -> Steps[None]:
        """A registration was written: all brokers are told of changed endpoints or features, and garbage is replaced by
        what the broker had written.
        """
        context = self._context
        registered = yield from reader.read_one(broker_id)
        broker, unreadable = registered.usable.get(broker_id), registered.unreadable.get(broker_id)
        known = context.live_or_shutting_down_brokers.get(broker_id)
        if known is not None and unreadable is not None and unreadable.czxid == known.epoch:
            yield from self._mend_registration(known, unreadable)
            return
        if broker is not None and known is None:
            # The broker is new, or could not be used so far.
            yield from self.process(reader)
            return
        # Another epoch means a restart, which the event for the children handles.
        if broker is None or known is None or broker.epoch != known.epoch:
            return
        before, after = known.registration, broker.registration
        if before.endpoints != after.endpoints or before.features != after.features:
            self._logger.info("Broker %d changed from %s to %s", broker_id, before, after)
            context.add_live_broker(broker)
            yield (ChangeChannels(opened=(broker,)),)
            yield from self.send_update_metadata(context.live_or_shutting_down_brokers)

    def _mend_registration(self, broker: LiveBroker, spoiled: Stat) -> Steps[None]:
        """Writes a registration as the broker had made it, where what the znode holds cannot be read.

        A next controller could neither count on the broker nor tell it so: it would go on as the leader of what others
        lead by then, and send clients that ask it first to itself. Raises `ControllerMovedError`.
        """
        self._logger.error(
            "The registration of broker %d was spoiled; restoring what the broker had written", broker.broker_id
        )
        write = SetData(broker_id_path(broker.broker_id), broker.registration.encode(), spoiled.version)
        (outcome,) = yield from write_as_controller([write], self._context.epoch_version)
        # A faster writer has fired the watch.
        if isinstance(outcome, Exception) and not isinstance(outcome, BadVersionError | NoNodeError):
            raise outcome

    def send_update_metadata(self, broker_ids: Iterable[int], partitions: Iterable[TopicPartition] = ()) -> Steps[None]:
        """Sends the brokers UpdateMetadata with all live brokers and these partitions: several, for very many."""
        told = tuple(broker_ids)
        remaining = iter(partitions)
        piece = list(islice(remaining, ITEMS_PER_PIECE))
        while True:
            batch = self._batch()
            batch.add_update_metadata(told, piece)
            effects = yield from batch.effects()
            if effects:
                yield effects
            piece = list(islice(remaining, ITEMS_PER_PIECE))
            if not piece:
                return
            yield from give_way()

    def send_full_metadata(self, broker_ids: Iterable[int]) -> Steps[None]:
        """Tells the brokers of all live brokers and all partitions, and that there are no others: the latter later, by
        `settle_full_metadata`, while something cannot be read.
        """
        if not self._context.is_complete:
            broker_ids = tuple(broker_ids)
            self._owed_full_metadata.update(dict.fromkeys(broker_ids))
            self._logger.warning(
                "Brokers %s are not told of deleted topics yet, since these cannot be read: %s",
                list(broker_ids),
                ", ".join([*self._context.unreadable_topics, *map(str, self._context.unreadable_partitions)][:10]),
            )
        batch = self._batch()
        effects = yield from batch.full_metadata(broker_ids)
        if effects:
            yield effects

    @property
    def is_full_metadata_due(self) -> bool:
        """Whether a full UpdateMetadata is due, and possible now."""
        return bool(self._owed_full_metadata) and self._context.is_complete

    def settle_full_metadata(self) -> Steps[None]:
        """Sends the full UpdateMetadata that is due, once everything can be read again."""
        if self.is_full_metadata_due:
            owed, self._owed_full_metadata = self._owed_full_metadata, {}
            yield from self.send_full_metadata(owed)

    def _batch(self) -> RequestBatch:
        return RequestBatch(self._context, self._settings)

    def start_up(self, brokers: list[LiveBroker]) -> Steps[None]:
        """New brokers: all brokers are told of them, they are told everything, and their replicas go online."""
        context = self._context
        new = {broker.broker_id: broker for broker in brokers}
        for broker in brokers:
            context.add_live_broker(broker)
        others = [broker_id for broker_id in context.live_or_shutting_down_brokers if broker_id not in new]
        yield from self.send_update_metadata(others)
        yield from self.send_full_metadata(new)
        topics: dict[str, None] = {}
        started: list[PartitionReplica] = []
        for piece in pieces(self._replicas_on(new)):
            for replica in piece:
                topics[replica.partition.topic] = None
                # A replica that was deleted stays deleted, whether its broker is there or not.
                if context.replica_state(replica) is not ReplicaState.DELETION_SUCCESSFUL:
                    started.append(replica)
            if len(piece) == ITEMS_PER_PIECE:
                yield from give_way()
        yield from self._replicas.move(started, ReplicaState.ONLINE)
        yield from self._partitions.try_online()
        yield from self._reassignments.resume_for(new)
        yield from self._deletion.resume_for(topics)

    def _replicas_on(self, broker_ids: Iterable[int]) -> Iterator[PartitionReplica]:
        """Those of all of the brokers in one row: many brokers with few partitions each are many, too."""
        for broker_id in broker_ids:
            for partition in self._context.partitions_on_broker(broker_id):
                yield PartitionReplica(partition, broker_id)

    def _fail(self, broker_ids: list[int]) -> Steps[None]:
        """Brokers are gone: others take over their leaderships."""
        context = self._context
        for broker_id in broker_ids:
            context.remove_live_broker(broker_id)
        gone: list[PartitionReplica] = []
        for piece in pieces(self._replicas_on(broker_ids)):
            gone += piece
            if len(piece) == ITEMS_PER_PIECE:
                yield from give_way()
        yield from self.take_offline(gone)

    def take_offline(self, replicas: list[PartitionReplica]) -> Steps[None]:
        """Replicas went offline, with their broker or with a log directory: elects where a leader is missing."""
        context = self._context
        deleted: list[PartitionReplica] = []
        others: list[PartitionReplica] = []
        for replicas_of_piece in pieces(replicas):
            for replica in replicas_of_piece:
                (deleted if context.is_queued_for_deletion(replica.partition.topic) else others).append(replica)
            if len(replicas_of_piece) == ITEMS_PER_PIECE:
                yield from give_way()
        leaderless: list[TopicPartition] = []
        for piece in pieces(context.partitions_with_leadership):
            leaderless += context.with_offline_leader(piece)
            if len(piece) == ITEMS_PER_PIECE:
                yield from give_way()
        yield from self._partitions.move(leaderless, PartitionState.OFFLINE)
        moves = yield from self._partitions.try_online()
        yield from self._replicas.move(others, ReplicaState.OFFLINE)
        yield from self._deletion.fail(deleted)
        yield from self._reassignments.give_up_for_deletions()
        if not others and not moves.elected:
            # No request so far says that the brokers are gone.
            yield from self.send_update_metadata(context.live_or_shutting_down_brokers)

    def ask_for_offline_replicas(self, broker_ids: Iterable[int]) -> Steps[None]:
        """Sends brokers with a failed log directory LeaderAndIsr of their replicas, in the epochs that they know: they
        answer KAFKA_STORAGE_ERROR for those that are offline, and refuse the others as no news (KIP-112).

        What is offline already as far as is known stays so until the broker starts anew.
        """
        context = self._context
        present = [broker_id for broker_id in broker_ids if broker_id in context.live_or_shutting_down_brokers]
        if not present:
            return
        self._logger.info("Log directories of brokers %s have failed: asking which replicas are offline", present)
        for broker_id in present:
            hosted = iter(context.replicas_on_broker(broker_id))
            while batch := list(islice(hosted, PARTITIONS_PER_BATCH)):
                online = [replica for replica in batch if context.replica_state(replica) is ReplicaState.ONLINE]
                yield from self._replicas.move(online, ReplicaState.ONLINE)

    def shut_down(self, broker_id: int, broker_epoch: int) -> Steps[list[TopicPartition]]:
        """Moves the leadership off a broker that is about to stop, and takes it out of the ISRs; returns the partitions
        that it still leads, because no other in-sync replica is there.

        Raises `KafkaError`: STALE_BROKER_EPOCH for a request with an old broker epoch, BROKER_NOT_AVAILABLE for a
        broker that is not registered.
        """
        context = self._context
        broker = context.live_or_shutting_down_brokers.get(broker_id)
        if broker is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is not registered")
        if broker_epoch not in {NO_EPOCH, broker.epoch} and broker_epoch < broker.epoch:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker {broker_id} asks to shut down in epoch {broker_epoch}; it has epoch {broker.epoch}",
            )
        self._logger.info("Shutting down broker %d", broker_id)
        context.begin_shutdown(broker_id)
        hosted: list[TopicPartition] = []
        for piece in pieces(context.partitions_on_broker(broker_id)):
            hosted += [
                partition
                for partition in piece
                if not context.is_queued_for_deletion(partition.topic)
                and len(context.assignment(partition).replicas) > 1
                and context.leadership(partition) is not None
            ]
            if len(piece) == ITEMS_PER_PIECE:
                yield from give_way()
        led = yield from self._led_by(broker_id)
        yield from self._partitions.move(led, PartitionState.ONLINE, ElectionStrategy.CONTROLLED_SHUTDOWN)
        is_led = frozenset(led)
        followed = [partition for partition in hosted if partition not in is_led]
        # A follower must have stopped before it leaves the ISR, or it would come back into it by fetching.
        for piece in pieces(followed):
            batch = self._batch()
            yield from each_in_pieces(partial(batch.add_stop_replica, [broker_id], delete=False), piece)
            yield (yield from batch.effects())
            yield from give_way()
        replicas = [PartitionReplica(partition, broker_id) for partition in followed]
        yield from self._replicas.move(replicas, ReplicaState.OFFLINE)
        return (yield from self._led_by(broker_id))

    def _led_by(self, broker_id: int) -> Steps[list[TopicPartition]]:
        """Those that it is to lead no more."""
        context = self._context
        must_leave = context.must_leave
        return (yield from selected(context.partitions_on_broker(broker_id), lambda each: must_leave(each, broker_id)))
