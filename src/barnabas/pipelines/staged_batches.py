"""Batches that wait, whole, to be sent to topics: what was computed once is what is sent, however often it is tried.

OUTBOX/batch-N/manifest.json   the topics, and the files of each: names, bytes, records, checksums, and who sends it
       batch-N/0/part-*        the records of the first topic: a line for each key, where there are keys, and one for
                               each value; JSON has no line breaks, and what is no JSON is in base64. The line of a
                               record that has a key and no value is empty, or, among those in base64, NO_VALUE
       batch-N/0/sender=2/     the same of a batch that several senders may send (0057): all records of a key are in
                               one of these
       .batch-N.RUN.being-written/  what Spark is writing, or a killed run was

INVARIANT: a `batch-N` is on the disk, whole, from the moment it has this name, and neither its files nor who sends
which of them ever change.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import shutil
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from barnabas.pipelines.durable_files import sync_directory, sync_tree, write_json

MANIFEST: Final = "manifest.json"
SENDER_COLUMN: Final = "sender"
"""Names the directories of a topic's records, one for each sender, as Spark does: `sender=2`."""
BYTES_PER_SENDER: Final = 1024 * 1024
"""A batch is sent by no more senders than it has so many bytes: each is a transaction more."""
NO_VALUE: Final = b"-"
"""In place of base64: a value that has no bytes is one, as a message of Protocol Buffers whose fields are defaults."""
_PREFIX: Final = "batch-"
_CHUNK_BYTES: Final = 1024 * 1024
_LINE_BREAK: Final = b"\n"


class StagedBatchError(Exception):
    """A staged batch is not what was written: the end of a sentence that begins with its directory."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of records, as the manifest has it; `checksum` is the CRC-32 of its bytes. The first `sender` is 1."""

    name: str
    size_bytes: int
    record_count: int
    checksum: int
    sender: int = 1


@dataclass(frozen=True, slots=True)
class StagedRecords:
    """The records for one topic, in `directory`."""

    topic: str
    has_keys: bool
    directory: Path
    files: tuple[StagedFile, ...]
    is_encoded: bool = False
    """Whether values are in base64."""
    has_encoded_keys: bool = False
    """The same of keys."""

    def columns(self) -> Iterator[tuple[Sequence[bytes] | None, Sequence[bytes | None]]]:
        """Keys, where there are any, and values of some records at a time, about a megabyte, or one record that is
        larger; a value is None of a record that deletes its key. Raises StagedBatchError, at the end of a file, when
        that is not what was staged.
        """
        for file in self.files:
            for keys, values in _columns_of(self.directory / file.name, file, has_keys=self.has_keys):
                decoded_keys = [base64.b64decode(key) for key in keys] if keys and self.has_encoded_keys else keys
                yield decoded_keys, self._values(values)

    def share(self, sender: int) -> StagedRecords:
        """What that sender sends of them."""
        return replace(self, files=tuple(file for file in self.files if file.sender == sender))

    def _values(self, lines: Sequence[bytes]) -> Sequence[bytes | None]:
        if self.is_encoded:
            return [None if line == NO_VALUE else base64.b64decode(line) for line in lines]
        return [line or None for line in lines] if self.has_keys and b"" in lines else lines


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch of a query, for all topics that it is sent to in one transaction."""

    batch_id: int
    parts: tuple[StagedRecords, ...]

    @property
    def record_count(self) -> int:
        """Over all topics."""
        return sum(file.record_count for part in self.parts for file in part.files)

    @property
    def size_bytes(self) -> int:
        """Over all topics."""
        return sum(file.size_bytes for part in self.parts for file in part.files)

    @property
    def senders(self) -> tuple[int, ...]:
        """Who sends records of it, and the first, who says that all of it was sent."""
        return tuple(sorted({1, *(file.sender for part in self.parts for file in part.files)}))

    def share(self, sender: int) -> StagedBatch:
        """What that sender sends of it."""
        return StagedBatch(self.batch_id, tuple(part.share(sender) for part in self.parts))

    @property
    def fingerprint(self) -> str:
        """Of its topics and records, and who sends which: 16 digits that no other batch has."""
        content = [[part.topic, part.has_keys, [_marks_of(file) for file in part.files]] for part in self.parts]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


class StagedBatches:
    """The staged batches of one query, in a directory of their own."""

    def __init__(self, directory: Path, state_id: str) -> None:
        """Batches of another state have the same numbers, and are none of this one's."""
        self.directory = directory
        self._state_id = state_id
        # What a run that was killed has left under way writes beside what this one does, and not into it.
        self._run = secrets.token_hex(4)

    def being_written(self, batch_id: int, number: int) -> Path:
        """Where the records of the batch for the topic of that number are to be written."""
        return self.directory / f".{_PREFIX}{batch_id}.{self._run}.being-written" / str(number)

    def publish(
        self,
        batch_id: int,
        topics: Sequence[tuple[str, bool]],
        encoded: Collection[str] = (),
        encoded_keys: Collection[str] = (),
    ) -> StagedBatch:
        """Takes what was written for all topics (name, whether there are keys; `encoded` has those with values in
        base64, `encoded_keys` those with keys) as the batch; on the disk when this returns. Raises StagedBatchError
        when it is no pairs of keys and values.
        """
        hidden, target = self.being_written(batch_id, 0).parent, self._batch(batch_id)
        written = [_looked_at(hidden / str(number), has_keys=has_keys) for number, (_, has_keys) in enumerate(topics)]
        parts = tuple(
            StagedRecords(topic, has_keys, target / str(number), files, topic in encoded, topic in encoded_keys)
            for number, ((topic, has_keys), files) in enumerate(zip(topics, _shared_out(written), strict=True))
        )
        content = [
            {
                "topic": part.topic,
                "has_keys": part.has_keys,
                "is_encoded": part.is_encoded,
                "has_encoded_keys": part.has_encoded_keys,
                "files": [asdict(file) for file in part.files],
            }
            for part in parts
        ]
        write_json(hidden / MANIFEST, {"state_id": self._state_id, "batch_id": batch_id, "parts": content})
        sync_tree(hidden)
        shutil.rmtree(target, ignore_errors=True)
        hidden.rename(target)
        sync_directory(self.directory)
        return StagedBatch(batch_id, parts)

    def find(self, batch_id: int) -> StagedBatch | None:
        """The batch, if it is staged. Raises StagedBatchError when it is damaged."""
        directory = self._batch(batch_id)
        try:
            content = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
            parts = tuple(_part(part, directory / str(number)) for number, part in enumerate(content["parts"]))
            if content["state_id"] != self._state_id:
                return None
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise StagedBatchError(f"cannot be understood ({MANIFEST}: {error})") from error
        for part in parts:
            for file in part.files:
                path = part.directory / file.name
                if not path.is_file() or path.stat().st_size != file.size_bytes:
                    raise StagedBatchError(f"lacks a part of {part.directory.name}/{file.name}")
        return StagedBatch(batch_id, parts)

    def remove(self, batch_id: int) -> None:
        """It is not needed any more."""
        shutil.rmtree(self._batch(batch_id), ignore_errors=True)

    def tidy(self, first: int) -> None:
        """Makes the directory where there is none; removes batches before `first`, and what was never whole."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for entry in self.directory.iterdir():
            number = entry.name.removeprefix(_PREFIX)
            is_old = entry.name.startswith(_PREFIX) and number.isdecimal() and int(number) < first
            if is_old or entry.name.startswith(f".{_PREFIX}"):
                shutil.rmtree(entry, ignore_errors=True)

    def _batch(self, batch_id: int) -> Path:
        return self.directory / f"{_PREFIX}{batch_id}"


def _part(content: Mapping[str, Any], directory: Path) -> StagedRecords:
    files = tuple(
        StagedFile(
            str(file["name"]),
            int(file["size_bytes"]),
            int(file["record_count"]),
            int(file["checksum"]),
            int(file.get("sender", 1)),
        )
        for file in content["files"]
    )
    return StagedRecords(
        str(content["topic"]),
        bool(content["has_keys"]),
        directory,
        files,
        bool(content.get("is_encoded")),
        bool(content.get("has_encoded_keys")),
    )


def _looked_at(directory: Path, *, has_keys: bool) -> tuple[StagedFile, ...]:
    """The files that Spark has written and that have records, with what is in them. Its own marks begin otherwise."""
    found: list[StagedFile] = []
    for name in _names_in(directory):
        if (directory / name).is_dir():
            sender = int(name.removeprefix(f"{SENDER_COLUMN}="))
            inner = [f"{name}/{each}" for each in _names_in(directory / name)]
            found += (replace(_counted(directory, each, has_keys=has_keys), sender=sender) for each in inner)
        else:
            found.append(_counted(directory, name, has_keys=has_keys))
    return tuple(file for file in found if file.record_count)


def _names_in(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith((".", "_")))


def _shared_out(written: Sequence[tuple[StagedFile, ...]]) -> list[tuple[StagedFile, ...]]:
    """The files of each topic, with those senders that are worth it for so many bytes."""
    size_bytes = sum(file.size_bytes for files in written for file in files)
    count = max(1, size_bytes // BYTES_PER_SENDER)
    return [tuple(replace(file, sender=(file.sender - 1) % count + 1) for file in files) for files in written]


def _marks_of(file: StagedFile) -> list[int]:
    return [file.size_bytes, file.checksum, *([file.sender] if file.sender > 1 else [])]


def _counted(directory: Path, name: str, *, has_keys: bool) -> StagedFile:
    size_bytes = lines = checksum = 0
    with (directory / name).open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            size_bytes += len(chunk)
            lines += chunk.count(_LINE_BREAK)
            checksum = zlib.crc32(chunk, checksum)
    if has_keys and lines % 2:
        raise StagedBatchError(f"has a key without a value ({name})")
    return StagedFile(name, size_bytes, lines // 2 if has_keys else lines, checksum)


def _columns_of(
    path: Path, file: StagedFile, *, has_keys: bool
) -> Iterator[tuple[Sequence[bytes] | None, Sequence[bytes]]]:
    checksum = count = 0
    held: list[bytes] = []
    """What was read and gives no whole record yet."""
    held_lines = 0
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
            held.append(chunk)
            held_lines += chunk.count(_LINE_BREAK)
            if held_lines < (2 if has_keys else 1):
                continue
            *lines, rest = b"".join(held).split(_LINE_BREAK)
            over = len(lines) % 2 if has_keys else 0
            held, held_lines = ([lines.pop() + _LINE_BREAK, rest], 1) if over else ([rest], 0)
            count += len(lines) // 2 if has_keys else len(lines)
            yield (lines[0::2], lines[1::2]) if has_keys else (None, lines)
    if checksum != file.checksum or count != file.record_count or any(held):
        raise StagedBatchError(f"is damaged ({path.name} has other bytes than were written)")
