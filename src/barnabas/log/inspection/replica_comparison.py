"""The replicas of a partition held against each other, and against what was copied to remote storage.

Followers write what their leader has, byte for byte; so up to the high watermark the same offsets are in the same
batches. Batches are compared by what their headers say and by their checksums, which were computed before. Where a
cleaner was, which works on each replica by itself, records are compared instead: what both have must be the same, and
either may lack what the other has not removed yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.log.inspection.batch_inspection import BatchFacts, read_batch
from barnabas.log.inspection.replica_reading import (
    UNTIL_THE_END,
    Finding,
    FindingKind,
    Findings,
    Replica,
    ReplicaReading,
    ReplicaTotals,
    Seen,
)
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.records import Record

FINDINGS_KEPT_MAX: Final = 20
"""Of a partition; the others are counted."""


@dataclass(slots=True)
class PartitionAudit:
    """What an audit of a partition has found; `totals` are of the replicas, in their order."""

    totals: list[ReplicaTotals]
    findings: Findings
    compared_batches: int = 0
    compared_records: int = 0
    """Where a cleaner was."""


def audit_partition(
    replicas: Sequence[Replica], passed: Callable[[int], None], *, compares: bool = True
) -> PartitionAudit:
    """Reads all replicas once, side by side. `passed` is told how many bytes were read, now and then."""
    findings = Findings(FINDINGS_KEPT_MAX)
    readings = [ReplicaReading(each, findings, passed) for each in replicas]
    audit = PartitionAudit([each.totals for each in readings], findings)
    if compares and len(readings) > 1:
        _Comparison(readings, audit).run()
    else:
        for each in readings:
            for _ in each.batches():
                pass
    return audit


class _Side:
    """A replica in the comparison: its next batch or, where that was opened, its next record."""

    __slots__ = ("_records", "_seen", "head", "limit", "reading", "record", "start")

    def __init__(self, reading: ReplicaReading) -> None:
        self.reading = reading
        watermark = reading.replica.high_watermark
        self.limit = UNTIL_THE_END if watermark is None else watermark
        """From here on nothing is compared."""
        segments = reading.replica.segments
        self.start = segments[0].base_offset if segments else UNTIL_THE_END
        self._seen = reading.batches()
        self._records: Iterator[Record] | None = None
        self.record: Record | None = None
        self.head: Seen | None = None
        self.advance()

    @property
    def is_opened(self) -> bool:
        return self._records is not None

    def must_have(self, first_offset: int, last_offset: int) -> bool:
        """Whether a batch is to be expected here. What is copied to remote storage ends where nobody knows."""
        has_ended = self.head is None and self.limit == UNTIL_THE_END
        return not has_ended and self.start <= first_offset and last_offset < self.limit

    @property
    def is_blind(self) -> bool:
        """Whether nothing is known of what comes next."""
        return self.head is not None and self.head.facts is None

    @property
    def next_offset(self) -> int:
        """Of what comes next; behind all where nothing does that is compared."""
        if self.record is not None:
            return self.record.offset
        return UNTIL_THE_END if self.head is None else self.head.first_offset

    def advance(self) -> None:
        """To the next batch; behind the limit all is read to the end at once."""
        self._records = self.record = None
        self.head = next(self._seen, None)
        while self.head is not None and self.head.last_offset >= self.limit and self.head.facts is not None:
            self.head = next(self._seen, None)

    def open(self) -> str | None:
        """Goes to the records of the batch; what is wrong where they cannot be read, and then it is passed."""
        if self.head is None or self.head.facts is None:
            raise RuntimeError("there is no batch to open")
        try:
            batch = read_batch(self.reading.replica.files, self.head.descriptor, self.head.facts)
            self._records = iter(batch.records())
            self.advance_record()
        except (RecordsError, OSError) as error:
            self.advance()
            return str(error)
        return None

    def advance_record(self) -> None:
        """To the next record, or the next batch. Raises RecordsError."""
        self.record = None if self._records is None else next(self._records, None)
        if self.record is None:
            self.advance()


class _Comparison:
    """Goes through all replicas side by side, always at the lowest offset."""

    def __init__(self, readings: Sequence[ReplicaReading], audit: PartitionAudit) -> None:
        self._audit = audit
        self._sides = [_Side(each) for each in readings]
        self._cleaned_to = max((each.replica.cleaned_to for each in readings), default=0)

    def run(self) -> None:
        """To the end of all."""
        while True:
            offset = min(side.next_offset for side in self._sides)
            if offset == UNTIL_THE_END:
                return
            here = [side for side in self._sides if side.next_offset == offset]
            if any(side.is_blind for side in here):
                self._pass_unknown(here)
            elif self._are_the_same(here, offset):
                self._audit.compared_batches += len(here) > 1
                for side in here:
                    side.advance()
            elif offset < self._cleaned_to or any(side.is_opened for side in here):
                self._compare_records(here, offset)
            else:
                self._compare_batches(here, offset)

    def _pass_unknown(self, here: Sequence[_Side]) -> None:
        for side in here:
            if side.is_blind and side.head is not None:
                last_offset = side.head.last_offset
                side.advance()
                side.start = last_offset + 1  # nothing is expected of it until then

    def _others(self, here: Sequence[_Side], offset: int) -> list[_Side]:
        """Those that should have the batches too, and do not."""
        last_offset = max(_last_offset(side) for side in here)
        return [side for side in self._sides if side not in here and side.must_have(offset, last_offset)]

    def _are_the_same(self, here: Sequence[_Side], offset: int) -> bool:
        """Whether all that should have the batch have the very same one."""
        if any(side.is_opened for side in self._sides):
            return False
        first = _identity(here[0])
        return all(_identity(side) == first for side in here) and not self._others(here, offset)

    def _compare_batches(self, here: Sequence[_Side], offset: int) -> None:
        last_offset = max(_last_offset(side) for side in here)
        groups: dict[object, list[str]] = {}
        for side in here:
            groups.setdefault(_identity(side), []).append(side.reading.replica.label)
        labels = tuple(" and ".join(group) for group in groups.values())
        if len(groups) > 1:
            detail = "the same offsets have other bytes: " + "; ".join(
                f"{' and '.join(group)}: {_told(side)}"
                for group, side in zip(groups.values(), _first_of_each(here), strict=True)
            )
            self._found(FindingKind.DIFFERENT, labels, detail, offset, last_offset)
        if others := [side.reading.replica.label for side in self._others(here, offset)]:
            detail = f"not in {' and '.join(others)}, although {_which(others)} high watermark is behind them"
            self._found(FindingKind.ABSENT, tuple(others), detail, offset, last_offset)
        for side in here:
            side.advance()

    def _compare_records(self, here: Sequence[_Side], offset: int) -> None:
        """One offset, where a cleaner was: who has a record there has the same one."""
        for side in here:
            if not side.is_opened:
                label = side.reading.replica.label
                if error := side.open():
                    self._found(FindingKind.MALFORMED, (label,), f"its records cannot be read: {error}", offset, offset)
                return
        groups: dict[Record | None, list[str]] = {}
        for side in here:
            groups.setdefault(side.record, []).append(side.reading.replica.label)
        if len(groups) > 1:
            labels = tuple(" and ".join(group) for group in groups.values())
            self._found(FindingKind.DIFFERENT, labels, "the same offset has other records", offset, offset)
        self._audit.compared_records += len(here) > 1
        for side in here:
            try:
                side.advance_record()
            except RecordsError as error:
                label = side.reading.replica.label
                self._found(FindingKind.MALFORMED, (label,), f"its records cannot be read: {error}", offset, offset)
                side.advance()

    def _found(self, kind: FindingKind, labels: tuple[str, ...], detail: str, first: int, last: int) -> None:
        self._audit.findings.add(Finding(kind, labels, detail, first, last))


def _identity(side: _Side) -> object:
    facts = _facts_of(side)
    return (
        facts.base_offset,
        facts.last_offset,
        facts.size_bytes,
        facts.magic,
        facts.partition_leader_epoch,
        facts.crc,
    )


def _facts_of(side: _Side) -> BatchFacts:
    if side.head is None or side.head.facts is None:
        raise RuntimeError("nothing is known of what comes next")
    return side.head.facts


def _last_offset(side: _Side) -> int:
    return _facts_of(side).last_offset


def _first_of_each(here: Sequence[_Side]) -> list[_Side]:
    """A side for each group of identities, in the order in which they come."""
    found: dict[object, _Side] = {}
    for side in here:
        found.setdefault(_identity(side), side)
    return list(found.values())


def _told(side: _Side) -> str:
    facts = _facts_of(side)
    return (
        f"{facts.base_offset} to {facts.last_offset} in {facts.size_bytes} bytes, leader epoch "
        f"{facts.partition_leader_epoch}, checksum {facts.crc:#010x}"
    )


def _which(labels: Sequence[str]) -> str:
    return "its" if len(labels) == 1 else "their"
