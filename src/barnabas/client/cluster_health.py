"""What is wrong with a cluster, as far as brokers tell, and what to do about it."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Protocol

from barnabas.kernel.facts import fact
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.admin import Admin
    from barnabas.client.broker_views import Software
    from barnabas.client.cluster import BrokerNode, Cluster, PartitionInfo, TopicInfo
    from barnabas.client.log_directories import LogDirectory

IMBALANCE_PERCENT: Final = 10
"""Of the partitions that a broker is preferred for, how many may have another leader where the brokers do not tell
(Kafka's default of leader.imbalance.per.broker.percentage).
"""
_IMBALANCE_KEY: Final = "leader.imbalance.per.broker.percentage"
_CONTROLLER_TIMEOUT_MS: Final = 5_000
_NAMES_SHOWN_MAX: Final = 5
_NAMED_CHARACTERS_MAX: Final = 100
_NAME_CHARACTERS_MAX: Final = 60


class Severity(enum.Enum):
    """How bad it is; the value is the word in JSON."""

    CRITICAL = "critical"
    """Somebody cannot write, or read."""
    WARNING = "warning"
    """What remains works; the next failure may be one too many."""


@fact
class Problem:
    """One thing that is wrong, and what to do."""

    kind: str
    severity: Severity
    what: str
    advice: str
    partitions: tuple[TopicPartition, ...] = ()
    brokers: tuple[int, ...] = ()


@fact
class Observed:
    """What brokers have told."""

    topics: Mapping[str, TopicInfo]
    alive: Collection[int]
    controller: int | None
    min_isr: Mapping[str, int] = field(default_factory=dict)
    """min.insync.replicas of the topics that have replicas which are behind."""
    silent: Collection[int] = ()
    """Brokers that are in the cluster and do not answer."""
    failed_directories: Sequence[tuple[int, str, str]] = ()
    """Broker, path and error."""
    imbalance_percent: int = IMBALANCE_PERCENT
    """leader.imbalance.per.broker.percentage of the controller."""
    adding: Mapping[TopicPartition, Collection[int]] = field(default_factory=dict)
    """Replicas that reassignments are making: they are not behind, as in Apache Kafka."""


class AskedBroker(Protocol):
    """One broker that was asked; `software` and `directories` are None where it has not answered."""

    @property
    def node(self) -> BrokerNode: ...
    @property
    def software(self) -> Software | None: ...
    @property
    def directories(self) -> Sequence[LogDirectory] | None: ...


def observed(
    cluster: Cluster,
    topics: Mapping[str, TopicInfo],
    brokers: Iterable[AskedBroker],
    min_isr: Mapping[str, int],
    imbalance_percent: int,
    adding: Mapping[TopicPartition, Collection[int]],
) -> Observed:
    """All that was asked, put together; brokers that have left the cluster since are left out."""
    asked = [broker for broker in brokers if broker.node.node_id in cluster.brokers]
    return Observed(
        topics,
        set(cluster.brokers),
        cluster.controller_id if cluster.controller_id >= 0 else None,
        min_isr,
        [broker.node.node_id for broker in asked if broker.software is None],
        [
            (broker.node.node_id, directory.path, directory.error)
            for broker in asked
            for directory in broker.directories or ()
            if directory.error is not None
        ],
        imbalance_percent,
        adding,
    )


def diagnose(observed: Observed) -> list[Problem]:
    """Everything that is wrong, the worst first."""
    found = [
        *_controller(observed),
        *_partitions(observed),
        *_brokers(observed),
        *_directories(observed),
        *_imbalance(observed),
    ]
    return sorted(found, key=lambda problem: problem.severity is not Severity.CRITICAL)


def document(problem: Problem) -> dict[str, Any]:
    """A problem as a document, such as `cluster health --json` prints."""
    return {
        "kind": problem.kind,
        "severity": problem.severity.value,
        "what": problem.what,
        "advice": problem.advice,
        "partitions": [{"topic": each.topic, "partition": each.partition} for each in problem.partitions],
        "brokers": list(problem.brokers),
    }


async def min_isr_of_behind(admin: Admin, topics: Mapping[str, TopicInfo]) -> dict[str, int]:
    """min.insync.replicas of the topics that have replicas which are behind."""
    key = "min.insync.replicas"
    behind = [name for name, topic in topics.items() if _has_replicas_behind(topic)]
    found = await admin.describe_topic_configs(behind, [key])
    return {
        name: int(entries[key].value or "1")
        for name, entries in found.items()
        if key in entries and (entries[key].value or "").isdigit()
    }


async def adding_replicas(
    admin: Admin, topics: Mapping[str, TopicInfo], controller_id: int
) -> dict[TopicPartition, tuple[int, ...]]:
    """The replicas that are being made; not asked for where none is behind, and none where the controller does not
    tell.
    """
    from barnabas.client.errors import ClientTimeoutError
    from barnabas.link.errors import UnsupportedVersionError
    from barnabas.wire.errors import KafkaError

    if controller_id < 0 or not any(map(_has_replicas_behind, topics.values())):
        return {}
    try:
        moves = await admin.list_partition_reassignments(None, _CONTROLLER_TIMEOUT_MS)
    except (ClientTimeoutError, KafkaError, UnsupportedVersionError):  # before Kafka 2.4 nobody could ask
        return {}
    return {partition: move.adding_replicas for partition, move in moves.items()}


async def imbalance_percent(admin: Admin, controller_id: int) -> int:
    """leader.imbalance.per.broker.percentage of the controller; Kafka's default where it does not tell."""
    from barnabas.client.config_admin import ResourceType
    from barnabas.client.errors import ClientTimeoutError
    from barnabas.wire.errors import KafkaError

    if controller_id < 0:
        return IMBALANCE_PERCENT
    try:
        entries = await admin.describe_configs(
            ResourceType.BROKER, str(controller_id), _CONTROLLER_TIMEOUT_MS, keys=[_IMBALANCE_KEY]
        )
    except (ClientTimeoutError, KafkaError):
        # What is wrong with the controller is told elsewhere.
        return IMBALANCE_PERCENT
    entry = entries.get(_IMBALANCE_KEY)
    return (
        int(entry.value) if entry is not None and (entry.value or "").isdigit() and entry.value else IMBALANCE_PERCENT
    )


# Inside.


def _controller(observed: Observed) -> Iterable[Problem]:
    if observed.controller is None:
        yield Problem(
            "no_controller",
            Severity.CRITICAL,
            "no broker is controller: leaders are not replaced, topics not created",
            "look in the server.log of the brokers whether they reach ZooKeeper (zookeeper.connect)",
        )


def _partitions(observed: Observed) -> Iterable[Problem]:
    leaderless: list[TopicPartition] = []
    refused: list[TopicPartition] = []
    behind: list[TopicPartition] = []
    last: set[int] = set()
    lacking: set[int] = set()
    late: set[int] = set()
    for partition, info in _all(observed.topics):
        missing = {*info.replicas} - {*info.isr}
        if info.leader_id < 0:
            leaderless.append(partition)
            last |= {*(info.isr or info.replicas)}
            continue
        if len(info.isr) < min(observed.min_isr.get(partition.topic, 1), len(info.replicas)):
            refused.append(partition)
            lacking |= missing
        missing.difference_update(observed.adding.get(partition, ()))
        if missing:
            behind.append(partition)
            late |= missing
    if leaderless:
        yield Problem(
            "without_leader",
            Severity.CRITICAL,
            f"{_named(leaderless)}: no leader, nobody can read or write",
            f"start {_brokers_named(last)}, the last in sync; only if they are lost for good: "
            "`barnabas elect unclean`, which loses records",
            tuple(leaderless),
            tuple(sorted(last)),
        )
    if refused:
        yield Problem(
            "under_min_isr",
            Severity.CRITICAL,
            f"{_named(refused)}: fewer replicas in sync than min.insync.replicas, acks=all is refused",
            f"bring {_brokers_named(lacking)} in sync",
            tuple(refused),
            tuple(sorted(lacking)),
        )
    if behind:
        dead = late - {*observed.alive}
        slow = (
            f"see how disk and network of {_brokers_named(late)} do, and whether `barnabas reassign status` shows "
            "throttles that were left"
        )
        advice = f"start {_brokers_named(dead)}" if dead else slow
        yield Problem(
            "under_replicated",
            Severity.WARNING,
            f"{_named(behind)}: replicas are behind",
            f"{advice}; replicas that come back catch up by themselves",
            tuple(behind),
            tuple(sorted(late)),
        )


def _brokers(observed: Observed) -> Iterable[Problem]:
    counts = Counter(node_id for _, info in _all(observed.topics) for node_id in info.replicas)
    for node_id in sorted({*counts} - {*observed.alive}):
        yield Problem(
            "broker_gone",
            Severity.WARNING,
            f"broker {node_id} has {_counted(counts[node_id], 'replica')}, and is not in the cluster",
            "start it again with the same broker.id and log.dirs, or move its replicas to other brokers",
            brokers=(node_id,),
        )
    for node_id in sorted(observed.silent):
        yield Problem(
            "broker_silent",
            Severity.WARNING,
            f"broker {node_id} is in the cluster, and does not answer",
            "look whether its process is stopped or overloaded, and whether its listener can be reached from here",
            brokers=(node_id,),
        )


def _directories(observed: Observed) -> Iterable[Problem]:
    for node_id, path, error in observed.failed_directories:
        yield Problem(
            "log_directory",
            Severity.WARNING,
            f"log directory {path} of broker {node_id} cannot be used ({error})",
            "mend or replace the disk, and start the broker anew; its replicas are fetched again",
            brokers=(node_id,),
        )


def _imbalance(observed: Observed) -> Iterable[Problem]:
    preferred: Counter[int] = Counter()
    elsewhere: dict[int, list[TopicPartition]] = {}
    for partition, info in _all(observed.topics):
        if not info.replicas:
            continue
        first = info.replicas[0]
        preferred[first] += 1
        if info.leader_id >= 0 and info.leader_id != first and first in info.isr and first in observed.alive:
            elsewhere.setdefault(first, []).append(partition)
    for node_id, led_by_others in sorted(elsewhere.items()):
        if len(led_by_others) * 100 > observed.imbalance_percent * preferred[node_id]:
            yield Problem(
                "leader_imbalance",
                Severity.WARNING,
                f"broker {node_id} leads {preferred[node_id] - len(led_by_others)} of the "
                f"{_counted(preferred[node_id], 'partition')} that it is preferred for",
                "with auto.leader.rebalance.enable the controller gives them back within "
                "leader.imbalance.check.interval.seconds; at once: `barnabas elect preferred --all`",
                tuple(led_by_others),
                (node_id,),
            )


def _has_replicas_behind(topic: TopicInfo) -> bool:
    return any(len(partition.isr) < len(partition.replicas) for partition in topic.partitions.values())


def _all(topics: Mapping[str, TopicInfo]) -> Iterable[tuple[TopicPartition, PartitionInfo]]:
    for name in sorted(topics):
        for number, info in sorted(topics[name].partitions.items()):
            yield TopicPartition(name, number), info


def _named(partitions: Sequence[TopicPartition]) -> str:
    """Some of the partitions, at most a hundred characters of them; all are in the JSON document."""
    names: list[str] = []
    for each in partitions[:_NAMES_SHOWN_MAX]:
        topic = each.topic if len(each.topic) <= _NAME_CHARACTERS_MAX else f"{each.topic[:_NAME_CHARACTERS_MAX]}..."
        names.append(f"{topic}-{each.partition}")
        if sum(map(len, names)) > _NAMED_CHARACTERS_MAX:
            break
    more = len(partitions) - len(names)
    return ", ".join(names) + (f" and {more:,} more" if more else "")


def _brokers_named(node_ids: Collection[int]) -> str:
    noun = "broker" if len(node_ids) == 1 else "brokers"
    return f"{noun} {', '.join(map(str, sorted(node_ids)))}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun if number == 1 else noun + 's'}"
