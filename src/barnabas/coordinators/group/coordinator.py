"""The group coordinator of one broker: the groups of the partitions of `__consumer_offsets` that it leads.

Requests of members go to their group's state machine, commits to its offsets; both are answered when what they decided
is committed. `deletions` has what takes groups and offsets away.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from barnabas.coordinators.consumer_group.classic_requests import ClassicRequests
from barnabas.coordinators.consumer_group.coordinator import MEMBER_ERRORS, ConsumerGroups
from barnabas.coordinators.consumer_group.heartbeats import ConsumerHeartbeat
from barnabas.coordinators.consumer_group.hosted import (
    GROUP_ID_NOT_FOUND_SINCE,
    LATEST_OFFSET_COMMIT,
    HostedConsumerGroup,
)
from barnabas.coordinators.consumer_group.topics import NO_TOPICS, GroupTopics
from barnabas.coordinators.group import membership
from barnabas.coordinators.group.background import BackgroundSteps
from barnabas.coordinators.group.classic_members import ClassicMembers
from barnabas.coordinators.group.commits import (
    Codes,
    PreparedCommit,
    append_commit,
    append_transactional_commit,
    prepared_commit,
)
from barnabas.coordinators.group.deletions import GroupDeletions
from barnabas.coordinators.group.descriptions import described_consumer_group, described_group, listed_groups
from barnabas.coordinators.group.effect_runner import AnyGroup, GroupEffectRunner, GroupHandle, Groups
from barnabas.coordinators.group.effects import Reply, Stored, StoredAssignment, TimerKey, TimerKind
from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.loading import GroupLoader
from barnabas.coordinators.group.member import Client
from barnabas.coordinators.group.metrics import GroupMetrics
from barnabas.coordinators.group.rebalance import prepare_rebalance_if_possible, resume_rebalance
from barnabas.coordinators.group.records import CommittedOffset
from barnabas.coordinators.group.settings import GroupSettings
from barnabas.coordinators.group.states import GroupState
from barnabas.coordinators.placement import partition_for
from barnabas.coordinators.ports import InternalLog
from barnabas.coordinators.shard import Shard, ShardSettings
from barnabas.coordinators.shard_runtime import ShardRuntime
from barnabas.kernel.host import Host
from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.kernel.logs import Logs
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.scheduler import Scheduler
from barnabas.kernel.steps import STEP_ELEMENTS, StepRunner, Steps, at_once, each
from barnabas.kernel.timers import Timers
from barnabas.wire.compression_types import Compression
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    ConsumerGroupDescribeResponse,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsResponse,
    SyncGroupRequest,
)
from barnabas.wire.topics import OFFSETS_TOPIC, TopicPartition

_EXPIRY_TASK: Final = "delete-expired-group-metadata"
_PLACEMENTS_MAX: Final = 100_000
_COMPLETED_PER_STEP: Final = 2_048


class FetchedOffset(NamedTuple):
    """The answer for one partition; `committed` is None where there is no offset, or an error."""

    partition: TopicPartition
    committed: CommittedOffset | None
    error: ErrorCode = ErrorCode.NONE


class GroupCoordinator:
    """The coordinator's requests, and its comings and goings as leader of partitions.

    Methods raise `KafkaError` for what concerns the whole group: INVALID_GROUP_ID, NOT_COORDINATOR,
    COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.
    """

    def __init__(
        self,
        broker_id: int,
        settings: GroupSettings,
        *,
        host: Host,
        timers: Timers,
        scheduler: Scheduler,
        steps: StepRunner,
        log: InternalLog,
        metrics: MetricsRegistry,
        logs: Logs,
        topics: GroupTopics = NO_TOPICS,
    ) -> None:
        """`topics` are what members of the consumer protocol are assigned partitions of."""
        self.broker_id = broker_id
        self._topics = topics
        self._settings = settings
        self._host = host
        self._scheduler = scheduler
        self._logger = logs.logger("kafka.coordinator.group.GroupCoordinator")
        self._manager_logger = logs.logger("kafka.coordinator.group.GroupMetadataManager")
        self._versions = settings.value_versions
        self._allows_static_members = settings.allows_static_members
        self._background = BackgroundSteps(host.loop, steps, self._manager_logger)
        self._effects = GroupEffectRunner(
            host, timers, self._versions, self._manager_logger, self._on_stored, self._background
        )
        self._groups: Groups = {}
        """The groups of all active shards."""
        self._metrics = GroupMetrics(metrics, self._each_group, self._effects, host.loop)
        self._deletions = GroupDeletions(
            self._groups,
            self._effects,
            settings,
            self._metrics,
            self._manager_logger,
            host.loop,
            steps,
            self._background,
        )
        self._consumer = ConsumerGroups(
            settings,
            host=host,
            topics=topics,
            effects=self._effects,
            background=self._background,
            find=self._find,
            create=self._create_as,
            discard=self._discard,
            on_rebalance=self._metrics.count_consumer_rebalance,
            logger=self._logger,
        )
        self._classic = self._classic_members()
        self._runtime: ShardRuntime[Groups, GroupLoader] = ShardRuntime(
            OFFSETS_TOPIC,
            host=host,
            timers=timers,
            log=log,
            settings=ShardSettings(
                settings.load_buffer_bytes, settings.commit_timeout_ms, Compression(settings.compression)
            ),
            steps=steps,
            new_loader=lambda shard: GroupLoader(
                settings, self._logger, self._effects.now(), lambda group: GroupHandle(group, shard)
            ),
            take_content=GroupLoader.take,
            on_loaded=self._loaded,
            on_unloaded=self._unloaded,
            logger=self._manager_logger,
        )
        self._placements: dict[str, int] = {}
        self._is_active = False
        self._partition_count: int | None = None

    def _classic_members(self) -> ClassicMembers:
        return ClassicMembers(
            self._settings,
            host=self._host,
            effects=self._effects,
            find=self._find,
            create=self._create,
            consumer=ClassicRequests(self._settings, self._consumer, self._topics, self._logger),
            logger=self._logger,
        )

    def start(self, partition_count: int | None) -> None:
        """`partition_count` is that of `__consumer_offsets`, or what it will be created with; None while that cannot be
        read, until `place`.
        """
        self.place(partition_count)
        self._is_active = True
        self._scheduler.schedule(
            _EXPIRY_TASK, self._deletions.expire_offsets, period_ms=self._settings.retention_check_interval_ms
        )
        self._logger.info("Group coordinator of broker %d started", self.broker_id)

    async def stop(self) -> None:
        """Hands everything back: what is parked is answered NOT_COORDINATOR, what comes COORDINATOR_NOT_AVAILABLE."""
        self._is_active = False
        task = self._scheduler.tasks.get(_EXPIRY_TASK)
        if task is not None:
            task.cancel()
        await self._runtime.stop()
        await self._deletions.stop()
        await self._background.stop()
        self._metrics.remove()

    def place(self, partition_count: int | None) -> None:
        """`__consumer_offsets` was made anew, with so many partitions; None while that is not known yet.

        The count must not change while the topic lives: it says where the records of each group are.
        """
        if partition_count != self._partition_count:
            self._partition_count = partition_count
            self._placements.clear()

    def partition_for(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that has the group. Raises KafkaError COORDINATOR_NOT_AVAILABLE while
        it is not known how many there are.
        """
        if self._partition_count is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        index = self._placements.get(group_id)
        if index is None:
            if len(self._placements) >= _PLACEMENTS_MAX:
                self._placements.clear()
            index = self._placements[group_id] = partition_for(group_id, self._partition_count)
        return index

    @property
    def offset_metadata_max(self) -> int:
        """How long the text beside an offset may be, in UTF-16 code units."""
        return self._settings.offset_metadata_max

    def check_static_name(self, group_instance_id: str | None) -> None:
        """Raises KafkaError UNSUPPORTED_VERSION for a static member where a broker may be too old for such."""
        if group_instance_id is not None and not self._allows_static_members:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)

    # Leadership of partitions.

    def on_elected(self, partition_index: int, leader_epoch: int, topic_id: Uuid = ZERO_UUID) -> None:
        """This broker leads the partition: its groups are loaded."""
        self._runtime.elect(partition_index, leader_epoch, topic_id)

    def on_resigned(self, partition_index: int, leader_epoch: int | None, topic_id: Uuid = ZERO_UUID) -> None:
        """This broker leads the partition no more; None for whatever epoch that is as of."""
        self._runtime.resign(partition_index, leader_epoch, topic_id)

    def on_deleted(self, partition_index: int) -> None:
        """The partition of `__consumer_offsets` is deleted, with its groups; another may take its place."""
        self._runtime.forget(partition_index)

    def on_partitions_deleted(self, partitions: Iterable[TopicPartition]) -> None:
        """Topics are gone: so are the offsets that groups had in them."""
        self._deletions.remove_offsets_of(list(partitions))

    def complete_transaction(
        self, partition_index: int, producer_id: int, on_done: Callable[[], object], *, is_commit: bool
    ) -> None:
        """The marker that ends the producer's transaction is committed in that partition: its offsets are shown, or
        forgotten. Calls `on_done` once, when that is so of all groups there; at once while they are not loaded, since
        whoever loads them finds the marker.

        The producer must commit nothing in its next transaction before that.
        """
        try:
            groups = self._runtime.shard(partition_index).content
        except KafkaError:
            on_done()
            return

        def complete() -> Steps[None]:
            try:
                yield from each(
                    lambda handle: handle.group.offsets.complete_transaction(producer_id, is_commit=is_commit),
                    list(groups.values()),
                    _COMPLETED_PER_STEP,
                )
            finally:
                on_done()

        self._background.run(complete(), f"complete-transaction-{producer_id}")

    def _loaded(self, shard: Shard[Groups], groups: Groups, seconds: float) -> Steps[None]:
        self._metrics.partition_load_time_ms.update(round(seconds * 1000))
        of_consumers = (each.group for each in groups.values() if isinstance(each.group, HostedConsumerGroup))
        first = next(of_consumers, None)
        if first is not None and first.gate.loaded is not None:
            shard.when_all_committed(first.gate.loaded.committed)
        self._groups.update(groups)
        return self._expect_loaded(list(groups.values()))

    def _expect_loaded(self, loaded: list[GroupHandle]) -> Steps[None]:
        """Expects to hear of the members of the groups from now on. Requests may have come to a group before this."""
        left = STEP_ELEMENTS
        for handle in loaded:
            group = handle.group
            if self._groups.get(group.group_id) is handle:
                if isinstance(group, Group):
                    self._expect_classic(handle, group)
                else:
                    self._consumer.timeouts.expect_loaded(handle, group)
            left -= 1 + group.member_count
            if left <= 0:
                yield
                left = STEP_ELEMENTS

    def _expect_classic(self, handle: GroupHandle, group: Group) -> None:
        now = self._effects.now()
        if len(group.members) > self._settings.size_max:
            prepare_rebalance_if_possible(
                group,
                now,
                f"Freshly-loaded group is over capacity ({self._settings.size_max}). Rebalancing in order to "
                "give a chance for consumers to commit offsets",
            )
        membership.expect_loaded_members(group, now)
        if group.state is GroupState.PREPARING_REBALANCE and TimerKey(TimerKind.JOIN) not in handle.timers:
            resume_rebalance(group, now)
        self._effects.perform(handle)

    def _unloaded(self, _shard: Shard[Groups], groups: Groups) -> Steps[None]:
        """No request finds the groups any more; what is parked in them is answered in steps."""
        for group_id in groups:
            self._groups.pop(group_id, None)
        return self._unload(groups)

    def _unload(self, groups: Groups) -> Steps[None]:
        left = STEP_ELEMENTS
        while groups:
            group_id, handle = groups.popitem()
            left -= 1 + handle.group.member_count
            try:
                self._effects.unload(handle)
            except Exception:
                self._manager_logger.exception("Unloading group %s failed", group_id)
            yield from handle.group.offsets.emptied()
            if left <= 0:
                yield
                left = STEP_ELEMENTS

    # Members.

    def join_group(self, request: JoinGroupRequest, client: Client, version: int, reply: Reply) -> None:
        """`reply` takes the JoinGroupResponse, now or when the next generation begins."""
        self._classic.join_group(request, client, version, reply)

    def sync_group(self, request: SyncGroupRequest, reply: Reply) -> None:
        """`reply` takes the SyncGroupResponse, now or when the leader's assignment is committed."""
        self._classic.sync_group(request, reply)

    def heartbeat(self, request: HeartbeatRequest) -> ErrorCode:
        """NONE, or why the member is to join again. While the group is loading it is taken at its word."""
        return self._classic.heartbeat(request)

    def leave_group(
        self, group_id: str, leaving: Sequence[LeaveGroupRequest.MemberIdentity]
    ) -> list[LeaveGroupResponse.MemberResponse]:
        """The outcome for each member, in order; to be told `when_known`."""
        return self._classic.leave_group(group_id, leaving)

    def when_known(self, group_id: str, on_known: Callable[[ErrorCode], None]) -> None:
        """Calls with NONE when all that members of a consumer group may be told is committed, at once for any other
        group, and with an error where it was not in time.
        """
        handle = self._groups.get(group_id)
        if handle is not None and isinstance(handle.group, HostedConsumerGroup):
            handle.group.gate.when_known(lambda error: on_known(MEMBER_ERRORS.get(error, error)))
        else:
            on_known(ErrorCode.NONE)

    def consumer_group_heartbeat(self, request: ConsumerHeartbeat, reply: Reply) -> None:
        """`reply` takes the ConsumerGroupHeartbeatResponse, now or when what it tells is committed."""
        self._consumer.heartbeat(request, reply)

    def topics_changed(self) -> None:
        """The topics that `topics` gives are others than before."""
        self._consumer.topics_changed()

    # Offsets.

    def commit_offsets(
        self,
        *,
        group_id: str,
        generation: int,
        member_id: str,
        group_instance_id: str | None,
        offsets: Mapping[TopicPartition, CommittedOffset],
        on_done: Callable[[Codes], None],
    ) -> None:
        """`on_done` takes the outcome for each partition when it is known; KafkaError for one that concerns them all.

        A group that does not exist is made by a commit outside of any generation.
        """
        self.commit_prepared(
            group_id=group_id,
            generation=generation,
            member_id=member_id,
            group_instance_id=group_instance_id,
            prepared=at_once(self.prepare_commit(group_id, offsets)),
            on_done=on_done,
        )

    def prepare_commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        transaction: tuple[int, int] | None = None,
    ) -> Steps[PreparedCommit]:
        """Does what does not depend on the group's state, and takes long where there are very many offsets. With the id
        and epoch of a producer the offsets are part of its `transaction`.
        """
        now_ms, version = self._effects.now().time_ms, self._versions.offset
        return (yield from prepared_commit(group_id, offsets, now_ms, version, self._settings, transaction))

    def commit_prepared(
        self,
        *,
        group_id: str,
        generation: int,
        member_id: str,
        group_instance_id: str | None,
        prepared: PreparedCommit,
        on_done: Callable[[Codes], None],
        producer_id: int | None = None,
        version: int = LATEST_OFFSET_COMMIT,
    ) -> None:
        """As `commit_offsets`, by a request of that version; whether the member may commit is decided now. With a
        `producer_id` in its transaction: the offsets are seen when that is committed (`complete_transaction`), and
        until then as unstable.
        """
        handle = self._find(group_id, may_be_empty=producer_id is None)
        if handle is None:
            if generation >= 0 and producer_id is None:
                is_new = version >= GROUP_ID_NOT_FOUND_SINCE and self._settings.offers_consumer_protocol
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if is_new else ErrorCode.ILLEGAL_GENERATION)
            self._logger.info("Creating simple consumer group %s via manual offset commit", group_id)
            handle = self._create(group_id)
        group = handle.group
        if isinstance(group, Group):
            error = membership.accept_commit(
                group,
                self._effects.now(),
                generation=generation,
                member_id=member_id,
                group_instance_id=group_instance_id,
                is_transactional=producer_id is not None,
            )
            self._effects.perform(handle)
        else:
            error = group.accept_commit(
                generation, member_id, version=version, is_transactional=producer_id is not None
            )
        if error is not ErrorCode.NONE:
            raise KafkaError(error)

        if not prepared.accepted:
            on_done(dict.fromkeys(prepared.offsets, ErrorCode.OFFSET_METADATA_TOO_LARGE))
            return
        self._deletions.before_commit(handle, prepared.accepted)
        if producer_id is None:
            append_commit(handle, prepared, self._background, self._metrics, on_done)
        else:
            append_transactional_commit(handle, prepared, producer_id, self._background, on_done)

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Raises KafkaError STALE_MEMBER_EPOCH or UNKNOWN_MEMBER_ID where a member of a group of the consumer protocol
        is not, or no more, what it says; classic members do not say.
        """
        handle = self._find(group_id, may_be_empty=True)
        if handle is not None and isinstance(handle.group, HostedConsumerGroup):
            error = handle.group.accept_fetch(member_id, member_epoch)
            if error is not ErrorCode.NONE:
                raise KafkaError(error)

    def fetch_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None, *, require_stable: bool
    ) -> list[FetchedOffset]:
        """The committed offsets of the partitions, or of all that have one.

        With `require_stable` a partition whose offset is changing is answered UNSTABLE_OFFSET_COMMIT (KIP-447).
        """
        handle = self._find(group_id, may_be_empty=True)
        if handle is None:
            return [FetchedOffset(partition, None) for partition in partitions or ()]
        offsets = handle.group.offsets
        is_deleted = functools.partial(self._deletions.is_deleted, handle)
        if partitions is None:
            partitions = [partition for partition in offsets.partitions if not is_deleted(partition)]

        def fetched(partition: TopicPartition) -> FetchedOffset:
            if is_deleted(partition):
                return FetchedOffset(partition, None)
            if require_stable and offsets.is_unstable(partition):
                return FetchedOffset(partition, None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            return FetchedOffset(partition, offsets.get(partition))

        return [fetched(partition) for partition in partitions]

    def committed_partitions(self, group_id: str) -> list[TopicPartition]:
        """Those of which the group has an offset, of deleted topics perhaps."""
        handle = self._find(group_id, may_be_empty=True)
        return [] if handle is None else list(handle.group.offsets.partitions)

    def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition], on_done: Callable[[Codes], None]
    ) -> None:
        """Deletes offsets of an empty group, or of topics that a group of consumers is not subscribed to.

        `on_done` takes the outcome for each partition when it is known. Raises also GROUP_ID_NOT_FOUND and
        NON_EMPTY_GROUP.
        """
        handle = self._find(group_id)
        if handle is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        self._deletions.delete_offsets(handle, partitions, on_done)

    # Groups.

    def delete_groups(self, group_ids: Iterable[str], on_done: Callable[[dict[str, ErrorCode]], None]) -> None:
        """Deletes empty groups with their offsets; `on_done` takes the outcome for each when all are known."""
        found: dict[str, GroupHandle | ErrorCode] = {}
        for group_id in group_ids:
            try:
                found[group_id] = self._find(group_id, may_be_empty=True) or ErrorCode.GROUP_ID_NOT_FOUND
            except KafkaError as error:
                found[group_id] = error.code
        self._deletions.delete_groups(found, on_done)

    def list_groups(
        self, states: Collection[str], types: Collection[str]
    ) -> tuple[ErrorCode, list[ListGroupsResponse.ListedGroup]]:
        """The groups in one of the states and of one of the types, whatever their case; of all where there is none."""
        return at_once(self.list_groups_in_steps(states, types))

    def list_groups_in_steps(
        self, states: Collection[str], types: Collection[str]
    ) -> Steps[tuple[ErrorCode, list[ListGroupsResponse.ListedGroup]]]:
        """As `list_groups`; groups that come meanwhile are not in it."""
        if not self._is_active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self._runtime.is_loading else ErrorCode.NONE
        return error, (yield from listed_groups(self._groups, states, types))

    def describe_group(self, group_id: str) -> DescribeGroupsResponse.DescribedGroup:
        """The classic group with its members; one that does not exist is Dead. Errors are in the answer."""
        try:
            handle = self._find(group_id, may_be_empty=True)
        except KafkaError as error:
            return DescribeGroupsResponse.DescribedGroup(group_id=group_id, error_code=error.code)
        return described_group(group_id, handle)

    def describe_consumer_group(
        self, group_id: str, on_known: Callable[[ErrorCode], None]
    ) -> Steps[ConsumerGroupDescribeResponse.DescribedGroup]:
        """The group of the consumer protocol; errors are in the answer. `on_known` is called once, when what is told is
        committed, or was not in time.
        """
        try:
            handle = self._find(group_id)
        except KafkaError as error:
            on_known(ErrorCode.NONE)
            return ConsumerGroupDescribeResponse.DescribedGroup(group_id=group_id, error_code=error.code)
        default = self._consumer.default_assignor
        return (yield from described_consumer_group(group_id, handle, default, self._topics, on_known))

    # Inside.

    def _find(self, group_id: str, *, may_be_empty: bool = False) -> GroupHandle | None:
        """The group, or None where this broker coordinates it and it does not exist.

        The empty id is one that clients before group management committed with; it has no members.
        """
        if not group_id and not may_be_empty:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        if not self._is_active:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        handle = self._groups.get(group_id)
        if handle is None:
            self._runtime.shard(self.partition_for(group_id))
        return handle

    def _create(self, group_id: str) -> GroupHandle:
        return self._create_as(Group(group_id, self._settings, self._logger, self._effects.now()))

    def _create_as(self, group: AnyGroup) -> GroupHandle:
        group_id = group.group_id
        shard = self._runtime.shard(self.partition_for(group_id))
        if self._deletions.is_being_deleted(group_id):
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)  # as Kafka's groups that are Dead and not gone yet
        handle = GroupHandle(group, shard)
        shard.content[group_id] = self._groups[group_id] = handle
        return handle

    def _discard(self, handle: GroupHandle) -> None:
        """Takes a group out again of which the log has nothing."""
        group_id = handle.group.group_id
        if self._groups.get(group_id) is handle:
            del self._groups[group_id]
            handle.shard.content.pop(group_id, None)

    def _on_stored(self, stored: Stored) -> None:
        self._metrics.completed_rebalances.count += isinstance(stored, StoredAssignment)

    def _each_group(self) -> Iterator[AnyGroup]:
        return (handle.group for handle in self._groups.values())
