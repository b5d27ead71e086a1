"""The work of `barnabas produce`: reads lines, sends records, waits for what is on its way, and sums up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from barnabas.cli.connection import CommandError, ExitStatus
from barnabas.cli.message_size import buffer_bytes_max, message_bytes_max, request_bytes_max, too_large
from barnabas.cli.output import Column, counted, print_json, print_table, printable, say, size
from barnabas.cli.pace import Pace
from barnabas.cli.produced_totals import SentColumn, SentLines, Totals
from barnabas.cli.required_topics import topics_at_start
from barnabas.cli.silence import Silence, last_words
from barnabas.cli.streams import LINE_BYTES_MAX, LineTooLongError, read_lines
from barnabas.client.errors import BufferFullError, ClientTimeoutError
from barnabas.client.producer import Producer
from barnabas.client.settings import ProducerSettings
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from barnabas.cli.record_lines import LineFormat
    from barnabas.client.client import Client
    from barnabas.client.records import ProducerRecord, RecordMetadata
    from barnabas.wire.record_columns import ValueColumn

BATCH_BYTES: Final = 512 * 1024
UNACKNOWLEDGED_MAX: Final = 100_000
"""Records on their way; their bytes are bounded by the producer's buffer."""
COLUMN_LINES_MIN: Final = 8
"""Fewer lines are sent one by one, as are longer ones."""
COLUMN_LINE_BYTES_MAX: Final = 64 * 1024
PROGRESS_SECONDS: Final = 0.5
INTERRUPTED_FLUSH_SECONDS: Final = 5.0
_ACKS: Final = {"all": -1, "1": 1, "0": 0}


async def produce(
    client: Client,
    lines: LineFormat,
    path: str | None,
    *,
    acks: str,
    compression: str,
    idempotent: bool | None,
    as_json: bool,
    rate: float | None = None,
) -> None:
    """Sends the records of a file, or of standard input where `path` is None, `rate` in a second at most. Raises
    CommandError at the first line that is no record or cannot be written.
    """
    await topics_at_start(client, [lines.topic])
    limit = await message_bytes_max(client, lines.topic)
    request_bytes = request_bytes_max(limit, is_compressed=compression != "none")
    settings = ProducerSettings(
        acks=_ACKS[acks],
        idempotent=acks == "all" if idempotent is None else idempotent,
        batch_bytes=min(BATCH_BYTES, limit or BATCH_BYTES),
        compression=Compression(CompressionType[compression.upper()]),
        request_bytes_max=request_bytes,
        buffer_bytes_max=buffer_bytes_max(request_bytes),
    )
    loop = client.host.loop
    began = loop.time()
    async with Producer(client, settings) as producer:
        with _opened(path) as descriptor, last_words(client.logger) as words:
            # Somebody who types the lines sees how many there are.
            is_shown = sys.stderr.isatty() and not os.isatty(descriptor)
            sending = _Sending(
                producer,
                lines,
                _Progress(loop, is_shown=is_shown),
                Silence(loop, words, "no record was acknowledged"),
                Pace(rate, loop.time),
                message_bytes_max=limit,
            )
            await sending.run(loop, descriptor)
    _sum_up(lines.topic, sending.totals, loop.time() - began, as_json=as_json)


class _Sending:
    """Sends records, a bounded number ahead of what is acknowledged."""

    def __init__(
        self,
        producer: Producer,
        lines: LineFormat,
        progress: _Progress,
        silence: Silence,
        pace: Pace,
        *,
        message_bytes_max: int | None,
    ) -> None:
        self.totals = Totals()
        self._message_bytes_max = message_bytes_max
        self._silence = silence
        self._producer = producer
        self._lines = lines
        self._progress = progress
        self._pace = pace
        self._line = 0
        self._unacknowledged: deque[tuple[int, int, asyncio.Future[RecordMetadata]] | SentLines] = deque()
        self._unacknowledged_count = 0

    async def run(self, loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
        try:
            # JSON and its ways to write bytes take more of a line than of a record.
            line_bytes_max = max(LINE_BYTES_MAX, 2 * self._producer.settings.request_bytes_max)
            # What every record has besides its line may be much more than that: the buffer has room for two columns.
            lines_max = max(1, self._producer.settings.buffer_bytes_max // 3 // self._lines.shape.overhead_bytes)
            lines_max = min(lines_max, self._pace.piece or lines_max)
            async for some in read_lines(loop, descriptor, line_bytes_max):
                for start in range(0, len(some), lines_max):
                    piece = some[start : start + lines_max]
                    await self._pace.wait(len(piece))
                    await self._send_lines(loop, piece)
                    self._progress.show(self.totals)
                self._progress.show(self.totals)
                await asyncio.sleep(0)  # brokers have something to do, while files never let anybody wait
            await self._settle_all()
        except LineTooLongError as error:
            raise await self._unusable(error.lines_before + 1, error) from error
        except asyncio.CancelledError:
            await self._settle_quickly()
            say(self._so_far("lines that were read"))
            raise
        finally:
            self._progress.end()

    async def _send_lines(self, loop: asyncio.AbstractEventLoop, lines: list[bytes]) -> None:
        if await self._send_together(loop, lines):
            return
        for line in lines:
            self._line += 1
            record = await self._record(line)
            if record is not None:
                await self._send(record)

    async def _record(self, line: bytes) -> ProducerRecord | None:
        try:
            return self._lines.record(line)
        except ValueError as error:
            raise await self._unusable(self._line, error) from error

    async def _send(self, record: ProducerRecord) -> None:
        try:
            future = self._producer.send_now(record)
            if future is None:
                future = await self._producer.send(record)
        except (KafkaError, ClientTimeoutError) as error:
            raise await self._not_taken(self._line, error) from error
        self._unacknowledged.append((self._line, len(record.value or b""), future))
        self._unacknowledged_count += 1
        await self._keep_up()

    async def _send_together(self, loop: asyncio.AbstractEventLoop, lines: list[bytes]) -> bool:
        """Sends lines that say no more than keys and values together; False, and nothing is sent, where that is no use
        or some line is no record.
        """
        column = self._lines.column(lines) if len(lines) >= COLUMN_LINES_MIN else None
        if column is None or column.largest_bytes > COLUMN_LINE_BYTES_MAX:
            return False
        try:
            parts = await self._by_partition(column)
        except (KafkaError, ClientTimeoutError) as error:
            raise await self._not_taken(self._line + 1, error) from error
        sent = SentLines(loop, self._line + 1, len(lines))
        self._line += len(lines)
        self._unacknowledged.append(sent)
        self._unacknowledged_count += len(lines)
        waiting = deque((partition, SentColumn(sent, part, places)) for partition, part, places in parts)
        try:
            while waiting:
                partition, part = waiting[0]
                await self._producer.send_column(self._lines.topic, part.column, part, partition)
                waiting.popleft()
        except BaseException as error:
            for _, part in waiting:
                part.failed(0, len(part.column), error)
            if isinstance(error, KafkaError | ClientTimeoutError):
                raise await self._not_taken(sent.failure[0] if sent.failure else sent.line, error) from error
            raise
        await self._keep_up()
        return True

    async def _by_partition(self, column: ValueColumn) -> list[tuple[int | None, ValueColumn, Sequence[int]]]:
        """A column for each partition, with the places of its records; the partition is None where the producer has to
        choose it.
        """
        partition = self._lines.partition
        if column.keys is None or partition is not None:
            return [(partition, column, range(len(column)))]
        places: dict[int, list[int]] = {}
        for place, number in enumerate(await self._producer.partitions_of(self._lines.topic, column.keys)):
            places.setdefault(number, []).append(place)
        return [(number, column.of(those), those) for number, those in sorted(places.items())]

    async def _not_taken(self, line: int, error: KafkaError | ClientTimeoutError) -> CommandError:
        """The end because the producer did not take what begins with that line."""
        if isinstance(error, KafkaError):
            await self._settle_all()
        return self._refused(line, error)

    async def _keep_up(self) -> None:
        """Counts what has come to its end, and waits while too much has not."""
        self._settle_first_ones()
        while self._unacknowledged_count >= UNACKNOWLEDGED_MAX:
            await self._settle_first()

    async def _unusable(self, line: int, error: Exception) -> CommandError:
        """The end because of a line that is no record, once the records of all lines ahead of it are acknowledged.
        Raises CommandError for one of those that has failed.
        """
        await self._settle_all()
        count = self.totals.records
        return CommandError(
            f"line {line}: {printable(str(error))}. {_written(count)}, and nothing from line {line} on: correct it, "
            "and go on from there"
        )

    async def _settle_all(self) -> None:
        while self._unacknowledged:
            await self._settle_first()

    async def _settle_first(self) -> None:
        future = _end_of(self._unacknowledged[0])
        if not future.done():
            await asyncio.wait([future], timeout=PROGRESS_SECONDS)
            if not future.done():
                self._progress.end()
                self._silence.look(self.totals.records)
        self._progress.show(self.totals)
        self._settle_first_ones()

    def _settle_first_ones(self) -> None:
        """Counts those ahead that have come to their end. Raises CommandError where one has failed."""
        waiting = self._unacknowledged
        while waiting and _end_of(waiting[0]).done():
            sent = waiting.popleft()
            if isinstance(sent, SentLines):
                self._unacknowledged_count -= len(sent)
                sent.add_to(self.totals)
                if sent.failure is not None:
                    line, error = sent.failure
                    raise self._refused(line, error) from error
                continue
            self._unacknowledged_count -= 1
            line, value_bytes, future = sent
            failure = future.exception()
            if failure is not None:
                raise self._refused(line, failure) from failure
            written = future.result()
            self.totals.add(written.partition.partition, written.offset, 1, value_bytes)

    async def _settle_quickly(self) -> None:
        """After Ctrl-C: what was read is written, if that takes no longer than a moment."""
        with contextlib.suppress(TimeoutError, CommandError):
            async with asyncio.timeout(INTERRUPTED_FLUSH_SECONDS):
                await self._settle_all()

    def _refused(self, line: int, error: BaseException) -> CommandError:
        self._settle_what_is_done()
        status = ExitStatus.FAILED
        reason = str(error)
        if isinstance(error, KafkaError):
            reason = (
                f"{error.detail}: {error.code.name}" if error.detail else f"{error.code.message} ({error.code.name})"
            )
            if error.code is ErrorCode.MESSAGE_TOO_LARGE:
                reason = f"{too_large(self._lines.topic, self._message_bytes_max)} ({error.code.name})"
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                status = ExitStatus.MISSING
        elif isinstance(error, ClientTimeoutError):
            status = ExitStatus.UNREACHABLE
            if isinstance(error, BufferFullError):
                reason += "; the brokers take nothing more: check that all of them are running"
        return self._failed(line, reason, status)

    def _settle_what_is_done(self) -> None:
        """Counts what is acknowledged behind a record that failed, to be told."""
        for sent in self._unacknowledged:
            if isinstance(sent, SentLines):
                sent.add_to(self.totals)
            elif sent[2].done() and sent[2].exception() is None:
                self.totals.records += 1
                self.totals.value_bytes += sent[1]

    def _failed(self, line: int, reason: str, status: ExitStatus = ExitStatus.FAILED) -> CommandError:
        return CommandError(f"line {line}: {printable(reason)}. {self._so_far('others')}", status)

    def _so_far(self, what: str) -> str:
        return f"{_written(self.totals.records)}; some more of the {what} may be"


def _end_of(sent: tuple[int, int, asyncio.Future[RecordMetadata]] | SentLines) -> asyncio.Future[Any]:
    return sent.done if isinstance(sent, SentLines) else sent[2]


def _written(count: int) -> str:
    return f"{counted(count, 'record')} {'is' if count == 1 else 'are'} written"


class _Progress:
    """A line on standard error that changes in place, where it `is_shown`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_shown: bool) -> None:
        self._loop = loop
        self._is_shown = is_shown
        self._began = loop.time()
        self._shown_at = self._began
        self._has_line = False

    def show(self, totals: Totals) -> None:
        now = self._loop.time()
        if not self._is_shown or now - self._shown_at < PROGRESS_SECONDS:
            return
        self._shown_at = now
        self._has_line = True
        rate = totals.records / (now - self._began)
        sys.stderr.write(
            f"\r\x1b[K{counted(totals.records, 'record')}, {size(totals.value_bytes)}, {rate:,.0f} records/s"
        )
        sys.stderr.flush()

    def end(self) -> None:
        if self._has_line:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._has_line = False


@contextlib.contextmanager
def _opened(path: str | None) -> Iterator[int]:
    if path is None:
        if sys.stdin is None:
            raise CommandError(
                "standard input is closed: name a file with --file, or give it records", ExitStatus.USAGE
            )
        yield sys.stdin.fileno()
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sum_up(topic: str, totals: Totals, seconds: float, *, as_json: bool) -> None:
    partitions = sorted(totals.partitions.items())
    rows = [(number, each.records, each.first_offset, each.last_offset) for number, each in partitions]
    if as_json:
        names = [column.name for column in _COLUMNS]
        document: dict[str, Any] = {
            "topic": topic,
            "records": totals.records,
            "value_bytes": totals.value_bytes,
            "seconds": round(seconds, 3),
            "partitions": [dict(zip(names, row, strict=True)) for row in rows],
        }
        print_json(document)
        return
    say(
        f"{counted(totals.records, 'record')} with {size(totals.value_bytes)} of values written to {printable(topic)} "
        f"in {seconds:.1f} s"
    )
    if rows:
        print_table(_COLUMNS, rows)


_COLUMNS: Final = (
    Column("Partition", "partition", is_number=True),
    Column("Records", "records", is_number=True),
    Column("First offset", "first_offset", is_number=True),
    Column("Last offset", "last_offset", is_number=True),
)
