"""Throttles of copies (KIP-73, KIP-113): set for the brokers and topics of a reassignment, and taken away after it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from barnabas.cli.output import printable, say
from barnabas.cli.reassignment_directories import Map, locate
from barnabas.cli.reassignment_directory_rates import DirectoryCopies
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.admin import Admin, ConfigEntry, ConfigOperation

DIRECTORY_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate", DIRECTORY_RATE)
"""Bytes per second of a broker, as leader and as follower, for the replicas that are named; and between its log
directories, for all.
"""
_OF_REPLICAS: Final = RATES[:2]
LISTS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""Which replicas of a topic, as partition:broker."""
_ALL: Final = "*"
"""A list that has this has all replicas."""
_DYNAMIC_TOPIC: Final = 1
_DYNAMIC_BROKER: Final = 2
_TIMEOUT_MS: Final = 8_000
"""How long one broker is asked for its configs."""
_LOCATED_WITHIN_MS: Final = 3_000
"""How long one broker is asked which copies it makes between its log directories."""
_LOOKS: Final = 8
"""How often it is looked whether a rate that was found stays where nobody copies: somebody's is removed meanwhile."""
_LEFT_WITHIN_SECONDS: Final = 3
"""How long it is looked for throttles that somebody has left, before anything is begun."""
_REMOVED_WITHIN_SECONDS: Final = 30
"""How long throttles are tried to be taken away, which nobody can interrupt."""


Held = Mapping[str, frozenset[str]]
"""By topic, the replicas that its lists name."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second at each broker, between brokers and between log directories; None where nothing is set."""

    between_brokers: int | None
    between_directories: int | None = None

    def by_config(self, names: Collection[str] = RATES) -> dict[str, str]:
        """Those of the configs of a broker that are set."""
        values = (self.between_brokers, self.between_brokers, self.between_directories)
        by_name = zip(RATES, values, strict=True)
        return {name: str(value) for name, value in by_name if value is not None and name in names}


@dataclass(slots=True)
class Throttles:
    """What was set at these brokers and topics, where it came so far."""

    brokers: tuple[int, ...]
    topics: tuple[str, ...]
    before: dict[int, dict[str, str | None]] = field(default_factory=dict)
    """The rates that were set, and what the broker had of its own before: None where nothing."""
    added: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict)
    """Of each topic and list, the replicas that were not in it before."""
    kept: dict[str, dict[str, str]] = field(default_factory=dict)
    """The lists that topics had before, where they had one."""
    rates: dict[str, str] = field(default_factory=dict)
    """What was set; empty for throttles that were found."""
    held_before: Held = field(default_factory=dict)
    """Whom others held back before."""
    copies: DirectoryCopies = field(default_factory=DirectoryCopies)
    """Between log directories; empty where no rate was set for them."""

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
        commands = []
        for node_id in self.brokers:
            commands += _commands(f"broker:{node_id}", self.before.get(node_id, {}))
        for topic in self.topics:
            kept = self.kept.get(topic, {})
            commands += _commands(f"topic:{printable(topic)}", {name: kept.get(name) for name in LISTS})
        return "\n  ".join(["To remove the throttles:", *commands])


async def set_throttles(
    admin: Admin,
    throttles: Throttles,
    rates: Rates,
    moves: Mapping[TopicPartition, tuple[Sequence[int], Sequence[int]]],
    settle: Callable[[], Awaitable[object]] | None = None,
) -> None:
    """Has the brokers hold back the copies of partitions that move from some brokers to others, before and after, and
    those between log directories. A broker gets the rates for what it copies. `settle` waits for a part of the time
    that somebody else needs to begin copies once a rate is set, and to remove the rate once they have ended.

    Leaders are throttled for all who have the partition now, followers for those who are to get it (KIP-73). Replicas
    that a topic names already stay named: somebody else holds them back. The lists come first: without a rate they do
    nothing.
    """
    from barnabas.client.admin import ResourceType

    throttles.rates = rates.by_config()
    if moves:
        throttles.held_before = await _held(admin)
    directory_rates = await _directory_rates_before(admin, throttles.copies, settle)
    lists: dict[str, tuple[list[str], list[str]]] = {}
    for partition, (before, after) in sorted(moves.items()):
        leading, following = lists.setdefault(partition.topic, ([], []))
        leading += [f"{partition.partition}:{node_id}" for node_id in before]
        following += [f"{partition.partition}:{node_id}" for node_id in after if node_id not in before]
    had = await admin.describe_topic_configs(lists, LISTS)
    for topic, values in lists.items():
        kept = throttles.kept[topic] = _lists_of(had.get(topic, {}))
        wanted = {name: _entries(kept.get(name)) for name in LISTS}
        for name, replicas in zip(LISTS, values, strict=True):
            if _ALL not in wanted[name]:
                wanted[name] = list(dict.fromkeys([*wanted[name], *replicas]))
        throttles.added[topic] = {name: frozenset(wanted[name]).difference(_entries(kept.get(name))) for name in LISTS}
        changes = [(name, ",".join(wanted[name])) for name, added in throttles.added[topic].items() if added]
        if changes:
            await admin.alter_configs(ResourceType.TOPIC, topic, _set(changes))

    moving = {node_id for before, after in moves.values() for node_id in (*before, *after)}
    copying = throttles.copies.brokers()

    async def of_broker(node_id: int) -> None:
        names = (*(_OF_REPLICAS if node_id in moving else ()), *((DIRECTORY_RATE,) if node_id in copying else ()))
        wanted = rates.by_config(names)
        if wanted:
            entries = await admin.describe_configs(ResourceType.BROKER, str(node_id), _TIMEOUT_MS)
            before = {name: _rate_of(entries, name) for name in wanted if name in _OF_REPLICAS}
            if DIRECTORY_RATE in wanted:
                before[DIRECTORY_RATE] = directory_rates[node_id]
            throttles.before[node_id] = before
            await admin.alter_configs(ResourceType.BROKER, str(node_id), _set(wanted.items()), _TIMEOUT_MS)

    # None goes on when another has failed: it would set a rate after all have been taken away.
    try:
        async with asyncio.TaskGroup() as group:
            for node_id in throttles.brokers:
                group.create_task(of_broker(node_id))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def keep_throttles(admin: Admin, throttles: Throttles, where: Map) -> tuple[int, ...]:
    """Sets the rate of copies between log directories again at brokers that still copy and have none any more: somebody
    else who had set the same has ended. Returns these brokers. What one does not answer is asked at the next look.
    """
    from barnabas.client.admin import ResourceType
    from barnabas.client.errors import ClientError
    from barnabas.wire.errors import KafkaError

    again = []
    for node_id in throttles.copies.under_way(where):
        with contextlib.suppress(KafkaError, ClientError, ConnectionError):
            entries = await admin.describe_configs(ResourceType.BROKER, str(node_id), _TIMEOUT_MS)
            found, present = throttles.before[node_id][DIRECTORY_RATE], _rate_of(entries, DIRECTORY_RATE)
            if throttles.copies.lacks_its_rate(node_id, found, present):
                rate = [(DIRECTORY_RATE, throttles.rates[DIRECTORY_RATE])]
                await admin.alter_configs(ResourceType.BROKER, str(node_id), _set(rate), _TIMEOUT_MS)
                again.append(node_id)
    return tuple(again)


async def remove_throttles(admin: Admin, throttles: Throttles) -> bool:
    """Takes away what was added, and gives brokers the rates that they had: what somebody else has set stays. Says how
    to remove by hand what cannot be taken away within 30 seconds; whether all went well.

    Others may move partitions at the same brokers, with a rate of theirs (`--additional`). Invariant: whoever is the
    last of them leaves the rate that was there before the first of them, or none. One who goes while others hold
    replicas back leaves a rate that is not its own any more; and a rate that it has found is not given back where
    those who were held back by it then are not any more: it was that of somebody who is done. For copies between log
    directories see `DirectoryCopies`.

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
    from barnabas.client.admin import ResourceType
    from barnabas.client.errors import ClientError
    from barnabas.wire.errors import ErrorCode, KafkaError

    topics, brokers = set(throttles.topics), set(throttles.brokers)
    held: Held | None = None
    """Whom others hold back; None where nobody can tell, and the rates from before are given back."""
    moving: Collection[TopicPartition] = ()

    async def of_others() -> Held:
        # What could not be taken out of a list is no reason to leave a rate.
        own = {topic: frozenset().union(*added.values()) for topic, added in throttles.added.items()}
        return {topic: entries - own.get(topic, frozenset()) for topic, entries in (await _held(admin)).items()}

    async def of_topics() -> None:
        # Where nothing was added, the lists were not read, or had all of it.
        topics.intersection_update(topic for topic, added in throttles.added.items() if any(added.values()))
        has = await admin.describe_topic_configs(sorted(topics), LISTS)
        for topic in sorted(topics):
            try:
                if topic in has:
                    changes = _without(_lists_of(has[topic]), throttles.added[topic])
                    await admin.alter_configs(ResourceType.TOPIC, topic, changes)
            except KafkaError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue
            except (ClientError, ConnectionError):
                continue
            topics.discard(topic)

    async def of_broker(node_id: int) -> None:
        before = throttles.before.get(node_id)
        if before is None:
            # Its rates were not read, so none was set: those that it has are its own.
            brokers.discard(node_id)
            return
        with contextlib.suppress(KafkaError, ClientError, ConnectionError):
            if held is not None and (throttles.held_before or held):
                before = await _to_give_back(admin, throttles, node_id, held, moving)
            before = await _with_directories(admin, throttles, node_id, before)
            if before:
                await admin.alter_configs(ResourceType.BROKER, str(node_id), _back_to(before), _TIMEOUT_MS)
            given = dict.fromkeys(name for name, value in before.items() if value is not None and name in _OF_REPLICAS)
            if given and held and _held_at(held, node_id) and not _held_at(await of_others(), node_id):
                # Whose rate it was has ended meanwhile, and may have removed it before it was given back.
                await admin.alter_configs(ResourceType.BROKER, str(node_id), _back_to(given), _TIMEOUT_MS)
            brokers.discard(node_id)

    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REMOVED_WITHIN_SECONDS):
                with contextlib.suppress(KafkaError, ClientError, ConnectionError):
                    await of_topics()
                    if throttles.rates and throttles.topics:
                        others = await of_others()
                        moving = await admin.list_partition_reassignments() if others else {}
                        held = others
                await asyncio.gather(*map(of_broker, throttles.brokers))
    finally:
        if topics or brokers:
            left = replace(throttles, brokers=tuple(sorted(brokers)), topics=tuple(sorted(topics)))
            say(left.how_to_remove())
    return not topics and not brokers


async def find_throttles(
    admin: Admin, node_ids: Iterable[int], configs: Collection[str] = (*RATES, *LISTS)
) -> Throttles:
    """Which brokers have rates of their own now, and which topics name throttled replicas; by these configs only."""
    from barnabas.client.admin import ResourceType
    from barnabas.client.errors import ClientTimeoutError

    rates: dict[int, dict[str, str | None]] = {}
    for node_id in sorted(node_ids):
        try:
            entries = await admin.describe_configs(ResourceType.BROKER, str(node_id), _TIMEOUT_MS)
        except ClientTimeoutError:
            continue
        wanted = [name for name in RATES if name in configs and name in entries]
        are_set = [name for name in wanted if entries[name].source == _DYNAMIC_BROKER]
        if are_set:
            rates[node_id] = dict.fromkeys(are_set)
    names = [name for name in LISTS if name in configs]
    of_topics = await admin.describe_topic_configs(await admin.list_topics(), names) if names else {}
    lists = {topic: found for topic, entries in sorted(of_topics.items()) if (found := _lists_of(entries))}
    named = {
        topic: {name: frozenset(_entries(value)) for name, value in found.items()} for topic, found in lists.items()
    }
    return Throttles(tuple(rates), tuple(lists), rates, named)


async def tell_what_is_left(admin: Admin, node_ids: Iterable[int]) -> None:
    """Says which throttles of replicas are set at these brokers while nothing is being moved: who was killed has left
    them. They hold back what is moved next too, whether it has a throttle of its own or not, and stay.
    """
    from barnabas.client.errors import ClientError
    from barnabas.wire.errors import KafkaError

    # Who may move partitions need not be allowed to see configs, and a broker to be drained need not answer.
    with contextlib.suppress(KafkaError, ClientError, ConnectionError, TimeoutError):
        async with asyncio.timeout(_LEFT_WITHIN_SECONDS):
            if await admin.list_partition_reassignments():
                return
            rates = await find_throttles(admin, node_ids, _OF_REPLICAS)
            lists = await find_throttles(admin, (), LISTS) if rates.brokers else rates
        if lists.topics:
            left = replace(lists, brokers=rates.brokers).named()
            say(
                f"Throttles are set already, though nothing is being moved: {left}. If a command that was killed has "
                "left them, `barnabas reassign cancel --all` removes them."
            )


# Inside.


async def _held(admin: Admin) -> Held:
    """Whom topics name as held back, as partition:broker or `*`."""
    of_topics = await admin.describe_topic_configs(await admin.list_topics(), LISTS)
    named = {topic: _lists_of(entries).values() for topic, entries in of_topics.items()}
    found = {topic: frozenset(each for value in values for each in _entries(value)) for topic, values in named.items()}
    return {topic: entries for topic, entries in found.items() if entries}


def _held_at(held: Held, node_id: int) -> set[tuple[str, str]]:
    """Those of one broker, with their topics."""
    return {
        (topic, each)
        for topic, entries in held.items()
        for each in entries
        if each == _ALL or each.rpartition(":")[2] == str(node_id)
    }


async def _to_give_back(
    admin: Admin, throttles: Throttles, node_id: int, held: Held, moving: Collection[TopicPartition]
) -> dict[str, str | None]:
    """Which rates a broker is to get, and which it is to have no more, while others `held` back are, or were."""
    from barnabas.client.admin import ResourceType

    before = dict(throttles.before[node_id])
    others, earlier = _held_at(held, node_id), _held_at(throttles.held_before, node_id)
    entries = await admin.describe_configs(ResourceType.BROKER, str(node_id), _TIMEOUT_MS)
    names = {f"{each.topic} {each.partition}" for each in moving}
    has_followed = any(f"{topic} {each.partition(':')[0]}" in names for topic, each in others - earlier)
    for name in tuple(before):
        if name not in _OF_REPLICAS:
            continue
        is_own = name in entries and entries[name].value == throttles.rates.get(name)
        if others and (not is_own or has_followed):
            del before[name]
        elif earlier and not others:
            before[name] = None
    return before


async def _directory_rates_before(
    admin: Admin, copies: DirectoryCopies, settle: Callable[[], Awaitable[object]] | None
) -> dict[int, str | None]:
    """The rates of copies between log directories that the operator has given to brokers.

    A rate is somebody's where anybody copies; and where nobody does, it may be somebody's who has just set it, or has
    just ended: that one is gone a little later, or its copies are seen.
    """
    from barnabas.client.admin import ResourceType

    nobodys: dict[int, str | None] = dict.fromkeys(copies.brokers())

    async def look() -> dict[int, str | None]:
        found = {}
        for node_id in sorted(copies.brokers()):
            entries = await admin.describe_configs(ResourceType.BROKER, str(node_id), _TIMEOUT_MS)
            found[node_id] = _rate_of(entries, DIRECTORY_RATE)
        where = await locate(admin, copies.watched, _LOCATED_WITHIN_MS)
        return nobodys if where.futures() else found

    rates = await look()
    for _ in range(_LOOKS):
        if settle is None or rates == nobodys:
            break
        await settle()
        later = await look()
        rates = {node_id: rate if rate == later[node_id] else None for node_id, rate in rates.items()}
    return rates


async def _with_directories(
    admin: Admin, throttles: Throttles, node_id: int, before: dict[str, str | None]
) -> dict[str, str | None]:
    """`before`, without the rate of copies between log directories where the broker has that of others who go on."""
    from barnabas.client.admin import ResourceType

    if DIRECTORY_RATE not in before or DIRECTORY_RATE not in throttles.rates:
        return before
    where = await locate(admin, [node_id], _LOCATED_WITHIN_MS)
    entries = await admin.describe_configs(ResourceType.BROKER, str(node_id), _TIMEOUT_MS)
    known = (before[DIRECTORY_RATE], throttles.rates[DIRECTORY_RATE])
    if throttles.copies.has_rate_of_others(where, node_id, known, _rate_of(entries, DIRECTORY_RATE)):
        return {name: value for name, value in before.items() if name != DIRECTORY_RATE}
    return before


def _rate_of(entries: Mapping[str, ConfigEntry], name: str) -> str | None:
    """The rate that a broker has of its own; None where it has none."""
    return entries[name].value if name in entries and entries[name].source == _DYNAMIC_BROKER else None


def _back_to(before: Mapping[str, str | None]) -> list[tuple[str, ConfigOperation, str | None]]:
    from barnabas.client.admin import ConfigOperation

    return [
        (name, ConfigOperation.DELETE if value is None else ConfigOperation.SET, value)
        for name, value in before.items()
    ]


def _set(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, ConfigOperation, str | None]]:
    from barnabas.client.admin import ConfigOperation

    return [(name, ConfigOperation.SET, value) for name, value in pairs]


def _lists_of(entries: Mapping[str, ConfigEntry]) -> dict[str, str]:
    """The lists that a topic has of its own."""
    return {
        name: entries[name].value or "" for name in LISTS if name in entries and entries[name].source == _DYNAMIC_TOPIC
    }


def _entries(value: str | None) -> list[str]:
    """The replicas of a list."""
    return [each.strip() for each in (value or "").split(",") if each.strip()]


def _without(
    lists: Mapping[str, str], added: Mapping[str, Collection[str]]
) -> list[tuple[str, ConfigOperation, str | None]]:
    """What takes replicas out of lists; those that are left empty go."""
    from barnabas.client.admin import ConfigOperation

    changes: list[tuple[str, ConfigOperation, str | None]] = []
    for name, replicas in added.items():
        if not replicas:
            continue
        left = [each for each in _entries(lists.get(name)) if each not in replicas]
        if left:
            changes.append((name, ConfigOperation.SET, ",".join(left)))
        else:
            changes.append((name, ConfigOperation.DELETE, None))
    return changes


def _commands(resource: str, before: Mapping[str, str | None]) -> list[str]:
    """The commands that bring configs of a topic or a broker back to what they were."""
    gone = [name for name, value in before.items() if value is None]
    back = [f"{name}={value}" for name, value in before.items() if value is not None]
    commands = [f"barnabas config unset {resource} {' '.join(gone)}"] if gone else []
    return commands + ([f"barnabas config set {resource} {' '.join(back)}"] if back else [])
