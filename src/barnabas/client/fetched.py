"""What a fetch brought of one partition, read record by record when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from barnabas.client.records import ConsumerRecord, RecordColumn
from barnabas.wire.batch_formats import batch_at
from barnabas.wire.control_records import ControlRecordType, read_control_record_type
from barnabas.wire.record_batch import RecordBatch, read_batch_header
from barnabas.wire.record_column_reader import RecordsReader
from barnabas.wire.records import MAGIC_V2, walk_batches
from barnabas.wire.sentinels import NO_EPOCH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barnabas.wire.messages import FetchResponse
    from barnabas.wire.primitives import Buffer
    from barnabas.wire.records import Batch
    from barnabas.wire.topics import TopicPartition


Item = TypeVar("Item")


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
        self._epoch = NO_EPOCH  # of the batch that is being read
        self._batch_begins_at = 0
        self._is_detached = False
        self._batches = self._visible()
        self._records: Iterator[ConsumerRecord] | None = None
        self._columns: Iterator[RecordColumn] | None = None
        self._wanted = 0
        self._error: ValueError | None = None

    def take(self, count: int) -> list[ConsumerRecord]:
        """The next records, fewer than `count` only at the end or ahead of what cannot be read. Raises RecordsError
        when the next record cannot be read.
        """
        if self._records is None:
            self._begin_again()
            self._records = self._read()
        taken: list[ConsumerRecord] = []
        while len(taken) < count and (record := self._next(self._records)) is not None:
            taken.append(record)
            self.next_offset = record.offset + 1
            self.offset_epoch = record.leader_epoch
        if self._error is not None and not taken:
            raise self._error
        return taken

    def take_columns(self, count: int) -> list[RecordColumn]:
        """As `take`: keys and values of records, `count` of them altogether, in columns that are not empty."""
        if self._columns is None:
            self._begin_again()
            self._columns = self._read_columns()
        taken: list[RecordColumn] = []
        self._wanted = count
        while self._wanted > 0 and (column := self._next(self._columns)) is not None:
            taken.append(column)
            self._wanted -= len(column)
            self.next_offset = column.offsets[-1] + 1
            self.offset_epoch = self._epoch
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
        self._begin_again()

    # Inside.

    def _next(self, items: Iterator[Item]) -> Item | None:
        """The next of them; None at the end, and where it cannot be read."""
        if self._error is not None:
            return None
        try:
            item = next(items, None)
        except ValueError as error:
            self._error = error
            return None
        if item is None:
            self.is_at_end = True
        return item

    def _begin_again(self) -> None:
        """Goes on with the batch that is being read, of which `next_offset` tells what was given already."""
        self._buffer = memoryview(self._buffer)[self._batch_begins_at :]
        self._batch_begins_at = 0
        self._batches = self._visible()
        self._records = self._columns = None

    def _read(self) -> Iterator[ConsumerRecord]:
        for batch in self._batches:
            timestamp_type = batch.timestamp_type
            epoch = self._epoch
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

    def _read_columns(self) -> Iterator[RecordColumn]:
        for batch in self._batches:
            reader = batch.columns() if isinstance(batch, RecordBatch) else RecordsReader(batch.records())
            while (read := reader.read(self._wanted)) is not None:
                column = RecordColumn(self.partition, *read)
                if column.offset < self.next_offset:
                    column = column.since(self.next_offset)
                if column.values:
                    yield column

    def _visible(self) -> Iterator[Batch]:
        """The batches whose records consumers see, from `next_offset` on."""
        for span in walk_batches(self._buffer).spans:
            batch = batch_at(self._buffer, span)
            if batch.last_offset < self.next_offset:
                continue
            self._batch_begins_at = span.position
            if self._checks_crcs:
                batch.verify()
            self._epoch = NO_EPOCH
            if batch.magic == MAGIC_V2:
                self._epoch = read_batch_header(self._buffer, span.position).partition_leader_epoch
            if not self._is_hidden(batch):
                yield batch
            # The end of a compacted batch, or all of one that consumers do not see, holds nothing.
            self.next_offset = max(self.next_offset, batch.last_offset + 1)
            self.offset_epoch = self._epoch

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
