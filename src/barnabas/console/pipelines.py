"""Pipelines of Barnabas, as the cluster shows them, by a group and a topic of dead letters each; and their own files,
where the console was told of some on its machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from barnabas.client.offset_lookup import OffsetLookup
from barnabas.wire.sentinels import EARLIEST_TIMESTAMP
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.cluster import Cluster
    from barnabas.client.connections import Lane

GROUP_PREFIX: Final = "barnabas-pipeline-"
"""What the groups of pipelines begin with; the name comes behind."""
LETTERS_SUFFIX: Final = ".dlq"
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,100}")
LETTER_PARTITIONS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class QueryLine:
    """The last batch of a query, and the sums over all its batches."""

    view: str
    batch_id: int
    time_ms: int
    rows_per_second: float
    watermark_ms: int | None
    rows_in: int
    rows_out: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Rows that are in no result, by why."""


@dataclass(frozen=True, slots=True)
class PipelineFile:
    """What a pipeline's own files say; `state` is a word for people, `kind` one of good, warning, bad. `error` is why
    they cannot be read, and nothing else is known then.
    """

    name: str
    path: str
    state: str = ""
    kind: str = "warning"
    process_id: int | None = None
    reason: str | None = None
    started_ms: int | None = None
    updated_ms: int | None = None
    queries: tuple[QueryLine, ...] = ()
    graph: str = ""
    """SVG with its text escaped, and no style of its own."""
    error: str | None = None


ReadFiles: TypeAlias = Callable[[], Sequence[PipelineFile]]
"""Reads all files that the console was told of; called off the loop."""


@dataclass(frozen=True, slots=True)
class LetterStarts:
    """Where the topics of dead letters begin, so that what is there can be counted; `failed` says of which not."""

    starts: Mapping[TopicPartition, int]
    failed: int = 0
    not_asked: int = 0
    """Partitions beyond the bound."""


def pipeline_of(group_id: str) -> str | None:
    """The name of the pipeline that a group belongs to; None for other groups."""
    name = group_id.removeprefix(GROUP_PREFIX)
    # Others may call their groups as they like; browsers take `.` and `..` out of addresses.
    is_one = group_id.startswith(GROUP_PREFIX) and _NAME.fullmatch(name) is not None and name not in {".", ".."}
    return name if is_one else None


async def letter_starts(client: Client, lane: Lane) -> LetterStarts:
    """Asks the leaders of these topics."""
    wanted = letter_partitions(client.cluster)
    led = [each for each in wanted[:LETTER_PARTITIONS_MAX] if client.cluster.leader(each) is not None]
    if not led:
        return LetterStarts({}, min(len(wanted), LETTER_PARTITIONS_MAX), max(0, len(wanted) - LETTER_PARTITIONS_MAX))
    answers = await OffsetLookup(client, lane).offsets(dict.fromkeys(led, EARLIEST_TIMESTAMP))
    starts = {partition: place.offset for partition, place in answers.found.items()}
    asked = min(len(wanted), LETTER_PARTITIONS_MAX)
    return LetterStarts(starts, asked - len(starts), len(wanted) - asked)


def letter_partitions(cluster: Cluster) -> list[TopicPartition]:
    """All partitions of topics that are named as topics of dead letters are."""
    return [
        TopicPartition(name, number)
        for name, topic in sorted(cluster.topics.items())
        if name.endswith(LETTERS_SUFFIX) and name != LETTERS_SUFFIX
        for number in sorted(topic.partitions)
    ]


@dataclass(frozen=True, slots=True)
class Letters:
    """How many dead letters a topic has; None where that is not known."""

    topic: str
    there: int | None
    ever: int | None
    """Those that were deleted since, and markers of transactions, included."""


def letters_of(
    name: str, cluster: Cluster, ends: Mapping[TopicPartition, int], starts: Mapping[TopicPartition, int]
) -> Letters | None:
    """Of a pipeline; None where it has no such topic."""
    topic = cluster.topics.get(f"{name}{LETTERS_SUFFIX}")
    if topic is None:
        return None
    partitions = [TopicPartition(topic.name, number) for number in topic.partitions]
    ever = None if any(each not in ends for each in partitions) else sum(ends[each] for each in partitions)
    is_known = ever is not None and all(each in starts for each in partitions)
    there = sum(max(0, ends[each] - starts[each]) for each in partitions) if is_known else None
    return Letters(topic.name, there, ever)
