"""Versions of a table that is read from a topic: which records each is made of, what a newer one needs, and which of
them a batch has seen. No Spark in here.

STATE/read/VIEW.json       the version of each table that the query of a view sees, and its first batch that does
      parts/NAME/          records as Parquet: a base, or changes behind it; parts never change
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from barnabas.pipelines.durable_files import sync_directory, sync_tree, write_json

DELTAS_MAX: Final = 8
"""How many parts of changes a version has; then they become one."""
CHANGES_MIN: Final = 10_000
CHANGES_MAX: Final = 1_000_000
"""Changes become part of the base when they are a quarter of its rows, at these many at the earliest and the latest."""
_SHARE_OF_BASE: Final = 4
KEYS_BYTES_MAX: Final = 64 << 20
"""Or when their keys, which every task is sent, have more bytes than that."""
BEHIND_SECONDS_MAX: Final = 3_600.0
"""A version that is older is read whole again: tombstones behind it may be gone (`delete.retention.ms`, a day)."""

_BEING_WRITTEN: Final = ".being-written"


@dataclass(frozen=True, slots=True)
class TopicLook:
    """A topic at one moment: its id, empty where brokers tell none, and of each partition the first offset and the one
    behind the last committed record.
    """

    topic_id: str
    beginnings: Mapping[int, int]
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Part:
    """Records in a directory of this name; how many, and how many bytes their keys have, as they are written."""

    name: str
    rows: int
    key_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TableVersion:
    """The newest record of each key up to `offsets` (of each partition the next one): those of `base`, unless a later
    part has the key. A part of changes has tombstones too.
    """

    topic: str
    topic_id: str
    offsets: Mapping[int, int]
    base: Part
    deltas: tuple[Part, ...] = ()

    @property
    def changes(self) -> int:
        """How many rows the parts behind the base have."""
        return sum(part.rows for part in self.deltas)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All of them."""
        return (self.base, *self.deltas)

    def is_to_be_folded(self) -> bool:
        """Whether its changes are so many that they should be in its base."""
        if sum(part.key_bytes for part in self.deltas) > KEYS_BYTES_MAX:
            return True
        return self.changes > min(max(self.base.rows // _SHARE_OF_BASE, CHANGES_MIN), CHANGES_MAX)

    def to_json(self) -> dict[str, Any]:
        """As it is kept."""
        return {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "offsets": {str(number): offset for number, offset in self.offsets.items()},
            "parts": [[part.name, part.rows, part.key_bytes] for part in self.parts],
        }


def version_from_json(content: Mapping[str, Any]) -> TableVersion:
    """Of `TableVersion.to_json`. Raises ValueError, TypeError, KeyError or AttributeError for anything else."""
    base, *deltas = (Part(str(name), int(rows), int(key_bytes)) for name, rows, key_bytes in content["parts"])
    offsets = {int(number): int(offset) for number, offset in content["offsets"].items()}
    return TableVersion(str(content["topic"]), str(content["topic_id"]), offsets, base, tuple(deltas))


def why_whole(version: TableVersion, look: TopicLook, age_seconds: float) -> str | None:
    """Why the topic must be read whole to make a newer version; None where what is new is enough."""
    if is_other_topic(version, look):
        return f"was deleted and made again (its id is {look.topic_id}, and was {version.topic_id})"
    for number, offset in sorted(version.offsets.items()):
        if look.ends.get(number, -1) < offset:
            end = look.ends.get(number, "nowhere")
            return f"ends at {end} in partition {number}, where it was read up to {offset}"
        if look.beginnings.get(number, 0) > offset:
            what = f"offsets {offset} to {look.beginnings[number] - 1} of partition {number}"
            return f"has lost records before they were read ({what}), by retention or since they were deleted"
    if age_seconds > BEHIND_SECONDS_MAX:
        return "was not looked at for an hour, in which tombstones may have come and gone"
    return None


def is_behind(version: TableVersion, look: TopicLook) -> bool:
    """Whether the topic has anything that the version has not, or is another."""
    return is_other_topic(version, look) or any(
        version.offsets.get(number, look.beginnings.get(number, 0)) != end for number, end in look.ends.items()
    )


def is_other_topic(before: TableVersion | TopicLook, now: TopicLook) -> bool:
    """Whether the topic was made again in between; not where brokers tell no ids."""
    return bool(before.topic_id) and bool(now.topic_id) and before.topic_id != now.topic_id


@dataclass(frozen=True, slots=True)
class Seen:
    """What a query sees: from a batch on, until there is another, the versions of tables by the names of sources."""

    first_batch: int
    versions: Mapping[str, TableVersion] = field(default_factory=dict)


class VersionFiles:
    """The files of one state, below `directory`, which need not be there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._parts = directory / "parts"

    def seen(self, name: str) -> Seen | None:
        """What the query of this name was noted to see; None where there is no note, or one that nobody understands."""
        try:
            content = json.loads((self._directory / f"{name}.json").read_text(encoding="utf-8"))
            versions = {source: version_from_json(each) for source, each in content["versions"].items()}
            found = Seen(int(content["first_batch"]), versions)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        parts = {part.name for version in versions.values() for part in version.parts}
        return found if all(self.part(part).is_dir() for part in parts) else None

    def note(self, name: str, seen: Seen) -> None:
        """Has the note be on the disk when this returns."""
        self._directory.mkdir(parents=True, exist_ok=True)
        versions = {source: version.to_json() for source, version in seen.versions.items()}
        write_json(self._directory / f"{name}.json", {"first_batch": seen.first_batch, "versions": versions})

    def forget(self, name: str) -> None:
        """Removes a note that is of no batch any more."""
        with contextlib.suppress(FileNotFoundError):
            (self._directory / f"{name}.json").unlink()

    def part(self, name: str) -> Path:
        """Where a part is."""
        return self._parts / name

    def new_part(self) -> Path:
        """Where to write one that is none before it is `published`."""
        self._parts.mkdir(parents=True, exist_ok=True)
        return self._parts / f".{secrets.token_hex(8)}{_BEING_WRITTEN}"

    def publish(self, being_written: Path, rows: int, key_bytes: int) -> Part:
        """Has what was written be a part, whole and on the disk."""
        sync_tree(being_written)
        name = being_written.name.removeprefix(".").removesuffix(_BEING_WRITTEN)
        being_written.rename(self.part(name))
        sync_directory(self._parts)
        return Part(name, rows, key_bytes)

    def keep_only(self, versions: Iterable[TableVersion]) -> None:
        """Removes all parts of other versions than these and those that notes have."""
        notes = (self.seen(path.stem) for path in self._directory.glob("*.json"))
        noted = [version for note in notes if note is not None for version in note.versions.values()]
        kept = {part.name for version in (*versions, *noted) for part in version.parts}
        for entry in self._parts.iterdir() if self._parts.is_dir() else ():
            if entry.name not in kept:
                shutil.rmtree(entry, ignore_errors=True)
