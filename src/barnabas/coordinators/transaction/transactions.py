"""The transactional ids of one partition of `__transaction_state`: what is decided on them, and what the records make.

A decision changes nothing; it yields the next record, which is appended and then replayed by `replay`, as at a load.
From then on the id is pending until the record is committed, however late: nobody else decides on it, and no marker is
sent.

Invariants: only `replay` changes what a load of the log would find; an outcome that is in the log, committed or in
doubt, is never exchanged for the other one; the epoch of a producer id never goes down.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final, NamedTuple

from barnabas.coordinators.transaction.records import NOT_STARTED, Transaction, read_key, read_value_in_steps
from barnabas.coordinators.transaction.states import TRANSACTION, TransactionState
from barnabas.kernel.steps import Steps
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.sentinels import NO_EPOCH, NO_PRODUCER_ID
from barnabas.wire.topics import TopicPartition

_EPOCH_MAX: Final = (1 << 15) - 1
_FREED_PER_STEP: Final = 4096

_PREPARED: Final = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
_COMPLETE: Final = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}


class Producer(NamedTuple):
    """Who asks: a producer id and its epoch."""

    producer_id: int
    epoch: int


NO_PRODUCER: Final = Producer(NO_PRODUCER_ID, NO_EPOCH)


class Decision(NamedTuple):
    """The next record of an id, and whom a repeated InitProducerId may name: not in the log, as in Kafka."""

    transaction: Transaction
    previous: Producer


def is_epoch_exhausted(epoch: int) -> bool:
    """The last epoch is left for fencing."""
    return epoch >= _EPOCH_MAX - 1


class Transactions:
    """The content of one shard, by transactional id. Errors of decisions are `KafkaError`."""

    __slots__ = ("_by_id", "_open", "_pending", "_prepared", "_previous")

    def __init__(self) -> None:
        self._by_id: dict[str, Transaction] = {}
        self._open: dict[str, None] = {}
        self._prepared: dict[str, None] = {}
        self._pending: dict[str, frozenset[TopicPartition]] = {}
        """Ids whose last record is not committed yet, and the partitions of their transactions before it."""
        self._previous: dict[str, Producer] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def ids(self) -> list[str]:
        """A copy, which costs a millisecond for 100,000."""
        return list(self._by_id)

    @property
    def open_ids(self) -> list[str]:
        """Those with an open transaction, which may time out."""
        return list(self._open)

    @property
    def prepared_ids(self) -> list[str]:
        """Those whose transaction is decided and not complete."""
        return list(self._prepared)

    def emptied(self) -> Steps[None]:
        """Gives back what a shard had that is here no more; freed all at once, very many take long."""
        left = _FREED_PER_STEP
        for mapping in (self._open, self._prepared, self._previous):
            while mapping:
                mapping.popitem()
                left -= 1
                if not left:
                    yield
                    left = _FREED_PER_STEP
        while self._pending or self._by_id:
            freed = self._pending.popitem()[1] if self._pending else self._by_id.popitem()[1].partitions
            left -= 1 + len(freed)
            if left <= 0:
                del freed
                yield
                left = _FREED_PER_STEP

    def get(self, transactional_id: str) -> Transaction | None:
        return self._by_id.get(transactional_id)

    def partition_count(self, transactional_id: str) -> int:
        """Of its transaction: what the next record of the id costs."""
        transaction = self._by_id.get(transactional_id)
        return 0 if transaction is None else len(transaction.partitions)

    def replay(self, key: bytes, value: bytes | None) -> Steps[int]:
        """Takes the next record of the log, in steps where it is large; one of a type that is not known is left out.
        Returns how many partitions the record names.

        Raises `ProtocolError` for a record that cannot be read: nothing has changed then.
        """
        transactional_id = read_key(key)
        if transactional_id is None:
            return 0
        transaction = None if value is None else (yield from read_value_in_steps(value))
        self._take(transactional_id, transaction)
        return 0 if transaction is None else len(transaction.partitions)

    def replay_appended(self, transactional_id: str, transaction: Transaction | None, previous: Producer) -> None:
        """As `replay`, of a decision's record that the log has just taken, or a tombstone: what it says is known, and
        very many partitions are not read back. The id is pending until `committed`.
        """
        self.reserve(transactional_id)
        self._take(transactional_id, transaction)
        if previous != NO_PRODUCER:
            self._previous[transactional_id] = previous

    def _take(self, transactional_id: str, transaction: Transaction | None) -> None:
        self._previous.pop(transactional_id, None)
        self._open.pop(transactional_id, None)
        self._prepared.pop(transactional_id, None)
        if transaction is None:
            self._by_id.pop(transactional_id, None)
            return
        self._by_id[transactional_id] = transaction
        if transaction.state is TransactionState.ONGOING:
            self._open[transactional_id] = None
        elif transaction.state in _PREPARED:
            self._prepared[transactional_id] = None

    def reserve(self, transactional_id: str) -> None:
        """The id is pending although nothing is appended yet: a large record of it is being made."""
        before = self._by_id.get(transactional_id)
        self._pending[transactional_id] = frozenset() if before is None else before.partitions

    def committed(self, transactional_id: str) -> None:
        """Ends what `replay_appended` or `reserve` began."""
        self._pending.pop(transactional_id, None)

    def needs_producer_id(self, transactional_id: str, expected: Producer | None) -> bool:
        """Whether `init_producer_id` would give out a new producer id."""
        transaction = self._by_id.get(transactional_id)
        if transaction is None:
            return transactional_id not in self._pending
        return is_epoch_exhausted(transaction.producer_epoch) and (
            expected is None or expected.epoch == transaction.producer_epoch
        )

    def init_producer_id(
        self,
        transactional_id: str,
        *,
        timeout_ms: int,
        expected: Producer | None,
        new_producer_id: int | None,
        now_ms: int,
    ) -> Decision:
        """The producer's id and epoch; a Decision in PrepareAbort fences an open transaction, and the producer is told
        CONCURRENT_TRANSACTIONS when it is committed. `new_producer_id` is there if `needs_producer_id` says so.
        """
        transaction = self._by_id.get(transactional_id)
        if transactional_id in self._pending:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if transaction is None:
            return Decision(_empty(_given(new_producer_id), 0, timeout_ms, now_ms), NO_PRODUCER)
        previous = self._previous.get(transactional_id, NO_PRODUCER)
        if expected is not None and not _is_of(expected, transaction, previous):
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        if transaction.state in _PREPARED:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if transaction.state is TransactionState.ONGOING:
            return self.fence(transactional_id, now_ms)
        TRANSACTION.advance(transactional_id, transaction.state, TransactionState.EMPTY)
        current = Producer(transaction.producer_id, transaction.producer_epoch)
        if self.needs_producer_id(transactional_id, expected):
            last_epoch = current.epoch if expected is not None else NO_EPOCH
            return Decision(
                _empty(_given(new_producer_id), 0, timeout_ms, now_ms), Producer(current.producer_id, last_epoch)
            )
        epoch, last_epoch = _bumped(current.epoch, previous.epoch, expected)
        return Decision(
            _empty(current.producer_id, epoch, timeout_ms, now_ms), Producer(current.producer_id, last_epoch)
        )

    def fence(self, transactional_id: str, now_ms: int) -> Decision:
        """Aborts an open transaction under the next epoch: somebody else comes, or it has timed out.

        A refused append leaves the epoch as it was, so the next try bumps it to the same one.
        """
        transaction = self._by_id[transactional_id]
        if transactional_id in self._pending:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if transaction.producer_epoch == _EPOCH_MAX:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        state = TRANSACTION.advance(transactional_id, transaction.state, TransactionState.PREPARE_EPOCH_FENCE)
        state = TRANSACTION.advance(transactional_id, state, TransactionState.PREPARE_ABORT)
        return Decision(
            replace(transaction, state=state, producer_epoch=transaction.producer_epoch + 1, updated_ms=now_ms),
            self._previous.get(transactional_id, NO_PRODUCER)._replace(epoch=NO_EPOCH),
        )

    def add_partitions(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition], now_ms: int
    ) -> Decision | None:
        """None where all are in the transaction already."""
        transaction = self._of_producer(transactional_id, producer)
        if transactional_id in self._pending or transaction.state in _PREPARED:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        is_open = transaction.state is TransactionState.ONGOING
        if is_open and transaction.partitions.issuperset(partitions):
            return None
        state = TRANSACTION.advance(transactional_id, transaction.state, TransactionState.ONGOING)
        following = replace(
            transaction,
            state=state,
            partitions=transaction.partitions.union(partitions),
            started_ms=transaction.started_ms if is_open else now_ms,
            updated_ms=now_ms,
        )
        return Decision(following, self._previous.get(transactional_id, NO_PRODUCER))

    def verification(self, transactional_id: str, producer: Producer) -> Callable[[TopicPartition], ErrorCode]:
        """Whether a partition is in the open transaction (KIP-890), as it is now. What is not committed yet is not in
        the transaction; an outcome that is not committed yet has the leader ask again, where Kafka still takes records.
        """
        transaction = self._of_producer(transactional_id, producer)
        if transaction.state in _PREPARED:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        verified = self._pending.get(transactional_id, transaction.partitions)
        return lambda partition: ErrorCode.NONE if partition in verified else ErrorCode.TRANSACTION_ABORTABLE

    def end(self, transactional_id: str, producer: Producer, *, is_commit: bool, now_ms: int) -> Decision:
        """Where the transaction has ended that way its last record is written again: only a coordinator that leads yet
        can have that committed, and to one that was replaced the end of the next transaction looks like a repetition.
        """
        transaction = self._of_producer(transactional_id, producer)
        if transactional_id in self._pending:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        prepared = TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT
        if transaction.state is prepared:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        previous = self._previous.get(transactional_id, NO_PRODUCER)
        if transaction.state is _COMPLETE[prepared]:
            return Decision(transaction, previous)
        if transaction.state is not TransactionState.ONGOING:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)
        state = TRANSACTION.advance(transactional_id, transaction.state, prepared)
        return Decision(replace(transaction, state=state, updated_ms=now_ms), previous)

    def are_markers_due(self, transactional_id: str) -> bool:
        """Whether the outcome is decided and committed, so that the partitions may be told."""
        transaction = self._by_id.get(transactional_id)
        return transaction is not None and transaction.state in _PREPARED and transactional_id not in self._pending

    def complete(self, transactional_id: str, now_ms: int) -> Decision:
        """All markers are written. Only where `are_markers_due`."""
        if not self.are_markers_due(transactional_id):
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)
        transaction = self._by_id[transactional_id]
        state = TRANSACTION.advance(transactional_id, transaction.state, _COMPLETE[transaction.state])
        following = replace(transaction, state=state, partitions=frozenset(), updated_ms=now_ms)
        return Decision(following, self._previous.get(transactional_id, NO_PRODUCER))

    def is_timed_out(self, transactional_id: str, now_ms: int) -> bool:
        """Whether its transaction is open for longer than its time-out; such a one is fenced."""
        transaction = self._by_id[transactional_id]
        return (
            transactional_id not in self._pending
            and transaction.state is TransactionState.ONGOING
            and transaction.started_ms + transaction.timeout_ms < now_ms
        )

    def is_expired(self, transactional_id: str, expiration_ms: int, now_ms: int) -> bool:
        """Whether a tombstone may be written: nothing is open, and nothing has changed for that long."""
        transaction = self._by_id[transactional_id]
        return (
            transactional_id not in self._pending
            and TRANSACTION.allows(transaction.state, TransactionState.DEAD)
            and transaction.updated_ms <= now_ms - expiration_ms
        )

    def _of_producer(self, transactional_id: str, producer: Producer) -> Transaction:
        transaction = self._by_id.get(transactional_id)
        if transaction is None and transactional_id in self._pending:  # its tombstone, which may yet be lost
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if transaction is None or transaction.producer_id != producer.producer_id:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if transaction.producer_epoch != producer.epoch:
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        return transaction


def _empty(producer_id: int, epoch: int, timeout_ms: int, now_ms: int) -> Transaction:
    return Transaction(producer_id, epoch, timeout_ms, TransactionState.EMPTY, frozenset(), NOT_STARTED, now_ms)


def _given(new_producer_id: int | None) -> int:
    if new_producer_id is None:
        raise ValueError("a new producer id is needed")
    return new_producer_id


def _is_of(expected: Producer, transaction: Transaction, previous: Producer) -> bool:
    """Whether the id is the present one, or the one before it that had no epochs left."""
    return expected.producer_id == transaction.producer_id or (
        expected.producer_id == previous.producer_id and is_epoch_exhausted(expected.epoch)
    )


def _bumped(epoch: int, last_epoch: int, expected: Producer | None) -> tuple[int, int]:
    """The next epoch and the one before it (KIP-360): a repeated call gets what the first one got."""
    if is_epoch_exhausted(epoch):
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    if expected is None:
        return epoch + 1, NO_EPOCH
    if expected.epoch == epoch:
        return epoch + 1, epoch
    if expected.epoch == last_epoch:
        return epoch, last_epoch
    raise KafkaError(ErrorCode.PRODUCER_FENCED)
