"""A consumer of the classic protocol with its side of it: it joins, assigns if it leads, gives up and joins again."""

from __future__ import annotations

from typing import Any

from barnabas.coordinators.consumer_group.member import Partitions
from barnabas.coordinators.group.member import Client
from barnabas.kernel.ids import Uuid
from barnabas.wire.codec import decode_prefixed, encode_prefixed
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tests.unit.coordinators.consumer_group.consumer_world import REBALANCE_MS, ConsumerWorld

CLASSIC_SESSION_MS = 10_000
Owned = frozenset[tuple[str, int]]
_LOST = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID)


class ClassicConsumer:
    """One process. `owned` is what it has by its own account; eager ones give up all before they join."""

    def __init__(
        self,
        world: ConsumerWorld,
        *topics: str,
        group_id: str = "g",
        instance_id: str | None = None,
        is_eager: bool = False,
        protocols: tuple[str, ...] = ("range",),
        session_ms: int = CLASSIC_SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        subscription_version: int = 3,
        protocol_type: str = "consumer",
    ) -> None:
        self.world = world
        self.topics = frozenset(topics or ("t",))
        self.group_id = group_id
        self.instance_id = instance_id
        self.is_eager = is_eager
        self.protocols = protocols
        self.protocol_type = protocol_type
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        self.subscription_version = subscription_version
        self.member_id = ""
        self.epoch = -1
        """Its generation."""
        self.owned: Partitions = {}
        self.needs_join = True
        self.is_waiting = False
        """For the answer to a JoinGroup or SyncGroup."""
        self.is_fenced = False
        self.errors: list[tuple[str, ErrorCode]] = []
        """Which requests were answered with an error."""
        self.joined: list[JoinGroupResponse] = []
        self.synced: list[SyncGroupResponse] = []
        self.synced_at = 0.0
        """When its last SyncGroup was answered, with which its session has begun again."""
        self._attempt = 0

    def numbers(self, name: str = "t") -> list[int]:
        return sorted(self.owned.get(self.world.topics.id(name), ()))

    @property
    def leads(self) -> bool:
        return bool(self.joined) and self.joined[-1].leader == self.member_id != ""

    def beat(self) -> None:
        """What a consumer does in one interval: a heartbeat, and what comes of it."""
        if self.is_fenced or self.is_waiting:
            return
        if not self.needs_join:
            self.heartbeat()
        if self.needs_join:
            self.join()

    def heartbeat(self) -> ErrorCode:
        error = self.world.coordinator.heartbeat(
            HeartbeatRequest(
                group_id=self.group_id,
                generation_id=self.epoch,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
            )
        )
        if error is not ErrorCode.NONE:
            self._failed("heartbeat", error)
        return error

    def give_up_waiting(self) -> None:
        """The connection is lost, and the answer with it."""
        self._attempt += 1
        self.is_waiting = False
        self.needs_join = True

    def join(self, version: int = 9) -> None:
        if self.is_eager:
            self.owned = {}
        self.is_waiting = True
        self._attempt += 1
        attempt = self._attempt
        metadata = self._subscription()
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=self.protocol_type,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata) for name in self.protocols
            ],
        )

        def joined(response: JoinGroupResponse) -> None:
            if attempt == self._attempt:
                self._joined(response, version)

        self.world.coordinator.join_group(request, Client("classic", "/10.0.0.2"), version, joined)

    def leave(self, *, by_name: bool = False) -> ErrorCode:
        identity = LeaveGroupRequest.MemberIdentity(
            member_id="" if by_name else self.member_id, group_instance_id=self.instance_id
        )
        self.owned, self.needs_join, self.is_fenced = {}, True, True
        self._attempt += 1
        (outcome,) = self.world.coordinator.leave_group(self.group_id, [identity])
        return ErrorCode.for_code(outcome.error_code)

    def _subscription(self) -> bytes:
        by_name = {self.world.topics.name(topic_id): numbers for topic_id, numbers in self.owned.items()}
        return encode_prefixed(
            ConsumerProtocolSubscription(
                topics=sorted(self.topics),
                owned_partitions=[
                    ConsumerProtocolSubscription.TopicPartition(topic=name, partitions=sorted(numbers))
                    for name, numbers in by_name.items()
                    if name is not None
                ],
                generation_id=self.epoch,
            ),
            self.subscription_version,
        )

    def _joined(self, response: JoinGroupResponse, version: int) -> None:
        self.is_waiting = False
        self.joined.append(response)
        code = ErrorCode.for_code(response.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            self.join(version)
        elif code is not ErrorCode.NONE:
            self._failed("join", code)
        else:
            self.member_id, self.epoch, self.needs_join = response.member_id, response.generation_id, False
            self._sync(response)

    def _sync(self, joined: JoinGroupResponse) -> None:
        self.is_waiting = True
        attempt = self._attempt
        assigned = self._assign(joined) if joined.leader == self.member_id else {}
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.epoch,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=_assignment(partitions))
                for member_id, partitions in assigned.items()
            ],
        )

        def synced(response: SyncGroupResponse) -> None:
            if attempt == self._attempt:
                self._synced(response)

        self.world.coordinator.sync_group(request, synced)

    def _assign(self, joined: JoinGroupResponse) -> dict[str, Owned]:
        """In turn; what another one says that it owns is given when it does not any more."""
        members, claims = {}, {}
        for member in joined.members:
            said: Any = decode_prefixed(ConsumerProtocolSubscription, member.metadata)[1]
            members[member.member_id] = frozenset(said.topics)
            for owned in said.owned_partitions:
                for number in owned.partitions:
                    claims[owned.topic, number] = member.member_id
        result: dict[str, set[tuple[str, int]]] = {member_id: set() for member_id in members}
        for topic, count in sorted(self.world.topics.counts().items()):
            takers = sorted(member_id for member_id, topics in members.items() if topic in topics)
            for number in range(count if takers else 0):
                taker = takers[number % len(takers)]
                if claims.get((topic, number), taker) == taker:
                    result[taker].add((topic, number))
        return {member_id: frozenset(partitions) for member_id, partitions in result.items()}

    def _synced(self, response: SyncGroupResponse) -> None:
        self.is_waiting = False
        self.synced.append(response)
        code = ErrorCode.for_code(response.error_code)
        if code is not ErrorCode.NONE:
            self._failed("sync", code)
            return
        self.synced_at = self.world.loop.time()
        assigned: dict[Uuid, frozenset[int]] = {}
        if response.assignment:
            read: Any = decode_prefixed(ConsumerProtocolAssignment, response.assignment)[1]
            for entry in read.assigned_partitions:
                if entry.topic in self.world.topics.counts():
                    assigned[self.world.topics.id(entry.topic)] = frozenset(entry.partitions)
        gives_up = any(numbers - assigned.get(topic_id, frozenset()) for topic_id, numbers in self.owned.items())
        self.owned = assigned
        if gives_up and not self.is_eager:
            self.needs_join = True

    def _failed(self, what: str, code: ErrorCode) -> None:
        self.errors.append((what, code))
        self.needs_join = True
        if code in _LOST:
            self.owned, self.epoch = {}, -1
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            self.is_fenced = code is ErrorCode.FENCED_INSTANCE_ID


def _assignment(partitions: Owned) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    return encode_prefixed(
        ConsumerProtocolAssignment(
            assigned_partitions=[
                ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=numbers)
                for topic, numbers in by_topic.items()
            ]
        ),
        1,
    )
