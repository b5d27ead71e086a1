"""Users of one group of the consumer protocol (KIP-848) in a simulated cluster: members that join, leave, vanish, come
back under their name, hold on to what they are to give up, and say nothing until they are fenced; and somebody who adds
partitions to one topic of theirs, and deletes another one and makes it anew.

Each owner of a partition commits offsets that go up by one, so that whoever asks for them is told how far owners came,
whoever they were. `next_group_ledger` says what must hold.
"""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING, Final

from barnabas.client.admin import Admin
from barnabas.client.errors import ClientError
from barnabas.coordinators.placement import partition_for
from barnabas.link.errors import RequestTimeoutError
from barnabas.testing.next_group_classic_member import ClassicGroupMember
from barnabas.testing.next_group_ledger import NextGroupLedger, Owned
from barnabas.testing.next_group_member import LEFT, LEFT_FOR_A_WHILE, GroupWire, NextGroupMember
from barnabas.testing.single_records import make_topic
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import OFFSETS_TOPIC, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from barnabas.client.client import Client
    from barnabas.kernel.host import Host
    from barnabas.kernel.ids import Uuid
    from barnabas.server.broker import Broker
    from barnabas.testing.cluster_load import Users

GROUP: Final = "next-generation"
STEADY: Final = "steady"
FLEETING: Final = "fleeting"
PARTITION_COUNTS: Final = {STEADY: 3, FLEETING: 2}
PARTITIONS_MAX: Final = 9
SESSION_SECONDS: Final = 6.0
REBALANCE_SECONDS: Final = 4.0
HEARTBEAT_SECONDS: Final = 0.5
LIFE_SECONDS: Final = 6.0
HOLDING_ON: Final = 0.98
"""How probable it is with each heartbeat; mostly that is longer than the rebalance time-out."""
DYNAMIC_MEMBERS: Final = 4
STATIC_NAMES: Final = ("one", "two")
CYCLE_SECONDS: Final = (14.0, 19.0, 27.0)
"""Until then almost all members that come are of the consumer protocol, then of both, then classic ones alone, and
those of the other are gone soon; and again.
"""
NEXT_SHARES: Final = (0.95, 0.5)
"""How many are of the consumer protocol in the first and second of these times."""
TOPIC_PAUSE_SECONDS: Final = 4.0
WATCH_SECONDS: Final = 0.7
ADMIN_MS: Final = 10_000
LAST_MEMBERS: Final = 3
REST_SECONDS_MAX: Final = 45.0
"""Sessions of those who have vanished end, and so does the time in which others are to give up."""
STILL_SECONDS: Final = 5.0
OFFSETS_PARTITION_COUNT: Final = 2
_PARTITION: Final = TopicPartition(OFFSETS_TOPIC, partition_for(GROUP, OFFSETS_PARTITION_COUNT))
"""Who leads it coordinates the group."""
PROPERTIES: Final = {
    "offsets.topic.num.partitions": str(OFFSETS_PARTITION_COUNT),
    "group.coordinator.rebalance.protocols": "classic,consumer",
    "group.consumer.migration.policy": "bidirectional",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.session.timeout.ms": str(round(SESSION_SECONDS * 1000)),
    "group.consumer.min.session.timeout.ms": str(round(SESSION_SECONDS * 1000)),
    "group.consumer.heartbeat.interval.ms": str(round(HEARTBEAT_SECONDS * 1000)),
    "group.consumer.min.heartbeat.interval.ms": str(round(HEARTBEAT_SECONDS * 1000)),
}
COVERAGE: Final = (
    "next: joined",
    "next: given",
    "next: revoked",
    "next: left",
    "next: vanished",
    "next: left for a while",
    "next: came back to what it had",
    "next: held on",
    "next: fenced for holding on",
    "next: restarted",
    "next: fell silent",
    "next: committed",
    "next: commits refused",
    "next: heartbeats unanswered",
    "next: told FENCED_MEMBER_EPOCH",
    "next: told UNKNOWN_MEMBER_ID",
    "next: told UNRELEASED_INSTANCE_ID",
    "next: told NOT_COORDINATOR",
    "next: told COORDINATOR_NOT_AVAILABLE",
    "next: classic members joined",
    "next: classic members left",
    "next: revoked by classic members",
    "next: told to join again",
    "next: upgraded under a member",
    "next: downgraded under a member",
    "next: classic members told UNKNOWN_MEMBER_ID",
    "next: classic members told ILLEGAL_GENERATION",
    "next: partitions added",
    "next: topics made anew",
)
"""What a suite of runs must have seen."""


Member = NextGroupMember | ClassicGroupMember


class Way(enum.Enum):
    """How a life of a member goes."""

    LEAVE = "leave"
    VANISH = "vanish"
    HOLD_ON = "hold on"  # to what it is to give up, for about its rebalance time-out
    SILENCE = "silence"  # for about a session, after which it goes on as if nothing had been
    RESTART = "restart"  # under its id, of which the coordinator thinks that it is a member
    LEAVE_FOR_A_WHILE = "leave for a while"  # only static members can


_DYNAMIC: Final = (Way.LEAVE, Way.VANISH, Way.HOLD_ON, Way.HOLD_ON, Way.HOLD_ON, Way.SILENCE, Way.RESTART)
_STATIC: Final = (Way.LEAVE_FOR_A_WHILE, Way.LEAVE_FOR_A_WHILE, Way.VANISH, Way.LEAVE, Way.SILENCE)


class NextGroupUsers:
    """Who they are, and what they do."""

    def __init__(
        self,
        users: Users,
        brokers: Callable[[], list[Broker]],
        leader: Callable[[TopicPartition], int | None],
    ) -> None:
        """`brokers` gives those that run, `leader` the one of a partition that the controller has written last."""
        self._leader = leader
        self.ledger = NextGroupLedger(users.now)
        self._users = users
        self._brokers = brokers
        self._lives = 0

    # Members.

    async def belong(self, host: Host) -> None:
        """Members, one after another, until the users are to stop."""
        async with self._users.client(host) as client:
            for topic, count in PARTITION_COUNTS.items():
                await make_topic(client, topic, {}, count)
            await asyncio.gather(
                *(self._belong_in_turn(client, None) for _ in range(DYNAMIC_MEMBERS)),
                *(self._belong_in_turn(client, name) for name in STATIC_NAMES),
                self._watch(client),
            )

    async def _belong_in_turn(self, client: Client, name: str | None) -> None:
        random = client.host.random
        while self._users.goes_on():
            before: frozenset[Owned] = frozenset()
            way = random.choice(_DYNAMIC if name is None else _STATIC)
            topics = random.choice(((STEADY,), (STEADY, FLEETING), (STEADY, FLEETING), (FLEETING,)))
            before = await self._live(client, self._any_member(client, topics, name), way)
            if way is Way.LEAVE_FOR_A_WHILE and before:
                await client.timers.sleep(random.choice((0, 500, 3_000, 9_000)))
                await self._come_back(client, topics, name, before)
            await client.timers.sleep(random.choice((0, 200, 2_000)))

    async def _come_back(
        self, client: Client, topics: tuple[str, ...], name: str | None, had: frozenset[Owned]
    ) -> None:
        member = self._member(client, topics, name)
        try:
            if await member.beat() is ErrorCode.NONE and had <= member.holder.owned.keys():
                self.ledger.counts["next: came back to what it had"] += 1
            await self._live(client, member, Way.LEAVE)
        finally:
            await member.wire.close()

    def _any_member(self, client: Client, topics: tuple[str, ...], name: str | None) -> Member:
        """Of either protocol; there are times of classic members only."""
        random = client.host.random
        if random.random() < self._share():
            return self._member(client, topics, name)
        self._lives += 1
        return ClassicGroupMember(
            client,
            self.ledger,
            GROUP,
            f"classic-{self._lives}",
            STEADY,
            session_seconds=SESSION_SECONDS,
            rebalance_seconds=REBALANCE_SECONDS,
            instance_id=name,
            is_eager=random.random() < 0.5,
            is_coordinator=self.is_coordinator,
            partitions=self._topic,
        )

    def _share(self) -> float:
        """How many of those who come now are of the consumer protocol."""
        time = self._users.now() % CYCLE_SECONDS[-1]
        return next((share for share, end in zip(NEXT_SHARES, CYCLE_SECONDS, strict=False) if time < end), 0.0)

    def _is_classic_time(self) -> bool:
        return not self._share()

    def _topic(self, name: str) -> tuple[Uuid, int] | None:
        """Its id, and how many partitions it has, by the broker that knows of most."""
        found = (broker.components.metadata_cache.image.topics.get(name) for broker in self._brokers())
        known = [(topic.topic_id, len(topic.partitions)) for topic in found if topic is not None]
        return max(known, key=lambda each: each[1], default=None)

    def _member(self, client: Client, topics: tuple[str, ...], name: str | None) -> NextGroupMember:
        random = client.host.random
        self._lives += 1
        return NextGroupMember(
            client,
            self.ledger,
            GROUP,
            f"member-{self._lives}",
            topics,
            session_seconds=SESSION_SECONDS,
            rebalance_seconds=REBALANCE_SECONDS,
            instance_id=name,
            assignor=random.choice(("uniform", "uniform", "range", None)),
            is_coordinator=self.is_coordinator,
            brings_id=random.random() < 0.5,
        )

    async def _live(self, client: Client, member: Member, way: Way) -> frozenset[Owned]:
        """One life; what the member had in the end of it."""
        random = client.host.random
        life = _Life(client, self.ledger, member, self.topic_name, self.is_coordinator)
        ends_at = self._users.now() + random.expovariate(1 / LIFE_SECONDS)

        def holds_on() -> bool:
            # Until it is fenced: the rebalance time-out may begin at the end of the life that was meant for it.
            late = self._users.now() - ends_at
            return way is Way.HOLD_ON and member.has_to_revoke and late < 2 * REBALANCE_SECONDS

        try:
            while self._users.goes_on() and (self._users.now() < ends_at or holds_on()):
                if not await life.beat(holds_on=way is Way.HOLD_ON):
                    return frozenset()
                await life.commit()
                await client.timers.sleep(HEARTBEAT_SECONDS * 1000 * random.uniform(0.2, 1.4))
                if self._is_classic_time() and isinstance(member, NextGroupMember) and not holds_on():
                    break
            had = frozenset(member.holder.owned)
            await life.end(way)
            return had
        finally:
            member.drop()
            await member.wire.close()

    def is_coordinator(self, broker_id: int) -> bool:
        """Whether the broker coordinates the group, by what the controller has written last."""
        return self._leader(_PARTITION) == broker_id

    def topic_name(self, topic_id: Uuid) -> str | None:
        """The name of a topic that some broker knows."""
        for broker in self._brokers():
            name = broker.components.metadata_cache.image.topic_name(topic_id)
            if name is not None:
                return name
        return None

    # Others.

    async def _watch(self, client: Client) -> None:
        wire = GroupWire(client, GROUP)
        random = client.host.random
        while self._users.goes_on():
            await client.timers.sleep(random.expovariate(1 / WATCH_SECONDS) * 1000)
            await self._ask_offset(wire, random.randrange(PARTITION_COUNTS[STEADY]))
        await wire.close()

    async def _ask_offset(self, wire: GroupWire, number: int) -> bool:
        asked_at = self._users.now()
        try:
            offset = await wire.committed(STEADY, number)
            if self.is_coordinator(wire.node_id):
                self.ledger.fetched(number, offset, asked_at)
        except (ClientError, KafkaError, OSError, RequestTimeoutError):
            wire.moved()
            return False
        return True

    async def administer(self, host: Host) -> None:
        """Adds partitions to a topic, and makes another one anew, until the users are to stop."""
        random, counts = host.random, self.ledger.counts
        count = PARTITION_COUNTS[STEADY]
        async with self._users.client(host) as client, Admin(client) as admin:
            for topic, number in PARTITION_COUNTS.items():
                await make_topic(client, topic, {}, number)
            while self._users.goes_on():
                await client.timers.sleep(random.expovariate(1 / TOPIC_PAUSE_SECONDS) * 1000)
                try:
                    if random.random() < 0.4 and count < PARTITIONS_MAX:
                        await admin.create_partitions({STEADY: count + 1}, timeout_ms=ADMIN_MS)
                        count += 1
                        counts["next: partitions added"] += 1
                    else:
                        await admin.delete_topics([FLEETING], timeout_ms=ADMIN_MS)
                        await client.timers.sleep(random.choice((0, 1_000, 3_000)))
                        await make_topic(client, FLEETING, {}, PARTITION_COUNTS[FLEETING])
                        counts["next: topics made anew"] += 1
                except (ClientError, KafkaError) as error:
                    if isinstance(error, KafkaError) and error.code is ErrorCode.INVALID_PARTITIONS:
                        count += 1  # an earlier attempt, whose answer was lost
            await make_topic(client, FLEETING, {}, PARTITION_COUNTS[FLEETING])

    # In the end.

    async def finish(self, host: Host) -> None:
        """The last members of a cluster at rest: all partitions are theirs soon, and nothing moves any more."""
        async with self._users.client(host) as client:
            names = (None, None, STATIC_NAMES[0])
            members = [self._member(client, (STEADY, FLEETING), name) for name in names]
            lives = [_Life(client, self.ledger, member, self.topic_name, self.is_coordinator) for member in members]
            begun_at, still_since = self._users.now(), None
            before: tuple[object, ...] = ()
            while still_since is None or self._users.now() - still_since < STILL_SECONDS:
                if self._users.now() - begun_at > REST_SECONDS_MAX:
                    self.ledger.find(f"a group at rest has not come to rest within {REST_SECONDS_MAX:g} s: {before}")
                    break
                for life in lives:
                    await life.beat(holds_on=False)
                    await life.commit()
                now = tuple((member.epoch, member.is_settled, frozenset(member.holder.owned)) for member in members)
                is_still = now == before and self._is_whole(members)
                still_since = (still_since or self._users.now()) if is_still else None
                before = now
                await client.timers.sleep(HEARTBEAT_SECONDS * 1000)
            await self._judge(client, members)

    def _is_whole(self, members: list[NextGroupMember]) -> bool:
        return all(member.is_settled for member in members) and sum(len(each.holder.owned) for each in members) == sum(
            self._counts().values()
        )

    def _counts(self) -> Mapping[Uuid, int]:
        image = self._brokers()[0].components.metadata_cache.image
        found = {}
        for name in (STEADY, FLEETING):
            topic = image.topics.get(name)
            if topic is not None:
                found[topic.topic_id] = len(topic.partitions)
        return found

    async def _judge(self, client: Client, members: list[NextGroupMember]) -> None:
        ledger = self.ledger
        wire = GroupWire(client, GROUP)
        try:
            group = await wire.describe()
            ledger.judge_rest([member.holder for member in members], self._counts(), group.group_epoch)
            if group.group_state != "Stable" or len(group.members) != len(members):
                ledger.find(f"a group at rest is {group.group_state} with {len(group.members)} members")
            for number in range(PARTITION_COUNTS[STEADY]):
                if not await self._ask_offset(wire, number):
                    ledger.find(f"nobody tells the offset of partition {number}")
            for member in members:
                await member.leave(LEFT)
                await member.wire.close()
            group = await wire.describe()
            if group.group_state != "Empty" or group.members:
                ledger.find(f"a group that everybody has left is {group.group_state}")
        except (ClientError, KafkaError, OSError, RequestTimeoutError) as error:
            ledger.find(f"a cluster at rest does not tell of the group: {error!r}")
        finally:
            await wire.close()


class _Life:
    """What one member does, and where it is in the partitions that it owns."""

    def __init__(
        self,
        client: Client,
        ledger: NextGroupLedger,
        member: Member,
        topic_name: Callable[[Uuid], str | None],
        is_coordinator: Callable[[int], bool],
    ) -> None:
        self._is_coordinator = is_coordinator
        self._client = client
        self._random = client.host.random
        self._ledger = ledger
        self._member = member
        self._topic_name = topic_name
        self._positions: dict[Owned, int] = {}

    async def beat(self, *, holds_on: bool) -> bool:
        """One heartbeat and what comes of it; False where the member is gone for good."""
        member = self._member
        held_on = member.has_to_revoke
        error = await member.beat()
        if held_on and error is ErrorCode.UNKNOWN_MEMBER_ID:
            self._ledger.counts["next: fenced for holding on"] += 1
        if error is ErrorCode.FENCED_INSTANCE_ID:
            return False
        if not member.epoch and self._random.random() < 0.5:
            member.holder.member_id = ""  # otherwise it may be refused until its session ends
        if member.has_to_revoke:
            if holds_on and self._random.random() < HOLDING_ON:
                self._ledger.counts["next: held on"] += 1
            else:
                member.revoke()
        self._positions = {each: at for each, at in self._positions.items() if each in member.holder.owned}
        return True

    async def end(self, way: Way) -> None:
        """The end of a life, or what was to be it."""
        member, counts = self._member, self._ledger.counts
        if way is Way.SILENCE:
            counts["next: fell silent"] += 1
            await self._client.timers.sleep(SESSION_SECONDS * 1000 * self._random.uniform(0.7, 2.5))
            for _ in range(3):
                await self.commit()  # as a member that does not know better
            for _ in range(4):
                await self.beat(holds_on=False)
                await self.commit()
        if way is Way.RESTART:
            counts["next: restarted"] += 1
            member.drop()
            for _ in range(4):
                await self.beat(holds_on=False)
        if way in (Way.VANISH, Way.SILENCE, Way.RESTART):
            counts["next: vanished"] += 1
        elif way is Way.LEAVE_FOR_A_WHILE:
            counts["next: left for a while"] += 1
            await member.leave(LEFT_FOR_A_WHILE)
        else:
            await member.leave(LEFT)

    async def commit(self) -> None:
        """Commits the next offset of a partition that the member owns, after it has asked where it is."""
        member, ledger = self._member, self._ledger
        owned = [each for each in sorted(member.holder.owned) if self._topic_name(each.topic_id) == STEADY]
        if not owned or not member.epoch:
            return
        partition = self._random.choice(owned)
        asked_at = ledger.now()
        offset = 0
        try:
            if partition not in self._positions:
                found = await member.wire.committed(STEADY, partition.number, member.holder.member_id, member.epoch)
                if not self._is_coordinator(member.wire.node_id):
                    return  # it may tell what was so before it was replaced
                ledger.fetched(partition.number, found, asked_at)
                self._positions[partition] = found
                asked_at = ledger.now()
            offset = self._positions[partition] + 1
            await member.wire.commit(STEADY, partition.number, offset, member.holder.member_id, member.epoch)
            ledger.committed(partition.number, offset, asked_at)
        except KafkaError as error:
            ledger.counts["next: commits refused"] += 1
            if offset and error.retriable:
                ledger.unanswered(partition.number, offset)
        except (ClientError, OSError, RequestTimeoutError):
            if offset:
                ledger.unanswered(partition.number, offset)
        if offset and partition in self._positions:
            self._positions[partition] = offset
