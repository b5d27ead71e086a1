"""A member of a group on the wire that uses the classic protocol, beside such of the consumer protocol (KIP-848): for
simulated clusters whose groups are upgraded and downgraded under their members. It does what consumers do, heartbeat by
heartbeat: joins again when it is told to, assigns where it leads a classic group, gives up before it joins or after.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from barnabas.client.errors import ClientError
from barnabas.link.errors import RequestTimeoutError
from barnabas.testing.next_group_ledger import Holder, NextGroupLedger, Owned
from barnabas.testing.next_group_member import LEFT, MOVED, GroupWire
from barnabas.wire.codec import decode_prefixed, encode_prefixed
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from barnabas.client.client import Client
    from barnabas.kernel.ids import Uuid

_LOST: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID})
_SUBSCRIPTION_VERSION: Final = 3
_ASSIGNMENT_VERSION: Final = 1
_PROTOCOL: Final = "range"
_MORE_MS: Final = 5_000
"""How much longer than its rebalance time-out a member waits for the others."""


class ClassicGroupMember:
    """One member of one topic, which beats when it is told to. What it owns is in its `holder`.

    It owns that for its rebalance time-out after the last request that was answered without more, where that is shorter
    than its session: a rebalance may have begun right after it, and end without it.
    """

    def __init__(
        self,
        client: Client,
        ledger: NextGroupLedger,
        group: str,
        name: str,
        topic: str,
        *,
        session_seconds: float,
        rebalance_seconds: float,
        instance_id: str | None,
        is_eager: bool,
        is_coordinator: Callable[[int], bool],
        partitions: Callable[[str], tuple[Uuid, int] | None],
    ) -> None:
        """`partitions` gives a topic's id and how many it has. What a broker answers that `is_coordinator` does not
        know as such is not believed.
        """
        self.wire = GroupWire(client, group)
        self.holder = Holder(name)
        self.is_settled = False
        self._ledger = ledger
        self._topic = topic
        self._session_seconds = session_seconds
        self._rebalance_seconds = rebalance_seconds
        self._instance_id = instance_id
        self._is_eager = is_eager
        self._is_coordinator = is_coordinator
        self._partitions = partitions
        self._assigned: frozenset[Owned] = frozenset()
        self._generation = -1
        self._needs_join = True
        self._was_led: bool | None = None
        """Whether the group was a classic one, which has a leader, when it joined last."""

    @property
    def has_to_revoke(self) -> bool:
        """Whether it has what it is to give up."""
        return not self.holder.owned.keys() <= self._assigned

    @property
    def epoch(self) -> int:
        """Its generation; 0 while it is no member."""
        return self.holder.epoch

    async def beat(self) -> ErrorCode:
        """One heartbeat, or what has to be done instead. NONE, or the error, REQUEST_TIMED_OUT where there was no
        answer.
        """
        self.is_settled = False
        try:
            code = await (self._join() if self._needs_join else self._heartbeat())
        except KafkaError as error:
            code = error.code
        except (ClientError, OSError, RequestTimeoutError):
            self._ledger.counts["next: classic requests unanswered"] += 1
            self.wire.moved()
            return ErrorCode.REQUEST_TIMED_OUT
        if code is not ErrorCode.NONE:
            self._failed(code)
        return code

    def revoke(self) -> None:
        """Gives up what it is to give up, and is to join again to say so."""
        gone = [partition for partition in self.holder.owned if partition not in self._assigned]
        self._ledger.counts["next: revoked by classic members"] += len(gone)
        self._ledger.gave_up(self.holder, gone)
        self._needs_join = True

    def drop(self) -> None:
        """Gives up everything, and is no member any more by its own account."""
        self._ledger.gave_up(self.holder, list(self.holder.owned))
        self._assigned = frozenset()
        self._generation = -1
        self._needs_join = True
        self.holder.epoch = 0

    async def leave(self, epoch: int) -> None:
        """Gives up everything, and says that it leaves, once; a static member that comes back says nothing."""
        was_member = self.holder.epoch
        self.drop()
        if was_member and epoch == LEFT:
            identity = LeaveGroupRequest.MemberIdentity(
                member_id=self.holder.member_id, group_instance_id=self._instance_id
            )
            try:
                response = await self.wire.ask(
                    LeaveGroupRequest(group_id=self.wire.group, members=[identity]), version=5
                )
                self._ledger.counts["next: classic members left"] += response.error_code == ErrorCode.NONE
            except (ClientError, KafkaError, OSError, RequestTimeoutError):
                self._ledger.counts["next: leaves unanswered"] += 1

    async def _heartbeat(self) -> ErrorCode:
        sent_at = self._ledger.now()
        request = HeartbeatRequest(
            group_id=self.wire.group,
            generation_id=self._generation,
            member_id=self.holder.member_id,
            group_instance_id=self._instance_id,
        )
        code = ErrorCode.for_code((await self.wire.ask(request, version=4)).error_code)
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._ledger.counts["next: told to join again"] += 1
            return await self._join()
        if code is ErrorCode.NONE and self._is_coordinator(self.wire.node_id):
            self._heard(sent_at)
            self.is_settled = True
        return code

    def _heard(self, sent_at: float) -> None:
        until = sent_at + min(self._session_seconds, self._rebalance_seconds)
        self._ledger.answered(self.holder, self._generation, until, math.inf)

    async def _join(self) -> ErrorCode:
        self._needs_join = True
        if self._is_eager:
            self._ledger.gave_up(self.holder, list(self.holder.owned))
        request = JoinGroupRequest(
            group_id=self.wire.group,
            session_timeout_ms=round(self._session_seconds * 1000),
            rebalance_timeout_ms=round(self._rebalance_seconds * 1000),
            member_id=self.holder.member_id,
            group_instance_id=self._instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=_PROTOCOL, metadata=self._subscription())],
        )
        limit_ms = self._rebalance_seconds * 1000 + _MORE_MS
        response = await self.wire.ask(request, version=9, limit_ms=limit_ms)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.holder.member_id = request.member_id = response.member_id
            response = await self.wire.ask(request, version=9, limit_ms=limit_ms)
        if response.error_code != ErrorCode.NONE:
            return ErrorCode.for_code(response.error_code)
        self.holder.member_id, self._generation = response.member_id, response.generation_id
        self._note_kind(is_led=bool(response.leader))
        return await self._sync(response)

    def _note_kind(self, *, is_led: bool) -> None:
        if self.holder.epoch and self._was_led is not None and self._was_led != is_led:
            what = "downgraded" if is_led else "upgraded"
            self._ledger.counts[f"next: {what} under a member"] += 1
        self._was_led = is_led

    async def _sync(self, joined: Any) -> ErrorCode:
        sent_at = self._ledger.now()
        assignments = self._assign(joined.members) if joined.leader == joined.member_id else {}
        request = SyncGroupRequest(
            group_id=self.wire.group,
            generation_id=self._generation,
            member_id=self.holder.member_id,
            group_instance_id=self._instance_id,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=self._assignment(numbers))
                for member_id, numbers in assignments.items()
            ],
        )
        response = await self.wire.ask(request, version=5, limit_ms=self._rebalance_seconds * 1000 + _MORE_MS)
        if response.error_code != ErrorCode.NONE:
            return ErrorCode.for_code(response.error_code)
        if not self._is_coordinator(self.wire.node_id):
            self._ledger.counts["next: answered by a former coordinator"] += 1
            return ErrorCode.NOT_COORDINATOR
        self._needs_join = False
        self._assigned = self._read_assignment(response.assignment)
        self._ledger.counts["next: classic members joined"] += not self.holder.epoch
        self._heard(sent_at)
        for partition in sorted(self._assigned - self.holder.owned.keys()):
            self._ledger.given(self.holder, partition)
        self.is_settled = True
        return ErrorCode.NONE

    def _subscription(self) -> bytes:
        numbers = sorted(partition.number for partition in self.holder.owned)
        owned = [ConsumerProtocolSubscription.TopicPartition(topic=self._topic, partitions=numbers)] if numbers else []
        said = ConsumerProtocolSubscription(
            topics=[self._topic], owned_partitions=owned, generation_id=self._generation
        )
        return encode_prefixed(said, _SUBSCRIPTION_VERSION)

    def _assign(self, members: Iterable[Any]) -> Mapping[str, list[int]]:
        """In turn; what another one has it is given when that has it no more."""
        claims: dict[int, str] = {}
        shares: dict[str, list[int]] = {}
        for member in members:
            said: Any = decode_prefixed(ConsumerProtocolSubscription, member.metadata)[1]
            shares[member.member_id] = []
            for entry in said.owned_partitions:
                claims.update(dict.fromkeys(entry.partitions, member.member_id))
        found = self._partitions(self._topic)
        takers = sorted(shares)
        for number in range(0 if found is None else found[1]):
            taker = takers[number % len(takers)]
            if claims.get(number, taker) == taker:
                shares[taker].append(number)
        return shares

    def _assignment(self, numbers: list[int]) -> bytes:
        entries = [ConsumerProtocolAssignment.TopicPartition(topic=self._topic, partitions=numbers)] if numbers else []
        return encode_prefixed(ConsumerProtocolAssignment(assigned_partitions=entries), _ASSIGNMENT_VERSION)

    def _read_assignment(self, assignment: bytes) -> frozenset[Owned]:
        found = self._partitions(self._topic)
        if not assignment or found is None:
            return frozenset()
        read: Any = decode_prefixed(ConsumerProtocolAssignment, assignment)[1]
        return frozenset(
            Owned(found[0], number)
            for entry in read.assigned_partitions
            if entry.topic == self._topic
            for number in entry.partitions
        )

    def _failed(self, code: ErrorCode) -> None:
        self._ledger.counts[f"next: classic members told {code.name}"] += 1
        self._needs_join = True
        if code in MOVED:
            self.wire.moved()
        elif code in _LOST:
            self.drop()
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                self.holder.member_id = ""
