"""Checkpoint files: the offsets of all partitions of a log directory, and the leader epochs of one partition.

Version 0 of Kafka's format is text: a line with the version, one with the number of entries, and a line per entry. The
format has no checksum, so a file counts as corrupt whenever anything in it is not as expected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from barnabas.kernel.host import Files
from barnabas.log.directories.files import read_file, replace_file
from barnabas.wire.topics import TopicPartition

Entry = TypeVar("Entry")

CHECKPOINT_BYTES_MAX: Final = 256 * 1024 * 1024
"""A million partitions with the longest names; a larger file is a mistake."""
_VERSION: Final = "0"
_INT64_LIMIT: Final = 1 << 63
_INT32_LIMIT: Final = 1 << 31


class CorruptCheckpointError(Exception):
    """A checkpoint that cannot be read; says which, where and why."""


class EpochEntry(NamedTuple):
    """A leader epoch and the first offset that was written in it (KIP-101)."""

    epoch: int
    start_offset: int


def format_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The text of an offset checkpoint."""
    return _format([f"{topic} {number} {offset}" for (topic, number), offset in offsets.items()])


def parse_offsets(data: bytes, path: str) -> dict[TopicPartition, int]:
    """The offsets in a checkpoint. Raises CorruptCheckpointError, in which `path` names the file."""
    return dict(_parse(data, path, _parse_offset))


def read_offsets(files: Files, path: str) -> dict[TopicPartition, int]:
    """The offsets in a checkpoint file; none where there is no file. Raises CorruptCheckpointError and OSError."""
    data = _read(files, path)
    return {} if data is None else parse_offsets(data, path)


def write_offsets(files: Files, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replaces an offset checkpoint, durably. Belongs off the loop."""
    replace_file(files, path, format_offsets(offsets))


def format_epochs(entries: Iterable[EpochEntry]) -> bytes:
    """The text of a leader epoch checkpoint."""
    return _format([f"{epoch} {start_offset}" for epoch, start_offset in entries])


def parse_epochs(data: bytes, path: str) -> list[EpochEntry]:
    """The entries of a leader epoch checkpoint. Raises CorruptCheckpointError, in which `path` names the file."""
    return _parse(data, path, _parse_epoch)


def read_epochs(files: Files, path: str) -> list[EpochEntry]:
    """The entries of a leader epoch checkpoint file; none where there is no file."""
    data = _read(files, path)
    return [] if data is None else parse_epochs(data, path)


def write_epochs(files: Files, path: str, entries: Iterable[EpochEntry]) -> None:
    """Replaces a leader epoch checkpoint, durably. Belongs off the loop."""
    replace_file(files, path, format_epochs(entries))


def _read(files: Files, path: str) -> bytes | None:
    try:
        return read_file(files, path, CHECKPOINT_BYTES_MAX)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CorruptCheckpointError(str(error)) from None


def _format(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in [_VERSION, str(len(lines)), *lines]).encode()


def _parse(data: bytes, path: str, parse_line: Callable[[list[str]], Entry]) -> list[Entry]:
    if not data:
        return []  # Apache Kafka makes an empty file at first
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError:
        raise CorruptCheckpointError(f"{path} is not text") from None
    if lines[-1] == "":
        lines.pop()
    if not lines or lines[0] != _VERSION:
        raise CorruptCheckpointError(f"{path} has version {lines[0] if lines else ''!r}; only version 0 is known")
    try:
        count = _integer(lines[1], _INT32_LIMIT) if len(lines) > 1 else -1
    except ValueError:
        count = -1
    if count < 0:
        raise CorruptCheckpointError(f"{path} does not say in line 2 how many entries it has")
    if count != len(lines) - 2:
        raise CorruptCheckpointError(f"{path} claims {count} entries and has {len(lines) - 2}")
    entries: list[Entry] = []
    for number, line in enumerate(lines[2:], start=3):
        try:
            entries.append(parse_line(line.split()))
        except ValueError:
            raise CorruptCheckpointError(f"{path} has a malformed entry in line {number}: {line!r}") from None
    return entries


def _parse_offset(words: list[str]) -> tuple[TopicPartition, int]:
    topic, number, offset = words
    return TopicPartition(topic, _integer(number, _INT32_LIMIT)), _integer(offset, _INT64_LIMIT)


def _parse_epoch(words: list[str]) -> EpochEntry:
    epoch, start_offset = words
    return EpochEntry(_integer(epoch, _INT32_LIMIT), _integer(start_offset, _INT64_LIMIT))


def _integer(word: str, limit: int) -> int:
    """A decimal number as Java reads it; Python's underscores and other digits are refused."""
    digits = word.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 20:
        raise ValueError(word)
    number = int(word)
    if not -limit <= number < limit:
        raise ValueError(word)
    return number
