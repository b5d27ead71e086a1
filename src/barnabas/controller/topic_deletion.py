"""Deletes topics: hides them from clients, has every broker delete its replicas, and finally deletes their znodes.

A topic whose replicas cannot all be deleted now is held (it is ineligible) until one of their brokers comes back. What
has been done is in the states of the replicas, and what must be done is in ZooKeeper: the znode that asks for the
deletion is deleted last, so a controller that takes over starts over and finishes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from barnabas.controller.broker_requests import RequestBatch
from barnabas.controller.context import ControllerContext
from barnabas.controller.effects import CHANGES_PER_PIECE, ITEMS_PER_PIECE, Steps, give_way, pieces, selected
from barnabas.controller.partition_state_machine import PartitionStateMachine
from barnabas.controller.partition_states import PartitionState
from barnabas.controller.replica_state_machine import ReplicaStateMachine
from barnabas.controller.replica_states import PartitionReplica, ReplicaState
from barnabas.controller.settings import ControllerSettings
from barnabas.controller.topic_znodes import delete_requests, delete_topic_znodes
from barnabas.controller.watches import ControllerWatches
from barnabas.wire.topics import TopicPartition


class TopicDeletionManager:
    """Every method but the properties is a part of an event, and may raise `ControllerMovedError`."""

    def __init__(
        self,
        context: ControllerContext,
        settings: ControllerSettings,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        watches: ControllerWatches,
        logger: logging.Logger,
    ) -> None:
        self._context = context
        self._settings = settings
        self._partitions = partitions
        self._replicas = replicas
        self._watches = watches
        self._logger = logger

    def load(self, topics: Iterable[str]) -> Steps[None]:
        """For a controller that has just loaded its context: queues the topics whose deletion is asked for.

        One with a replica that is not there is held from the start. What a former controller has left of a topic that
        is gone but for its config is deleted. One that cannot be read waits until it can.
        """
        known, unknown = yield from self._sorted_out(topics)
        if not self._settings.delete_topic_enable:
            yield from self._refuse([*known, *unknown])
            return
        for topic in unknown:
            yield from delete_topic_znodes(topic, self._context.epoch_version)
        held: list[str] = []
        for topic, gives_way in self._in_pieces(known):
            if gives_way:
                yield from give_way()
            self._context.queue_for_deletion((topic,))
            if self._has_dead_replica(topic):
                held.append(topic)
        self._hold(held, "replicas are offline")

    def enqueue(self, topics: Iterable[str]) -> Steps[None]:
        """Queues topics whose deletion is asked for, and begins with it. A request for a topic that does not exist is
        deleted, and every request where delete.topic.enable is false. One that cannot be read waits until it can.
        """
        known, unknown = yield from self._sorted_out(topics)
        if unknown:
            self._logger.warning("Ignoring the request to delete topics that do not exist: %s", ", ".join(unknown))
            yield from self._delete_requests(unknown)
        if not self._settings.delete_topic_enable:
            yield from self._refuse(known)
        elif known:
            for topic, gives_way in self._in_pieces(known):
                if gives_way:
                    yield from give_way()
                self._context.queue_for_deletion((topic,))
            yield from self.resume()

    def _sorted_out(self, topics: Iterable[str]) -> Steps[tuple[list[str], list[str]]]:
        """The topics that are known, and those that do not exist, without those that cannot be read."""
        known: list[str] = []
        unknown: list[str] = []
        for piece in pieces(topics):
            for topic in piece:
                if self._context.has_topic(topic):
                    known.append(topic)
                elif topic in self._context.unreadable_topics:
                    self._logger.warning(
                        "Topic %s is deleted once its assignment can be read: until then nobody knows "
                        "which brokers have it",
                        topic,
                    )
                else:
                    unknown.append(topic)
            if len(piece) == ITEMS_PER_PIECE:
                yield from give_way()
        return known, unknown

    def _refuse(self, topics: list[str]) -> Steps[None]:
        if topics:
            self._logger.info("Not deleting topics, since delete.topic.enable is false: %s", ", ".join(topics))
            yield from self._delete_requests(topics)

    def _delete_requests(self, topics: list[str]) -> Steps[None]:
        for piece in pieces(topics):
            yield from delete_requests(piece, self._context.epoch_version)

    def resume_for(self, topics: Iterable[str]) -> Steps[None]:
        """Resumes the deletion of topics that were held, because a broker with replicas of them is back."""
        queued = yield from selected(dict.fromkeys(topics), self._context.is_queued_for_deletion)
        if queued:
            self._context.mark_eligible_for_deletion(queued)
            yield from self.resume()

    def fail(self, replicas: Iterable[PartitionReplica]) -> Steps[None]:
        """Replicas whose broker is gone, or did not delete them: their topics are held."""
        queued = self._context.is_queued_for_deletion
        failed = yield from selected(replicas, lambda replica: queued(replica.partition.topic))
        if not failed:
            return
        yield from self._make_ineligible(failed)
        topics = yield from _topics_of(failed)
        self._hold(topics, "replicas could not be deleted")
        yield from self.resume(topics)

    def complete(self, replicas: Iterable[PartitionReplica]) -> Steps[None]:
        """Replicas that their broker has deleted."""
        deleted = [
            replica
            for replica in replicas
            if self._context.is_queued_for_deletion(replica.partition.topic)
            # The broker may be gone since it answered, and what is on it must be deleted once more.
            and self._context.replica_state(replica) is ReplicaState.DELETION_STARTED
        ]
        yield from self._replicas.move(deleted, ReplicaState.DELETION_SUCCESSFUL)
        # The response concerns one topic of hundreds, where very many are deleted.
        yield from self.resume((yield from _topics_of(deleted)))

    def resume(self, topics: Iterable[str] | None = None) -> Steps[None]:
        """Does what can be done now, for the queued ones of these topics, or for all that are queued."""
        context = self._context
        retried: list[str] = []
        begun: list[str] = []
        for topic, gives_way in self._in_pieces(context.topics_queued_for_deletion if topics is None else topics):
            if gives_way:
                yield from give_way()
            if not context.is_queued_for_deletion(topic):
                continue
            if context.are_all_replicas_in(topic, ReplicaState.DELETION_SUCCESSFUL):
                yield from self._finish(topic)
                continue
            if context.is_any_replica_in(topic, ReplicaState.DELETION_STARTED):
                continue
            if context.is_any_replica_in(topic, ReplicaState.DELETION_INELIGIBLE):
                retried.append(topic)
            if not context.is_ineligible_for_deletion(topic) and not self._is_reassigned(topic):
                begun.append(topic)
        ineligible: list[PartitionReplica] = []
        for topic, gives_way in self._in_pieces(retried):
            if gives_way:
                yield from give_way()
            ineligible += yield from self._replicas_in(topic, ReplicaState.DELETION_INELIGIBLE)
        if ineligible:
            yield from self._replicas.move(ineligible, ReplicaState.OFFLINE)
        if begun:
            yield from self._begin(begun)

    def _begin(self, topics: list[str]) -> Steps[None]:
        """Hides the topics from clients, and has the brokers delete the replicas."""
        context = self._context
        self._logger.info("Deleting topics %s", ", ".join(topics))
        unseen: list[str] = []
        unseen_partitions: list[TopicPartition] = []
        partitions: list[TopicPartition] = []
        for topic, gives_way in self._in_pieces(topics):
            if gives_way:
                yield from give_way()
            some = context.partitions_of(topic)
            partitions += some
            if not context.is_deletion_started(topic):
                unseen.append(topic)
                unseen_partitions += some
        if unseen_partitions:
            yield from self._partitions.move(unseen_partitions, PartitionState.OFFLINE)
            yield from self._partitions.move(unseen_partitions, PartitionState.NON_EXISTENT)
        for topic, gives_way in self._in_pieces(unseen):
            if gives_way:
                yield from give_way()
            context.begin_deletion((topic,))
        for piece in pieces(partitions):
            batch = RequestBatch(context, self._settings)
            batch.add_update_metadata(context.live_or_shutting_down_brokers, piece)
            effects = yield from batch.effects()
            if effects:
                yield effects
            if len(piece) == ITEMS_PER_PIECE:
                yield from give_way()
        yield from self._delete_replicas(topics)

    def _in_pieces(self, topics: Iterable[str]) -> Iterator[tuple[str, bool]]:
        """Each topic, and whether the loop is to have a turn before it, since those before had so many partitions."""
        left = ITEMS_PER_PIECE
        for topic in topics:
            yield topic, left <= 0
            left = (ITEMS_PER_PIECE if left <= 0 else left) - 1 - self._context.partition_count(topic)

    def _each_replica(self, topic: str) -> Iterator[PartitionReplica]:
        """One after the other: of a topic of very many partitions, listing them takes long."""
        for partition in self._context.partitions_of(topic):
            for broker_id in self._context.assignment(partition).replicas:
                yield PartitionReplica(partition, broker_id)

    def _replicas_in(self, topic: str, state: ReplicaState) -> Steps[list[PartitionReplica]]:
        """The topic's assigned replicas in a state."""
        if not self._context.is_any_replica_in(topic, state):
            return []
        return (yield from self._those_in(self._each_replica(topic), state))

    def _delete_replicas(self, topics: list[str]) -> Steps[None]:
        context = self._context
        alive: list[PartitionReplica] = []
        dead: list[PartitionReplica] = []
        for topic, gives_way in self._in_pieces(topics):
            if gives_way:
                yield from give_way()
            for piece in pieces(self._each_replica(topic)):
                for replica in piece:
                    if context.replica_state(replica) is ReplicaState.DELETION_SUCCESSFUL:
                        continue
                    online = context.is_replica_online(replica.broker_id, replica.partition)
                    (alive if online else dead).append(replica)
                if len(piece) == ITEMS_PER_PIECE:
                    yield from give_way()
        yield from self._make_ineligible(dead)
        # Followers stop before leaders are gone, and only then anything is deleted.
        yield from self._replicas.move(alive, ReplicaState.OFFLINE)
        yield from self._replicas.move(alive, ReplicaState.DELETION_STARTED)
        self._hold((yield from _topics_of(dead)), "replicas are offline")

    def _make_ineligible(self, replicas: list[PartitionReplica]) -> Steps[None]:
        """Moves replicas to DELETION_INELIGIBLE, those that lead or follow by way of OFFLINE."""
        running = yield from self._those_in(replicas, ReplicaState.NEW, ReplicaState.ONLINE)
        if running:
            yield from self._replicas.move(running, ReplicaState.OFFLINE)
        stopped = yield from self._those_in(replicas, ReplicaState.OFFLINE, ReplicaState.DELETION_STARTED)
        if stopped:
            yield from self._replicas.move(stopped, ReplicaState.DELETION_INELIGIBLE)

    def _those_in(self, replicas: Iterable[PartitionReplica], *states: ReplicaState) -> Steps[list[PartitionReplica]]:
        return (yield from selected(replicas, lambda replica: self._context.replica_state(replica) in states))

    def _finish(self, topic: str) -> Steps[None]:
        """All replicas are deleted: what is left is to be forgotten."""
        context = self._context
        # A topic of the same name that is made soon must be seen as new, not as a change of this one.
        self._watches.forget_topic(topic)
        replicas = yield from self._replicas_in(topic, ReplicaState.DELETION_SUCCESSFUL)
        yield from self._replicas.move(replicas, ReplicaState.NON_EXISTENT)
        yield from delete_topic_znodes(topic, context.epoch_version)
        yield from forget_topic(context, topic)
        self._logger.info("Deletion of topic %s is complete", topic)

    def _hold(self, topics: list[str], reason: str) -> None:
        held = self._context.mark_ineligible_for_deletion(topics)
        if held:
            self._logger.info("Halted the deletion of topics %s: %s", ", ".join(held), reason)

    def _has_dead_replica(self, topic: str) -> bool:
        return any(
            not self._context.is_replica_online(replica.broker_id, replica.partition)
            for replica in self._context.replicas_of(topic)
        )

    def _is_reassigned(self, topic: str) -> bool:
        """A reassignment under way must end first: it may still move the data to where they are to be deleted."""
        return any(map(self._context.is_being_reassigned, self._context.partitions_of(topic)))


def _topics_of(replicas: Iterable[PartitionReplica]) -> Steps[list[str]]:
    topics: dict[str, None] = {}
    for piece in pieces(replicas):
        topics.update(dict.fromkeys([replica.partition.topic for replica in piece]))
        if len(piece) == ITEMS_PER_PIECE:
            yield from give_way()
    return list(topics)


def forget_topic(context: ControllerContext, topic: str) -> Steps[None]:
    """Takes a topic that is gone out of the context, in pieces."""
    partitions = context.partitions_of(topic)
    for piece in pieces(partitions, CHANGES_PER_PIECE):
        context.remove_partitions(piece)
        if len(piece) < len(partitions):
            yield from give_way()
    context.remove_topic(topic)
