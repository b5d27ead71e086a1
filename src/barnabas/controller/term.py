"""One term of an elected controller: everything that it does from its election until it resigns.

A new term knows nothing and loads everything, so what a deposed controller believed ends with its term.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest

from barnabas.controller.alter_partition import AlterPartitionProcessor
from barnabas.controller.broker_changes import BrokerChanges
from barnabas.controller.context import ControllerContext
from barnabas.controller.controller_election import ElectionResult
from barnabas.controller.effects import (
    ChangeChannels,
    ControllerMovedError,
    StateChange,
    Steps,
    give_way,
    operate,
    pieces,
)
from barnabas.controller.features import FeatureUpdate, UpdateOutcomes, set_up_features, update_features
from barnabas.controller.leadership import ToldLeadership, nothing_was_told
from barnabas.controller.live_broker import LiveBroker
from barnabas.controller.live_brokers import BrokerReader
from barnabas.controller.notifications import read_isr_changes, read_log_dir_events
from barnabas.controller.partition_state_machine import PartitionStateMachine
from barnabas.controller.partition_states import PartitionState
from barnabas.controller.producer_ids import allocate_producer_ids
from barnabas.controller.reassignment import Reassignments
from barnabas.controller.replica_elections import ReplicaElections
from barnabas.controller.replica_state_machine import ReplicaStateMachine
from barnabas.controller.replica_states import PartitionReplica
from barnabas.controller.settings import (
    TOPICS_PER_BATCH,
    VERSIONS_PER_READING,
    ControllerSettings,
)
from barnabas.controller.state_loading import StateLoading
from barnabas.controller.topic_changes import TopicChanges
from barnabas.controller.topic_deletion import TopicDeletionManager
from barnabas.controller.topic_znodes import TopicReader, delete_znodes
from barnabas.controller.watches import ControllerWatches
from barnabas.coordination.layout.cluster import ProducerIdBlock
from barnabas.coordination.layout.controller import CONTROLLER_EPOCH_PATH
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import Exists
from barnabas.kernel.ids import Uuid
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataResponse,
)
from barnabas.wire.stopped_partitions import stopped_partitions
from barnabas.wire.topics import TopicPartition


class ControllerTerm:
    """Every method that returns steps is one event, or part of one, and may raise `ControllerMovedError`."""

    def __init__(
        self,
        elected: ElectionResult,
        settings: ControllerSettings,
        watches: ControllerWatches,
        new_topic_id: Callable[[], Uuid],
        logger: logging.Logger,
        state_change_logger: logging.Logger,
        told_leadership: ToldLeadership = nothing_was_told,
    ) -> None:
        """`state_change_logger` is only asked for its level."""
        self.context = context = ControllerContext(
            elected.epoch,
            elected.epoch_version,
            told_leadership,
            began=elected.began,
            former_began=elected.former_began,
        )
        self._settings = settings
        self._watches = watches
        self._logger = logger

        def is_debug_logged() -> bool:
            return state_change_logger.isEnabledFor(logging.DEBUG)

        self._partitions = PartitionStateMachine(
            context,
            settings,
            is_debug_logged=is_debug_logged,
            unclean_elections_wait=settings.unclean_election_delay_ms > 0,
        )
        self._replicas = ReplicaStateMachine(context, settings, is_debug_logged=is_debug_logged)
        self._deletion = TopicDeletionManager(context, settings, self._partitions, self._replicas, watches, logger)
        self._topic_reader = TopicReader(
            watches,
            new_topic_id if settings.protocol.gives_topic_ids else None,
            logger,
            context.unreadable_topics,
            context.known_assignments,
        )
        self.reassignments = Reassignments(
            context, settings, self._partitions, self._replicas, self._deletion, self._topic_reader, logger
        )
        self._brokers = BrokerChanges(
            context, settings, self._partitions, self._replicas, self._deletion, self.reassignments, logger
        )
        self.replica_elections = ReplicaElections(context, settings, self._partitions, watches, logger)
        """Elections that somebody asks for, and the return of leadership to the preferred replicas."""
        self._topics = TopicChanges(context, self._partitions, self._replicas, logger)
        self._isr_changes = AlterPartitionProcessor(context, logger)
        self._broker_reader = BrokerReader(watches, {}, logger)
        self._are_features_known = True

    def reconfigure(self, settings: ControllerSettings) -> None:
        """From now on elections follow these settings."""
        self._partitions.reconfigure(settings)

    # Taking over.

    def take_over(self) -> Steps[None]:
        """Loads the context, tells every broker, and finds every partition a leader that can have one."""
        context, version = self.context, self.context.epoch_version
        yield from self.epoch_changed()
        self._are_features_known = yield from self._set_up_features()
        # Loading everything finds what they announce; later announcements fire the watch.
        isr_changes, _ = yield from read_isr_changes(self._watches, self._logger)
        log_dir_events, _ = yield from read_log_dir_events(self._watches, self._logger)
        yield from delete_znodes([*isr_changes, *log_dir_events], version)
        returned = yield from self._load()
        deletions = yield from self._topic_reader.read_deletions()
        yield from self._deletion.load(deletions)
        # Brokers must know of each other before they are told to follow one another. The full request also ends what
        # they know of deleted topics of which a former controller did not tell them.
        yield from self._brokers.send_full_metadata(context.live_or_shutting_down_brokers)
        yield from self._replicas.start_up()
        context.put_back_partitions.clear()
        yield from self._partitions.start_up()
        if returned:
            yield from self._brokers.start_up(returned)
        self._logger.info("Ready to serve as the new controller with epoch %d", context.epoch)
        yield from self.reassignments.start_up()
        yield from self._deletion.resume()
        yield from self.replica_elections.requested_by_znode()

    def _set_up_features(self) -> Steps[bool]:
        """Returns whether `/feature` could be read. While it cannot, no feature counts as finalized, which is the
        default.
        """
        features: Mapping[str, int] = {}
        fault: LayoutError | None = None
        try:
            features = yield from set_up_features(self.context.epoch_version, self._settings.protocol, self._logger)
        except LayoutError as error:
            self._logger.warning("No broker is refused for features that it lacks: %s", error)
            fault = error
        self._broker_reader = BrokerReader(self._watches, features, self._logger)
        return fault is None

    def _load(self) -> Steps[list[LiveBroker]]:
        """Reads everything. Returns the brokers that restarted while there was no controller: they are held back until
        their leaderships have gone to other in-sync replicas, where there are any.
        """
        context = self.context
        registered = yield from self._broker_reader.read_all()
        brokers = registered.usable
        for broker in brokers.values():
            context.add_live_broker(broker)
        names = yield from self._topic_reader.read_names()
        partition_count = 0
        written_at: dict[TopicPartition, int] = {}
        states = StateLoading(context, self._logger, written_at)
        batches = [names[start : start + TOPICS_PER_BATCH] for start in range(0, len(names), TOPICS_PER_BATCH)]
        for batch, ahead in zip_longest(batches, batches[1:], fillvalue=()):
            znodes = yield from self._topic_reader.read_with_ids(batch, context.epoch_version, ahead)
            for topic, znode in znodes.items():
                added = yield from self._topics.add(topic, znode)
                partition_count += len(added)
                states.add(added)
                # The coordinator reads the first of the states that are left while the next topics are looked at.
                yield from states.read_some()
        yield from states.read_all()
        returned = yield from self._returned(brokers, written_at)
        context.hold_back([*(broker.broker_id for broker in returned), *registered.unusable])
        yield (ChangeChannels(opened=tuple(brokers.values())),)
        self._logger.info(
            "Loaded the context: brokers %s, %d topics, %d partitions",
            list(brokers),
            len(context.topics),
            partition_count,
        )
        return returned

    def _returned(
        self, brokers: Mapping[int, LiveBroker], written_at: Mapping[TopicPartition, int]
    ) -> Steps[list[LiveBroker]]:
        """The brokers that registered after the last write of a partition's state that has them in its ISR.

        Such a broker has stopped and started again while nobody was the controller. It may have lost the end of its
        log with its power; so it must not go on leading in its old epoch, nor be taken for in sync, as long as a
        member of the ISR is there that did not stop. (Apache Kafka's controller does not notice it.)
        """
        returned: dict[int, LiveBroker] = {}
        for piece in pieces(written_at.items()):
            for partition, zxid in piece:
                known = self.context.leadership(partition)
                for member in () if known is None else known.isr:
                    broker = brokers.get(member)
                    if broker is not None and broker.epoch > zxid:
                        returned[member] = broker
            yield from give_way()
        if returned:
            self._logger.info("Brokers %s have restarted while there was no controller", sorted(returned))
        return [returned[broker_id] for broker_id in sorted(returned)]

    def _refresh(self, partitions: Iterable[TopicPartition]) -> Steps[list[TopicPartition]]:
        """Reads the leadership of the partitions; returns those that have or had a leader. States that cannot be used
        are logged.
        """
        loading = StateLoading(self.context, self._logger)
        loading.add(list(partitions))
        yield from loading.read_all()
        return loading.refreshed

    # Events of znodes.

    def epoch_changed(self) -> Steps[None]:
        """The znode of the epoch was written, or deleted: without it no admin request and no write of this term can be
        done, and the next controller makes it anew. One that was written by somebody else ends the term at the next
        write. Raises `ControllerMovedError`.
        """
        (found,) = yield from operate([Exists(CONTROLLER_EPOCH_PATH, self._watches.epoch)])
        if found is None:
            raise ControllerMovedError(f"somebody has deleted {CONTROLLER_EPOCH_PATH}")

    def brokers_changed(self) -> Steps[None]:
        yield from self._brokers.process(self._broker_reader)

    def broker_modified(self, broker_id: int) -> Steps[None]:
        yield from self._brokers.modify(broker_id, self._broker_reader)

    def topics_changed(self) -> Steps[None]:
        was_complete = self.context.is_complete
        yield from self._topics.process(self._topic_reader)
        if not was_complete:
            yield from self._resume_what_waited()

    def topic_modified(self, topic: str) -> Steps[None]:
        was_complete = self.context.is_complete
        yield from self._topics.modify(topic, self._topic_reader)
        if not was_complete:
            yield from self._resume_what_waited()

    def _resume_what_waited(self) -> Steps[None]:
        """Tries what waited for something that could not be read."""
        yield from self.deletions_changed()
        yield from self._brokers.settle_full_metadata()

    def deletions_changed(self) -> Steps[None]:
        topics = yield from self._topic_reader.read_deletions()
        yield from self._deletion.enqueue(topics)
        yield from self.reassignments.give_up_for_deletions()

    @property
    def must_read_again(self) -> bool:
        """Whether something unreadable has no watch that tells when it is mended, or work is due since something was
        mended or deleted.
        """
        return (
            bool(self.context.unreadable_partitions or self.context.put_back_partitions)
            or self._brokers.is_full_metadata_due
            or self._partitions.has_unreadable_configs
            or self.reassignments.is_any_failed
            or not self._are_features_known
        )

    @property
    def has_more_to_write(self) -> bool:
        """Whether states are being made again, so that reading again is not to wait."""
        return bool(self.context.made_again)

    def read_again(self) -> Steps[None]:
        """Reads again what could not be read, and goes on with what is readable now; and with states that somebody has
        deleted, so many versions of which are written at a time.
        """
        context = self.context
        context.versions_left = VERSIONS_PER_READING
        if not self._are_features_known:
            self._are_features_known = yield from self._set_up_features()
            if self._are_features_known:
                yield from self._brokers.process(self._broker_reader)
        if self._partitions.has_unreadable_configs:
            self._partitions.has_unreadable_configs = False
            yield from self._partitions.try_online()
        readable = yield from self._refresh(list(context.unreadable_partitions))
        mended = list(dict.fromkeys([*readable, *context.put_back_partitions]))
        context.put_back_partitions.clear()
        if mended:
            self._logger.info("The states of %d partitions can be read again, %s among them", len(mended), mended[0])
            # Their leaders do not know the znodes' versions, and brokers may have died meanwhile.
            yield from self._partitions.move(self._kept(mended), PartitionState.OFFLINE)
            yield from self._brokers.take_offline(
                [
                    PartitionReplica(partition, broker_id)
                    for partition in mended
                    for broker_id in context.assignment(partition).replicas
                    if not context.is_replica_online(broker_id, partition)
                ]
            )
            yield from self._brokers.send_update_metadata(context.live_or_shutting_down_brokers, mended)
            # A replica does not go offline, and is not deleted, while the state cannot be read.
            yield from self._deletion.resume()
        self.reassignments.note_changes(mended)
        yield from self.reassignments.retry()
        yield from self.reassignments.go_on()
        yield from self._brokers.settle_full_metadata()

    def reassignment_znode_changed(self) -> Steps[None]:
        """Somebody asks for reassignments by `/admin/reassign_partitions`."""
        yield from self.reassignments.process_znode()

    def isr_changes_announced(self) -> Steps[None]:
        """Leaders have changed ISRs themselves (inter.broker.protocol.version below 2.7): all are told."""
        context = self.context
        paths, announced = yield from read_isr_changes(self._watches, self._logger)
        assigned = [partition for partition in announced if context.assignment(partition).replicas]
        refreshed = yield from self._refresh(assigned)
        if refreshed:
            yield from self._brokers.send_update_metadata(context.live_or_shutting_down_brokers, refreshed)
        yield from delete_znodes(paths, context.epoch_version)
        self.reassignments.note_changes(refreshed)
        yield from self.reassignments.go_on()

    def log_dir_failures_announced(self) -> Steps[None]:
        """Log directories of brokers have failed: they are asked which of their replicas are offline. Their answers
        take them offline (`leader_and_isr_answered`).
        """
        paths, broker_ids = yield from read_log_dir_events(self._watches, self._logger)
        yield from self._brokers.ask_for_offline_replicas(broker_ids)
        # After the requests: a controller that takes over between the two asks every broker anyway.
        yield from delete_znodes(paths, self.context.epoch_version)

    # Events of requests.

    def alter_partition(self, request: AlterPartitionRequest, version: int) -> Steps[AlterPartitionResponse]:
        """Raises `KafkaError` when the request as a whole is refused. Reassignments that may end now wait for
        `Reassignments.go_on`, until the leader has its answer.
        """
        altered = yield from self._isr_changes.alter(request, version)
        if altered.changed:
            yield from self._brokers.send_update_metadata(self.context.live_or_shutting_down_brokers, altered.changed)
        if altered.outdated:
            self._logger.warning(
                "The states of partitions were written by others than their leaders, who do not know them: %s",
                ", ".join(map(str, altered.outdated)),
            )
            yield from self._elect_anew(altered.outdated)
        self.reassignments.note_changes(altered.changed)
        return altered.response

    def _elect_anew(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Begins a new leader epoch, so that the leaders learn what others have written into the znodes."""
        yield from self._partitions.move(self._kept(partitions), PartitionState.OFFLINE)
        yield from self._partitions.try_online()

    def _kept(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The partitions whose topic is not queued for deletion."""
        return [partition for partition in partitions if not self.context.is_queued_for_deletion(partition.topic)]

    def shut_down(self, broker_id: int, broker_epoch: int) -> Steps[list[TopicPartition]]:
        """Raises `KafkaError`."""
        return (yield from self._brokers.shut_down(broker_id, broker_epoch))

    def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> Steps[ProducerIdBlock]:
        """Raises `KafkaError`."""
        return (yield from allocate_producer_ids(self.context, broker_id, broker_epoch))

    def update_features(self, updates: Iterable[FeatureUpdate], *, validate_only: bool) -> Steps[UpdateOutcomes]:
        """Deletes finalized features, which lets brokers in that lacked them; says why others were refused. Raises
        `KafkaError`, INVALID_REQUEST, where `inter.broker.protocol.version` has no features.
        """
        if not self._settings.protocol.has_features:
            detail = "features need inter.broker.protocol.version 2.7 or newer"
            raise KafkaError(ErrorCode.INVALID_REQUEST, detail)
        outcomes = yield from update_features(updates, self.context.epoch_version, validate_only=validate_only)
        deleted = {feature for feature, refusal in outcomes.items() if refusal is None and not validate_only}
        if deleted:
            left = {name: level for name, level in self._broker_reader.features.items() if name not in deleted}
            self._broker_reader = BrokerReader(self._watches, left, self._logger)
            yield from self.brokers_changed()
        return outcomes

    def try_online(self, topic: str | None = None) -> Steps[None]:
        """Unclean elections became possible, for all topics or for one."""
        yield from self._partitions.try_online(topic)

    def allow_unclean_elections(self) -> Steps[None]:
        """The term has lasted for `unclean_election_delay_ms`."""
        yield from self._partitions.allow_unclean_elections()

    # Events of responses.

    def _is_present_life(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether the broker still has the epoch that a request was meant for; after a restart everything is asked
        again.
        """
        broker = self.context.live_or_shutting_down_brokers.get(broker_id)
        return broker is not None and broker.epoch == broker_epoch

    def leader_and_isr_answered(self, broker_id: int, broker_epoch: int, response: LeaderAndIsrResponse) -> Steps[None]:
        """Replicas whose log directory has failed go offline; those that answer without error are online again."""
        context = self.context
        if response.error_code:
            yield from self._refused(broker_id, "LeaderAndIsr", response.error_code)
            return
        if not self._is_present_life(broker_id, broker_epoch):
            return
        known = context.offline_log_dir_partitions(broker_id)
        failed: dict[TopicPartition, None] = {}
        back: dict[TopicPartition, None] = {}
        for partition, error_code in self._errors_of_leader_and_isr(response):
            if error_code == ErrorCode.KAFKA_STORAGE_ERROR and partition not in known:
                # One that has left the broker since it was asked is nobody's any more.
                if broker_id in context.assignment(partition).replicas:
                    failed[partition] = None
            elif error_code == ErrorCode.NONE and partition in known:
                back[partition] = None
        context.log_dirs_work(broker_id, back)
        if failed:
            context.log_dirs_failed(broker_id, failed)
            offline = [PartitionReplica(partition, broker_id) for partition in failed]
            yield (self._error(f"{len(offline)} replicas on broker {broker_id} are offline, {offline[0]} among them"),)
            yield from self._brokers.take_offline(offline)
            yield from self.reassignments.tell_waiting_for([broker_id])

    def _errors_of_leader_and_isr(self, response: LeaderAndIsrResponse) -> Iterator[tuple[TopicPartition, int]]:
        """Of each partition of a topic that there is, whichever way the version names it."""
        for error in response.partition_errors:
            if self.context.has_topic(error.topic_name):
                yield TopicPartition(error.topic_name, error.partition_index), error.error_code
        for topic in response.topics:
            name = self.context.topic_name(Uuid(topic.topic_id))
            if name is not None:
                for error in topic.partition_errors:
                    yield TopicPartition(name, error.partition_index), error.error_code

    def update_metadata_answered(self, broker_id: int, response: UpdateMetadataResponse) -> Steps[None]:
        if response.error_code:
            yield from self._refused(broker_id, "UpdateMetadata", response.error_code)

    def _refused(self, broker_id: int, what: str, error_code: int) -> Steps[None]:
        """A broker that has heard of a later epoch obeys this controller never again: the next one has another epoch.

        There is a later controller, or somebody has set the znode of the epoch back. Raises `ControllerMovedError`.
        """
        code = ErrorCode.for_code(error_code)
        yield (self._error(f"broker {broker_id} refused {what}: {code.name}"),)
        if code is ErrorCode.STALE_CONTROLLER_EPOCH:
            raise ControllerMovedError(
                f"broker {broker_id} has heard of a controller of a later epoch than {self.context.epoch}"
            )

    def replicas_deleted(
        self, broker_id: int, request: StopReplicaRequest, response: StopReplicaResponse
    ) -> Steps[None]:
        """A broker has answered a deletion: topics of replicas that it did not delete are held."""
        if not self._is_present_life(broker_id, request.broker_epoch):
            return
        errors = _errors_of_stop_replica(response)
        failed: list[PartitionReplica] = []
        deleted: list[PartitionReplica] = []
        for partition, _, delete in stopped_partitions(request):
            if delete and self.context.is_deletion_started(partition.topic):
                # A replica that the response does not name was not deleted.
                code = response.error_code or errors.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
                replica = PartitionReplica(partition, broker_id)
                if broker_id not in self.context.assignment(partition).replicas:
                    # It left the partition before the topic was to be deleted.
                    continue
                if code:
                    yield (self._error(f"replica {replica} was not deleted: {ErrorCode.for_code(code).name}"),)
                    failed.append(replica)
                else:
                    deleted.append(replica)
        if failed:
            yield from self._deletion.fail(failed)
        if deleted:
            yield from self._deletion.complete(deleted)

    def _error(self, text: str) -> StateChange:
        return StateChange(logging.ERROR, f"controller {self._settings.broker_id} epoch {self.context.epoch}: {text}")


def _errors_of_stop_replica(response: StopReplicaResponse) -> Mapping[TopicPartition, int]:
    return {
        TopicPartition(error.topic_name, error.partition_index): error.error_code for error in response.partition_errors
    }
