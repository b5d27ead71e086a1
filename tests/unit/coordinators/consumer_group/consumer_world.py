"""Groups of the consumer protocol over a log in memory, and members that follow their heartbeats as clients do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from barnabas.coordinators.consumer_group.heartbeats import ConsumerHeartbeat
from barnabas.coordinators.consumer_group.hosted import HostedConsumerGroup
from barnabas.coordinators.consumer_group.member import NO_TIMEOUT, Partitions
from barnabas.coordinators.consumer_group.records import partitions_of
from barnabas.coordinators.consumer_group.topics import TopicFacts
from barnabas.kernel.ids import Uuid
from barnabas.kernel.steps import at_once
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatResponse
from tests.unit.coordinators.group.group_world import GroupWorld
from tests.unit.coordinators.group.turn_counting import run_turns

HEARTBEAT_MS = 5_000
SESSION_MS = 45_000
REBALANCE_MS = 60_000
TURNS_MAX = 30


class FakeTopics:
    """Topics that a test makes, grows and deletes."""

    def __init__(self, **counts: int) -> None:
        self._facts: dict[str, TopicFacts] = {}
        self._made = 0
        for name, count in counts.items():
            self.make(name, count)

    def make(self, name: str, count: int) -> Uuid:
        """A topic of that name, or more partitions of it."""
        known = self._facts.get(name)
        if known is None:
            self._made += 1
            topic_id = Uuid(self._made.to_bytes(16, "big"))
        else:
            topic_id = known.topic_id
        self._facts[name] = TopicFacts(topic_id, name, count)
        return topic_id

    def delete(self, name: str) -> None:
        self._facts.pop(name, None)

    def counts(self) -> dict[str, int]:
        return {name: facts.partition_count for name, facts in self._facts.items()}

    def id(self, name: str) -> Uuid:
        return self._facts[name].topic_id

    def facts(self, name: str, /) -> TopicFacts | None:
        return self._facts.get(name)

    def name(self, topic_id: bytes, /) -> str | None:
        return next((name for name, facts in self._facts.items() if facts.topic_id == topic_id), None)


class ConsumerWorld(GroupWorld):
    """One broker that leads the partition of group `g`, with topics. Close it after use."""

    def __init__(self, topics: FakeTopics | None = None, **settings: Any) -> None:
        """Without `initial_rebalance_delay_ms` nobody is waited for."""
        self.topics = FakeTopics(t=6) if topics is None else topics
        settings.setdefault("initial_rebalance_delay_ms", 0)
        super().__init__(self.topics, **settings)
        self.elect("g")

    def make_topic(self, name: str, count: int) -> None:
        self.topics.make(name, count)
        self.coordinator.topics_changed()

    def delete_topic(self, name: str) -> None:
        self.topics.delete(name)
        self.coordinator.topics_changed()

    def hosted(self, group_id: str = "g") -> HostedConsumerGroup:
        group = self.coordinator._groups[group_id].group
        assert isinstance(group, HostedConsumerGroup)
        return group

    def fail_over(self, group_id: str = "g", epoch: int = 2) -> None:
        """The coordinator falls, and loads the group again from its log."""
        self.resign(group_id)
        self.elect(group_id, epoch)

    def described(self, group_id: str = "g") -> ConsumerGroupDescribeResponse.DescribedGroup:
        known: list[ErrorCode] = []
        group = at_once(self.coordinator.describe_consumer_group(group_id, known.append))
        assert known == [ErrorCode.NONE]
        return group


class NextMember:
    """A consumer with its side of the protocol: it gives up what is taken from it with the next heartbeat."""

    def __init__(
        self,
        world: ConsumerWorld,
        *topics: str,
        group_id: str = "g",
        instance_id: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int = REBALANCE_MS,
    ) -> None:
        self.world = world
        self.topics = frozenset(topics or ("t",))
        self.group_id = group_id
        self.instance_id = instance_id
        self.assignor = assignor
        self.rebalance_ms = rebalance_ms
        self.member_id = ""
        self.epoch = 0
        self.owned: Partitions = {}
        self.answers: list[ConsumerGroupHeartbeatResponse] = []
        self.gives_up = True
        """Whether it gives up partitions when it is told to."""

    @property
    def error(self) -> ErrorCode:
        return ErrorCode.for_code(self.answers[-1].error_code)

    def numbers(self, name: str = "t") -> list[int]:
        return sorted(self.owned.get(self.world.topics.id(name), ()))

    def join(self, *, waits: bool = True) -> ConsumerGroupHeartbeatResponse | None:
        self.epoch, self.owned = 0, {}
        return self.beat(waits=waits)

    def beat(
        self, *, is_full: bool = False, waits: bool = True, **fields: Any
    ) -> ConsumerGroupHeartbeatResponse | None:
        """One heartbeat; the answer if it comes within some turns of the loop, or None."""
        says_all = is_full or self.epoch == 0
        request: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "epoch": self.epoch,
            "instance_id": self.instance_id,
            "owned": dict(self.owned),
            "client_id": "client",
            "client_host": "/10.0.0.1",
            **(
                {
                    "subscribed": self.topics,
                    "rebalance_timeout_ms": self.rebalance_ms,
                    "assignor": self.assignor,
                }
                if says_all
                else {"rebalance_timeout_ms": NO_TIMEOUT}
            ),
            **fields,
        }
        before = len(self.answers)
        self.world.coordinator.consumer_group_heartbeat(ConsumerHeartbeat(**request), self._answered)
        turns = TURNS_MAX if waits else 0
        while len(self.answers) == before and turns:
            run_turns(self.world, 1)
            turns -= 1
        return self.answers[-1] if len(self.answers) > before else None

    def leave(self, epoch: int = -1) -> ErrorCode:
        self.beat(epoch=epoch, owned=None)
        return self.error

    def _answered(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        self.answers.append(answer)
        if answer.error_code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch, self.owned = 0, {}
        if answer.error_code or answer.member_epoch < 0:
            return
        self.member_id = answer.member_id or self.member_id
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            assigned = partitions_of(answer.assignment.topic_partitions)
            if self.gives_up or all(
                numbers <= assigned.get(topic_id, frozenset()) for topic_id, numbers in self.owned.items()
            ):
                self.owned = assigned


def settle(*members: NextMember, rounds: int = 8) -> None:
    """Heartbeats until everybody owns what it is to own."""
    for _ in range(rounds):
        for member in members:
            if member.epoch == 0:
                member.join()
            else:
                member.beat()
        members[0].world.pass_ms(HEARTBEAT_MS)


def owners(*members: NextMember) -> Mapping[tuple[bytes, int], int]:
    """Who owns each partition, by the members' positions; AssertionError where two do."""
    found: dict[tuple[bytes, int], int] = {}
    for position, member in enumerate(members):
        for topic_id, numbers in member.owned.items():
            for number in numbers:
                assert (topic_id, number) not in found, (topic_id, number, found[topic_id, number], position)
                found[topic_id, number] = position
    return found
