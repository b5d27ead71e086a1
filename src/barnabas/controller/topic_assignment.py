"""Assigns the replicas of new partitions, and checks topic names.

The first replicas go round the brokers from a random start; the others follow at a shift that grows with each round,
so that what one broker leads is followed by all. With racks, brokers are taken from each rack in turn, and no rack gets
a second replica of a partition before every rack has one (KIP-36).
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from barnabas.kernel.steps import Steps, at_once
from barnabas.wire.errors import ErrorCode, KafkaError

TOPIC_NAME_LENGTH_MAX = 249
PARTITIONS_PER_STEP = 4_096
_LEGAL_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True, slots=True)
class BrokerRack:
    """A broker that replicas may go to; `rack` is None when none is configured."""

    broker_id: int
    rack: str | None = None


def check_topic_name(name: str) -> None:
    """Raises `KafkaError` (INVALID_TOPIC_EXCEPTION), in Kafka's words, for a name that no topic may have."""
    complaint = None
    if not name:
        complaint = "the empty string is not allowed"
    elif name in {".", ".."}:
        complaint = f"'{name}' is not allowed"
    elif len(name) > TOPIC_NAME_LENGTH_MAX:
        complaint = f"the length of '{name}' is longer than the max allowed length {TOPIC_NAME_LENGTH_MAX}"
    elif not _LEGAL_TOPIC_NAME.fullmatch(name):
        complaint = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    if complaint is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {complaint}")


def assign_replicas(
    brokers: Collection[BrokerRack],
    partition_count: int,
    replication_factor: int,
    source: random.Random,
    *,
    start_index: int | None = None,
    first_partition: int = 0,
) -> dict[int, tuple[int, ...]]:
    """`assign_replicas_in_steps`, at once."""
    steps = assign_replicas_in_steps(
        brokers, partition_count, replication_factor, source, start_index=start_index, first_partition=first_partition
    )
    return at_once(steps)


def assign_replicas_in_steps(
    brokers: Collection[BrokerRack],
    partition_count: int,
    replication_factor: int,
    source: random.Random,
    *,
    start_index: int | None = None,
    first_partition: int = 0,
) -> Steps[dict[int, tuple[int, ...]]]:
    """The replicas of partitions from `first_partition` on, the preferred leader first.

    `start_index` fixes where the spread starts and its first shift, which `source` chooses otherwise; for partitions
    added to a topic it is the place of the first replica of partition 0. Racks count when any broker has one.

    Raises `KafkaError` as `check_assignable`.
    """
    racks = check_assignable(brokers, partition_count, replication_factor)
    order = rack_alternated(racks) if racks else [broker.broker_id for broker in brokers]
    start = source.randrange(len(order)) if start_index is None else start_index
    shift = source.randrange(len(order)) if start_index is None else start_index
    assignment: dict[int, tuple[int, ...]] = {}
    for partition in range(first_partition, first_partition + partition_count):
        if len(assignment) % PARTITIONS_PER_STEP == PARTITIONS_PER_STEP - 1:
            yield
        if partition > 0 and partition % len(order) == 0:
            shift += 1
        leader_index = (partition + start) % len(order)
        if racks:
            assignment[partition] = _rack_aware(order, racks, leader_index, shift, replication_factor)
        else:
            followers = (_follower(order, leader_index, shift, step) for step in range(replication_factor - 1))
            assignment[partition] = (order[leader_index], *followers)
    return assignment


def check_assignable(
    brokers: Collection[BrokerRack], partition_count: int, replication_factor: int
) -> Mapping[int, str]:
    """Returns the racks of the brokers, or nothing where none has one.

    Raises `KafkaError`: INVALID_PARTITIONS, or INVALID_REPLICATION_FACTOR when there are not enough brokers or only
    some have racks.
    """
    if partition_count <= 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    if replication_factor <= 0:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    if replication_factor > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {replication_factor} larger than available brokers: {len(brokers)}.",
        )
    racks = {broker.broker_id: broker.rack for broker in brokers if broker.rack is not None}
    if racks and len(racks) < len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "some brokers have a rack and some have none; set broker.rack for all of them or for none",
        )
    return racks


def rack_alternated(racks: Mapping[int, str]) -> list[int]:
    """The brokers, taken from each rack in turn: racks by name, within a rack by id."""
    by_rack: dict[str, list[int]] = {}
    for broker_id in sorted(racks):
        by_rack.setdefault(racks[broker_id], []).append(broker_id)
    lanes = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max(map(len, lanes), default=0)
    return [lane[turn] for turn in range(longest) for lane in lanes if turn < len(lane)]


def _follower(order: Sequence[int], leader_index: int, shift: int, step: int) -> int:
    """Another broker than the leader, at a distance that `shift` and `step` give."""
    return order[(leader_index + 1 + (shift + step) % (len(order) - 1)) % len(order)]


def _rack_aware(
    order: Sequence[int], racks: Mapping[int, str], leader_index: int, shift: int, replication_factor: int
) -> tuple[int, ...]:
    rack_count = len(set(racks.values()))
    replicas = [order[leader_index]]
    used_racks = {racks[replicas[0]]}
    step = 0
    while len(replicas) < replication_factor:
        candidate = _follower(order, leader_index, shift * rack_count, step)
        step += 1
        if candidate in replicas or (racks[candidate] in used_racks and len(used_racks) < rack_count):
            continue
        replicas.append(candidate)
        used_racks.add(racks[candidate])
    return tuple(replicas)


def check_manual_assignment(assignment: Mapping[int, Sequence[int]], first_partition: int = 0) -> None:
    """`check_manual_assignment_in_steps`, at once."""
    at_once(check_manual_assignment_in_steps(assignment, first_partition))


def check_manual_assignment_in_steps(assignment: Mapping[int, Sequence[int]], first_partition: int = 0) -> Steps[None]:
    """What a client may ask for: partitions without gaps from `first_partition` on, each with the same number of
    replicas, none twice. Whether the brokers exist is another question.

    Raises `KafkaError` (INVALID_REPLICA_ASSIGNMENT), in Kafka's words where Kafka has any that name no Scala type.
    """
    complaint = None
    wanted = list(range(first_partition, first_partition + len(assignment)))
    if not assignment:
        complaint = "The assignment has no partitions"
    elif sorted(assignment) != wanted:
        complaint = f"partitions should be a consecutive {first_partition}-based integer sequence"
    elif len({len(replicas) for replicas in assignment.values()}) > 1:
        complaint = "All partitions should have the same number of replicas"
    else:
        for position, (partition, replicas) in enumerate(assignment.items(), start=1):
            if not position % PARTITIONS_PER_STEP:
                yield
            if not replicas:
                complaint = f"Partition {partition} has no replicas"
            elif len(set(replicas)) < len(replicas):
                complaint = f"Duplicate replica assignment found: partition {partition} -> {list(replicas)}"
            elif min(replicas) < 0:
                complaint = f"Partition {partition} has a negative broker id: {list(replicas)}"
    if complaint is not None:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, complaint)
