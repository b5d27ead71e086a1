"""`/brokers/topics`: assignments, topic ids, and who leads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Final

from barnabas.coordination.layout.payload import NO_EXTRA, Fields, LayoutError, encode_json
from barnabas.kernel.ids import Uuid
from barnabas.kernel.steps import Steps, at_once
from barnabas.wire.topics import LeaderRecoveryState, TopicPartition

TOPICS_PATH = "/brokers/topics"
ASSIGNMENT_VERSION = 3
STATE_VERSION = 1
PARTITIONS_PER_STEP: Final = 2_048
"""Partitions of a topic's assignment that are encoded or decoded at a time,"""
MOVING_PER_STEP: Final = 1_024
"""and decoded where any of them is being moved: each is looked at by itself then."""
_BEFORE_PARTITIONS: Final = b'{"partitions":{'


def topic_path(topic: str) -> str:
    return f"{TOPICS_PATH}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS_PATH}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    return f"{TOPICS_PATH}/{topic}/partitions/{partition}"


def partition_state_path(topic: str, partition: int) -> str:
    return f"{TOPICS_PATH}/{topic}/partitions/{partition}/state"


def partition_state_paths(partitions: Iterable[TopicPartition]) -> list[str]:
    """`partition_state_path` of many."""
    return [f"{TOPICS_PATH}/{topic}/partitions/{partition}/state" for topic, partition in partitions]


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """Where the replicas of one partition are, the preferred leader first. While it is reassigned, `replicas` holds
    the adding and the removing ones too.
    """

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()

    @property
    def is_being_reassigned(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def origin_replicas(self) -> tuple[int, ...]:
        """Those that a cancelled reassignment leaves."""
        return tuple(replica for replica in self.replicas if replica not in self.adding_replicas)

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """Those that a finished reassignment leaves."""
        return tuple(replica for replica in self.replicas if replica not in self.removing_replicas)

    def reassigned_to(self, target: Sequence[int]) -> ReplicaAssignment:
        """The assignment while the replicas are moved to `target`: the target first, since its first replica is the
        preferred leader, and then those original replicas that leave. It replaces a reassignment under way.
        """
        origin = self.origin_replicas
        return ReplicaAssignment(
            tuple(dict.fromkeys((*target, *origin))),
            tuple(replica for replica in dict.fromkeys(target) if replica not in origin),
            tuple(replica for replica in origin if replica not in target),
        )


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """Payload of `/brokers/topics/T` (version 3 since KIP-516): replicas of each partition, and the topic's id,
    which topics from before 2.8 lack.
    """

    partitions: Mapping[int, ReplicaAssignment]
    topic_id: Uuid | None = None
    version: int = ASSIGNMENT_VERSION
    extra: Mapping[str, Any] = NO_EXTRA

    def encode(self) -> bytes:
        return at_once(self.encode_in_steps())

    def encode_in_steps(self) -> Steps[bytes]:
        """Like `encode`, for topics of very many partitions."""
        adding: dict[str, tuple[int, ...]] = {}
        removing: dict[str, tuple[int, ...]] = {}
        encoded: list[bytes] = []
        remaining = iter(self.partitions.items())
        while piece := list(islice(remaining, PARTITIONS_PER_STEP)):
            if encoded:
                yield
            replicas: dict[str, Any] = {}
            for number, assigned in piece:
                text = str(number)
                replicas[text] = assigned.replicas
                if assigned.adding_replicas:
                    adding[text] = assigned.adding_replicas
                if assigned.removing_replicas:
                    removing[text] = assigned.removing_replicas
            encoded.append(encode_json(replicas)[1:-1])
        fields: dict[str, Any] = {"partitions": {}}
        if self.topic_id is not None:
            fields["topic_id"] = str(self.topic_id)
        fields["adding_replicas"] = adding
        fields["removing_replicas"] = removing
        fields["version"] = self.version
        rest = encode_json(fields, self.extra)
        return b"".join((_BEFORE_PARTITIONS, b",".join(encoded), rest[len(_BEFORE_PARTITIONS) :]))

    @classmethod
    def decode(cls, data: bytes | None, path: str) -> TopicAssignment:
        return at_once(cls.decode_in_steps(data, path))

    @classmethod
    def decode_in_steps(cls, data: bytes | None, path: str) -> Steps[TopicAssignment]:
        """Like `decode`, for topics of very many partitions."""
        fields = Fields.decode(data, path)
        version = fields.integer("version", 1)
        adding = fields.mapping("adding_replicas")
        removing = fields.mapping("removing_replicas")
        partitions: dict[int, ReplicaAssignment] = {}
        # Most partitions of a large topic have the same replicas as some others.
        shared: dict[tuple[int, ...], ReplicaAssignment] = {}
        moving = {**adding, **removing}
        assigned = fields.mapping("partitions")
        remaining = iter(assigned.items())
        per_step = MOVING_PER_STEP if moving else PARTITIONS_PER_STEP
        while piece := dict(islice(remaining, per_step)):
            if len(assigned) > per_step:
                # Reading the JSON of many is a step of its own.
                yield
            if moving or not _are_plain(piece):
                _check_assignments(fields, piece, adding, removing)
            replicas = list(map(tuple, piece.values()))
            for alike in dict.fromkeys(replicas):
                if alike not in shared:
                    shared[alike] = ReplicaAssignment(alike)
            partitions.update(zip(map(int, piece), map(shared.__getitem__, replicas), strict=True))
            for text in filter(moving.__contains__, piece) if moving else ():
                moved = tuple(adding.get(text, ())), tuple(removing.get(text, ()))
                partitions[int(text)] = ReplicaAssignment(tuple(piece[text]), *moved)
        topic_id = fields.optional_text("topic_id")
        return cls(partitions, None if topic_id is None else _decode_topic_id(topic_id, path), version, fields.rest())


def _are_plain(assigned: Mapping[str, Any]) -> bool:
    """Whether `_check_assignments` would certainly find nothing wrong where nothing is being moved, by looking at all
    at once.
    """
    numbers, lists = "".join(assigned), list(assigned.values())
    if not numbers.isascii() or not numbers.isdigit() or set(map(type, lists)) != {list}:
        return False
    # No number of nine digits is too large.
    if not 0 < min(map(len, assigned)) <= max(map(len, assigned)) < 10:
        return False
    broker_ids = list(chain.from_iterable(lists))
    return set(map(type, broker_ids)) == {int} and 0 <= min(broker_ids) <= max(broker_ids) < 2**31


def _check_assignments(
    fields: Fields, assigned: Mapping[str, Any], adding: Mapping[str, Any], removing: Mapping[str, Any]
) -> None:
    """Raises `LayoutError` for what no partition can have."""
    for text, replicas in assigned.items():
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 2**31):
            raise LayoutError(fields.path, f"{text!r} is not a partition number")
        broker_ids = fields.as_broker_ids(f"partitions.{text}", replicas)
        fields.as_broker_ids(f"adding_replicas.{text}", adding.get(text, []))
        fields.as_broker_ids(f"removing_replicas.{text}", removing.get(text, []))
        if min(broker_ids, default=0) < 0:  # no broker has such an id, so that it would wait for ever
            raise fields.wrong(f"partitions.{text}", "a list of broker ids from 0 on", replicas)


def least_assignment_bytes(first_partition: int, partition_count: int, replicas_bytes: int) -> int:
    """How much the JSON of partitions from `first_partition` on takes at least, where the broker ids of each take
    `replicas_bytes` with the commas between them. It takes no longer for many partitions than for few.
    """
    end = first_partition + partition_count
    # Each number has one digit, and one more for each power of ten that it reaches.
    powers = (0, *(int("1" + "0" * zeros) for zeros in range(1, 10)))
    digits = sum(max(0, end - max(first_partition, power)) for power in powers)
    return digits + partition_count * (len('"":[],') + replicas_bytes)


def decode_topic_id(data: bytes | None, path: str) -> Uuid | None:
    """The topic's id alone, of the payload of `/brokers/topics/T`."""
    text = Fields.decode(data, path).optional_text("topic_id")
    return None if text is None else _decode_topic_id(text, path)


def _decode_topic_id(text: str, path: str) -> Uuid:
    try:
        return Uuid.from_text(text)
    except ValueError as error:
        raise LayoutError(path, f"topic_id: {error}") from None


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Payload of `/brokers/topics/T/partitions/P/state`: the leader (-1 for none) and the in-sync replicas, and the
    epochs that fence them.

    `partition_epoch` of the protocol is the version of the znode, which is not part of the payload.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    version: int = STATE_VERSION
    extra: Mapping[str, Any] = NO_EXTRA

    def encode(self) -> bytes:
        fields: dict[str, Any] = {
            "controller_epoch": self.controller_epoch,
            "leader": self.leader,
            "version": self.version,
            "leader_epoch": self.leader_epoch,
            "isr": self.isr,
        }
        if self.leader_recovery_state is not LeaderRecoveryState.RECOVERED:
            fields["leader_recovery_state"] = self.leader_recovery_state
        return encode_json(fields, self.extra)

    @classmethod
    def decode(cls, data: bytes | None, path: str) -> PartitionState:
        plain = None if data is None else cls.plain_fields(data)
        if plain is not None:
            return cls(*plain)
        fields = Fields.decode(data, path)
        number = fields.integer("leader_recovery_state", 0)
        if number not in _RECOVERY_STATES:
            raise fields.wrong("leader_recovery_state", "0 or 1", number)
        return cls(
            leader=fields.integer("leader"),
            leader_epoch=fields.epoch("leader_epoch"),
            isr=fields.broker_ids("isr"),
            controller_epoch=fields.integer("controller_epoch"),
            leader_recovery_state=_RECOVERY_STATES[number],
            version=fields.integer("version", STATE_VERSION),
            extra=fields.rest(),
        )

    @staticmethod
    def plain_fields(data: bytes) -> tuple[int, int, tuple[int, ...], int] | None:
        """Leader, leader epoch, ISR and controller epoch of a state that is written just as Kafka and we write nearly
        all, as `decode` finds them; None for any other.
        """
        plain = _PLAIN_STATE(data)
        if plain is None:
            return None
        controller_epoch, leader, leader_epoch, isr = plain.groups()
        return int(leader), int(leader_epoch), _members(isr), int(controller_epoch)


# At most nine digits, so that every number is an int32, and none with a zero ahead, which JSON does not have.
_PLAIN_STATE = re.compile(
    rb'\{"controller_epoch":(0|[1-9]\d{0,8}),"leader":(-1|0|[1-9]\d{0,8}),"version":1,'
    rb'"leader_epoch":(0|[1-9]\d{0,8}),"isr":\[((?:0|[1-9]\d{0,8})(?:,(?:0|[1-9]\d{0,8}))*|)\]\}'
).fullmatch


@lru_cache(maxsize=4096)
def _members(isr: bytes) -> tuple[int, ...]:
    """Of very many partitions few sets of brokers are in sync: they share one tuple."""
    return tuple(map(int, isr.split(b","))) if isr else ()


_RECOVERY_STATES = {int(state): state for state in LeaderRecoveryState}
