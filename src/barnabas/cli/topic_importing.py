"""The work of `barnabas topic import`: the files of an export are copied as a topic is."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from barnabas.cli.connection import CommandError, ExitStatus
from barnabas.cli.export_files import Export, require_export
from barnabas.cli.export_reading import FromExport, verify
from barnabas.cli.output import counted, printable, say
from barnabas.cli.partition_selection import find_bounds
from barnabas.cli.silence import last_words
from barnabas.cli.topic_copy_ends import prepare_target
from barnabas.cli.topic_copy_offsets import KeptOffsets
from barnabas.cli.topic_copy_state import CopyState
from barnabas.cli.topic_copying import Copying, Plan, needed_partitions
from barnabas.client.admin import Admin
from barnabas.kernel.ids import Uuid
from barnabas.wire.topics import INTERNAL_TOPICS, TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.records import RecordMetadata

_SHOWN_MAX: Final = 10


async def import_topic(
    client: Client, directory: Path, plan: Plan, *, keeps_offsets: bool, offset_map: Path | None, as_json: bool
) -> None:
    """Writes what the files have; `plan.source` is the export's topic. Raises CommandError, and what clients raise."""
    export = require_export(directory)
    if plan.target in INTERNAL_TOPICS:
        raise CommandError(f"{plan.target} is the brokers' own topic: nothing is imported there")
    numbers = sorted(export.partitions) if plan.numbers is None else plan.numbers
    if missing := sorted(set(numbers) - set(export.partitions)):
        raise CommandError(f"{directory} has no partition {missing[0]}", ExitStatus.MISSING)
    await verify(client.host, directory, export)
    topic_id = "" if export.topic_id is None else bytes(Uuid.from_text(export.topic_id)).hex()
    state = CopyState(export.cluster_id, export.topic, topic_id, client.cluster.cluster_id, plan.target)
    path = None if plan.state_file is None else Path(plan.state_file)
    is_resumed = path is not None and state.read(path)
    kept = None if plan.transactional is None else KeptOffsets(client, plan.transactional, state)
    if kept is not None:
        state.offsets = await kept.read()
        is_resumed = bool(state.offsets)
    starts = {TopicPartition(export.topic, number): _start(export, number, state.offsets) for number in numbers}
    # What was imported beyond these files stays so.
    starts = {each: start for each, start in starts.items() if start <= export.partitions[each.partition].end_offset}
    if keeps_offsets:
        _check_gaps(export, numbers)
    there = await prepare_target(
        client,
        plan.target,
        export.partition_count,
        creates=plan.creates,
        replication_factor=plan.replication_factor,
        configs=export.configs if plan.copies_configs else {},
        needed=needed_partitions(plan, export.partitions),
        may_choose=plan.transactional is None,
    )
    state.found_target(there.topic_id.hex(), path)
    if keeps_offsets:
        await _check_offsets(client, plan.target, export, starts)
    if is_resumed:
        say(f"Goes on from {printable(plan.state_file or f'group {plan.transactional}')}.")
    shifts = Shifts(keeps_offsets=keeps_offsets)
    with last_words(client.logger) as words, shifts.written_to(offset_map):
        copying = Copying(FromExport(directory, export), client, plan, starts, state, path, kept, words, shifts.heard)
        await copying.run_and_tell(None, as_json=as_json)
    shifts.tell(plan.target)


def _start(export: Export, number: int, offsets: Mapping[int, int]) -> int:
    """Where to go on, which may be behind the export. Raises CommandError where offsets ahead of it are missing."""
    exported = export.partitions[number]
    offset = offsets.get(number, exported.first_offset)
    if offset < exported.first_offset:
        raise CommandError(
            f"partition {number} was imported up to {offset}, and the export begins at {exported.first_offset}: "
            "import the one between them first"
        )
    return offset


async def _check_offsets(client: Client, target: str, export: Export, starts: Mapping[TopicPartition, int]) -> None:
    """Raises CommandError where offsets cannot be the same: brokers give them, one after the other."""
    async with Admin(client) as admin:
        bounds = await find_bounds(admin, [TopicPartition(target, each.partition) for each in starts])
    for partition, start in starts.items():
        exported = export.partitions[partition.partition]
        named = printable(f"{target}-{partition.partition}")
        end = bounds[TopicPartition(target, partition.partition)].end
        if start < exported.end_offset and end != start:
            raise CommandError(f"{named} goes on at {end}, and the export at {start}: offsets would not be the same")


def _check_gaps(export: Export, numbers: Sequence[int]) -> None:
    for number in numbers:
        if export.partitions[number].gaps:
            raise CommandError(
                f"partition {number} of the export lacks offsets in between, which brokers would give to other "
                "records: leave --keep-offsets out, and see --offset-map"
            )


@dataclass(slots=True)
class Shifts:
    """By how much the offsets of the target differ from those of the export, and where that changes."""

    keeps_offsets: bool = False
    last: dict[TopicPartition, int] = field(default_factory=dict)
    changes: dict[TopicPartition, int] = field(default_factory=dict)
    """How often it was another one than that of the record before, the first not being 0 counted too."""
    _file: IO[str] | None = None

    def heard(self, partition: TopicPartition, offset: int, written: RecordMetadata) -> None:
        """A record of the export is in the target. Raises CommandError."""
        if written.offset < 0:
            return  # a duplicate of which the broker has forgotten where it was
        shift = written.offset - offset
        if self.keeps_offsets and shift:
            raise CommandError(
                f"offset {offset} of the export became {written.offset}: somebody else writes to the topic"
            )
        before = self.last.get(partition)
        if shift != before:
            self.last[partition] = shift
            self.changes[partition] = self.changes.get(partition, 0) + (before is not None or shift != 0)
            if self._file is not None:
                line = {
                    "partition": partition.partition,
                    "offset": offset,
                    "target_partition": written.partition.partition,
                }
                self._file.write(json.dumps({**line, "target_offset": written.offset}) + "\n")

    @contextmanager
    def written_to(self, path: Path | None) -> Iterator[None]:
        """Within the block, each change is a line of this file. Raises CommandError."""
        if path is None:
            yield
            return
        try:
            with path.open("a") as self._file:
                yield
        except OSError as error:
            if error.filename != str(path) and error.errno != errno.ENOSPC:
                raise
            raise CommandError(f"{path} cannot be written: {error.strerror or error}") from error
        finally:
            self._file = None

    def tell(self, target: str) -> None:
        """A line for people: whether offsets stayed."""
        changed = sorted((partition.partition, self.last[partition]) for partition, n in self.changes.items() if n)
        if not changed:
            if self.last:
                say("All offsets are as they were.")
            return
        some = ", ".join(f"partition {number} by {shift:+,}" for number, shift in changed[:_SHOWN_MAX])
        more = "" if len(changed) <= _SHOWN_MAX else f" and {len(changed) - _SHOWN_MAX:,} more"
        places = sum(self.changes.values())
        say(
            f"Offsets in {printable(target)} are others: {some}{more} at the end; they change at "
            f"{counted(places, 'place')} (--offset-map writes them into a file)."
        )
