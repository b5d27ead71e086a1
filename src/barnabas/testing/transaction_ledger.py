"""What transactions of a simulated cluster were to be, what their clients were told, and whether the cluster kept it.

Invariants, of a cluster that may lose nothing:

- All or nothing: in the end read_committed readers see every record of a transaction and its offsets, or none.
- A commit that was acknowledged is seen. What nobody asked to commit, what was refused or acknowledged as aborted, is
  never seen, not for a moment either: no reader is given a record, and nobody is told an offset, of a transaction that
  nobody has asked to commit yet.
- The transactions of one transactional id are seen in the order in which they began, each record once.
- Who reads from the beginning is given exactly what is seen in the end, as far as he came.
- No commit is acknowledged to an instance that was replaced before it asked.
- No transaction stays open.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.testing.cluster_history import RecordId
from barnabas.wire.control_records import ControlRecordType, read_control_record_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from barnabas.wire.record_batch import RecordBatch
    from barnabas.wire.topics import TopicPartition

FINDINGS_MAX: Final = 50
NO_OFFSET: Final = -1


class Outcome(enum.Enum):
    """What the client knows of its transaction."""

    UNDECIDED = "undecided"  # nobody was told anything, and nobody has asked to commit
    IN_DOUBT = "in doubt"  # somebody has asked to commit, and was not told what came of it
    COMMITTED = "committed"  # acknowledged
    ABORTED = "aborted"  # acknowledged, or the commit was refused


class _Rest(NamedTuple):
    """What a group was at, after the transactions up to a number."""

    offset: int
    up_to: int


class _Given(NamedTuple):
    """Who was given an epoch, and when he was told."""

    at: float
    instance: int


@dataclass(slots=True)
class Transaction:
    """One transaction. Numbers go up with time; records have it as their producer."""

    number: int
    transactional_id: str
    producer: tuple[int, int]
    """Its id and epoch. A later producer of the same transactional id has a higher epoch, or a higher id."""
    records: dict[RecordId, TopicPartition] = field(default_factory=dict)
    has_offset: bool = False
    """Whether the group's offset was set to `number`."""
    commit_asked_at: float | None = None
    outcome: Outcome = Outcome.UNDECIDED


def seen(batches: Iterable[RecordBatch]) -> tuple[list[tuple[int, RecordId]], list[int]]:
    """What a log has for read_committed readers: offsets and records, in order; and the producers whose transactions
    are open, each by its first offset. Only markers decide, as the format says; indexes are not looked at.
    """
    found: list[tuple[int, RecordId]] = []
    undecided: dict[int, list[tuple[int, RecordId]]] = {}
    for batch in batches:
        if batch.is_control:
            (record,) = batch.records()
            kept = undecided.pop(batch.producer_id, [])
            if read_control_record_type(record.key) is ControlRecordType.COMMIT:
                found += kept
            continue
        for record in batch.records():
            identity = RecordId.of_value(record.value)
            if identity is not None:
                undecided.setdefault(batch.producer_id, []).append((record.offset, identity))
    return sorted(found), sorted(kept[0][0] for kept in undecided.values() if kept)


class TransactionLedger:
    """All transactions of one run."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.findings: list[str] = []
        self.counts: Counter[str] = Counter()
        """How often each thing has happened that a run is to have seen."""
        self._now = now
        self._transactions: dict[int, Transaction] = {}
        self._instances: dict[str, int] = {}
        self._epochs: dict[str, dict[tuple[int, int], _Given]] = {}
        """By transactional id; by producer id and epoch."""
        self._given: dict[tuple[int, TopicPartition], list[tuple[int, RecordId]]] = {}
        """By reader and partition."""
        self._offsets_told: set[int] = set()
        """Transactions whose offset somebody was told."""
        self._rests: dict[str, _Rest] = {}
        """By transactional id."""

    # What the producers do.

    def new_instance(self, transactional_id: str) -> int:
        """The number of an instance that is about to begin."""
        number = self._instances[transactional_id] = self._instances.get(transactional_id, 0) + 1
        return number

    def initialized(self, transactional_id: str, instance: int, producer: tuple[int, int]) -> None:
        """The instance was given a producer id and epoch: lower epochs of it are fenced."""
        before = self._epochs.setdefault(transactional_id, {}).setdefault(producer, _Given(self._now(), instance))
        if before.instance != instance:
            self.find(f"instances {before.instance} and {instance} of {transactional_id} were both given {producer}")
        self.counts["transactions: epochs"] += 1

    def begin(self, transactional_id: str, producer: tuple[int, int]) -> Transaction:
        """A transaction of that producer id and epoch begins."""
        number = len(self._transactions) + 1
        found = self._transactions[number] = Transaction(number, transactional_id, producer)
        return found

    def asks_to_commit(self, transaction: Transaction) -> None:
        """The first EndTxn with a commit is about to leave."""
        transaction.commit_asked_at = self._now()
        transaction.outcome = Outcome.IN_DOUBT

    def committed(self, transaction: Transaction) -> None:
        """The commit was acknowledged."""
        transaction.outcome = Outcome.COMMITTED
        self.counts["transactions: committed"] += 1
        asked_at = transaction.commit_asked_at
        for producer, given in self._epochs[transaction.transactional_id].items():
            if asked_at is not None and producer > transaction.producer and given.at < asked_at:
                self.find(
                    f"{_name(transaction)} was committed for {transaction.producer}, who asked at {asked_at:.3f} s; "
                    f"{producer} has had the id since {given.at:.3f} s"
                )

    def aborted(self, transaction: Transaction, what: str) -> None:
        """The abort was acknowledged, or the commit refused."""
        transaction.outcome = Outcome.ABORTED
        self.counts[f"transactions: {what}"] += 1

    def find(self, what: str) -> None:
        """Notes that something went wrong."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(f"{self._now():.3f} s: {what}")

    # What readers see.

    def given(self, reader: int, partition: TopicPartition, offset: int, record: RecordId | None) -> None:
        """A reader of committed records was given one."""
        where = f"offset {offset} of {partition.topic}-{partition.partition}"
        transaction = None if record is None else self._transactions.get(record.producer)
        if record is None or transaction is None or transaction.records.get(record) != partition:
            self.find(f"a reader was given {record} at {where}, which nobody sent there")
            return
        self.counts["transactions: given"] += 1
        self._given.setdefault((reader, partition), []).append((offset, record))
        self._is_told(transaction, f"a reader was given {where}")

    def told_offset(self, transactional_id: str, number: int) -> None:
        """Somebody was told the offset of the id's group."""
        transaction = self._transactions.get(number)
        if transaction is None or transaction.transactional_id != transactional_id or not transaction.has_offset:
            self.find(f"the group of {transactional_id} was at {number}, which nobody has committed for it")
            return
        self.counts["transactions: offsets told"] += 1
        self._offsets_told.add(number)
        self._is_told(transaction, "somebody was told the offset")

    def _is_told(self, transaction: Transaction, what: str) -> None:
        if transaction.commit_asked_at is None:
            self.find(f"{what} of {_name(transaction)}, which nobody has asked to commit")
        elif transaction.outcome is Outcome.ABORTED:
            self.find(f"{what} of {_name(transaction)}, which is aborted")

    # In the end.

    def rests_at(self, transactional_id: str, offset: int) -> None:
        """The offset of the id's group (`NO_OFFSET` for none) in a cluster at rest, after all transactions so far."""
        self._rests[transactional_id] = _Rest(offset, len(self._transactions))

    def judge(self, logs: Mapping[TopicPartition, Iterable[RecordBatch]], topic: str) -> None:
        """Judges by the leaders' logs, in a cluster at rest."""
        visible: dict[TopicPartition, list[tuple[int, RecordId]]] = {}
        for partition, batches in logs.items():
            visible[partition], is_open = seen(batches)
            for offset in is_open:
                self.find(f"a transaction is open in {partition.topic}-{partition.partition} from {offset} on")
        places: Counter[tuple[TopicPartition, RecordId]] = Counter(
            (partition, record) for partition, records in visible.items() for _, record in records
        )
        for transaction in self._transactions.values():
            self._judge_transaction(transaction, places)
        for partition, records in visible.items():
            self._judge_order(partition, [record for _, record in records])
        self._judge_readers(visible)
        self.counts["transactions: visible"] += len({record.producer for _, record in places})
        if not any(partition.topic == topic for partition in visible):
            self.find(f"{topic} has no leader in the end")

    def _judge_transaction(self, transaction: Transaction, places: Counter[tuple[TopicPartition, RecordId]]) -> None:
        name, outcome = _name(transaction), transaction.outcome
        copies = [places[partition, record] for record, partition in transaction.records.items()]
        found = sum(map(bool, copies))
        if any(count > 1 for count in copies):
            self.find(f"a record of {name} is there twice")
        if 0 < found < len(copies):
            self.find(f"of the {len(copies)} records of {name} ({outcome.value}) {found} are seen")
            return
        is_seen = found > 0
        rest = self._rests.get(transaction.transactional_id, _Rest(NO_OFFSET, 0))
        is_due = is_seen or outcome is Outcome.COMMITTED
        if transaction.has_offset and is_due and rest.offset < transaction.number <= rest.up_to:
            self.find(f"{name} is seen, and its offset is not: the group is at {rest.offset}")
        has_told = transaction.number in self._offsets_told
        if copies and has_told and not is_seen:
            self.find(f"the offset of {name} is seen, and none of its records")
        is_seen = is_seen or has_told
        if outcome is Outcome.COMMITTED and copies and not is_seen:
            self.find(f"{name} was acknowledged as committed, and is not seen")
        if is_seen and (outcome in (Outcome.ABORTED, Outcome.UNDECIDED)):
            self.find(f"{name} is seen, and is {outcome.value}")
        if outcome is Outcome.IN_DOUBT:
            self.counts[f"transactions: in doubt and {'committed' if is_seen else 'aborted'}"] += 1

    def _judge_order(self, partition: TopicPartition, records: Sequence[RecordId]) -> None:
        last: dict[str, RecordId] = {}
        for record in records:
            transaction = self._transactions.get(record.producer)
            if transaction is None:
                continue
            before = last.get(transaction.transactional_id)
            if before is not None and record <= before:
                self.find(f"{record} of {transaction.transactional_id} is behind {before} in {partition}")
            last[transaction.transactional_id] = record

    def _judge_readers(self, visible: Mapping[TopicPartition, Sequence[tuple[int, RecordId]]]) -> None:
        for (reader, partition), given in self._given.items():
            expected = [entry for entry in visible.get(partition, ()) if entry[0] <= given[-1][0]]
            if given == expected:
                continue
            missing = [entry for entry in expected if entry not in given]
            surplus = [entry for entry in given if entry not in expected]
            self.find(
                f"reader {reader} of {partition.topic}-{partition.partition} was not given {missing[:5]}, and was "
                f"given {surplus[:5]}, which is not to be seen"
            )


def _name(transaction: Transaction) -> str:
    return f"transaction {transaction.number} of {transaction.transactional_id}"
