"""`/messages`: the records of a topic, or of one partition: the newest, or from an offset or a time; those with a key,
or with a text."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from typing import TYPE_CHECKING

from barnabas.client.errors import ClientError
from barnabas.client.partitioners import murmur2
from barnabas.console.html import Content, Html, href, link, table, tag
from barnabas.console.pages.page import Page, Visit, int_of, missing
from barnabas.console.records_read import PARTITIONS_MAX, SHOWN_MAX, BusyError, Found, From, Wanted
from barnabas.console.words import counted, date_and_clock
from barnabas.link.errors import RequestTimeoutError
from barnabas.wire.errors import KafkaError
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barnabas.client.cluster import Cluster, TopicInfo
    from barnabas.client.records import ConsumerRecord
    from barnabas.wire.records import Header

_COUNT = 50
_KEY_LENGTH_MAX = 1_000
_TEXT_BYTES_SHOWN = 4_096
_HEX_BYTES_SHOWN = 256
_HEX_LINE = 16
_HEADERS_SHOWN = 20
_HEADER_BYTES_SHOWN = 256
_PAGE_TEXT_BYTES = 512 * 1024
"""What of all keys, and again of all values, is shown: the more records there are, the less of each."""
_PAGE_HEADERS = 1_000
_UNREAD_NAMED_MAX = 10
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


async def messages(visit: Visit) -> Page:
    """The page. It is not kept fresh: what it shows was read once."""
    cluster = visit.poller.cluster.value
    if cluster is None:
        return Page("Messages", None)
    topic = visit.query.get("topic", "").strip()
    if not topic:
        return Page("Messages", [_form(visit, cluster), tag("p", "Choose a topic.", class_="faint")], is_live=False)
    if topic not in cluster.topics:
        return missing(f"There is no topic {topic}.")
    wanted = _wanted(visit, cluster.topics[topic])
    if isinstance(wanted, str):
        return Page("Messages", [_form(visit, cluster), tag("p", wanted, class_="note warning")], False, 400)
    for partition in wanted.partitions:
        if cluster.partition(partition) is None:
            return missing(f"Topic {topic} has no partition {partition.partition}.")
    try:
        found = await visit.reader.read(wanted)
    except BusyError as error:
        return Page("Messages", [_form(visit, cluster), tag("p", f"{error}.", class_="note warning")], False, 503)
    except (KafkaError, ClientError, ConnectionError, RequestTimeoutError, TimeoutError) as error:
        what = str(wanted.partitions[0]) if len(wanted.partitions) == 1 else topic
        why = f"The records of {what} cannot be read: {str(error) or 'no answer in time'}."
        return Page("Messages", [_form(visit, cluster), tag("p", why, class_="note bad", role="alert")], False)
    return Page("Messages", [_form(visit, cluster), *await _shown(visit, wanted, found)], is_live=False)


def shown_bytes(data: bytes | None, text_bytes: int = _TEXT_BYTES_SHOWN) -> Html:
    """A key or a value: text where it is UTF-8, escaped, `text_bytes` of it at most; otherwise as hexadecimal; the
    beginning where it is long.
    """
    if data is None:
        return tag("span", "null", class_="faint")
    if not data:
        return tag("span", "empty", class_="faint")
    cut = data[:text_bytes]
    decoded = _text(cut, is_cut=len(cut) < len(data))
    if decoded is not None:
        more = f" ... {len(data):,} bytes in all" if len(cut) < len(data) else None
        return tag("pre", decoded, tag("span", more, class_="faint") if more else None)
    lines = [
        f"{first:04x}  {data[first : first + _HEX_LINE].hex(' ')}"
        for first in range(0, min(len(data), _HEX_BYTES_SHOWN), _HEX_LINE)
    ]
    more = f"\n... {len(data):,} bytes in all" if len(data) > _HEX_BYTES_SHOWN else ""
    return tag("pre", "\n".join(lines), tag("span", more, class_="faint") if more else None, class_="hex")


def shown_headers(headers: Sequence[Header], most: int = _HEADERS_SHOWN) -> list[Html]:
    """The first headers, and how many more there are: a record may have hundreds of thousands."""
    shown = [
        tag("div", tag("b", _name(key)), " ", shown_bytes(value, _HEADER_BYTES_SHOWN)) for key, value in headers[:most]
    ]
    if len(headers) > most:
        shown.append(tag("div", f"... {len(headers):,} headers in all", class_="faint"))
    return shown


# Inside.


def _wanted(visit: Visit, topic: TopicInfo) -> Wanted | str:
    """What the address asks for, or what is wrong with it."""
    query = visit.query
    partitions = _partitions(query.get("partition", "").strip(), topic)
    if isinstance(partitions, str):
        return partitions
    count = int_of(query.get("count"), _COUNT, least=1, most=SHOWN_MAX)
    text = query.get("q", "")[:200]
    keys = _keys(query.get("key", "")[:_KEY_LENGTH_MAX])
    place = query.get("at", "").strip()
    try:
        start = From(query.get("from", From.NEWEST.value))
    except ValueError:
        return "Begin at newest, oldest, offset or time."
    at = 0
    if start is From.OFFSET:
        if not (place.isascii() and place.isdigit() and len(place) < 19):
            return "To begin at an offset, give its number."
        if len(partitions) > 1:
            return "To begin at an offset, give its partition."
        at = int(place)
    elif start is From.TIME:
        time_ms = _time_ms(place)
        if time_ms is None:
            return "To begin at a time, give it in UTC, such as 2026-11-25T09:30:00, or in ms since 1970."
        at = time_ms
    return Wanted(partitions, start, at, count, text, keys)


def _partitions(given: str, topic: TopicInfo) -> tuple[TopicPartition, ...] | str:
    """The partition, or all that have a leader where none is given; or why not."""
    if given:
        number = int_of(given, -1, most=2**31 - 1)
        return (TopicPartition(topic.name, number),) if number >= 0 else "Give a partition by its number, or none."
    if len(topic.partitions) > PARTITIONS_MAX:
        return f"{topic.name} has more than {PARTITIONS_MAX:,} partitions: give one of them."
    led = [number for number, info in topic.partitions.items() if info.leader_id >= 0]
    # Of a topic without any leader the reader says what is wrong.
    return tuple(TopicPartition(topic.name, number) for number in led or topic.partitions)


def _keys(text: str) -> frozenset[bytes]:
    """The key as text, and, where it can be read so, as the bytes in hexadecimal behind 0x."""
    if not text:
        return frozenset()
    keys = {text.encode()}
    if text.lower().startswith("0x"):
        with contextlib.suppress(ValueError):
            keys.add(bytes.fromhex(text[2:]))
    return frozenset(keys)


def _time_ms(text: str) -> int | None:
    if text.isascii() and text.isdigit():
        return int(text) if len(text) < 19 else None
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return max(0, (moment - _EPOCH) // dt.timedelta(milliseconds=1))


def _form(visit: Visit, cluster: Cluster) -> Html:
    query = visit.query
    topic = cluster.topics.get(query.get("topic", ""))
    last = len(topic.partitions) - 1 if topic is not None else None

    def field(label: str, **attributes: str | int | None) -> Html:
        return tag("label", label, " ", tag("input", **attributes))

    chosen = query.get("from", From.NEWEST.value)
    words = {From.NEWEST: "the newest", From.OLDEST: "the oldest", From.OFFSET: "offset", From.TIME: "time (UTC)"}
    options = [tag("option", word, value=each.value, selected=each.value == chosen) for each, word in words.items()]
    names = [tag("option", value=name) for name in sorted(cluster.topics)[:500]]
    return tag(
        "form",
        field("Topic", name="topic", value=query.get("topic", ""), list="topic-names", size=20),
        tag("datalist", names, id="topic-names"),
        field(
            "Partition",
            type="number",
            name="partition",
            value=query.get("partition", ""),
            min=0,
            max=last,
            placeholder="all",
        ),
        tag("label", "From ", tag("select", options, name="from")),
        field("at", name="at", value=query.get("at", ""), size=20),
        field("Records", type="number", name="count", value=query.get("count", _COUNT), min=1, max=SHOWN_MAX),
        field("With the key", type="search", name="key", value=query.get("key", ""), size=16),
        field("With the text", type="search", name="q", value=query.get("q", ""), id="q", size=16),
        tag("button", "Show", type="submit"),
        method="get",
        role="search",
    )


async def _shown(visit: Visit, wanted: Wanted, found: Found) -> list[Html | None]:
    is_one = len(found.ranges) == 1
    notes: list[Html | None] = [
        _what(visit, wanted, found),
        tag("p", "What is given as `at` is not used: begin at an offset or at a time.", class_="note warning")
        if visit.query.get("at", "").strip() and wanted.start in {From.NEWEST, From.OLDEST}
        else None,
        tag("p", f"Not to the end: {found.is_cut}.", class_="note warning") if found.is_cut else None,
        _unread(found),
    ]
    records = list(found.records)
    if wanted.start is From.NEWEST:
        records.reverse()
    columns = [*([] if is_one else ["#Partition"]), "#Offset", "Time (UTC)", "Key", "Value", "Headers"]
    empty = f"No record there has that {'key' if wanted.keys else 'text'}." if wanted.is_search else "No records there."
    count = max(1, len(records))
    text_bytes, headers = min(_TEXT_BYTES_SHOWN, _PAGE_TEXT_BYTES // count), min(_HEADERS_SHOWN, _PAGE_HEADERS // count)
    rows: list[list[Content]] = []
    for record in records:
        row = _row(record, text_bytes, headers)
        rows.append(row if is_one else [link(record.partition.partition, *_place(record.partition)), *row])
        await asyncio.sleep(0)  # a record may take milliseconds, and others look too
    return [
        *notes,
        table(counted(len(records), "record"), columns, rows, empty),
        _others(visit, wanted, found) if is_one else None,
    ]


def _what(visit: Visit, wanted: Wanted, found: Found) -> Html:
    """What there is, and what of it was looked through."""
    (first, range_), *others = found.ranges.items()
    if not others:
        what = f"{first} has offsets {range_.start:,} to {range_.end:,}."
        if wanted.is_search:
            what += f" {counted(found.looked_through, 'record')} looked through, from offset {range_.first:,} on."
        return tag("p", what, " ", link("The partition", *_place(first)), _write_link(visit, first.topic, first))
    cluster = visit.poller.cluster.value
    topic = None if cluster is None else cluster.topics.get(first.topic)
    left_out = 0 if topic is None else len(topic.partitions) - len(found.ranges)
    what = f"{first.topic} has {counted(len(found.ranges) + left_out, 'partition')}"
    what += f", {left_out:,} of them without a leader, which were not read." if left_out else "."
    if wanted.is_search:
        what += f" {counted(found.looked_through, 'record')} looked through."
    if wanted.start is From.NEWEST and any(each.first > each.start for each in found.ranges.values()):
        what += f" Of each the newest {wanted.back:,}."
        if wanted.is_search:
            what += " Give a partition to look through more."
    links: list[Content] = [" ", link("The topic", "topics", first.topic)]
    if wanted.keys and topic is not None:
        links += _partitions_of_key(visit, wanted, topic)
    return tag("p", what, links, _write_link(visit, first.topic, None))


def _unread(found: Found) -> Html | None:
    """Which partitions could not be read, and why the first of them."""
    if not found.unread:
        return None
    numbers = sorted(each.partition for each in found.unread)
    named = ", ".join(map(str, numbers[:_UNREAD_NAMED_MAX])) + (", ..." if len(numbers) > _UNREAD_NAMED_MAX else "")
    what = f"Not read, or not to the end: {counted(len(numbers), 'partition')} ({named}). "
    return tag("p", what, f"{next(iter(found.unread.values()))}.", class_="note bad", role="alert")


def _partitions_of_key(visit: Visit, wanted: Wanted, topic: TopicInfo) -> list[Content]:
    """Links to where a key is; to two of them where it may be meant as text or as bytes."""
    as_text = visit.query.get("key", "")[:_KEY_LENGTH_MAX].encode()
    links: list[Content] = []
    for key in sorted(wanted.keys, key=lambda each: each != as_text):
        number = (murmur2(key) & 0x7FFFFFFF) % len(topic.partitions)
        which = "that key" if len(wanted.keys) == 1 else "that text" if key == as_text else "those bytes"
        query: dict[str, str | int] = {**visit.query, "partition": number}
        links += [" ", link(f"Partition {number}, where Kafka's partitioner puts {which}", "messages", query=query)]
    return links


def _place(partition: TopicPartition) -> tuple[str, str, int]:
    return "topics", partition.topic, partition.partition


def _row(record: ConsumerRecord, text_bytes: int, headers: int) -> list[Content]:
    at: dict[str, str | int] = {
        "topic": record.partition.topic,
        "partition": record.partition.partition,
        "from": "offset",
        "at": record.offset,
        "count": 1,
    }
    return [
        link(f"{record.offset:,}", "messages", query=at),
        tag("span", date_and_clock(record.timestamp_ms), class_="whole") if record.timestamp_ms >= 0 else None,
        shown_bytes(record.key, text_bytes),
        shown_bytes(record.value, text_bytes),
        shown_headers(record.headers, headers) or None,
    ]


def _others(visit: Visit, wanted: Wanted, found: Found) -> Html | None:
    """Links to the records before and behind."""
    (range_,) = found.ranges.values()
    base = {key: value for key, value in visit.query.items() if key in {"topic", "partition", "count", "q", "key"}}

    def at(offset: int) -> str:
        return href("messages", query={**base, "from": "offset", "at": offset})

    links: list[Html] = []
    if range_.first > range_.start:
        # A search goes on with as many as it has looked through.
        step = wanted.searched_max if wanted.is_search else wanted.count
        links.append(tag("a", "Before", href=at(max(range_.start, range_.first - step))))
    if range_.next < range_.end:
        links.append(tag("a", "Next", href=at(range_.next)))
    return tag("p", [[each, " "] for each in links], class_="pager") if links else None


def _write_link(visit: Visit, topic: str, partition: TopicPartition | None) -> list[Content]:
    if not visit.visitor.may_change:
        return []
    query: dict[str, str | int] = {"topic": topic}
    if partition is not None:
        query["partition"] = partition.partition
    return [" ", link("Write a record", "write", query=query)]


def _name(key: bytes) -> str:
    more = " ..." if len(key) > _HEADER_BYTES_SHOWN else ""
    return key[:_HEADER_BYTES_SHOWN].decode("utf-8", "backslashreplace") + more


def _text(data: bytes, *, is_cut: bool) -> str | None:
    """The bytes as text; None where they are none."""
    try:
        decoded = data.decode()
    except UnicodeDecodeError as error:
        # The cut may have gone through a character.
        if not is_cut or error.start < len(data) - 3:
            return None
        decoded = data[: error.start].decode()
    return None if "\x00" in decoded else decoded
