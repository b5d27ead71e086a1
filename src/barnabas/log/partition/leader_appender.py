"""How the log of a leader takes what producers and coordinators send: validated, numbered, and not twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from barnabas.kernel.host import Buffer
from barnabas.log.partition.appending import AppendError, AppendResult, Validation
from barnabas.log.partition.local_log import LocalLog
from barnabas.log.partition.log_flusher import LogFlusher
from barnabas.log.partition.log_services import LogServices
from barnabas.log.partition.log_state import LogState
from barnabas.log.producers.batch_headers import marker_in
from barnabas.log.producers.producer_state import BatchMetadata, ProducerEntry, ProducerStateError, Update
from barnabas.log.segments.segment import BatchPlace
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import ATTRIBUTE_LOG_APPEND_TIME, RecordBatch, assign_offset_and_epoch
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.record_validation import (
    AppendOrigin,
    ValidatedBatch,
    assign_offsets,
    validate_in_steps,
    validate_records,
)
from barnabas.wire.records import TimestampType
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
    ) -> list[AppendResult | AppendError]:
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
        outcomes: list[AppendResult | AppendError] = []
        run: list[ValidatedBatch] = []
        producers: set[int] = set()
        for records in batches:
            try:
                batch = validate_records(records, rules, now_ms, _CLIENT, produce_version)
            except RecordsError as error:
                outcomes += self._append_run(run, leader_epoch, now_ms)
                outcomes.append(AppendError.of_records(error, state.log_start_offset))
                run = []
                producers.clear()
                continue
            producer_id = batch.header.producer_id
            if producer_id > NO_PRODUCER_ID:
                if producer_id in producers:
                    outcomes += self._append_run(run, leader_epoch, now_ms)
                    run = []
                    producers.clear()
                producers.add(producer_id)
            run.append(batch)
        outcomes += self._append_run(run, leader_epoch, now_ms, writes_at_once=writes_at_once and not outcomes)
        return outcomes

    def _append_run(
        self, run: Sequence[ValidatedBatch], leader_epoch: int, now_ms: int, *, writes_at_once: bool = False
    ) -> list[AppendResult | AppendError]:
        """Appends batches of clients with one write.

        Invariant: no producer has two of them, so that each can be checked against the producers' state before any of
        them changes it; and that changes only when all are in the segment.
        """
        state = self._state
        if state.refusal is not None:  # since the run before
            return [state.refused()] * len(run)
        if len(run) < 2:
            return [self._append_one(batch, leader_epoch, now_ms) for batch in run]
        outcomes: list[AppendResult | AppendError] = []
        producers: list[ProducerEntry] = []
        places: list[BatchPlace] = []
        parts: list[Buffer] = []
        base_offset = next_offset = state.log_end_offset
        log_start_offset = state.log_start_offset
        latest_ms = -1
        size_bytes = 0
        for batch in run:
            records, header, max_timestamp_ms, timestamp_type, converted_count, uncompressed_bytes = batch
            _, length_bytes, _, _, _, attributes, last_offset_delta, _, timestamp_ms, producer_id, _, _, count = header
            log_append_time_ms = -1
            if timestamp_type is _LOG_APPEND_TIME:
                max_timestamp_ms = log_append_time_ms = now_ms
            if producer_id > NO_PRODUCER_ID:
                try:
                    prepared = state.producers.check_client(header, next_offset, max_timestamp_ms)
                except ProducerStateError as error:
                    outcomes.append(AppendError.of_producer(error, log_start_offset))
                    continue
                if type(prepared) is BatchMetadata:
                    outcomes.append(self._repeated(batch, prepared))
                    continue
                producers.append(prepared)
            batch_bytes = len(records)
            if (
                log_append_time_ms < 0
                and timestamp_ms == max_timestamp_ms
                and not attributes & ATTRIBUTE_LOG_APPEND_TIME
            ):
                # As `assign_offsets` does where no timestamp changes.
                assign_offset_and_epoch(records, 0, next_offset, length_bytes, leader_epoch)
                last_offset = next_offset + last_offset_delta
            else:
                last_offset = assign_offsets(batch, next_offset, leader_epoch, now_ms)
            places.append((batch_bytes, last_offset, max_timestamp_ms))
            parts.append(records)
            size_bytes += batch_bytes
            if max_timestamp_ms > latest_ms:
                latest_ms = max_timestamp_ms
            appended: AppendResult = _new_tuple(
                AppendResult,
                (
                    next_offset, last_offset, max_timestamp_ms, log_append_time_ms, log_start_offset,
                    count, batch_bytes, False, converted_count, uncompressed_bytes,
                ),
            )  # fmt: skip
            outcomes.append(appended)
            next_offset = last_offset + 1
        if not places:
            return outcomes
        segment = state.segments.active
        if segment.should_roll(size_bytes, next_offset - 1, latest_ms, now_ms):
            # Some of them may still belong into this segment, or into none.
            return [self._append_one(batch, leader_epoch, now_ms) for batch in run]
        try:
            segment.append_batches(b"".join(parts), places, writes_at_once=writes_at_once)
        except OSError as error:
            return [state.append_failed(error)] * len(run)
        state.log_end_offset = next_offset
        if leader_epoch > state.leader_epochs.latest_epoch:
            state.assign_epoch(leader_epoch, base_offset)
        if producers:
            state.producers.apply_clients(producers, next_offset)
        if not self._written.is_queued:
            self._queue()
        return outcomes

    def _append_one(self, batch: ValidatedBatch, leader_epoch: int, now_ms: int) -> AppendResult | AppendError:
        try:
            return self.append_validated(batch, leader_epoch, now_ms)
        except AppendError as error:
            return error

    def _prepare(
        self, batch: ValidatedBatch, base_offset: int, max_timestamp_ms: int, origin: AppendOrigin
    ) -> Update | BatchMetadata:
        """What the batch changes for its producer; or the batch in the log that it repeats."""
        header = batch.header
        if origin is _CLIENT:
            found = self._state.producers.check_client(header, base_offset, max_timestamp_ms)
            return found if type(found) is BatchMetadata else Update(found, None)
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
