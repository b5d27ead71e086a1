"""Transactional ids from the records of their shard: what a new coordinator does before it answers."""

from __future__ import annotations

import logging

from barnabas.coordinators.transaction.transactions import Transactions
from barnabas.kernel.steps import STEP_ELEMENTS, Steps
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.records import Batch


class TransactionLoader:
    """Replays batches in the order of the log.

    A record that cannot be read is reported and left out, and its id stays as the record before it says: Kafka leaves
    out everything behind it, too.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._transactions = Transactions()
        self._left = STEP_ELEMENTS
        """What the step that is under way may yet take."""

    def replay(self, batch: Batch) -> Steps[None]:
        """Raises `RecordsError` for a batch that is broken."""
        yield from self._count()
        if batch.is_control:
            return
        for record in batch.records():
            yield from self._count()
            if record.key is None:
                self._logger.warning("The record at offset %d has no key and is left out", record.offset)
                continue
            try:
                partitions = yield from self._transactions.replay(record.key, record.value)
            except ProtocolError as error:
                self._logger.warning("The record at offset %d cannot be read and is left out: %s", record.offset, error)
                continue
            yield from self._count(partitions)

    def build(self) -> Steps[None]:
        """All is built while it is replayed."""
        yield from ()

    def take(self) -> Transactions:
        """What was replayed, which is the caller's now."""
        taken, self._transactions = self._transactions, Transactions()
        return taken

    def emptied(self) -> Steps[None]:
        """Gives back what was replayed and not taken."""
        yield from self._transactions.emptied()

    def _count(self, elements: int = 1) -> Steps[None]:
        self._left -= elements
        if self._left <= 0:
            self._left = STEP_ELEMENTS
            yield
