"""A member of a consumer group, by the classic protocol: join, sync, heartbeat, leave (KIP-429, KIP-345).

What belongs to the user's own time (giving partitions up, taking new ones) begins only while the user polls, and the
user is given no records before it has happened: whoever polls has come back for what earlier polls returned, and so
that, and nothing more, counts as processed.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from barnabas.client.assignors import MemberSubscription
from barnabas.client.errors import ClientError
from barnabas.client.group_coordinator import NO_GENERATION, GroupCoordinator, Membership
from barnabas.client.retrying import is_retriable
from barnabas.client.subscription_bytes import (
    PROTOCOL_TYPE,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from barnabas.kernel.transitions import TransitionTable
from barnabas.link.errors import InFlightLimitError, RequestTimeoutError
from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.primitives import ProtocolError

if TYPE_CHECKING:
    from barnabas.client.assignors import Assignor
    from barnabas.client.client import Client
    from barnabas.client.connections import Lane
    from barnabas.client.settings import ConsumerSettings
    from barnabas.wire.topics import TopicPartition

_JOIN_MARGIN_MS: Final = 5_000
_MEMBERSHIP_LOST: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
"""What the member owned may be others' by now. Of an old generation, its id is still its own."""
_JOIN_AGAIN: Final = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED}) | _MEMBERSHIP_LOST


class MemberState(enum.Enum):
    """Where a member stands."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    STABLE = "stable"
    LEFT = "left"


class MemberEvent(enum.Enum):
    """What happens to a member."""

    JOIN = "join"
    ASSIGNED = "assigned"
    LOST = "lost"
    LEAVE = "leave"


_S = MemberState
_E = MemberEvent
MEMBER = TransitionTable(
    "group member",
    start=MemberState.UNJOINED,
    transitions={
        (_S.UNJOINED, _E.JOIN): _S.JOINING,
        (_S.UNJOINED, _E.LOST): _S.UNJOINED,
        (_S.UNJOINED, _E.LEAVE): _S.LEFT,
        (_S.JOINING, _E.JOIN): _S.JOINING,
        (_S.JOINING, _E.ASSIGNED): _S.STABLE,
        (_S.JOINING, _E.LOST): _S.JOINING,
        (_S.JOINING, _E.LEAVE): _S.LEFT,
        (_S.STABLE, _E.JOIN): _S.JOINING,
        (_S.STABLE, _E.LOST): _S.UNJOINED,
        (_S.STABLE, _E.LEAVE): _S.LEFT,
    },
    final=[MemberState.LEFT],
)


class Assignee(Protocol):
    """Who is given partitions, and gives them up; called while the user polls."""

    @property
    def topics(self) -> tuple[str, ...]:
        """What is subscribed to now."""
        ...

    async def revoked(self, partitions: tuple[TopicPartition, ...]) -> None:
        """The user gives these up; what was read of them can still be committed."""
        ...

    async def lost(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Others may own these already; nothing can be committed."""
        ...

    async def assigned(self, added: tuple[TopicPartition, ...], owned: tuple[TopicPartition, ...]) -> None:
        """Owned is now exactly `owned`, of which `added` is new."""
        ...


class GroupMember:
    """One member. `poll` is to be called at least every `poll_interval_ms_max`, and whenever `on_news` was called."""

    def __init__(
        self,
        client: Client,
        lane: Lane,
        coordinator: GroupCoordinator,
        settings: ConsumerSettings,
        assignee: Assignee,
        on_news: Callable[[], object],
    ) -> None:
        """Joining waits for other members: it has the `lane` for itself, so that nothing waits behind it. `on_news()`
        is called when `poll` has something to do, and when records may be given again that were kept back.
        """
        self.coordinator = coordinator
        self.state = MemberState.UNJOINED
        self.owned: tuple[TopicPartition, ...] = ()
        """What this member may read."""
        self.turn = asyncio.Event()
        """Set while the user polls; see `users_turn`."""
        self.rebalances = 0
        """How many rebalances this member has come through."""
        self._client = client
        self._lane = lane
        self._settings = settings
        self._assignee = assignee
        self._on_news = on_news
        self._assignors: Mapping[str, Assignor] = {assignor.name: assignor for assignor in settings.assignors}
        self._is_cooperative = settings.assignors[0].is_cooperative
        self._member_id = ""
        self._generation = NO_GENERATION
        self._was_lost = False
        self._must_join = True
        self._needs_turn = False
        self._may_beat = False
        self._joining: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._polled_at = client.host.loop.time()
        self._assigned_counts: dict[str, int] = {}
        self._group_topics: tuple[str, ...] = ()
        self._error: Exception | None = None
        self._is_fenced = False

    @property
    def membership(self) -> Membership:
        """The identity with which offsets are committed."""
        return Membership(self._generation, self._member_id, self._settings.group_instance_id)

    @property
    def is_stable(self) -> bool:
        """The member has its assignment, and knows of no reason to join again."""
        return self.state is MemberState.STABLE and not self._must_join

    @property
    def keeps_records_back(self) -> bool:
        """Partitions are about to be given up, or to come, or are lost: the user gets no records before that is done.

        Invariant: records are given only while this is False, and between such a moment and the next poll nothing is
        revoked. So what is committed for a revoked partition is never more than the user has come back for.
        """
        return self._needs_turn or self._was_lost or (self._must_join and self._joining is None)

    async def users_turn(self) -> None:
        """Returns while the user polls."""
        while not self.turn.is_set():
            await self.turn.wait()  # the poll may be over again before this is resumed

    def poll(self) -> None:
        """The user is there: begins to join where that is due. Raises what keeps the member from joining for good; one
        that was fenced never joins again, and every call raises that, once the user has heard what is lost.
        """
        self._polled_at = self._client.host.loop.time()
        if not self.owned:
            self.check_not_fenced()
        if self._error is not None:
            error, self._error = self._error, None
            self._must_join = True
            raise error
        if self._must_join and self._joining is None and (self._assignee.topics or self._member_id):
            self._needs_turn = True
            self._joining = self._client.host.loop.create_task(self._join_with_retry(), name="group member joins")

    def rejoin(self) -> None:
        """The subscription has changed."""
        self._must_join = True

    def check_not_fenced(self) -> None:
        """Raises FENCED_INSTANCE_ID for good once the coordinator has said so."""
        if self._is_fenced:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"another member of group {self.coordinator.group_id} has taken group.instance.id "
                f"{self._settings.group_instance_id}; close this consumer, and give each its own",
            )

    def refused(self, code: ErrorCode | None, membership: Membership) -> None:
        """The coordinator has refused offsets of that membership, which tells what a heartbeat would tell later."""
        if membership != self.membership or self.state is not MemberState.STABLE or self._joining is not None:
            return
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._must_join = True
        elif code is ErrorCode.FENCED_INSTANCE_ID or code in _MEMBERSHIP_LOST:
            self._advance(MemberEvent.LOST)
            with contextlib.suppress(KafkaError):
                self._check(code, "commit")
        self._on_news()

    def follow_metadata(self) -> None:
        """The image of the cluster has changed: the group's leader reassigns when topics have grown or are gone."""
        if self._assigned_counts and self._partition_counts(self._group_topics) != self._assigned_counts:
            self._assigned_counts = {}
            self._must_join = True

    async def close(self, timeout_ms: float) -> None:
        """Leaves the group; a static member stays in it until its session expires. The assignee hears nothing. What was
        cancelled can be called again.
        """
        if self.state is MemberState.LEFT:
            return
        await self.stop_joining()
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
        await self._leave(timeout_ms, "the consumer was closed")
        self._advance(MemberEvent.LEAVE)

    async def stop_joining(self) -> None:
        """Gives up a rebalance that is under way, and what it commits."""
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.wait([self._joining])

    # Joining.

    async def _join_with_retry(self) -> None:
        """Joins, again and again, until there is an assignment."""
        backoff = self._client.backoff()
        try:
            await self._prepare()
            while True:
                try:
                    if self._was_lost:
                        await self._prepare()
                    self.check_not_fenced()
                    await self._join_once()
                except Exception as error:
                    if isinstance(error, KafkaError) and error.code in _JOIN_AGAIN:
                        continue
                    if not is_retriable(error):
                        raise
                    self._client.logger.info("Joining group %s failed: %s", self.coordinator.group_id, error)
                    await self._client.timers.sleep(backoff.next_ms())
                else:
                    return
        except Exception as error:  # noqa: BLE001 - what cannot pass, the user's own callbacks among it
            self._error = error
            self._on_news()
        finally:
            self._joining = None

    async def _prepare(self) -> None:
        """What the user owns is given up first, unless the assignors let members keep it (or it is lost already)."""
        async with self._before_records():
            self._advance(MemberEvent.JOIN)
            if self._was_lost:
                self._was_lost = False
                lost, self.owned = self.owned, ()
                if lost:
                    await self._assignee.lost(lost)
            elif not self._is_cooperative and self.owned:
                await self._assignee.revoked(self.owned)
                self.owned = ()

    @contextlib.asynccontextmanager
    async def _before_records(self) -> AsyncIterator[None]:
        """What begins while the user polls, and is done before any record is given."""
        self._needs_turn = True
        try:
            await self.users_turn()
            yield
        finally:
            self._needs_turn = False
            self._on_news()

    async def _join_once(self) -> None:
        self._must_join = False
        subscription = MemberSubscription(
            self._assignee.topics,
            self._settings.group_instance_id,
            self.owned if self._is_cooperative else (),
            self._generation,
        )
        metadata = write_subscription(subscription, self._settings.rack_id or None)
        request = messages.JoinGroupRequest(
            group_id=self.coordinator.group_id,
            session_timeout_ms=self._settings.session_timeout_ms,
            rebalance_timeout_ms=self._settings.poll_interval_ms_max,
            member_id=self._member_id,
            group_instance_id=self._settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                messages.JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name in self._assignors
            ],
        )
        self._may_beat = False
        response = await self._ask_patiently(request)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = response.member_id
        self._check(response.error_code, "join")
        self._member_id = response.member_id
        self._generation = response.generation_id
        self._may_beat = True
        self._beat()
        await self._sync(response)

    async def _ask_patiently(self, request: Any) -> Any:
        """A request that is answered when all members have come."""
        return await self.coordinator.ask(request, self._settings.poll_interval_ms_max + _JOIN_MARGIN_MS, self._lane)

    async def _sync(self, joined: Any) -> None:
        assignments: list[messages.SyncGroupRequest.SyncGroupRequestAssignment] = []
        self._assigned_counts = {}
        if joined.leader == joined.member_id:
            assignments = await self._assign(joined)
        request = messages.SyncGroupRequest(
            group_id=self.coordinator.group_id,
            generation_id=self._generation,
            member_id=self._member_id,
            group_instance_id=self._settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        response = await self._ask_patiently(request)
        self._check(response.error_code, "sync")
        await self._take(read_assignment(response.assignment))

    async def _assign(self, joined: Any) -> list[messages.SyncGroupRequest.SyncGroupRequestAssignment]:
        """Assigns the partitions, as the leader of the group."""
        members = {
            member.member_id: read_subscription(member.metadata, member.group_instance_id) for member in joined.members
        }
        self._group_topics = tuple(sorted({topic for member in members.values() for topic in member.topics}))
        metadata = self._client.metadata
        if any(topic not in metadata.cluster.topics for topic in self._group_topics):
            metadata.use(*self._group_topics)
            retry = self._client.retry("finding the group's topics")
            while any(topic not in metadata.cluster.topics for topic in self._group_topics):
                await metadata.refreshed(retry, KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        self._assigned_counts = self._partition_counts(self._group_topics)
        if joined.skip_assignment:
            return []
        assigned = self._assignors[joined.protocol_name].assign(self._assigned_counts, members)
        return [
            messages.SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=member_id, assignment=write_assignment(partitions)
            )
            for member_id, partitions in assigned.items()
        ]

    def _partition_counts(self, topics: tuple[str, ...]) -> dict[str, int]:
        self._client.metadata.use(*topics)
        return {topic: self._client.cluster.partition_count(topic) for topic in topics}

    async def _take(self, assignment: tuple[TopicPartition, ...]) -> None:
        """The assignment is there: when the user polls, what is no longer ours goes, and what is new comes."""
        async with self._before_records():
            if self._was_lost:
                # The session ended while the user did something else: what was assigned is void.
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the membership was lost meanwhile")
            now = frozenset(assignment)
            gone = tuple(partition for partition in self.owned if partition not in now)
            if gone:
                await self._assignee.revoked(gone)
            before = frozenset(self.owned)
            added = tuple(partition for partition in assignment if partition not in before)
            self.owned = assignment
            self.rebalances += 1
            self._advance(MemberEvent.ASSIGNED)
            if gone:
                self._must_join = True  # what was given up can be assigned to others now
            await self._assignee.assigned(added, assignment)

    def _check(self, code: int, what: str) -> None:
        """Raises for the error code of an answer, after whatever it means for the membership.

        Whoever is fenced has a successor of the same `group_instance_id` (KIP-345): to join again would fence that one.
        """
        if code in _MEMBERSHIP_LOST:
            self._forget_membership(has_id=code != ErrorCode.UNKNOWN_MEMBER_ID)
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self._forget_membership(has_id=False)
            self._is_fenced = True
            self.check_not_fenced()
        self.coordinator.check(code, what)

    def _forget_membership(self, *, has_id: bool) -> None:
        if not has_id:
            self._member_id = ""
        self._generation = NO_GENERATION
        self._was_lost = True
        self._must_join = True

    # Heartbeats.

    def _beat(self) -> None:
        if self._beating is None:
            self._beating = self._client.host.loop.create_task(self._heartbeats(), name="group member's heartbeats")

    async def _heartbeats(self) -> None:
        """Says that the member is alive, until it is none any more or the user does not poll."""
        try:
            while self._generation != NO_GENERATION:
                await self._client.timers.sleep(self._settings.heartbeat_interval_ms)
                if self.turn.is_set():
                    self._polled_at = self._client.host.loop.time()
                silent_ms = (self._client.host.loop.time() - self._polled_at) * 1_000
                if silent_ms > self._settings.poll_interval_ms_max:
                    await self._stop_membership(silent_ms)
                    return
                if self._may_beat:
                    await self._heartbeat()
        finally:
            self._beating = None

    async def _heartbeat(self) -> None:
        request = messages.HeartbeatRequest(
            group_id=self.coordinator.group_id,
            generation_id=self._generation,
            member_id=self._member_id,
            group_instance_id=self._settings.group_instance_id,
        )
        generation = self._generation
        try:
            response = await self.coordinator.ask(request, self._settings.session_timeout_ms)
            if generation != self._generation:
                return
            if response.error_code in _MEMBERSHIP_LOST or response.error_code == ErrorCode.FENCED_INSTANCE_ID:
                self._advance(MemberEvent.LOST)
            self._check(response.error_code, "heartbeat")
        except KafkaError as error:
            if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
                self._must_join = True
            elif not self._is_fenced and not error.retriable and error.code not in _MEMBERSHIP_LOST:
                self._error = error
        except Exception as error:  # noqa: BLE001 - the session may outlast it; if not, the user is to hear why
            self._client.logger.info("A heartbeat to group %s failed: %s", self.coordinator.group_id, error)
            if not is_retriable(error):
                self._error = error
        if self._must_join or self._error is not None:
            self._on_news()  # a poll that finds no records would not hear of it before its end

    async def _stop_membership(self, silent_ms: float) -> None:
        """The user has not polled for too long: others shall read meanwhile."""
        self._client.logger.warning(
            "The consumer leaves group %s, since it was not polled for %d ms; raise poll_interval_ms_max (%d), or "
            "lower poll_records_max",
            self.coordinator.group_id,
            silent_ms,
            self._settings.poll_interval_ms_max,
        )
        await self.stop_joining()
        await self._leave(self._settings.session_timeout_ms, "it was not polled")
        self._forget_membership(has_id=False)
        self._advance(MemberEvent.LOST)

    async def _leave(self, timeout_ms: float, reason: str) -> None:
        """A static member stays what it is until its session ends, so that it may come back meanwhile (KIP-345)."""
        if not self._member_id or self._settings.group_instance_id is not None:
            return
        member = messages.LeaveGroupRequest.MemberIdentity(
            member_id=self._member_id, group_instance_id=self._settings.group_instance_id, reason=reason
        )
        try:
            await self.coordinator.ask(
                messages.LeaveGroupRequest(group_id=self.coordinator.group_id, members=[member]), timeout_ms
            )
        except (KafkaError, ClientError, OSError, RequestTimeoutError, InFlightLimitError, ProtocolError) as error:
            self._client.logger.info("Leaving group %s failed: %s", self.coordinator.group_id, error)

    def _advance(self, event: MemberEvent) -> None:
        self.state = MEMBER.advance(self._member_id or "a new member", self.state, event)
