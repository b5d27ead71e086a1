"""Which batches the cleaner may drop because their transaction was aborted, and when a marker may go.

Apache Kafka's CleanedTransactionMetadata: read in the order of the log, with the entries of the transaction indexes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from barnabas.log.producers.batch_headers import marker_in
from barnabas.log.segments.indexes import AbortedTransaction
from barnabas.wire.control_records import ControlRecordType
from barnabas.wire.record_batch import RecordBatch


class CleanedTransactions:
    """One pass over a log."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted` are the entries of all indexes whose markers lie where the pass begins, or later."""
        self._coming = [(entry.first_offset, entry) for entry in aborted]
        heapq.heapify(self._coming)
        self._aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._committed: set[int] = set()
        self.kept: list[AbortedTransaction] = []
        """Entries that the index of the cleaned segment needs: their markers stay."""

    def is_discarded(self, batch: RecordBatch) -> bool:
        """Whether the batch is aborted data, or a marker of a transaction of which no batch is left."""
        while self._coming and self._coming[0][0] <= batch.last_offset:
            _, entry = heapq.heappop(self._coming)
            if self._open_at(entry.producer_id, entry.first_offset) is None:
                self._aborted[entry.producer_id] = entry, False
        producer_id = batch.producer_id
        if batch.is_control:
            return self._is_marker_discarded(batch, producer_id)
        if not batch.is_transactional:
            return False
        found = self._open_at(producer_id, batch.base_offset)
        if found is None:
            self._committed.add(producer_id)
            return False
        self._aborted[producer_id] = (found[0], True)
        return True

    def _open_at(self, producer_id: int, offset: int) -> tuple[AbortedTransaction, bool] | None:
        """The aborted transaction that the producer has open there. Invariant: an entry says nothing of what comes
        behind its marker, also where that marker is gone from the log; it may be a transaction that was committed."""
        found = self._aborted.get(producer_id)
        return None if found is None or found[0].last_offset < offset else found

    def _is_marker_discarded(self, batch: RecordBatch, producer_id: int) -> bool:
        marker = marker_in(batch)
        if marker is None:
            return True  # emptied before
        if marker.type is ControlRecordType.ABORT:
            found = self._open_at(producer_id, batch.base_offset)
            self._aborted.pop(producer_id, None)
            if found is None or not found[1]:
                return True
            self.kept.append(found[0])
            return False
        is_empty = producer_id not in self._committed
        self._committed.discard(producer_id)
        return is_empty
