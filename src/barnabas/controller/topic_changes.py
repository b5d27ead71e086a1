"""Handles topics and partitions that are created or deleted."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable

from barnabas.controller.context import ControllerContext
from barnabas.controller.effects import ITEMS_PER_PIECE, Steps, give_way, pieces
from barnabas.controller.elections import ElectionStrategy
from barnabas.controller.known_brokers import ContextError
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.partition_state_machine import PartitionStateMachine
from barnabas.controller.partition_states import PartitionState
from barnabas.controller.partition_znodes import read_leadership
from barnabas.controller.replica_state_machine import ReplicaStateMachine
from barnabas.controller.replica_states import PartitionReplica, ReplicaState
from barnabas.controller.settings import TOPICS_PER_BATCH
from barnabas.controller.topic_deletion import forget_topic
from barnabas.controller.topic_znodes import TopicReader, TopicZnode, write_assignment
from barnabas.wire.topics import TopicPartition, topic_partitions

PARTITIONS_SHOWN_MAX = 100
"""In one line of the log."""


class TopicChanges:
    """Every method is a part of an event, and may raise `ControllerMovedError`."""

    def __init__(
        self,
        context: ControllerContext,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        logger: logging.Logger,
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._replicas = replicas
        self._logger = logger
        self._assigned_since_turn = 0

    def process(self, reader: TopicReader) -> Steps[None]:
        """Compares the topics in ZooKeeper with the known ones: new ones are brought online, and so are those that
        could not be read so far.
        """
        context = self._context
        present = yield from reader.read_names()
        names = frozenset(present)
        gone = [topic for topic in context.topics if topic not in names]
        new = [topic for topic in present if not context.has_topic(topic)]
        mended = frozenset(context.unreadable_topics)
        left = ITEMS_PER_PIECE
        for topic in [*gone, *(topic for topic in mended if topic not in names)]:
            left -= 1 + context.partition_count(topic)
            reader.watches.forget_topic(topic)
            yield from forget_topic(context, topic)
            context.unreadable_topics.pop(topic, None)
            if left <= 0:
                left = ITEMS_PER_PIECE
                yield from give_way()
        found: list[str] = []
        added: list[TopicPartition] = []
        for start in range(0, len(new), TOPICS_PER_BATCH):
            batch = new[start : start + TOPICS_PER_BATCH]
            znodes = yield from reader.read_with_ids(batch, context.epoch_version)
            found += znodes
            for topic, znode in znodes.items():
                added += yield from self.add(topic, znode)
        if found or gone:
            self._logger.info("New topics: %s, deleted topics: %s, new partitions: %d", found, gone, len(added))
        yield from self._create([partition for partition in added if partition.topic not in mended])
        yield from self._go_on([partition for partition in added if partition.topic in mended])

    def _go_on(self, partitions: list[TopicPartition]) -> Steps[None]:
        """Partitions that may be older than this term, and whose topic could not be read before: those that had a
        leader get one, in a new epoch.
        """
        if not partitions:
            return
        context = self._context
        found = yield from read_leadership(context, partitions)
        older = [partition for partition in partitions if found[partition] is not None]
        offline: list[PartitionReplica] = []
        for partition in older:
            known = found[partition]
            if isinstance(known, LeaderAndIsr):
                context.set_leadership(partition, known)
            context.set_partition_state(partition, PartitionState.OFFLINE)
            for broker_id in context.assignment(partition).replicas:
                replica = PartitionReplica(partition, broker_id)
                context.set_replica_state(replica, ReplicaState.ONLINE)
                if not context.is_replica_online(broker_id, partition):
                    offline.append(replica)
        for topic in dict.fromkeys(partition.topic for partition in older):
            yield from self._partitions.try_online(topic)
        yield from self._replicas.move(offline, ReplicaState.OFFLINE)
        yield from self._create([partition for partition in partitions if found[partition] is None])

    def add(self, topic: str, znode: TopicZnode) -> Steps[list[TopicPartition]]:
        """Adds a topic to the context, and returns its partitions. One whose id belongs to another topic is left out,
        with an error in the log.
        """
        context = self._context
        try:
            context.add_topic(topic, znode.assignment.topic_id)
        except ContextError as error:
            self._logger.warning("Ignoring topic %s: %s", topic, error)
            context.unreadable_topics[topic] = None
            return []
        added = yield from self._assign(topic, znode, sorted(znode.assignment.partitions))
        context.known_assignments[topic] = znode.written_by
        return added

    def _assign(self, topic: str, znode: TopicZnode, partitions: Iterable[int]) -> Steps[list[TopicPartition]]:
        added: list[TopicPartition] = []
        assigned = znode.assignment.partitions
        for piece in pieces(partitions):
            of_piece = topic_partitions(topic, piece)
            self._context.set_assignments(topic, dict(zip(of_piece, map(assigned.__getitem__, piece), strict=True)))
            added += of_piece
            # Those of the topics before count: many topics of few partitions are many partitions, too.
            self._assigned_since_turn += len(piece)
            if self._assigned_since_turn >= ITEMS_PER_PIECE:
                self._assigned_since_turn = 0
                yield from give_way()
        return added

    def modify(self, topic: str, reader: TopicReader) -> Steps[None]:
        """The assignment of a topic was written anew: partitions that were added are brought online, or taken back
        where the topic is queued for deletion.
        """
        context = self._context
        if not context.has_topic(topic):
            # Its own event brings it, or it cannot be read so far.
            yield from self.process(reader)
            return
        if (yield from reader.is_known(topic)):
            return
        znodes = yield from reader.read([topic])
        if topic not in znodes:
            return
        znode = znodes[topic]
        known = frozenset(partition.partition for partition in context.partitions_of(topic))
        added = sorted(partition for partition in znode.assignment.partitions if partition not in known)
        if not added:
            context.known_assignments[topic] = znode.written_by
            return
        if not context.is_queued_for_deletion(topic):
            shown = added if len(added) <= PARTITIONS_SHOWN_MAX else f"{added[0]} to {added[-1]}"
            self._logger.info("New partitions of topic %s: %s", topic, shown)
            assigned = yield from self._assign(topic, znode, added)
            context.known_assignments[topic] = znode.written_by
            yield from self._create(assigned)
            return
        self._logger.warning("Taking back partitions %s of topic %s, which is being deleted", added, topic)
        partitions = {partition: context.assignment(TopicPartition(topic, partition)) for partition in sorted(known)}
        restored = dataclasses.replace(znode.assignment, partitions=partitions, topic_id=context.topic_id(topic))
        yield from write_assignment(topic, dataclasses.replace(znode, assignment=restored), context.epoch_version)

    def _create(self, partitions: list[TopicPartition]) -> Steps[None]:
        """Brings partitions online for the first time, with all their live replicas in sync."""
        if not partitions:
            return
        replicas: list[PartitionReplica] = []
        for piece in pieces(partitions):
            replicas += [
                PartitionReplica(partition, broker_id)
                for partition in piece
                for broker_id in self._context.assignment(partition).replicas
            ]
            if len(piece) < len(partitions):
                yield from give_way()
        yield from self._partitions.move(partitions, PartitionState.NEW)
        yield from self._replicas.move(replicas, ReplicaState.NEW)
        yield from self._partitions.move(partitions, PartitionState.ONLINE, ElectionStrategy.OFFLINE)
        yield from self._replicas.move(replicas, ReplicaState.ONLINE)
