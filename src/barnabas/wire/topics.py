"""Topics and partitions, as every API and every room names them."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from functools import partial
from itertools import repeat
from typing import Final, NamedTuple

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_TOPIC: Final = "__transaction_state"
REMOTE_LOG_METADATA_TOPIC: Final = "__remote_log_metadata"
"""What is in remote storage. To clients it is a topic like any other, as in Apache Kafka."""
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTION_TOPIC})
"""Topics of the brokers' own."""


class TopicPartition(NamedTuple):
    """One partition of one topic; as text, `topic-partition`, which is how Kafka names it in logs and directories."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def topic_partitions(topic: str, numbers: Iterable[int]) -> list[TopicPartition]:
    """These partitions of a topic, made without a call for each."""
    return list(map(_made, zip(repeat(topic), numbers)))


_made = partial(tuple.__new__, TopicPartition)


class LeaderRecoveryState(enum.IntEnum):
    """Whether a leader that was elected uncleanly has recovered its log (KIP-704)."""

    RECOVERED = 0
    RECOVERING = 1


class ElectionType(enum.IntEnum):
    """Who may become a leader when somebody asks for an election (KIP-460); the value is that of the protocol."""

    PREFERRED = 0
    """The first replica of the assignment, if it is in sync."""
    UNCLEAN = 1
    """Where there is no leader: a replica in sync, or else any, with the loss of what it lacks."""
