"""The work of `barnabas topic export`: one consumer reads, and what it has read is written batch by batch."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.cli.connection import CommandError
from barnabas.cli.edges import Edge
from barnabas.cli.export_files import Export, ExportedPartition, PartitionWriter, begin_directory, locked
from barnabas.cli.output import Column, counted, print_json, print_table, say, size
from barnabas.cli.partition_selection import find_bounds, find_offsets, find_partitions
from barnabas.cli.required_topics import require_topics
from barnabas.cli.silence import Silence, last_words
from barnabas.cli.starts import Start
from barnabas.cli.topic_copy_ends import SameTopic, configs_to_copy
from barnabas.cli.topic_copying import check_not_deleted
from barnabas.cli.topic_ids import topic_id
from barnabas.client.admin import Admin
from barnabas.client.consumer import Consumer
from barnabas.client.errors import LogTruncationError, NoOffsetError
from barnabas.client.settings import ConsumerSettings, IsolationLevel, OffsetReset
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client

_POLL_MS: Final = 250.0
_RECORDS_PER_POLL: Final = 2_000
_PARTITIONS_AT_ONCE: Final = 64
"""Each has a file and a batch that is being filled."""
_SHOWN_EVERY_SECONDS: Final = 5.0
_ANEW: Final = "export what is left to another directory"
_COLUMNS: Final = (
    Column("Partition", "partition", is_number=True),
    Column("From", "first_offset", is_number=True),
    Column("End", "end_offset", is_number=True),
    Column("Records", "records", is_number=True),
    Column("Gaps", "gaps", is_number=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """What the user wants; `numbers` are partitions, None for all."""

    topic: str
    numbers: Sequence[int] | None
    directory: Path
    first: Start
    last: Start
    reads_committed: bool
    compression: str


async def export(client: Client, plan: ExportPlan, *, as_json: bool) -> None:
    """Exports what the plan says. Raises CommandError, and what clients raise."""
    info = (await require_topics(client, [plan.topic]))[plan.topic]
    async with Admin(client) as admin:
        partitions, _ = await find_partitions(admin, {plan.topic: plan.numbers}, must_be_led=True)
        bounds = await find_bounds(admin, partitions)
        now_ms = client.host.clock.time_ms()
        starts = await find_offsets(admin, bounds, plan.first, now_ms)
        ends = None if plan.last is Edge.LATEST else await find_offsets(admin, bounds, plan.last, now_ms)
    settings = ConsumerSettings(
        offset_reset=OffsetReset.NONE,
        isolation=IsolationLevel.READ_COMMITTED if plan.reads_committed else IsolationLevel.READ_UNCOMMITTED,
        auto_commit=False,
    )
    async with Consumer(client, settings) as consumer:
        readable = await consumer.end_offsets(partitions)
        ends = {each: min(end, (ends or readable)[each]) for each, end in readable.items()}
        wanted = Export(
            plan.topic,
            topic_id(info),
            client.cluster.cluster_id,
            len(info.partitions),
            await configs_to_copy(client, plan.topic),
            "committed" if plan.reads_committed else "uncommitted",
            partitions={
                each.partition: ExportedPartition(start, max(start, ends[each]), next_offset=start)
                for each, start in starts.items()
            },
        )
        try:
            with locked(plan.directory):
                found = begin_directory(plan.directory, wanted)
                exporting = _Exporting(client, consumer, plan, found, SameTopic(client, plan.topic, info.topic_id))
                await exporting.run(partitions)
        except OSError as error:
            where = error.filename or plan.directory
            raise CommandError(
                f"{where} cannot be written: {error.strerror or error}; the same command goes on where this one was"
            ) from error
        exporting.tell(as_json=as_json)


class _Exporting:
    """From its start, or from where a former run was, to its end."""

    def __init__(self, client: Client, consumer: Consumer, plan: ExportPlan, found: Export, topic: SameTopic) -> None:
        self._client = client
        self._consumer = consumer
        self._plan = plan
        self._export = found
        self._topic = topic
        self._compression = Compression(CompressionType[plan.compression.upper()])
        self._began_at = self._shown_at = client.host.loop.time()
        self._written_bytes = 0
        self._read = 0

    async def run(self, partitions: Sequence[TopicPartition]) -> None:
        """Raises CommandError, OSError, and what clients raise."""
        with last_words(self._client.logger) as words:
            silence = Silence(self._client.host.loop, words, "no record was read")
            for start in range(0, len(partitions), _PARTITIONS_AT_ONCE):
                await self._some(partitions[start : start + _PARTITIONS_AT_ONCE], silence)
        self._export.is_complete = True
        self._export.write_checkpoints(self._plan.directory)
        self._export.write(self._plan.directory)

    async def _some(self, partitions: Sequence[TopicPartition], silence: Silence) -> None:
        writers: dict[TopicPartition, PartitionWriter] = {}
        for each in partitions:
            exported = self._export.partitions[each.partition]
            writers[each] = PartitionWriter(self._plan.directory, each, exported, self._compression)
            await writers[each].recover(self._client.host, self._plan.directory)
        starts = {each: writer.exported.next_offset for each, writer in writers.items()}
        async with Admin(self._client) as admin:
            bounds = await find_bounds(admin, partitions)
        for each, writer in writers.items():
            try:
                check_not_deleted({each: starts[each]}, bounds, skips_deleted=False, advice=_ANEW)
            except CommandError as error:
                raise CommandError(f"{writer.damage}{error}") from None
        for writer in writers.values():
            writer.cut_off_damage()
        self._consumer.assign(partitions)
        for each, offset in starts.items():
            self._consumer.seek(each, offset)
        left = set(partitions)
        try:
            while left:
                left -= await self._step(writers, left)
                silence.look(self._read)
                self._show()
            for writer in writers.values():
                writer.finish(self._export.topic_id)
                self._written_bytes += writer.written_bytes
        finally:
            for writer in writers.values():
                writer.close()

    async def _step(
        self, writers: dict[TopicPartition, PartitionWriter], left: set[TopicPartition]
    ) -> set[TopicPartition]:
        """Takes what has come; the partitions that are done by that."""
        done = {each for each in left if await self._consumer.position(each) >= writers[each].exported.end_offset}
        self._consumer.pause(*done)
        if done == left:
            return done
        try:
            records = await self._consumer.poll(_POLL_MS, _RECORDS_PER_POLL)
        except NoOffsetError as error:
            await self._find_place(error.reasons)
            return done
        except LogTruncationError as error:
            raise CommandError(f"the topic has lost records that were exported: {error}; begin anew") from error
        self._topic.check()
        for record in records:
            writer = writers[record.partition]
            if record.offset < writer.exported.end_offset:
                writer.add(record)
                self._read += 1
        return done

    async def _find_place(self, partitions: Iterable[TopicPartition]) -> None:
        """Goes on where it was, if the records are there: a new leader may have been behind. Raises CommandError."""
        places = {each: await self._consumer.position(each) for each in partitions}
        async with Admin(self._client) as admin:
            check_not_deleted(dict(places), await find_bounds(admin, list(places)), skips_deleted=False, advice=_ANEW)
        for each, offset in places.items():
            self._consumer.seek(each, offset)
        await self._client.timers.sleep(_POLL_MS)

    def _show(self) -> None:
        now = self._client.host.loop.time()
        if now - self._shown_at >= _SHOWN_EVERY_SECONDS and sys.stderr.isatty():
            self._shown_at = now
            rate = self._read / (now - self._began_at)
            left = sum(each.end_offset - each.next_offset for each in self._export.partitions.values())
            say(f"{counted(self._read, 'record')} exported, {rate:,.0f} in a second, {counted(left, 'offset')} left")

    def tell(self, *, as_json: bool) -> None:
        """Prints what is there now."""
        rows = [
            (number, each.first_offset, each.end_offset, each.records, each.gaps)
            for number, each in sorted(self._export.partitions.items())
        ]
        records = sum(each.records for each in self._export.partitions.values())
        seconds = self._client.host.loop.time() - self._began_at
        if as_json:
            names = [column.name for column in _COLUMNS]
            document: dict[str, Any] = {
                "topic": self._plan.topic,
                "directory": str(self._plan.directory),
                "records": records,
                "size_bytes": self._written_bytes,
                "seconds": round(seconds, 3),
                "partitions": [dict(zip(names, row, strict=True)) for row in rows],
            }
            print_json(document)
            return
        print_table(_COLUMNS, rows)
        say(f"{counted(records, 'record')} in {size(self._written_bytes)}, {seconds:.1f} s")
