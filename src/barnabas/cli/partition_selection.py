"""Partitions as users name them (`flights`, `flights:0,2-4`), and the offsets that places in them mean."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from barnabas.cli.connection import CommandError, ExitStatus
from barnabas.cli.edges import Edge
from barnabas.cli.missing import missing_topics
from barnabas.cli.output import printable, say
from barnabas.cli.record_formats import shown_time
from barnabas.cli.starts import Ago, AtOffset, AtTime, BeforeEnd, Start
from barnabas.kernel.facts import fact
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.sentinels import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.admin import Admin
    from barnabas.client.cluster import TopicInfo

PARTITIONS_FORM: Final = "TOPIC, or TOPIC:0,2-4 for some of its partitions"
_NUMBERS: Final = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)
_NUMBERS_MAX: Final = 200_000
_NAMES_SHOWN_MAX: Final = 5


@fact
class Bounds:
    """Where a partition begins and ends: its first offset, and the one behind its last record."""

    start: int
    end: int


def parse_selection(texts: Iterable[str]) -> dict[str, tuple[int, ...] | None]:
    """Topics, and which partitions of each, None for all. Raises ValueError, which says how they are written."""
    found: dict[str, tuple[int, ...] | None] = {}
    for text in texts:
        topic, colon, rest = text.partition(":")
        if not topic or (colon and not rest):
            raise ValueError(f"{text!r} names no partitions: write {PARTITIONS_FORM}")
        if not colon:
            found[topic] = None
            continue
        numbers = _numbers(text, rest)
        earlier = found.get(topic, ())
        if earlier is not None:
            found[topic] = tuple(sorted({*earlier, *numbers}))
    return found


def numbers_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partitions as `parse_selection` has them."""
    found: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        found.setdefault(partition.topic, []).append(partition.partition)
    return found


async def find_partitions(
    admin: Admin, selection: Mapping[str, Sequence[int] | None], *, must_be_led: bool = False
) -> tuple[list[TopicPartition], frozenset[str]]:
    """The partitions, in order, and which of the topics are internal.

    Raises CommandError for what does not exist, and for partitions without a leader where they must be led.
    """
    found: list[TopicPartition] = []
    missing: list[str] = []
    internal: set[str] = set()
    for name, wanted in selection.items():
        try:
            topic = (await admin.describe_topics([name]))[name]
        except KafkaError as error:
            if error.code not in {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION}:
                raise
            missing.append(name)
            continue
        there = sorted(topic.partitions)
        unknown = [number for number in wanted or () if number not in topic.partitions]
        if unknown:
            raise CommandError(
                f"topic {printable(name)} has no partition {unknown[0]}; it has 0 to {len(there) - 1}",
                ExitStatus.MISSING,
            )
        if topic.is_internal:
            internal.add(name)
        some = [TopicPartition(name, number) for number in (there if wanted is None else wanted)]
        if must_be_led:
            check_led(some, {name: topic})
        found += some
    if missing:
        raise missing_topics(missing)
    return sorted(found), frozenset(internal)


def check_led(partitions: Iterable[TopicPartition], topics: Mapping[str, TopicInfo]) -> None:
    """Raises CommandError for partitions without a leader: nobody can tell their offsets, or change them."""
    without = [each for each in partitions if topics[each.topic].partitions[each.partition].leader_id < 0]
    if not without:
        return
    names = ", ".join(printable(str(each)) for each in without[:_NAMES_SHOWN_MAX])
    more = f" and {len(without) - _NAMES_SHOWN_MAX:,} more" if len(without) > _NAMES_SHOWN_MAX else ""
    verb = "has" if len(without) == 1 else "have"
    raise CommandError(
        f"{names}{more} {verb} no leader now; `barnabas cluster health` says which brokers to start",
        ExitStatus.UNREACHABLE,
    )


async def find_bounds(admin: Admin, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
    """Beginning and end of each partition."""
    if not partitions:
        return {}
    starts = await admin.list_offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP))
    ends = await admin.list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP))
    return {partition: Bounds(starts[partition].offset, ends[partition].offset) for partition in partitions}


async def find_offsets(
    admin: Admin, bounds: Mapping[TopicPartition, Bounds], place: Start, now_ms: int
) -> dict[TopicPartition, int]:
    """The offset that a place means in each partition; one outside the log is moved to its nearer end, with a note.

    Raises CommandError for a time in the future.
    """
    match place:
        case Edge.EARLIEST:
            return {partition: each.start for partition, each in bounds.items()}
        case Edge.LATEST:
            return {partition: each.end for partition, each in bounds.items()}
        case BeforeEnd(count):
            return {partition: max(each.start, each.end - count) for partition, each in bounds.items()}
        case AtOffset(offset):
            return {partition: within(partition, each, offset) for partition, each in bounds.items()}
        case Ago():
            return await _at_time(admin, bounds, place.at(now_ms).timestamp_ms)
        case AtTime(timestamp_ms):
            if timestamp_ms > now_ms:
                raise CommandError(
                    f"{shown_time(timestamp_ms)} is in the future; write latest for the end", ExitStatus.USAGE
                )
            return await _at_time(admin, bounds, timestamp_ms)


def within(partition: TopicPartition, bounds: Bounds, offset: int) -> int:
    """The offset, or the nearer end of the log where it is outside, with a note."""
    moved = min(max(offset, bounds.start), bounds.end)
    if moved != offset:
        say(
            f"{printable(str(partition))} has offsets {bounds.start} to {bounds.end}, and no {offset}: {moved} is taken"
        )
    return moved


# Inside.


async def _at_time(
    admin: Admin, bounds: Mapping[TopicPartition, Bounds], timestamp_ms: int
) -> dict[TopicPartition, int]:
    """What was written or deleted since the bounds were asked for does not count: an offset is within them."""
    found = await admin.list_offsets(dict.fromkeys(bounds, timestamp_ms)) if bounds else {}
    return {
        partition: min(max(found[partition].offset, each.start), each.end) if found[partition].offset >= 0 else each.end
        for partition, each in bounds.items()
    }


def _numbers(text: str, rest: str) -> list[int]:
    numbers: list[int] = []
    for part in rest.split(","):
        matched = _NUMBERS.fullmatch(part.strip())
        if matched is None:
            raise ValueError(f"{text!r} names no partitions: write {PARTITIONS_FORM}")
        first, last = int(matched[1]), int(matched[2] or matched[1])
        if last < first or last - first >= _NUMBERS_MAX:
            raise ValueError(f"{part.strip()} is no range of partitions: write the smaller number first")
        numbers += range(first, last + 1)
    return numbers
