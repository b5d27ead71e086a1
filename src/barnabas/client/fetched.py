"""What a fetch brought of one partition, read record by record when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from barnabas.client.records import ConsumerRecord
from barnabas.wire.batch_formats import batch_at
from barnabas.wire.control_records import ControlRecordType, read_control_record_type
from barnabas.wire.record_batch import read_batch_header
from barnabas.wire.records import MAGIC_V2, walk_batches
from barnabas.wire.sentinels import NO_EPOCH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barnabas.wire.messages import FetchResponse
    from barnabas.wire.primitives import Buffer
    from barnabas.wire.records import Batch
    from barnabas.wire.topics import TopicPartition


class FetchedRecords:
    """The records from `offset` on of one answer. They are decompressed and made batch by batch."""

    def __init__(
        self,
        partition: TopicPartition,
        generation: int,
        offset: int,
        records: Buffer,
        aborted: Sequence[FetchResponse.AbortedTransaction] | None,
        *,
        checks_crcs: bool,
    ) -> None:
        """With `aborted`, which may be empty, records of aborted transactions are left out."""
        self.partition = partition
        self.generation = generation
        """The generation of the position when this was asked for."""
        self.fetch_offset = offset
        self.next_offset = offset
        """The offset behind the last record that `take` gave, and behind what it has passed over."""
        self.offset_epoch = NO_EPOCH
        """The leader epoch of the batch before `next_offset`."""
        self.is_at_end = False
        """`take` has found out that there is no more."""
        self._buffer = records
        self._checks_crcs = checks_crcs
        self._aborted = None if aborted is None else sorted(aborted, key=lambda transaction: transaction.first_offset)
        self._aborting: set[int] = set()
        self._batch_begins_at = 0
        self._is_detached = False
        self._records = self._read()
        self._error: ValueError | None = None

    def take(self, count: int) -> list[ConsumerRecord]:
        """The next records, fewer than `count` only at the end or ahead of what cannot be read. Raises RecordsError
        when the next record cannot be read.
        """
        taken: list[ConsumerRecord] = []
        while len(taken) < count and self._error is None:
            try:
                record = next(self._records, None)
            except ValueError as error:
                self._error = error
                break
            if record is None:
                self.is_at_end = True
                break
            taken.append(record)
            self.next_offset = record.offset + 1
            self.offset_epoch = record.leader_epoch
        if self._error is not None and not taken:
            raise self._error
        return taken

    def detach(self) -> None:
        """Copies what is left of this partition, once, and lets go of the answer that it came in. For records that may
        wait long: an answer may hold those of many other partitions, up to `fetch_bytes_max`.
        """
        if self._is_detached:
            return
        self._is_detached = True
        self._buffer = bytes(self._buffer[self._batch_begins_at :])
        self._batch_begins_at = 0
        # Begins with the batch that is being read, of which `next_offset` tells what was given already.
        self._records = self._read()

    def _read(self) -> Iterator[ConsumerRecord]:
        for span in walk_batches(self._buffer).spans:
            batch = batch_at(self._buffer, span)
            if batch.last_offset < self.next_offset:
                continue
            self._batch_begins_at = span.position
            if self._checks_crcs:
                batch.verify()
            epoch = NO_EPOCH
            if batch.magic == MAGIC_V2:
                epoch = read_batch_header(self._buffer, span.position).partition_leader_epoch
            if not self._is_hidden(batch):
                timestamp_type = batch.timestamp_type
                for record in batch.records():
                    if record.offset >= self.next_offset:
                        yield ConsumerRecord(
                            self.partition,
                            record.offset,
                            record.timestamp_ms,
                            record.key,
                            record.value,
                            record.headers,
                            epoch,
                            timestamp_type,
                        )
            # The end of a compacted batch, or all of one that consumers do not see, holds nothing.
            self.next_offset = max(self.next_offset, batch.last_offset + 1)
            self.offset_epoch = epoch

    def _is_hidden(self, batch: Batch) -> bool:
        """Control batches, and what a transaction wrote that was aborted."""
        if self._aborted is not None:
            while self._aborted and self._aborted[0].first_offset <= batch.last_offset:
                self._aborting.add(self._aborted.pop(0).producer_id)
            if batch.is_control:
                record = next(iter(batch.records()), None)
                if record is not None and read_control_record_type(record.key) is ControlRecordType.ABORT:
                    self._aborting.discard(batch.producer_id)
            elif batch.is_transactional and batch.producer_id in self._aborting:
                return True
        return batch.is_control
