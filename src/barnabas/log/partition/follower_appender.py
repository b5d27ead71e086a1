"""How the log of a follower takes what its leader has sent: under the offsets that it has there."""

from __future__ import annotations

from barnabas.kernel.host import Buffer
from barnabas.log.partition.appending import AppendResult, FetchedRecords, check_fetched
from barnabas.log.partition.local_log import LocalLog
from barnabas.log.partition.log_flusher import LogFlusher
from barnabas.log.partition.log_services import LogServices
from barnabas.log.partition.log_state import LogState
from barnabas.log.producers.batch_headers import header_of, marker_in
from barnabas.log.producers.producer_state import ProducerStateError
from barnabas.log.segments.indexes import RELATIVE_OFFSET_MAX
from barnabas.log.segments.segment import Segment
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.sentinels import NO_PRODUCER_ID, NO_TIMESTAMP


class FollowerAppender:
    """The part of a `PartitionLog` that appends for a follower."""

    __slots__ = ("_flusher", "_local_log", "_services", "_state", "_written")

    def __init__(self, services: LogServices, state: LogState, local_log: LocalLog, flusher: LogFlusher) -> None:
        self._services = services
        self._state = state
        self._local_log = local_log
        self._flusher = flusher
        self._written = flusher.written

    def append_as_follower(self, records: Buffer, leader_epoch: int | None = None) -> AppendResult | None:
        """Appends what the leader has sent, under the offsets that it has there; None where there is no whole batch.

        What it answers to is in `appending.check_fetched`, which also says what is raised; KafkaError besides, when the
        log directory has failed.
        """
        state = self._state
        if state.refusal is not None:
            raise state.refused()
        fetched = check_fetched(records, state.log_end_offset, leader_epoch)
        if fetched is None:
            return None
        first_offset, last_offset = fetched.first_offset, fetched.last_offset
        max_timestamp_ms = fetched.max_timestamp_ms
        size_bytes = len(fetched.records)
        try:
            segment = self._local_log.segment_for(
                *(size_bytes, _base_offset(state.log_end_offset, first_offset, last_offset), last_offset),
                *(max_timestamp_ms, self._services.time_ms()),
            )
            segment.append_batches(fetched.records, fetched.places)
        except OSError as error:
            raise state.append_failed(error) from error
        state.log_end_offset = last_offset + 1
        self._replay(fetched, segment)
        if not self._written.is_queued:
            self._flusher.queue()
        return AppendResult(
            first_offset=first_offset,
            last_offset=last_offset,
            max_timestamp_ms=max_timestamp_ms,
            log_append_time_ms=NO_TIMESTAMP,
            log_start_offset=state.log_start_offset,
            record_count=last_offset - first_offset + 1,
            size_bytes=size_bytes,
            is_duplicate=False,
            converted_count=0,
            uncompressed_bytes=size_bytes,
        )

    def _replay(self, fetched: FetchedRecords, segment: Segment) -> None:
        """Takes over epochs and producers from batches that are in the log now."""
        state = self._state
        epochs, producers = state.leader_epochs, state.producers
        for batch in fetched.batches:
            header = header_of(batch)
            if header is None:
                continue
            if header.partition_leader_epoch > epochs.latest_epoch:
                state.assign_epoch(header.partition_leader_epoch, header.base_offset)
            if header.producer_id <= NO_PRODUCER_ID or not isinstance(batch, RecordBatch):
                continue
            try:
                aborted = producers.replay(header, marker_in(batch))
            except ProducerStateError as error:
                # The leader has accepted it; what it knew of the producer has expired here, or the reverse.
                self._services.logger.warning("%r: state of a producer differs from the leader's: %s", state, error)
                continue
            if aborted is not None:
                segment.transaction_index.append(aborted)


def _base_offset(log_end_offset: int, first_offset: int, last_offset: int) -> int:
    """Where a segment begins that is due now. Invariant: it follows the one before, even where the leader's cleaner has
    left a gap; a recovery takes a segment that does not for one behind a hole. (Indexes cannot hold larger gaps.)
    """
    return log_end_offset if last_offset - log_end_offset <= RELATIVE_OFFSET_MAX else first_offset
