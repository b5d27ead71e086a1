"""Files with an offset for each of some partitions, as `kafka-consumer-groups --export` and we write them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import Any, Final

from barnabas.cli.connection import CommandError
from barnabas.cli.output import printable
from barnabas.cli.partition_files import FileText, json_partitions, read_text, topic_of
from barnabas.wire.topics import TopicPartition

FILE_FORMS: Final = 'lines of TOPIC,PARTITION,OFFSET, or {"partitions": [{"topic": "a", "partition": 0, "offset": 7}]}'
_BYTES_MAX: Final = 16 * 1024 * 1024
_OFFSET_MAX: Final = (1 << 63) - 1
_PARTITION_MAX: Final = (1 << 31) - 1
_COLUMNS: Final = 3
_SHOWN_CHARACTERS_MAX: Final = 60
HIGH_WATERMARK: Final = -1
"""What `kafka-delete-records` takes for the end of a partition."""


def read_offsets(path: str, *, least: int = 0) -> dict[TopicPartition, int]:
    """The offsets in a file: lines of CSV, or JSON as `group reset --json` prints it, of which `new_offset` goes before
    `offset`. With HIGH_WATERMARK as the `least` that may be there too. Raises CommandError with file and line for what
    is neither, OSError where the file cannot be read.
    """
    file = read_text(path, _BYTES_MAX, FILE_FORMS)
    is_json = file.text.lstrip().startswith(("{", "["))
    entries = _json_entries(file, least) if is_json else _csv_entries(file, least)
    found: dict[TopicPartition, int] = {}
    for where, topic, number, offset in entries:
        partition = TopicPartition(topic, number)
        if partition in found:
            raise CommandError(f"{where}: {printable(str(partition))} is there twice; give it one offset")
        found[partition] = offset
    if not found:
        raise CommandError(f"{file.name}: there is no offset in it; it must be {FILE_FORMS}")
    return found


# Inside.


def _csv_entries(file: FileText, least: int) -> Iterator[tuple[str, str, int, int]]:
    name, text = file
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
            yield where, cells[0], _number(where, cells[1], _PARTITION_MAX), _offset(where, cells[2], least)
    except csv.Error as error:
        raise CommandError(f"{name}, line {reader.line_num}: {error}; a line is TOPIC,PARTITION,OFFSET") from None


def _offset(where: str, text: str, least: int) -> int:
    return HIGH_WATERMARK if text == str(HIGH_WATERMARK) and least < 0 else _number(where, text, _OFFSET_MAX)


def _number(where: str, text: str, largest: int) -> int:
    if text.isascii() and text.isdigit() and len(text) <= len(str(largest)) and int(text) <= largest:
        return int(text)
    what = "partition" if largest == _PARTITION_MAX else "offset"
    raise CommandError(f"{where}: {printable(text[:_SHOWN_CHARACTERS_MAX])!r} is no {what}: write a number from 0 on")


def _json_entries(file: FileText, least: int) -> Iterator[tuple[str, str, int, int]]:
    _, partitions = json_partitions(file, FILE_FORMS, _parsed_number)
    for position, each in enumerate(partitions, start=1):
        where = f"{file.name}, partition {position} of the list"
        topic = topic_of(where, each, FILE_FORMS)
        offset = each["new_offset"] if "new_offset" in each else each.get("offset")
        yield (
            where,
            topic,
            _json_number(where, "partition", each.get("partition"), 0, _PARTITION_MAX),
            _json_number(where, "offset", offset, least, _OFFSET_MAX),
        )


def _parsed_number(digits: str) -> int:
    """A number of a document; Python reads only so many digits, and what is too large is refused as such."""
    return int(digits) if len(digits) <= len(str(_OFFSET_MAX)) + 1 else _OFFSET_MAX + 1


def _json_number(where: str, what: str, number: Any, least: int, largest: int) -> int:
    if isinstance(number, int) and not isinstance(number, bool) and least <= number <= largest:
        return number
    raise CommandError(
        f"{where}: {json.dumps(number)[:_SHOWN_CHARACTERS_MAX]} is no {what}: write a number from {least} on"
    )
