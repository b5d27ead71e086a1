"""Watches the transaction coordinators of a simulated cluster: no marker leaves before the outcome is committed.

Somebody sees a part of a transaction only if the coordinator falls before its record is replicated, after a marker was
written elsewhere, and that is rare: so this is looked at where it happens.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from barnabas.api.internal_log import ReplicatedInternalLog
from barnabas.coordinators.transaction.markers import MarkerSender
from barnabas.coordinators.transaction.records import read_key
from barnabas.testing.probes import after, before
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.topics import TRANSACTION_TOPIC, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from barnabas.coordinators.transaction.markers import Ending
    from barnabas.leader.partition import Partition
    from barnabas.server.broker import Broker
    from barnabas.testing.transaction_ledger import TransactionLedger


class _Written(NamedTuple):
    """The last record of a transactional id in the log of its coordinator."""

    replica: Partition
    offset: int


class MarkerWatch:
    """Compares each marker that is about to be sent with the coordinator's high watermark."""

    def __init__(self, ledger: TransactionLedger, brokers: Callable[[], Iterable[Broker]]) -> None:
        """`brokers` gives those that run."""
        self._ledger = ledger
        self._brokers = brokers
        self._written: dict[tuple[str, int], _Written] = {}
        """By transactional id and the leader epoch of its coordinator."""

    @contextmanager
    def probes(self) -> Iterator[None]:
        """Watches, while this lasts."""
        with after(ReplicatedInternalLog, "start_append", self._appended), before(MarkerSender, "send", self._sending):
            yield

    def _appended(
        self, offset: int, log: ReplicatedInternalLog, partition: TopicPartition, leader_epoch: int, batch: bytearray
    ) -> None:
        if partition.topic != TRANSACTION_TOPIC:
            return
        replica = log._partitions.find_partition(partition)  # noqa: SLF001 - whose log that is nobody else tells
        for record in RecordBatch(bytes(batch)).records():
            name = read_key(record.key or b"")
            if name is not None and replica is not None:
                self._written[name, leader_epoch] = _Written(replica, offset)

    def _sending(self, _sender: MarkerSender, ending: Ending) -> None:
        written = self._written.get((ending.transactional_id, ending.coordinator_epoch))
        if written is None:
            written = self._loaded(ending)
        if written is None or written.replica.log is None:
            return
        self._ledger.counts["transactions: markers watched"] += 1
        high_watermark = written.replica.log.high_watermark
        if high_watermark <= written.offset:
            self._ledger.find(
                f"the outcome of {ending.transactional_id} is at offset {written.offset} of {TRANSACTION_TOPIC}, of "
                f"which {high_watermark} is committed, and its markers are sent"
            )

    def _loaded(self, ending: Ending) -> _Written | None:
        """The record was in the log when its leader began: taken for the last that was."""
        for broker in self._brokers():
            components = broker.components
            number = components.coordinators.transactions.partition_for(ending.transactional_id)
            replica = components.replica_manager.find_partition(TopicPartition(TRANSACTION_TOPIC, number))
            if replica is None or not replica.is_leader or replica.leader_epoch != ending.coordinator_epoch:
                continue
            began_at = replica.leader_epoch_start_offset
            return None if began_at is None else _Written(replica, began_at - 1)
        return None
