"""How the log of a leader takes what producers and coordinators send: validated, numbered, and not twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from barnabas.kernel.host import Buffer
from barnabas.log.partition.appending import AppendedTogether, AppendError, AppendResult, Validation
from barnabas.log.partition.local_log import LocalLog
from barnabas.log.partition.log_flusher import LogFlusher
from barnabas.log.partition.log_services import LogServices
from barnabas.log.partition.log_state import LogState
from barnabas.log.producers.batch_headers import marker_in
from barnabas.log.producers.producer_state import (
    BatchMetadata,
    ProducerEntry,
    ProducerFields,
    ProducerStateError,
    Update,
    next_of,
)
from barnabas.log.segments.segment import BatchPlace
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import (
    ATTRIBUTE_TRANSACTIONAL,
    RecordBatch,
    assign_offset_and_epoch,
    read_batch_header,
    set_max_timestamp,
)
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.record_validation import (
    AppendOrigin,
    UsualBatch,
    ValidatedBatch,
    assign_offsets,
    validate_in_steps,
    validate_records,
    validate_usual,
    validated,
)
from barnabas.wire.records import LOG_OVERHEAD_BYTES, TimestampType
from barnabas.wire.sentinels import NO_PRODUCER_ID

_CLIENT: Final = AppendOrigin.CLIENT
_LOG_APPEND_TIME: Final = TimestampType.LOG_APPEND_TIME
_new_tuple: Final = tuple.__new__


class LeaderAppender:
    """The part of a `PartitionLog` that appends for a leader."""

    __slots__ = ("_clock", "_local_log", "_queue", "_state", "_written")

    def __init__(self, services: LogServices, state: LogState, local_log: LocalLog, flusher: LogFlusher) -> None:
        self._state = state
        self._local_log = local_log
        self._written = flusher.written
        self._queue = flusher.queue
        self._clock = services.host.clock

    def append_as_leader(
        self,
        records: Buffer,
        leader_epoch: int,
        *,
        origin: AppendOrigin = _CLIENT,
        produce_version: int | None = None,
        writes_at_once: bool = False,
        only_at_once: bool = False,
    ) -> AppendResult:
        """Validates, gives offsets to, and appends what a producer has sent.

        `records` must be writable: offset, epoch and timestamps are stored in it. It may change again when this
        returns. With `writes_at_once` it does not wait for more to be written with it. Raises AppendError, and then
        nothing has changed; and with `only_at_once` TakesLongError, likewise, for records whose validation takes longer
        than a turn of the loop may: `validation` has it in steps.
        """
        state = self._state
        if state.refusal is not None:
            raise state.refused()
        now_ms = self._clock.time_ms()
        try:
            batch = validate_records(records, state.rules, now_ms, origin, produce_version, only_at_once=only_at_once)
        except RecordsError as error:
            raise AppendError.of_records(error, state.log_start_offset) from error
        return self.append_validated(batch, leader_epoch, now_ms, origin, writes_at_once=writes_at_once)

    def validation(self, records: Buffer, produce_version: int | None) -> Validation:
        """The first half of `append_as_leader` in steps, for what a client has sent. `records` must not change until
        they are done. Raises AppendError where nothing can be appended; the steps raise RecordsError.
        """
        state = self._state
        if state.refusal is not None:
            raise state.refused()
        rules = state.rules
        return Validation(rules, validate_in_steps(records, rules, self._clock.time_ms(), _CLIENT, produce_version))

    def append_after(self, validation: Validation, batch: ValidatedBatch, leader_epoch: int) -> AppendResult | None:
        """The second half, in the turn in which it is called; None, and nothing has changed, where the topic's rules
        have changed since the first.
        """
        if self._state.rules != validation.rules:
            return None
        return self.append_validated(batch, leader_epoch, self._clock.time_ms())

    def append_validated(
        self,
        batch: ValidatedBatch,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = _CLIENT,
        *,
        writes_at_once: bool = False,
    ) -> AppendResult:
        """The second half of `append_as_leader`, for a batch that has been validated."""
        state = self._state
        if state.refusal is not None:
            raise state.refused()
        header = batch.header
        base_offset = state.log_end_offset
        is_append_time = batch.timestamp_type is _LOG_APPEND_TIME
        max_timestamp_ms = now_ms if is_append_time else batch.max_timestamp_ms
        update = None
        if header.producer_id > NO_PRODUCER_ID:
            try:
                prepared = self._prepare(batch, base_offset, max_timestamp_ms, origin)
            except ProducerStateError as error:
                raise AppendError.of_producer(error, state.log_start_offset) from error
            if type(prepared) is BatchMetadata:
                return self._repeated(batch, prepared)
            update = prepared
        records = batch.records
        size_bytes = len(records)
        if size_bytes > state.segment_config.segment_bytes:
            raise self._larger_than_segments(size_bytes)
        last_offset = assign_offsets(batch, base_offset, leader_epoch, now_ms)
        try:
            segment = state.segments.active
            if segment.should_roll(size_bytes, last_offset, max_timestamp_ms, now_ms):
                segment = self._local_log.roll(base_offset)
            segment.append(records, last_offset, max_timestamp_ms, writes_at_once=writes_at_once)
        except OSError as error:
            raise state.append_failed(error) from error
        # From here on the batch is in the log: nothing below fails, unless the whole log directory does.
        end_offset = state.log_end_offset = last_offset + 1
        if leader_epoch > state.leader_epochs.latest_epoch:
            state.assign_epoch(leader_epoch, base_offset)
        if update is not None:
            aborted = state.producers.apply(update, end_offset)
            if aborted is not None:
                segment.transaction_index.append(aborted)
        if not self._written.is_queued:
            self._queue()
        return _new_tuple(
            AppendResult,
            (
                base_offset, last_offset, max_timestamp_ms, now_ms if is_append_time else -1, state.log_start_offset,
                header.record_count, size_bytes, False, batch.converted_count, batch.uncompressed_bytes,
            ),
        )  # fmt: skip

    def append_all_as_leader(
        self,
        batches: Sequence[Buffer],
        leader_epoch: int,
        *,
        produce_version: int | None = None,
        writes_at_once: bool = False,
    ) -> AppendedTogether:
        """`append_as_leader` for what several requests of clients have brought, in their order and each with its own
        outcome. What goes into the log goes there with one write and one look at the clock; so `writes_at_once` counts
        only where all of them go there together.

        Raises AppendError where nothing can be appended at all.
        """
        state = self._state
        if state.refusal is not None:
            raise state.refused()
        now_ms = self._clock.time_ms()
        rules = state.rules
        together = AppendedTogether()
        run: list[UsualBatch] = []
        for records in batches:
            try:
                batch = validate_usual(records, rules, now_ms, produce_version)
            except RecordsError:
                batch = None
            if batch is not None and not batch[1] & ATTRIBUTE_TRANSACTIONAL:
                run.append(batch)
                continue
            self._append_usual(together, run, leader_epoch, now_ms)
            together.add(self._append_unusual(records, leader_epoch, now_ms, produce_version), len(records))
            run = []
        self._append_usual(together, run, leader_epoch, now_ms, writes_at_once=writes_at_once and not together.outcomes)
        return together

    def _append_usual(
        self,
        together: AppendedTogether,
        batches: Sequence[UsualBatch],
        leader_epoch: int,
        now_ms: int,
        *,
        writes_at_once: bool = False,
    ) -> None:
        """Appends batches of clients, none of a transaction, with as few writes as can be."""
        while batches:
            run = self._append_run(batches, leader_epoch, now_ms, writes_at_once=writes_at_once)
            together.join(run)
            batches = batches[len(run.outcomes) :]
            writes_at_once = False

    def _append_run(
        self, run: Sequence[UsualBatch], leader_epoch: int, now_ms: int, *, writes_at_once: bool
    ) -> AppendedTogether:
        """Appends the batches, or the first of them, with one write.

        Invariant: the producers' state changes only when all of these are in the segment. Until then each is checked
        against it and what those ahead make of it; the first for which that is not enough comes with the next write.
        """
        state = self._state
        if state.refusal is not None:  # since the run before
            return AppendedTogether.refused(state.refused(), len(run))
        if len(run) < 2:
            return self._append_each(run, leader_epoch, now_ms)
        together = AppendedTogether()
        outcomes = together.outcomes
        producers: dict[int, ProducerFields] = {}
        places: list[BatchPlace] = []
        parts: list[Buffer] = []
        base_offset = next_offset = state.log_end_offset
        log_start_offset = state.log_start_offset
        log_append_time_ms = now_ms if state.rules.timestamp_type is _LOG_APPEND_TIME else -1
        latest_ms = -1
        size_bytes = 0
        for batch in run:
            (
                records, _, count, named_timestamp_ms, producer_id, producer_epoch, base_sequence, max_timestamp_ms,
                uncompressed_bytes,
            ) = batch  # fmt: skip
            batch_bytes = len(records)
            last_offset = next_offset + count - 1
            if log_append_time_ms >= 0:
                max_timestamp_ms = log_append_time_ms
            if producer_id > NO_PRODUCER_ID:
                known = producers.get(producer_id) or state.producers.fields(producer_id)
                producer = known and next_of(
                    known, producer_epoch, base_sequence, count - 1, last_offset, max_timestamp_ms
                )
                if producer is None:
                    if producer_id in producers:
                        writes_at_once = False
                        break
                    found = self._check_producer(batch, next_offset, max_timestamp_ms)
                    if isinstance(found, AppendResult | AppendError):
                        together.add(found, batch_bytes)
                        continue
                    producer = found
                producers[producer_id] = producer
            assign_offset_and_epoch(records, 0, next_offset, batch_bytes - LOG_OVERHEAD_BYTES, leader_epoch)
            if max_timestamp_ms != named_timestamp_ms or log_append_time_ms >= 0:
                header = read_batch_header(records)
                set_max_timestamp(records, 0, header, state.rules.timestamp_type, max_timestamp_ms)
            places.append((batch_bytes, last_offset, max_timestamp_ms))
            parts.append(records)
            size_bytes += batch_bytes
            if max_timestamp_ms > latest_ms:
                latest_ms = max_timestamp_ms
            outcomes.append(
                (
                    next_offset, last_offset, max_timestamp_ms, log_append_time_ms, log_start_offset,
                    count, batch_bytes, False, 0, uncompressed_bytes,
                )
            )  # fmt: skip
            next_offset = last_offset + 1
        if not places:
            return together
        segment = state.segments.active
        if segment.should_roll(size_bytes, next_offset - 1, latest_ms, now_ms) or (
            not segment.size_bytes and segment.is_rolled_within(places[0][2], latest_ms)
        ):
            # Some of them may still belong into this segment, or into none.
            return self._append_each(run[: len(outcomes)], leader_epoch, now_ms)
        try:
            segment.append_batches(b"".join(parts), places, writes_at_once=writes_at_once)
        except OSError as error:
            return AppendedTogether.refused(state.append_failed(error), len(outcomes))
        together.record_count += next_offset - base_offset
        together.sent_bytes += size_bytes
        self._has_grown(next_offset, leader_epoch, producers)
        return together

    def _has_grown(self, end_offset: int, leader_epoch: int, producers: dict[int, ProducerFields]) -> None:
        """From where it ended to `end_offset`, by batches of these producers."""
        state = self._state
        base_offset, state.log_end_offset = state.log_end_offset, end_offset
        if leader_epoch > state.leader_epochs.latest_epoch:
            state.assign_epoch(leader_epoch, base_offset)
        if producers:
            state.producers.apply_clients(producers, end_offset)
        if not self._written.is_queued:
            self._queue()

    def _append_each(self, run: Sequence[UsualBatch], leader_epoch: int, now_ms: int) -> AppendedTogether:
        together, rules = AppendedTogether(), self._state.rules
        for batch in run:
            try:
                outcome: AppendResult | AppendError = self.append_validated(
                    validated(batch, rules), leader_epoch, now_ms
                )
            except AppendError as error:
                outcome = error
            together.add(outcome, len(batch[0]))
        return together

    def _check_producer(
        self, batch: UsualBatch, base_offset: int, max_timestamp_ms: int
    ) -> ProducerFields | AppendResult | AppendError:
        """What becomes of its producer, or of the batch if it is not to be appended."""
        state, header = self._state, read_batch_header(batch[0])
        try:
            prepared = state.producers.check_client(header, base_offset, max_timestamp_ms)
        except ProducerStateError as error:
            return AppendError.of_producer(error, state.log_start_offset)
        if isinstance(prepared, BatchMetadata):
            return self._repeated(validated(batch, state.rules), prepared)
        return prepared

    def _append_unusual(
        self, records: Buffer, leader_epoch: int, now_ms: int, produce_version: int | None
    ) -> AppendResult | AppendError:
        state = self._state
        try:
            batch = validate_records(records, state.rules, now_ms, _CLIENT, produce_version)
            return self.append_validated(batch, leader_epoch, now_ms)
        except RecordsError as error:
            return AppendError.of_records(error, state.log_start_offset)
        except AppendError as error:
            return error

    def _prepare(
        self, batch: ValidatedBatch, base_offset: int, max_timestamp_ms: int, origin: AppendOrigin
    ) -> Update | BatchMetadata:
        """What the batch changes for its producer; or the batch in the log that it repeats."""
        header = batch.header
        if origin is _CLIENT:
            found = self._state.producers.check_client(header, base_offset, max_timestamp_ms)
            return found if type(found) is BatchMetadata else Update(ProducerEntry._make(found), None)
        if header.is_control:
            marker = marker_in(RecordBatch(batch.records))
            if marker is not None:
                return self._state.producers.prepare_marker(header, marker, base_offset, max_timestamp_ms)
        return self._state.producers.prepare_coordinator(header, base_offset, max_timestamp_ms)

    def _repeated(self, batch: ValidatedBatch, duplicate: BatchMetadata) -> AppendResult:
        """The answer to a batch that is in the log already. It counts as written when what is pending does."""
        return AppendResult(
            first_offset=duplicate.first_offset,
            last_offset=duplicate.last_offset,
            max_timestamp_ms=duplicate.timestamp_ms,
            log_append_time_ms=duplicate.timestamp_ms,
            log_start_offset=self._state.log_start_offset,
            record_count=batch.record_count,
            size_bytes=len(batch.records),
            is_duplicate=True,
            converted_count=0,
            uncompressed_bytes=batch.uncompressed_bytes,
        )

    def _larger_than_segments(self, size_bytes: int) -> AppendError:
        """A leader's refusal. A follower takes what its leader has taken, perhaps when segments were larger."""
        segment_bytes = self._state.segment_config.segment_bytes
        return AppendError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"{size_bytes} bytes do not fit into a segment of {segment_bytes} (segment.bytes)",
            log_start_offset=self._state.log_start_offset,
        )
