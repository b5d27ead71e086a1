"""The work of `barnabas topic copy`: reads records of one topic, and writes them to another.

What is read and not acknowledged is bounded: by the consumer's fetches, by the producer's buffer, and by so many pieces
of records. A position counts once all records before it are acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.cli.connection import CommandError
from barnabas.cli.edges import Edge
from barnabas.cli.message_size import buffer_bytes_max, message_bytes_max, request_bytes_max, too_large
from barnabas.cli.output import Column, counted, give_up_output, print_json, print_table, printable, say, shown
from barnabas.cli.pace import Pace, wait_for
from barnabas.cli.partition_selection import Bounds, find_bounds, find_offsets, find_partitions
from barnabas.cli.record_source import FromTopic, RecordReader, RecordSource
from barnabas.cli.required_topics import require_topics
from barnabas.cli.silence import LastWords, Silence, last_words
from barnabas.cli.starts import Start
from barnabas.cli.topic_copy_ends import SameTopic, configs_to_copy, prepare_target
from barnabas.cli.topic_copy_groups import CopiedGroups, MovedGroup, tell
from barnabas.cli.topic_copy_offsets import KeptOffsets
from barnabas.cli.topic_copy_state import CopyState
from barnabas.client.admin import Admin
from barnabas.client.errors import (
    ClientError,
    LogTruncationError,
    NoOffsetError,
    ProducerFencedError,
    TransactionFailedError,
)
from barnabas.client.producer import Producer
from barnabas.client.records import ConsumerRecord, ProducerRecord, RecordMetadata
from barnabas.client.settings import ProducerSettings
from barnabas.client.transactional_producer import TRANSACTION_TIMEOUT_MS_DEFAULT as TRANSACTION_TIMEOUT_MS
from barnabas.client.transactional_producer import TransactionalProducer
from barnabas.kernel.spoken import spoken_ms
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import INTERNAL_TOPICS, TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client

_POLL_MS: Final = 250.0
_PIECE_RECORDS: Final = 1_000
_PIECES_IN_FLIGHT_MAX: Final = 32
_BATCH_BYTES: Final = 512 * 1024
_SAVED_EVERY_SECONDS: Final = 1.0
_SHOWN_EVERY_SECONDS: Final = 5.0
_LAST_SECONDS: Final = 5.0
"""How long what was sent is waited for after Ctrl-C."""
_LOOKED_EVERY_SECONDS: Final = 1.0
"""How often somebody looks at the clock while nothing is acknowledged."""
_KEPT_AGAIN_SECONDS: Final = 3_600.0
"""How often the positions of partitions where nothing comes are committed again: brokers forget offsets that are old
(`offsets.retention.minutes`), one by one."""
_GROUPS_EVERY_SECONDS: Final = 60.0
"""As MirrorMaker's `emit.checkpoints.interval.seconds`."""
_COLUMNS: Final = (
    Column("Partition", "partition", is_number=True),
    Column("From", "first_offset", is_number=True),
    Column("Next", "next_offset", is_number=True),
    Column("End", "end_offset", is_number=True),
    Column("Records", "records", is_number=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the user wants; `numbers` are partitions of the source, None for all."""

    source: str
    numbers: Sequence[int] | None
    target: str
    first: Start
    last: Start
    follows: bool
    keeps_partitions: bool
    creates: bool
    replication_factor: int | None
    copies_configs: bool
    reads_committed: bool
    compression: str
    state_file: str | None
    transactional: str | None
    rate: float | None
    skips_deleted: bool
    groups: Sequence[str] = ()
    """Patterns of groups whose offsets go along."""


@dataclass(slots=True)
class _Piece:
    """Records that were sent together."""

    positions: dict[TopicPartition, int] = field(default_factory=dict)
    """Where the source goes on behind them."""
    counts: Counter[TopicPartition] = field(default_factory=Counter)
    places: list[tuple[TopicPartition, int]] = field(default_factory=list)
    outcomes: list[asyncio.Future[RecordMetadata]] = field(default_factory=list)
    """Of the record at each place."""


async def copy(source: Client, target: Client, plan: Plan, *, as_json: bool) -> None:
    """Copies what the plan says. Raises CommandError, and what clients raise."""
    info = (await require_topics(source, [plan.source]))[plan.source]
    same_cluster = source.cluster.cluster_id == target.cluster.cluster_id
    if same_cluster and plan.source == plan.target:
        raise CommandError(f"{plan.source} cannot be copied to itself; name another topic, or another cluster by --to")
    if plan.target in INTERNAL_TOPICS:
        raise CommandError(f"{plan.target} is the brokers' own topic: nothing is copied there")
    state = CopyState(
        source.cluster.cluster_id, plan.source, info.topic_id.hex(), target.cluster.cluster_id, plan.target
    )
    path = None if plan.state_file is None else Path(plan.state_file)
    is_resumed = path is not None and state.read(path)
    async with Admin(source) as admin:
        partitions, _ = await find_partitions(admin, {plan.source: plan.numbers}, must_be_led=True)
        bounds = await find_bounds(admin, partitions)
        now_ms = source.host.clock.time_ms()
        starts = await find_offsets(admin, bounds, plan.first, now_ms)
        ends = None if plan.last is Edge.LATEST else await find_offsets(admin, bounds, plan.last, now_ms)
    kept = None if plan.transactional is None else KeptOffsets(target, plan.transactional, state)
    if kept is not None:
        state.offsets = await kept.read()
        is_resumed = bool(state.offsets)
    new = [each for each in partitions if each.partition not in state.offsets]
    starts |= {each: state.offsets[each.partition] for each in partitions if each.partition in state.offsets}
    check_not_deleted(starts, bounds, skips_deleted=plan.skips_deleted)
    there = await prepare_target(
        target,
        plan.target,
        len(info.partitions),
        creates=plan.creates,
        replication_factor=plan.replication_factor,
        configs=await configs_to_copy(source, plan.source) if plan.copies_configs else {},
        needed=needed_partitions(plan, info.partitions),
        may_choose=plan.transactional is None,
    )
    state.found_target(there.topic_id.hex(), path)
    if is_resumed:
        say(f"Goes on from {printable(plan.state_file or f'group {plan.transactional}')}.")
        if new:
            numbers = [each.partition for each in new]
            say(f"Not copied before, and so from --from on: {counted(len(new), 'partition')} ({shown(numbers)}).")
    with last_words(source.logger) as words:
        reading = FromTopic(source, plan.source, info.topic_id, reads_committed=plan.reads_committed)
        begins = {each: offset if each in new else None for each, offset in starts.items()}
        groups = CopiedGroups((source, target), (plan.source, plan.target), plan.groups, begins)
        groups.read(state.runs)
        copying = Copying(
            reading, target, plan, starts, state, path, kept, words, groups=groups if plan.groups else None
        )
        await copying.run_and_tell(ends, as_json=as_json)


def needed_partitions(plan: Plan, partitions: Iterable[int]) -> Sequence[int]:
    """The partitions that the target must have."""
    if not plan.keeps_partitions and plan.transactional is None:
        return ()
    return tuple(partitions) if plan.numbers is None else plan.numbers


class Copying:
    """What reads and one producer, from their start to their end."""

    def __init__(
        self,
        source: RecordSource,
        target: Client,
        plan: Plan,
        starts: Mapping[TopicPartition, int],
        state: CopyState,
        path: Path | None,
        kept: KeptOffsets | None,
        words: LastWords,
        heard: Callable[[TopicPartition, int, RecordMetadata], None] | None = None,
        groups: CopiedGroups | None = None,
    ) -> None:
        """`heard` is told where each record is that was acknowledged: its partition and offset in the source, and that
        in the target.
        """
        self._source = source
        self._loop = target.host.loop
        self._heard = heard if groups is None else groups.heard
        self._target = target
        self._plan = plan
        self._starts = dict(starts)
        self._state = state
        self._path = path
        self._kept = kept
        self._groups = groups
        self._moved: list[MovedGroup] = []
        self._moving: asyncio.Task[list[MovedGroup]] | None = None
        """While groups are moved beside the copy."""
        self._moved_at = self._loop.time()
        self._committed_at = self._began_at = self._saved_at = self._shown_at = self._loop.time()
        self._kept_at: float | None = None
        """When all positions were committed last."""
        self._opened_at: float | None = None
        """When the present transaction has begun."""
        self._targets = SameTopic(target, plan.target, bytes.fromhex(state.target_id))
        self._silence = Silence(self._loop, words, "no record was copied")
        self._sent = 0
        self._ends: dict[TopicPartition, int] = {}
        self._counts = dict.fromkeys(starts, 0)
        self._in_flight: deque[_Piece] = deque()
        self._positions = dict(starts)
        """All records before these are acknowledged."""
        self._saved: dict[TopicPartition, int] = {}
        self._limit: int | None = None
        self._pace = Pace(plan.rate, self._loop.time)

    async def run_and_tell(self, ends: Mapping[TopicPartition, int] | None, *, as_json: bool) -> None:
        """Copies up to `ends`, or to where the source ends now, or for ever, and prints how far it came."""
        try:
            await self._run(ends)
        except BaseException as error:
            try:
                self._tell(as_json=as_json)
            except OSError:
                give_up_output()  # the error is to be heard all the same
            if isinstance(error, ProducerFencedError | TransactionFailedError):
                raise self._ended(error) from error
            raise
        self._tell(as_json=as_json)

    async def _run(self, ends: Mapping[TopicPartition, int] | None) -> None:
        plan = self._plan
        self._limit = await message_bytes_max(self._target, plan.target)
        request_bytes = request_bytes_max(self._limit, is_compressed=plan.compression != "none")
        produced = ProducerSettings(
            batch_bytes=min(_BATCH_BYTES, self._limit or _BATCH_BYTES),
            compression=Compression(CompressionType[plan.compression.upper()]),
            request_bytes_max=request_bytes,
            buffer_bytes_max=buffer_bytes_max(request_bytes),
        )
        if plan.transactional is None:
            made: Producer | TransactionalProducer = Producer(self._target, produced)
        else:
            made = TransactionalProducer(self._target, plan.transactional, produced)
            await made.begin()
        async with self._source.opened() as consumer, made as producer:
            self._save()
            consumer.assign(self._starts)
            for partition, offset in self._starts.items():
                consumer.seek(partition, offset)
            readable = await consumer.end_offsets(self._starts)
            # What transactions that are open now have after this is for a later run, whatever was asked for.
            self._ends = {each: min(end, (ends or readable)[each]) for each, end in readable.items()}
            try:
                await self._copy(consumer, producer)
                await self._move_groups()
            except asyncio.CancelledError:
                # As the last thing: what is acknowledged by then need not be copied again.
                await self._settle_in_time(producer)
                raise
            except Exception:
                await self._give_up(producer)
                raise
            finally:
                if self._moving is not None:
                    self._moving.cancel()
                self._save()

    def _tell(self, *, as_json: bool) -> None:
        """Prints how far it is."""
        rows = [
            (
                partition.partition,
                self._starts[partition],
                self._positions[partition],
                None if self._plan.follows else self._ends.get(partition),
                self._counts[partition],
            )
            for partition in sorted(self._starts)
        ]
        seconds = self._loop.time() - self._began_at
        records = sum(self._counts.values())
        if as_json:
            names = [column.name for column in _COLUMNS]
            print_json(
                {
                    "source": self._plan.source,
                    "target": self._plan.target,
                    "records": records,
                    "seconds": round(seconds, 3),
                    "partitions": [dict(zip(names, row, strict=True)) for row in rows],
                    **({} if self._groups is None else {"groups": [group.document() for group in self._moved]}),
                }
            )
            return
        print_table(_COLUMNS, rows)
        tell(self._moved)
        say(f"{counted(records, 'record')} copied in {seconds:.1f} s")

    # Inside.

    async def _copy(self, consumer: RecordReader, producer: Producer | TransactionalProducer) -> None:
        follows = self._plan.follows
        left = set() if follows else {each for each, end in self._ends.items() if self._positions[each] < end}
        if not follows:
            consumer.pause(*(set(self._starts) - left))
        while follows or left:
            records = await self._poll(consumer)
            self._check_topics()
            wanted = records if follows else [each for each in records if each.offset < self._ends[each.partition]]
            if wanted:
                await self._wait_for_turn(producer, len(wanted))
                await self._send(producer, wanted)
            passed = {each: await consumer.position(each) for each in left}
            done = {each for each in left if passed[each] >= self._ends[each]}
            if done:
                # Behind the last record there may be markers of transactions only.
                self._in_flight.append(_Piece({each: self._ends[each] for each in done}))
                consumer.pause(*done)
                left -= done
            await self._settle(producer, _PIECES_IN_FLIGHT_MAX if records else 0)
            self._look_at_the_clock()
            self._move_groups_beside()
        await self._settle(producer, 0)

    def _check_topics(self) -> None:
        self._source.check()
        self._targets.check()

    async def _wait_for_turn(self, producer: Producer | TransactionalProducer, count: int) -> None:
        """Returns when the rate lets so many records be sent. Before a longer wait all that was sent counts, and is
        kept: no transaction stays open meanwhile.
        """
        seconds = self._pace.wait_seconds(count)
        if seconds > _SAVED_EVERY_SECONDS:
            await self._settle(producer, 0)
            self._save()
        await wait_for(seconds)

    async def _poll(self, consumer: RecordReader) -> list[ConsumerRecord]:
        try:
            return await consumer.poll(_POLL_MS, min(_PIECE_RECORDS, self._pace.piece or _PIECE_RECORDS))
        except NoOffsetError as error:
            await self._find_place(consumer, error.reasons)
            return []
        except LogTruncationError as error:
            raise CommandError(f"the source has lost records that were copied: {error}") from error

    async def _find_place(self, consumer: RecordReader, partitions: Iterable[TopicPartition]) -> None:
        """Goes on behind what was deleted while it was copied, where that is wanted. Raises CommandError."""
        self._check_topics()
        begins = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(begins)
        for partition, begin in begins.items():
            place = await consumer.position(partition)
            at = {partition: place}
            bounds = {partition: Bounds(begin, max(begin, ends[partition]))}
            check_not_deleted(at, bounds, skips_deleted=self._plan.skips_deleted)
            consumer.seek(partition, at[partition])
            self._in_flight.append(_Piece(dict(at)))
            if at[partition] == place:
                await asyncio.sleep(_POLL_MS / 1_000)  # the leader that said otherwise may be behind

    async def _send(self, producer: Producer | TransactionalProducer, records: Sequence[ConsumerRecord]) -> None:
        target, keeps = self._plan.target, self._plan.keeps_partitions
        piece = _Piece()
        self._in_flight.append(piece)
        self._opened_at = self._opened_at or self._loop.time()
        for record in records:
            partition = record.partition
            sent = ProducerRecord(
                target,
                record.value,
                record.key,
                record.headers,
                partition.partition if keeps else None,
                record.timestamp_ms if record.timestamp_ms >= 0 else None,
            )
            place = partition, record.offset
            try:
                if isinstance(producer, Producer):
                    outcome = producer.send_now(sent) or await producer.send(sent)
                else:
                    outcome = await producer.send(sent)
            except KafkaError as error:
                raise self._refused(error, place) from error
            outcome.add_done_callback(_hear)
            piece.outcomes.append(outcome)
            piece.places.append(place)
            piece.positions[partition] = record.offset + 1
            piece.counts[partition] += 1
        self._sent += len(records)

    async def _settle(self, producer: Producer | TransactionalProducer, pieces: int) -> None:
        """Waits until at most so many pieces are not acknowledged; or commits all, where that is due."""
        if isinstance(producer, TransactionalProducer):
            is_due = self._loop.time() - self._committed_at >= _SAVED_EVERY_SECONDS
            if (self._in_flight and (is_due or len(self._in_flight) > pieces)) or self._is_all_due:
                await self._commit(producer)
            return
        while len(self._in_flight) > pieces:
            piece = self._in_flight[0]
            for place, outcome in zip(piece.places, piece.outcomes, strict=True):
                await self._acknowledged(outcome)
                try:
                    outcome.result()
                except KafkaError as error:
                    raise self._refused(error, place) from error
            self._in_flight.popleft()
            self._count(piece)

    async def _acknowledged(self, outcome: asyncio.Future[RecordMetadata]) -> None:
        """Returns when the outcome is there. Who is cancelled here does not take it back: it may be asked for again."""
        while not outcome.done():
            await asyncio.wait([outcome], timeout=_LOOKED_EVERY_SECONDS)
            self._look_at_the_clock()

    def _count(self, piece: _Piece) -> None:
        if self._heard is not None:
            for (partition, offset), outcome in zip(piece.places, piece.outcomes, strict=True):
                self._heard(partition, offset, outcome.result())
        self._positions |= piece.positions
        for partition, count in piece.counts.items():
            self._counts[partition] += count

    async def _move_groups(self) -> None:
        """Has groups go on at the target where they are at the source, as far as that was copied."""
        if self._groups is not None:
            if self._moving is not None:
                self._moving.cancel()
                await asyncio.wait([self._moving])
            self._moved = await self._groups.move()
            for pattern in self._groups.unknown:
                say(f"No group at the source is called {printable(pattern)}.")

    def _move_groups_beside(self) -> None:
        """The same while records are copied, which does not wait for it; what fails is told, and tried again."""
        moving, now = self._moving, self._loop.time()
        if self._groups is None:
            return
        if moving is None and now - self._moved_at >= _GROUPS_EVERY_SECONDS:
            self._moving = self._loop.create_task(self._groups.move(), name="groups that go along")
            self._moving.add_done_callback(_hear)
        elif moving is not None and moving.done():
            self._moving, self._moved_at = None, now
            try:
                self._moved = moving.result()
            except (ClientError, KafkaError) as error:
                say(f"Groups were not moved, which is tried again in a minute: {error}")

    @property
    def _is_all_due(self) -> bool:
        """Whether all positions are to be committed, where nothing was sent too."""
        return self._kept_at is None or self._loop.time() - self._kept_at >= _KEPT_AGAIN_SECONDS

    async def _commit(self, producer: TransactionalProducer) -> None:
        """All that was sent counts, together with how far the source was read by that."""
        now = self._loop.time()
        self._opened_at = self._opened_at or now
        is_all_due = self._is_all_due
        positions = dict(self._positions) if is_all_due else {}
        for piece in self._in_flight:
            positions |= piece.positions
        if self._kept is not None:
            await self._kept.write(producer, positions)
        await producer.commit()
        for piece in self._in_flight:
            self._count(piece)
        self._in_flight.clear()
        self._opened_at = None
        self._committed_at = self._loop.time()
        if is_all_due:
            self._kept_at = now

    def _ended(self, error: ProducerFencedError | TransactionFailedError) -> CommandError:
        """What the end of a transaction means that was not asked for."""
        if isinstance(error, TransactionFailedError):
            return CommandError(str(error))
        opened_at = self._opened_at
        if opened_at is not None and self._loop.time() - opened_at >= TRANSACTION_TIMEOUT_MS / 1_000:
            return CommandError(
                f"a transaction was not committed within {spoken_ms(TRANSACTION_TIMEOUT_MS)}, and was aborted: the "
                "copy was suspended, or the target did not answer; run it again, and it goes on where it was"
            )
        name = self._plan.transactional
        return CommandError(f"another copy has taken over: it was begun with --transactional {name}")

    async def _give_up(self, producer: Producer | TransactionalProducer) -> None:
        """Ends an open transaction, which would hold up readers for as long as its time-out."""
        if isinstance(producer, TransactionalProducer):
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_LAST_SECONDS):
                    await producer.abort()

    async def _settle_in_time(self, producer: Producer | TransactionalProducer) -> None:
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await self._settle(producer, 0)
        except (TimeoutError, ClientError, KafkaError, CommandError):
            say("Not all that was sent was acknowledged: what was not is copied again by the next run.")
            await self._give_up(producer)

    def _refused(self, error: KafkaError, place: tuple[TopicPartition, int]) -> CommandError:
        partition, offset = place
        named = f"record {offset} of {printable(str(partition))}: "
        if error.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
            return CommandError(f"{named}{too_large(self._plan.target, self._limit)}")
        return CommandError(f"{named}{error.detail or error.code.message} ({error.code.name})")

    def _look_at_the_clock(self) -> None:
        now = self._loop.time()
        self._silence.look((self._sent, sum(self._counts.values())), is_idle=self._plan.follows and not self._in_flight)
        if now - self._saved_at >= _SAVED_EVERY_SECONDS:
            self._saved_at = now
            self._save()
        if now - self._shown_at >= _SHOWN_EVERY_SECONDS:
            self._shown_at = now
            if sys.stderr.isatty():
                left = sum(max(0, end - self._positions[each]) for each, end in self._ends.items())
                rest = "" if self._plan.follows else f", {counted(left, 'offset')} left"
                records = sum(self._counts.values())
                say(f"{counted(records, 'record')} copied, {records / (now - self._began_at):,.0f} in a second{rest}")

    def _save(self) -> None:
        if self._path is None or self._saved == self._positions:
            return
        self._state.offsets |= {each.partition: offset for each, offset in self._positions.items()}
        # A run without groups breaks off what is known of them: what it copies is in none of the runs.
        self._state.runs = {} if self._groups is None else self._groups.document()
        self._state.write(self._path)
        self._saved = dict(self._positions)


def _hear(future: asyncio.Future[Any]) -> None:
    """After the first error nobody asks for the others."""
    if not future.cancelled():
        future.exception()


def check_not_deleted(
    starts: dict[TopicPartition, int],
    bounds: Mapping[TopicPartition, Bounds],
    *,
    skips_deleted: bool,
    advice: str = "add --skip-deleted to go on behind them",
) -> None:
    """Raises CommandError, with an `advice`, where records of the source are gone that were to be copied; or moves the
    start.
    """
    for partition, offset in starts.items():
        known = bounds[partition]
        if offset > known.end:
            raise CommandError(
                f"{printable(str(partition))} ends at {known.end}, ahead of {offset}, up to where it was copied: it "
                "has lost records; begin anew, with another --state or --transactional"
            )
        if offset < known.start:
            gone = f"offsets {offset} to {known.start - 1} of {printable(str(partition))} were deleted"
            if not skips_deleted:
                raise CommandError(f"{gone} before they were copied; {advice}")
            say(f"Left out: {gone}.")
            starts[partition] = known.start
