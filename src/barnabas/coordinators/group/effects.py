"""What a group asks of the shell around it: answers, records, timers. The group itself does none of it."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from barnabas.wire.messages import GroupMetadataValue

Reply = Callable[[Any], None]
"""Takes the response of one parked request. A group keeps it and hands it back in `Respond`, and never calls it."""


class Now(NamedTuple):
    """The time of an input: the loop's, for what lasts, and the wall clock's, for what is written down."""

    seconds: float
    time_ms: int


class TimerKind(enum.Enum):
    """What a timer of a group ends."""

    JOIN = "join"
    """The time for members to join again, or the delay of a first rebalance; in a consumer group that of one member."""
    SYNC = "sync"
    """The time for members to ask for their assignment; in a consumer group that of one member."""
    SESSION = "session"
    """The session of a member."""
    REVOCATION = "revocation"
    """The time in which a member of the consumer protocol is to give up partitions."""
    PENDING = "pending"
    """The time in which a client is to come back with the member id that it was given."""


class TimerKey(NamedTuple):
    """Which timer of a group. Starting one that runs replaces it."""

    kind: TimerKind
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class Respond:
    """Answers a parked request."""

    reply: Reply
    response: Any


@dataclass(frozen=True, slots=True)
class StartTimer:
    """After the delay the key comes back as an input, unless it is stopped or started anew before."""

    key: TimerKey
    delay_ms: float


@dataclass(frozen=True, slots=True)
class StopTimer:
    """The key will not come back; nothing happens where no such timer runs."""

    key: TimerKey


@dataclass(frozen=True, slots=True)
class StoredAssignment:
    """The group with the leader's assignment."""

    generation: int
    assignment: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class StoredEmptyGroup:
    """The group without members."""


@dataclass(frozen=True, slots=True)
class StoredStaticMember:
    """The group with a static member that came back under a new member id while the group was stable (KIP-345)."""

    generation: int
    group_instance_id: str
    new_member_id: str
    protocols: tuple[tuple[str, bytes], ...]
    rebalance_timeout_ms: int
    session_timeout_ms: int
    old_leader_id: str | None
    supports_skipping_assignment: bool
    reply: Reply


Stored = StoredAssignment | StoredEmptyGroup | StoredStaticMember


@dataclass(frozen=True, slots=True)
class StoreGroup:
    """Appends the record of the group, and replays it where the log takes it. `stored` comes back as an input: that it
    is refused, or that it is replayed and then with the outcome.
    """

    value: GroupMetadataValue
    stored: Stored


Effect = Respond | StartTimer | StopTimer | StoreGroup
