"""A group coordinator over a log in memory, in virtual time, and members that talk to it."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from typing import Any, cast

from barnabas.coordinators.consumer_group.topics import NO_TOPICS, GroupTopics
from barnabas.coordinators.group.commits import Codes
from barnabas.coordinators.group.coordinator import GroupCoordinator
from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.member import Client
from barnabas.coordinators.group.records import NO_EXPIRATION, CommittedOffset
from barnabas.coordinators.group.settings import GroupSettings
from barnabas.kernel.host import Host
from barnabas.kernel.logs import Logs
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.scheduler import Scheduler
from barnabas.kernel.steps import StepRunner
from barnabas.kernel.timers import Timers
from barnabas.wire.codec import encode_prefixed
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from barnabas.wire.topics import OFFSETS_TOPIC, TopicPartition
from tests.unit.coordinators.memory_log import MemoryLog
from tests.unit.kernel.virtual_loop import VirtualLoop

EPOCH_MS = 1_700_000_000_000
PARTITIONS = 50
SESSION_MS = 10_000
REBALANCE_MS = 30_000
LATEST = 9
"""The newest version of JoinGroup."""
BEFORE_MEMBER_IDS = 3
"""One in which members need no id of before."""


class LoopClock:
    """A wall clock that goes as the loop does."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def time_ms(self) -> int:
        return EPOCH_MS + round(self._loop.time() * 1000)

    def stopwatch(self) -> float:
        return self._loop.time()


class CountingEntropy:
    """Random bytes that tell apart, and are the same each time."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def __call__(self, count: int, /) -> bytes:
        return next(self._numbers).to_bytes(count, "big")


class GroupWorld:
    """One broker that leads every partition of `__consumer_offsets`. Close it after use."""

    def __init__(self, topics: GroupTopics = NO_TOPICS, **settings: Any) -> None:
        self.loop = VirtualLoop()
        self.clock = LoopClock(self.loop)
        self.log = MemoryLog()
        self.settings = dataclasses.replace(GroupSettings(), **settings)
        self.lines: list[str] = []
        self.metrics = MetricsRegistry(self.loop.time)
        self.host = cast("Host", _HostOfLoop(self.loop, self.clock))
        self.timers = Timers(self.loop)
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]
        self.logs = Logs("broker-1", self.clock, handler)
        self.scheduler = Scheduler(self.loop, self.timers, self.logs.logger("scheduler"))
        self.steps = StepRunner(self.loop)
        self.coordinator = GroupCoordinator(
            1,
            self.settings,
            host=self.host,
            timers=self.timers,
            scheduler=self.scheduler,
            steps=self.steps,
            log=self.log,
            metrics=self.metrics,
            logs=self.logs,
            topics=topics,
        )
        self.coordinator.start(PARTITIONS)

    def close(self) -> None:
        self.loop.run_until_complete(self.coordinator.stop())
        self.loop.run_until_complete(self.scheduler.stop(1000))
        self.timers.close()
        self.loop.close()

    def pass_ms(self, duration_ms: float) -> None:
        self.loop.run_until_complete(self.timers.sleep(duration_ms))

    def partition_of(self, group_id: str) -> TopicPartition:
        return TopicPartition(OFFSETS_TOPIC, self.coordinator.partition_for(group_id))

    def elect(self, group_id: str, epoch: int = 1) -> None:
        """Makes the broker lead the group's partition, and waits until it is loaded."""
        partition = self.partition_of(group_id)
        self.log.leaders[partition] = epoch
        self.coordinator.on_elected(partition.partition, epoch)
        self.pass_ms(10)

    def resign(self, group_id: str, epoch: int | None = None) -> None:
        partition = self.partition_of(group_id)
        self.log.leaders.pop(partition, None)
        self.coordinator.on_resigned(partition.partition, epoch)

    def group(self, group_id: str) -> Group:
        group = self.coordinator._groups[group_id].group
        assert isinstance(group, Group)
        return group

    def commit(
        self,
        group_id: str,
        offsets: dict[TopicPartition, int],
        *,
        generation: int = -1,
        member_id: str = "",
        group_instance_id: str | None = None,
        metadata: str = "",
        expire_timestamp_ms: int = NO_EXPIRATION,
    ) -> list[Codes]:
        """Commits, and returns a list that gets the outcome; KafkaError as the coordinator raises it."""
        outcome: list[Codes] = []
        now_ms = self.clock.time_ms()
        self.coordinator.commit_offsets(
            group_id=group_id,
            generation=generation,
            member_id=member_id,
            group_instance_id=group_instance_id,
            offsets={
                partition: CommittedOffset(offset, 1, metadata, now_ms, expire_timestamp_ms)
                for partition, offset in offsets.items()
            },
            on_done=outcome.append,
        )
        return outcome

    def offset(self, group_id: str, partition: TopicPartition) -> int | None:
        (fetched,) = self.coordinator.fetch_offsets(group_id, [partition], require_stable=False)
        return None if fetched.committed is None else fetched.committed.offset


@dataclasses.dataclass
class _HostOfLoop:
    loop: VirtualLoop
    clock: LoopClock
    entropy: CountingEntropy = dataclasses.field(default_factory=CountingEntropy)


def durable(world: GroupWorld) -> dict[str, tuple[Any, dict[TopicPartition, Any]]]:
    """What there is of each group that does not go with its coordinator: what its record says, and its offsets."""
    return {
        group_id: (
            cast("Group", handle.group).recorded,
            {partition: handle.group.offsets.get(partition) for partition in handle.group.offsets.partitions},
        )
        for group_id, handle in world.coordinator._groups.items()
    }


def loaded(world: GroupWorld, group_id: str = "g") -> dict[str, tuple[Any, dict[TopicPartition, Any]]]:
    """The same of another coordinator that loads the partition of the group from the same log."""
    other = GroupWorld()
    other.scheduler.tasks["delete-expired-group-metadata"].cancel()  # an unused group would be gone at once
    other.log.batches, other.log.end_offsets = world.log.batches, world.log.end_offsets
    other.elect(group_id, 99)
    found = durable(other)
    other.close()
    return found


class TestMember:
    """A member with its side of the protocol; responses are kept in the order in which they came."""

    __test__ = False

    def __init__(
        self,
        world: GroupWorld,
        group_id: str = "g",
        *,
        instance_id: str | None = None,
        topics: tuple[str, ...] = ("t",),
        protocols: tuple[str, ...] = ("range",),
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
    ) -> None:
        self.world = world
        self.group_id = group_id
        self.instance_id = instance_id
        self.topics = topics
        self.protocols = protocols
        self.protocol_type = protocol_type
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        self.member_id = ""
        self.generation = -1
        self.joined: list[JoinGroupResponse] = []
        self.synced: list[SyncGroupResponse] = []
        self.synced_generation = -1
        """Of the request that the last of these answers."""

    @property
    def is_leader(self) -> bool:
        return bool(self.joined) and self.joined[-1].leader == self.member_id

    @property
    def join_error(self) -> ErrorCode:
        return ErrorCode.for_code(self.joined[-1].error_code)

    @property
    def sync_error(self) -> ErrorCode:
        return ErrorCode.for_code(self.synced[-1].error_code)

    def metadata(self) -> bytes:
        return encode_prefixed(ConsumerProtocolSubscription(topics=list(self.topics)), 1)

    def join(self, version: int = LATEST, *, member_id: str | None = None) -> None:
        """Sends one JoinGroup, and takes over what its response says when it comes."""
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            member_id=self.member_id if member_id is None else member_id,
            group_instance_id=self.instance_id,
            protocol_type=self.protocol_type,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=self.metadata())
                for name in self.protocols
            ],
        )
        self.world.coordinator.join_group(request, Client("client", "/10.0.0.1"), version, self._joined)

    def join_fully(self) -> None:
        """Joins, again with the member id that it is given where it is asked to."""
        self.join()
        if self.joined and self.join_error is ErrorCode.MEMBER_ID_REQUIRED:
            self.join()

    def _joined(self, response: JoinGroupResponse) -> None:
        self.joined.append(response)
        if response.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id = response.member_id
        if response.error_code == ErrorCode.NONE:
            self.generation = response.generation_id
        elif response.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""

    def sync(self, assignments: dict[str, bytes] | None = None) -> None:
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=self.protocol_type,
            protocol_name=self.joined[-1].protocol_name if self.joined else None,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in (assignments or {}).items()
            ],
        )
        generation = self.generation

        def synced(response: SyncGroupResponse) -> None:
            self.synced.append(response)
            self.synced_generation = generation

        self.world.coordinator.sync_group(request, synced)

    def assign(self) -> None:
        """The leader's SyncGroup: everybody gets its own member id."""
        self.sync({member.member_id: member.member_id.encode() for member in self.joined[-1].members})

    def heartbeat(self) -> ErrorCode:
        return self.world.coordinator.heartbeat(
            HeartbeatRequest(
                group_id=self.group_id,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
            )
        )

    def leave(self, *, by_name: bool = False) -> ErrorCode:
        identity = LeaveGroupRequest.MemberIdentity(
            member_id="" if by_name else self.member_id, group_instance_id=self.instance_id
        )
        (outcome,) = self.world.coordinator.leave_group(self.group_id, [identity])
        return ErrorCode.for_code(outcome.error_code)


def stable_group(world: GroupWorld, *members: TestMember) -> TestMember:
    """Brings the members into one stable generation, and returns the leader."""
    for member in members:
        member.join_fully()
    for _ in range(REBALANCE_MS // 500):
        if all(member.join_error is ErrorCode.NONE for member in members if member.joined) and all(
            member.joined for member in members
        ):
            break
        world.pass_ms(500)
    (leader,) = [member for member in members if member.is_leader]
    for member in members:
        if member is not leader:
            member.sync()
    leader.assign()
    assert all(member.synced[-1].assignment == member.member_id.encode() for member in members)
    return leader
