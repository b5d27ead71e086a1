"""Files with an offset for each of some partitions, as `kafka-consumer-groups --export` and we write them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from barnabas.cli.connection import CommandError
from barnabas.cli.output import printable
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from typing import BinaryIO

FILE_FORMS: Final = 'lines of TOPIC,PARTITION,OFFSET, or {"partitions": [{"topic": "a", "partition": 0, "offset": 7}]}'
_BYTES_MAX: Final = 16 * 1024 * 1024
_OFFSET_MAX: Final = (1 << 63) - 1
_PARTITION_MAX: Final = (1 << 31) - 1
_COLUMNS: Final = 3
_SHOWN_CHARACTERS_MAX: Final = 60


def read_offsets(stream: BinaryIO, name: str) -> dict[TopicPartition, int]:
    """The offsets in a file: lines of CSV, or JSON as `group reset --json` prints it, of which `new_offset` goes before
    `offset`. Raises CommandError with file and line for what is neither.
    """
    data = stream.read(_BYTES_MAX + 1)
    if len(data) > _BYTES_MAX:
        raise CommandError(f"{name}: the file is larger than {_BYTES_MAX:,} bytes; give it in several")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CommandError(f"{name}: byte {error.start + 1} is not UTF-8; it must be {FILE_FORMS}") from None
    entries = _json_entries(text, name) if text.lstrip().startswith(("{", "[")) else _csv_entries(text, name)
    found: dict[TopicPartition, int] = {}
    for where, topic, number, offset in entries:
        partition = TopicPartition(topic, number)
        if partition in found:
            raise CommandError(f"{where}: {printable(str(partition))} is there twice; give it one offset")
        found[partition] = offset
    if not found:
        raise CommandError(f"{name}: there is no offset in it; it must be {FILE_FORMS}")
    return found


# Inside.


def _csv_entries(text: str, name: str) -> Iterator[tuple[str, str, int, int]]:
    reader = csv.reader(text.splitlines(), skipinitialspace=True)
    try:
        for row in reader:
            where = f"{name}, line {reader.line_num}"
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if len(cells) != _COLUMNS or not cells[0]:
                line = printable(",".join(row)[:_SHOWN_CHARACTERS_MAX])
                raise CommandError(f"{where}: {line!r} is not TOPIC,PARTITION,OFFSET")
            yield where, cells[0], _number(where, cells[1], _PARTITION_MAX), _number(where, cells[2], _OFFSET_MAX)
    except csv.Error as error:
        raise CommandError(f"{name}, line {reader.line_num}: {error}; a line is TOPIC,PARTITION,OFFSET") from None


def _number(where: str, text: str, largest: int) -> int:
    if text.isascii() and text.isdigit() and len(text) <= len(str(largest)) and int(text) <= largest:
        return int(text)
    what = "partition" if largest == _PARTITION_MAX else "offset"
    raise CommandError(f"{where}: {printable(text[:_SHOWN_CHARACTERS_MAX])!r} is no {what}: write a number from 0 on")


def _json_entries(text: str, name: str) -> Iterator[tuple[str, str, int, int]]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise CommandError(f"{name}: it is not JSON ({error}); it must be {FILE_FORMS}") from None
    except RecursionError:
        raise CommandError(f"{name}: it is not JSON (too deep); it must be {FILE_FORMS}") from None
    partitions = document.get("partitions") if isinstance(document, dict) else None
    if not isinstance(partitions, list):
        raise CommandError(f"{name}: it has no list of partitions; it must be {FILE_FORMS}")
    for position, each in enumerate(partitions, start=1):
        where = f"{name}, partition {position} of the list"
        if not isinstance(each, dict) or not isinstance(each.get("topic"), str) or not each["topic"]:
            raise CommandError(f"{where}: it names no topic; it must be {FILE_FORMS}")
        offset = each["new_offset"] if "new_offset" in each else each.get("offset")
        yield (
            where,
            each["topic"],
            _json_number(where, "partition", each.get("partition"), _PARTITION_MAX),
            _json_number(where, "offset", offset, _OFFSET_MAX),
        )


def _json_number(where: str, what: str, number: Any, largest: int) -> int:
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= largest:
        return number
    raise CommandError(f"{where}: {json.dumps(number)[:_SHOWN_CHARACTERS_MAX]} is no {what}: write a number from 0 on")
