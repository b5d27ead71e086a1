"""What a LeaderAndIsr request makes of the partitions that it names: leaders, and followers that fetch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from barnabas.follower.fetcher_partitions import FetchedPartition, FetchPhase
from barnabas.kernel.ids import ZERO_UUID
from barnabas.leader.partition import Partition
from barnabas.replicas.leader_and_isr import RequestedPartition, Verdict, judge
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.sentinels import NO_EPOCH

if TYPE_CHECKING:
    import logging

    from barnabas.cluster.image import Node
    from barnabas.cluster.metadata_cache import MetadataCache
    from barnabas.follower.fetcher_manager import FetcherManager
    from barnabas.log.manager.log_manager import LogManager
    from barnabas.log.partition.log_config import LogConfig
    from barnabas.log.partition.partition_log import PartitionLog
    from barnabas.replicas.deletion_fence import DeletionFence
    from barnabas.replicas.high_watermark_checkpoint import HighWatermarkCheckpoints
    from barnabas.replicas.hosted_replicas import HostedReplicas
    from barnabas.wire.topics import TopicPartition


class RoleOutcome(NamedTuple):
    """What became of a request's partitions."""

    errors: dict[TopicPartition, ErrorCode]
    """Of each partition, NONE included."""
    became_leader: list[Partition]
    """Those that did not lead before."""
    became_follower: list[Partition]
    """Those that follow in a new epoch, and have to be fetched anew."""
    went_offline: list[Partition]
    """Those of which the log could not be had: they are not here any more."""


class RoleChanges:
    """Has partitions lead or follow as the controller says.

    Invariant: a partition that leads has no fetcher.
    """

    def __init__(
        self,
        broker_id: int,
        hosted: HostedReplicas,
        *,
        deleted: DeletionFence,
        fetchers: FetcherManager,
        checkpoints: HighWatermarkCheckpoints,
        log_manager: LogManager,
        log_config: Callable[[str], LogConfig],
        metadata_cache: MetadataCache,
        listener_name: str,
        logger: logging.Logger,
    ) -> None:
        """`listener_name` is that by which leaders are reached; `logger` that of state changes."""
        self.is_stopping = False
        """No fetcher is started any more."""
        self._broker_id = broker_id
        self._hosted = hosted
        self._deleted = deleted
        self._fetchers = fetchers
        self._checkpoints = checkpoints
        self._log_manager = log_manager
        self._log_config = log_config
        self._metadata_cache = metadata_cache
        self._listener_name = listener_name
        self._state_changes = logger

    def apply(self, requested: Sequence[RequestedPartition], *, is_kraft_controller: bool) -> RoleOutcome:
        """Takes over what is said of each partition, without a break."""
        errors: dict[TopicPartition, ErrorCode] = {}
        leads: list[tuple[Partition, RequestedPartition]] = []
        follows: list[tuple[Partition, RequestedPartition]] = []
        for partition in requested:
            self._sort(partition, leads, follows, errors, is_kraft_controller=is_kraft_controller)
        went_offline: list[Partition] = []
        became_leader = self._lead(leads, errors, went_offline)
        became_follower = self._follow(follows, errors, went_offline)
        self._fetchers.close_idle()
        return RoleOutcome(errors, became_leader, became_follower, went_offline)

    def _sort(
        self,
        requested: RequestedPartition,
        leads: list[tuple[Partition, RequestedPartition]],
        follows: list[tuple[Partition, RequestedPartition]],
        errors: dict[TopicPartition, ErrorCode],
        *,
        is_kraft_controller: bool,
    ) -> None:
        """Judges one partition of a request."""
        topic_partition, leader_epoch = requested.topic_partition, requested.state.leader_epoch
        if topic_partition in self._hosted.offline:
            self._refuse(requested, ErrorCode.KAFKA_STORAGE_ERROR, errors)
            return
        partition = self._hosted.partitions.get(topic_partition)
        if partition is None and self._deleted.is_gone(topic_partition, requested.topic_id, leader_epoch):
            self._refuse(requested, ErrorCode.STALE_CONTROLLER_EPOCH, errors)
            return
        log = None if partition is None else partition.log
        if log is None:
            log = self._log_manager.get_log(topic_partition)
        judgement = judge(
            requested,
            self._broker_id,
            leader_epoch=NO_EPOCH if partition is None else partition.leader_epoch,
            topic_id=ZERO_UUID if log is None or log.topic_id is None else log.topic_id,
            is_kraft_controller=is_kraft_controller,
        )
        match judgement.verdict:
            case Verdict.REFUSE:
                self._refuse(requested, judgement.error, errors)
            case Verdict.TAKE_TOPIC_ID:
                if log is not None:
                    log.assign_topic_id(requested.topic_id)
                    self._fetchers.take_topic_id(topic_partition, requested.topic_id)
                errors[topic_partition] = ErrorCode.NONE
            case Verdict.LEAD | Verdict.FOLLOW:
                if partition is None:
                    partition = self._hosted.add(topic_partition)
                errors[topic_partition] = ErrorCode.NONE
                (leads if judgement.verdict is Verdict.LEAD else follows).append((partition, requested))

    def _refuse(self, requested: RequestedPartition, error: ErrorCode, errors: dict[TopicPartition, ErrorCode]) -> None:
        errors[requested.topic_partition] = error
        self._state_changes.info(
            "Ignoring LeaderAndIsr for partition %s at leader epoch %d, controller epoch %d: %s",
            *(requested.topic_partition, requested.state.leader_epoch, requested.state.controller_epoch, error.name),
        )

    def _lead(
        self,
        leads: list[tuple[Partition, RequestedPartition]],
        errors: dict[TopicPartition, ErrorCode],
        went_offline: list[Partition],
    ) -> list[Partition]:
        self._fetchers.remove(requested.topic_partition for _, requested in leads)
        became: list[Partition] = []
        for partition, requested in leads:
            try:
                if partition.become_leader(requested.state, functools.partial(self._make_log, requested)):
                    became.append(partition)
            except KafkaError as error:
                self._failed_to_become(partition, error, errors)
                went_offline.append(partition)
        return became

    def _follow(
        self,
        follows: list[tuple[Partition, RequestedPartition]],
        errors: dict[TopicPartition, ErrorCode],
        went_offline: list[Partition],
    ) -> list[Partition]:
        image = self._metadata_cache.image
        became: list[Partition] = []
        for partition, requested in follows:
            try:
                if image.is_alive(requested.state.leader):
                    if partition.become_follower(requested.state, functools.partial(self._make_log, requested)):
                        became.append(partition)
                else:
                    self._state_changes.error(
                        "Cannot become follower of partition %s at leader epoch %d: the leader %d is not alive",
                        *(requested.topic_partition, requested.state.leader_epoch, requested.state.leader),
                    )
                    partition.create_log(functools.partial(self._make_log, requested))
            except KafkaError as error:
                self._failed_to_become(partition, error, errors)
                went_offline.append(partition)
        # Their fetchers must be out of the way before it is known from where to fetch.
        self._fetchers.remove(partition.topic_partition for partition in became)
        if not self.is_stopping:
            self._fetch(became)
        return became

    def _fetch(self, partitions: Iterable[Partition]) -> None:
        wanted: dict[Node, list[FetchedPartition]] = {}
        for partition in partitions:
            leader = self._metadata_cache.image.node(partition.leader_id, self._listener_name)
            log = partition.log
            if leader is None or log is None:
                self._state_changes.error(
                    "Not fetching partition %s: its leader %d has no listener %s",
                    *(partition.topic_partition, partition.leader_id, self._listener_name),
                )
                continue
            epoch = log.latest_epoch
            is_known = epoch is not None and self._fetchers.truncates_on_fetch
            wanted.setdefault(leader, []).append(
                FetchedPartition(
                    partition,
                    partition.topic_id,
                    partition.leader_epoch,
                    log.high_watermark if epoch is None else log.append_end_offset,
                    NO_EPOCH if epoch is None else epoch,
                    FetchPhase.FETCHING if is_known else FetchPhase.TRUNCATING,
                )
            )
        self._fetchers.add(wanted)

    def _make_log(self, requested: RequestedPartition) -> PartitionLog:
        """The partition's log, made where there is none. Raises KafkaError with KAFKA_STORAGE_ERROR."""
        topic_partition = requested.topic_partition
        topic_id = None if requested.topic_id == ZERO_UUID else requested.topic_id
        config = self._log_config(topic_partition.topic)
        log = self._log_manager.get_or_create_log(
            topic_partition, is_new=requested.state.is_new, topic_id=topic_id, config=config
        )
        if topic_id is not None and log.topic_id is None:
            log.assign_topic_id(topic_id)
        self._checkpoints.restore(log)
        return log

    def _failed_to_become(
        self, partition: Partition, error: KafkaError, errors: dict[TopicPartition, ErrorCode]
    ) -> None:
        errors[partition.topic_partition] = error.code
        self._state_changes.error(
            "Skipped the state change for partition %s since its replica is offline: %s",
            *(partition.topic_partition, error),
        )
        self._fetchers.remove((partition.topic_partition,))
        self._hosted.take_offline(partition)
