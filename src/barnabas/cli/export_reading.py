"""The records of an export, read as a consumer reads those of a topic."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from barnabas.cli.connection import CommandError
from barnabas.cli.export_files import FILES, Export, segments_of
from barnabas.cli.output import printable
from barnabas.cli.record_source import RecordReader
from barnabas.client.records import ConsumerRecord
from barnabas.kernel.host import Host, OffloadKind
from barnabas.log.inspection.batch_inspection import Damage, inspect_batches, read_batch
from barnabas.log.inspection.replica_comparison import audit_partition
from barnabas.log.inspection.replica_reading import Replica
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.topics import TopicPartition

_PARTITIONS_AT_ONCE: Final = 32
"""Each has a file open, and a batch in memory."""
_RECORDS_PER_POLL: Final = 1_000


class _StoppedError(Exception):
    """Nobody waits for the result any more."""


async def verify(host: Host, directory: Path, export: Export) -> None:
    """Reads all files once, so that nothing is written of an export that is damaged: off the loop, since it may take
    long, and ends soon where it is cancelled. Raises CommandError.
    """
    is_wanted = True

    def passed(_bytes: int) -> None:
        if not is_wanted:
            raise _StoppedError

    try:
        await host.offload(OffloadKind.DISK, lambda: _verify(directory, export, passed))
    finally:
        is_wanted = False


def _verify(directory: Path, export: Export, passed: Callable[[int], None]) -> None:
    for number, exported in sorted(export.partitions.items()):
        partition = TopicPartition(export.topic, number)
        end = exported.next_offset if exported.records else 0  # without records there is no file to say where it is
        replica = Replica("the export", FILES, tuple(segments_of(directory, partition)), end, end)
        audit = audit_partition([replica], passed)
        totals = audit.totals[0]
        fault = next(iter(audit.findings.kept), None)
        ends_elsewhere = exported.records > 0 and totals.end_offset != end
        if fault is None and (ends_elsewhere or totals.records != exported.records):
            why = f"it has {totals.records} records up to {totals.end_offset}, and not {exported.records} up to {end}"
        elif fault is not None:
            why = f"{fault.detail}{'' if fault.path is None else f' ({fault.path}, byte {fault.position or 0})'}"
        else:
            continue
        raise CommandError(f"the export is damaged: {printable(str(partition))}: {printable(why)}; nothing was written")


class FromExport:
    """The files as a source of a copy."""

    def __init__(self, directory: Path, export: Export) -> None:
        self._directory = directory
        self._export = export

    def opened(self) -> AbstractAsyncContextManager[RecordReader]:
        return _opened(self._directory, self._export)

    def check(self) -> None:
        """Files stay what they are."""


@asynccontextmanager
async def _opened(directory: Path, export: Export) -> AsyncIterator[RecordReader]:
    reader = ExportReader(directory, export)
    try:
        yield reader
    finally:
        reader.close()


@dataclass(slots=True)
class _Reading:
    position: int
    records: Iterator[ConsumerRecord] | None = None


class ExportReader:
    """Goes through partitions side by side, some at a time."""

    def __init__(self, directory: Path, export: Export) -> None:
        self._directory = directory
        self._export = export
        self._readings: dict[TopicPartition, _Reading] = {}
        self._paused: set[TopicPartition] = set()
        self._turn = 0

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._readings = {each: _Reading(self._export.partitions[each.partition].first_offset) for each in partitions}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._readings[partition] = _Reading(offset)

    def pause(self, *partitions: TopicPartition) -> None:
        self._paused.update(partitions)

    async def poll(self, timeout_ms: float, records_max: int | None = None) -> list[ConsumerRecord]:  # noqa: ARG002
        """Some records of the partition whose turn it is. Raises CommandError for files that are damaged."""
        active = [each for each in self._readings if each not in self._paused][:_PARTITIONS_AT_ONCE]
        if not active:
            return []
        self._turn += 1
        partition = active[self._turn % len(active)]
        reading = self._readings[partition]
        if reading.records is None:
            reading.records = self._records(partition, reading.position)
        found: list[ConsumerRecord] = []
        wanted = min(records_max or _RECORDS_PER_POLL, _RECORDS_PER_POLL)
        try:
            while len(found) < wanted and (record := next(reading.records, None)) is not None:
                found.append(record)
        except (RecordsError, OSError) as error:
            raise CommandError(f"{printable(str(partition))} of the export cannot be read: {error}") from error
        reading.position = found[-1].offset + 1 if found else self._export.partitions[partition.partition].end_offset
        return found

    async def position(self, partition: TopicPartition) -> int:
        return self._readings[partition].position

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: self._export.partitions[each.partition].first_offset for each in partitions}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: self._export.partitions[each.partition].end_offset for each in partitions}

    def close(self) -> None:
        """Closes the files."""
        for reading in self._readings.values():
            records = reading.records
            if records is not None:
                records.close()  # type: ignore[attr-defined]

    def _records(self, partition: TopicPartition, offset: int) -> Iterator[ConsumerRecord]:
        """From this offset on. Raises RecordsError, OSError, and CommandError where a file is damaged."""
        segments = segments_of(self._directory, partition)
        for segment, following in zip(segments, [*segments[1:], None], strict=True):
            if following is not None and following.base_offset <= offset:
                continue
            descriptor = FILES.open(segment.path, os.O_RDONLY)
            try:
                for facts in inspect_batches(FILES, descriptor):
                    if isinstance(facts, Damage) or facts.fault is not None:
                        raise CommandError(f"{segment.path} is damaged: it was whole when the import began")
                    if facts.last_offset < offset:
                        continue
                    for record in read_batch(FILES, descriptor, facts).records():
                        if record.offset >= offset:
                            yield ConsumerRecord(
                                partition,
                                record.offset,
                                record.timestamp_ms,
                                record.key,
                                record.value,
                                record.headers,
                                facts.partition_leader_epoch,
                                facts.timestamp_type,
                            )
            finally:
                FILES.close(descriptor)
