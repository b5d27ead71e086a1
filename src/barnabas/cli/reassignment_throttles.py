"""Throttles of copies (KIP-73, KIP-113): set for the brokers and topics of a reassignment, and taken away after it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from barnabas.cli.output import printable, say
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.admin import Admin, ConfigOperation

RATES: Final = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
"""Bytes per second of a broker, as leader and as follower, for the replicas that are named; and between its log
directories, for all.
"""
LISTS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""Which replicas of a topic, as partition:broker."""
_DYNAMIC_TOPIC: Final = 1
_DYNAMIC_BROKER: Final = 2
_TIMEOUT_MS: Final = 8_000
"""How long one broker is asked for its configs."""
_REMOVED_WITHIN_SECONDS: Final = 30
"""How long throttles are tried to be taken away, which nobody can interrupt."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second at each broker, between brokers and between log directories; None where nothing is set."""

    between_brokers: int | None
    between_directories: int | None = None

    def by_config(self) -> dict[str, str]:
        """The configs of a broker."""
        values = (self.between_brokers, self.between_brokers, self.between_directories)
        return {name: str(value) for name, value in zip(RATES, values, strict=True) if value is not None}


@dataclass(slots=True)
class Throttles:
    """What was set; `before` has the rates that brokers had of their own, nothing of those
    whose rates were never read: there none was set.
    """

    brokers: tuple[int, ...]
    topics: tuple[str, ...]
    before: dict[int, dict[str, str]] = field(default_factory=dict)

    def is_any(self) -> bool:
        """Whether there is anything to take away."""
        return bool(self.brokers or self.topics)

    def named(self) -> str:
        """Which they are, in words."""
        parts = []
        if self.brokers:
            parts.append(f"{'broker' if len(self.brokers) == 1 else 'brokers'} {', '.join(map(str, self.brokers))}")
        if self.topics:
            parts.append(f"{'topic' if len(self.topics) == 1 else 'topics'} {', '.join(map(printable, self.topics))}")
        return ", ".join(parts)

    def how_to_remove(self) -> str:
        """The commands that take away what is set, for who has to do it."""
        commands = [f"barnabas config unset broker:{each} {' '.join(RATES)}" for each in self.brokers]
        commands += [f"barnabas config unset topic:{printable(each)} {' '.join(LISTS)}" for each in self.topics]
        return "\n  ".join(["To remove the throttles:", *commands])


async def set_throttles(
    admin: Admin,
    throttles: Throttles,
    rates: Rates,
    moves: Mapping[TopicPartition, tuple[Sequence[int], Sequence[int]]],
) -> None:
    """Has the brokers hold back the copies of partitions that move from some brokers to others, before and after.

    Leaders are throttled for all who have the partition now, followers for those who are to get it (KIP-73). The lists
    come first: without a rate they do nothing.
    """
    from barnabas.client.admin import ResourceType

    lists: dict[str, tuple[list[str], list[str]]] = {}
    for partition, (before, after) in sorted(moves.items()):
        leading, following = lists.setdefault(partition.topic, ([], []))
        leading += [f"{partition.partition}:{node_id}" for node_id in before]
        following += [f"{partition.partition}:{node_id}" for node_id in after if node_id not in before]
    for topic, values in lists.items():
        await admin.alter_configs(ResourceType.TOPIC, topic, _set(zip(LISTS, map(",".join, values), strict=True)))

    async def of_broker(node_id: int) -> None:
        entries = await admin.describe_configs(ResourceType.BROKER, str(node_id), _TIMEOUT_MS)
        throttles.before[node_id] = {
            name: entries[name].value or ""
            for name in RATES
            if name in entries and entries[name].source == _DYNAMIC_BROKER
        }
        await admin.alter_configs(ResourceType.BROKER, str(node_id), _set(rates.by_config().items()), _TIMEOUT_MS)

    # None goes on when another has failed: it would set a rate after all have been taken away.
    try:
        async with asyncio.TaskGroup() as group:
            for node_id in throttles.brokers:
                group.create_task(of_broker(node_id))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def remove_throttles(admin: Admin, throttles: Throttles) -> bool:
    """Takes all of it away, also where some of it is not set, and gives brokers the rates that they had. Says how to
    remove by hand what cannot be taken away within 30 seconds; whether all went well.

    Being cancelled does not end it, however often: Ctrl-C comes twice from somebody in a hurry, and a throttle that is
    left slows replicas down for ever. CancelledError is raised when it has come to its end.
    """
    removal = asyncio.ensure_future(_remove(admin, throttles))
    is_cancelled = False
    while not removal.done():
        try:
            await asyncio.wait({removal})
        except asyncio.CancelledError:
            is_cancelled = True
            say(f"Still removing the throttles, for {_REMOVED_WITHIN_SECONDS} s at most ...")
    if is_cancelled:
        removal.result()
        raise asyncio.CancelledError
    return removal.result()


async def _remove(admin: Admin, throttles: Throttles) -> bool:
    """The lists of topics go first: any broker removes them, and a rate without them holds nothing back."""
    from barnabas.client.admin import ConfigOperation, ResourceType
    from barnabas.client.errors import ClientError
    from barnabas.wire.errors import ErrorCode, KafkaError

    topics, brokers = set(throttles.topics), set(throttles.brokers)

    async def of_topic(topic: str) -> None:
        changes = [(name, ConfigOperation.DELETE, None) for name in LISTS]
        try:
            await admin.alter_configs(ResourceType.TOPIC, topic, changes)
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return
        except (ClientError, ConnectionError):
            return
        topics.discard(topic)

    async def of_broker(node_id: int) -> None:
        before = throttles.before.get(node_id)
        if before is None:
            # Its rates were not read, so none was set: those that it has are its own.
            brokers.discard(node_id)
            return
        changes = [
            (name, ConfigOperation.SET, before[name]) if name in before else (name, ConfigOperation.DELETE, None)
            for name in RATES
        ]
        with contextlib.suppress(KafkaError, ClientError, ConnectionError):
            await admin.alter_configs(ResourceType.BROKER, str(node_id), changes, _TIMEOUT_MS)
            brokers.discard(node_id)

    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REMOVED_WITHIN_SECONDS):
                for topic in throttles.topics:
                    await of_topic(topic)
                await asyncio.gather(*map(of_broker, throttles.brokers))
    finally:
        if topics or brokers:
            say(Throttles(tuple(sorted(brokers)), tuple(sorted(topics))).how_to_remove())
    return not topics and not brokers


async def find_throttles(admin: Admin, node_ids: Iterable[int]) -> Throttles:
    """Which brokers have rates of their own now, and which topics name throttled replicas."""
    from barnabas.client.admin import ResourceType
    from barnabas.client.errors import ClientTimeoutError

    brokers = []
    for node_id in sorted(node_ids):
        try:
            entries = await admin.describe_configs(ResourceType.BROKER, str(node_id), _TIMEOUT_MS)
        except ClientTimeoutError:
            continue
        if any(name in entries and entries[name].source == _DYNAMIC_BROKER for name in RATES):
            brokers.append(node_id)
    of_topics = await admin.describe_topic_configs(await admin.list_topics(), LISTS)
    topics = [
        topic
        for topic, entries in sorted(of_topics.items())
        if any(name in entries and entries[name].source == _DYNAMIC_TOPIC for name in LISTS)
    ]
    return Throttles(tuple(brokers), tuple(topics), {node_id: {} for node_id in brokers})


# Inside.


def _set(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, ConfigOperation, str | None]]:
    from barnabas.client.admin import ConfigOperation

    return [(name, ConfigOperation.SET, value) for name, value in pairs]
