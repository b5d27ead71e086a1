"""Files with the brokers that partitions shall be on, as `kafka-reassign-partitions` reads and writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from barnabas.cli.connection import CommandError
from barnabas.cli.output import printable
from barnabas.cli.partition_files import json_partitions, read_text, topic_of
from barnabas.wire.topics import TopicPartition

FILE_FORM: Final = '{"version": 1, "partitions": [{"topic": "a", "partition": 0, "replicas": [1, 2, 3]}]}'
ANY_DIRECTORY: Final = "any"
_BYTES_MAX: Final = 64 * 1024 * 1024
_NUMBER_MAX: Final = (1 << 31) - 1
_NUMBER_DIGITS_MAX: Final = 10
_REPLICAS_MAX: Final = (1 << 15) - 1
_SHOWN_CHARACTERS_MAX: Final = 60


Directories = Mapping[tuple[TopicPartition, int], str]
"""The log directories of replicas, each a partition and a broker, by their paths there."""


@dataclass(frozen=True, slots=True)
class Reassignment:
    """What a file says: the brokers of each partition, the preferred leader first, and the log directories of those
    replicas for which it names one.
    """

    replicas: Mapping[TopicPartition, tuple[int, ...]]
    directories: Directories


def reassignment_document(
    targets: Mapping[TopicPartition, Sequence[int]], directories: Directories | None = None
) -> dict[str, Any]:
    """The partitions as `kafka-reassign-partitions --execute` takes them."""
    paths = directories or {}
    return {
        "version": 1,
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "replicas": list(replicas),
                "log_dirs": [paths.get((partition, node_id), ANY_DIRECTORY) for node_id in replicas],
            }
            for partition, replicas in sorted(targets.items())
        ],
    }


def write_reassignment(
    path: str, targets: Mapping[TopicPartition, Sequence[int]], directories: Directories | None = None
) -> None:
    """Writes a new file. Raises OSError, also where there is one of that name already."""
    with open(path, "x", encoding="utf-8") as stream:
        json.dump(reassignment_document(targets, directories), stream, separators=(",", ":"))
        stream.write("\n")


def read_reassignment(path: str) -> Reassignment:
    """What a file says. Raises CommandError with the place in the file for what is none of it, OSError where the file
    cannot be read.
    """
    file = read_text(path, _BYTES_MAX, FILE_FORM)
    name = file.name
    document, entries = json_partitions(file, FILE_FORM, _parsed)
    if document.get("version", 1) != 1:
        raise CommandError(f"{name}: only version 1 is known; it must be {FILE_FORM}")
    found: dict[TopicPartition, tuple[int, ...]] = {}
    directories: dict[tuple[TopicPartition, int], str] = {}
    for place, entry in enumerate(entries, start=1):
        where = f"{name}, partition {place} of the list"
        partition, replicas = _entry(where, entry)
        if partition in found:
            raise CommandError(f"{name}: {printable(str(partition))} is there twice; give it once")
        found[partition] = replicas
        for node_id, directory in zip(replicas, _directories(where, entry.get("log_dirs"), len(replicas)), strict=True):
            if directory != ANY_DIRECTORY:
                directories[partition, node_id] = directory
    if not found:
        raise CommandError(f"{name}: there is no partition in it; it must be {FILE_FORM}")
    return Reassignment(found, directories)


# Inside.


def _parsed(digits: str) -> int:
    """Python reads only so many digits; what is too large is refused as such."""
    return int(digits) if len(digits) <= _NUMBER_DIGITS_MAX else _NUMBER_MAX + 1


def _entry(where: str, entry: Any) -> tuple[TopicPartition, tuple[int, ...]]:
    topic = topic_of(where, entry, FILE_FORM)
    if not _is_number(entry.get("partition")):
        raise CommandError(f"{where}: {_shown(entry.get('partition'))} is no partition: write a number from 0 on")
    partition = TopicPartition(topic, entry["partition"])
    replicas = entry.get("replicas")
    if not isinstance(replicas, list) or not all(map(_is_number, replicas)) or len(replicas) > _REPLICAS_MAX:
        raise CommandError(f"{where}: {_shown(replicas)} are no replicas: write the ids of brokers, such as [1, 2, 3]")
    name = printable(str(partition))
    if not replicas:
        raise CommandError(f"{where}: {name} would have no replica; name one broker at least")
    if len({*replicas}) != len(replicas):
        raise CommandError(f"{where}: {name} would have two replicas on one broker: {', '.join(map(str, replicas))}")
    return partition, tuple(replicas)


def _directories(where: str, directories: Any, count: int) -> list[str]:
    if directories is None:
        return [ANY_DIRECTORY] * count
    if not isinstance(directories, list) or len(directories) != count:
        raise CommandError(f"{where}: log_dirs must have an entry for each of the {count} replicas, or be left out")
    if not all(isinstance(directory, str) and directory for directory in directories):
        raise CommandError(
            f"{where}: {_shown(directories)} are no log directories: write a path for each replica, or "
            f'"{ANY_DIRECTORY}" where the broker may choose'
        )
    return directories


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _NUMBER_MAX


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}..."


def named(partitions: Iterable[TopicPartition], most: int = 5) -> str:
    """Some of the partitions, in words."""
    found = list(partitions)
    more = f" and {len(found) - most:,} more" if len(found) > most else ""
    return ", ".join(printable(str(each)) for each in found[:most]) + more
