"""One replica of a partition, read from its files from the first batch to the last, for `barnabas audit`.

What is looked at here, is seen in one replica alone: checksums, offsets that follow each other, leader epochs that do
not go back, and whether all is there that was committed. Files are read once, in pieces; a broker may write meanwhile.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from barnabas.kernel.host import Files
from barnabas.log.inspection.batch_inspection import BatchFacts, Damage, DamageKind, inspect_batches
from barnabas.wire.sentinels import NO_EPOCH

_TOLD_EVERY_BYTES: Final = 4 * 1024 * 1024
UNTIL_THE_END: Final = 1 << 63
"""Behind every offset."""


class FindingKind(enum.Enum):
    """What was found; the value is the word for programs."""

    CHECKSUM = "checksum"
    """A batch whose bytes are not those that were written."""
    MALFORMED = "malformed"
    """A batch whose header cannot be true."""
    ORDER = "order"
    """Offsets that do not increase, or are not in the segment that is named for them."""
    EPOCH = "leader_epoch"
    """A leader epoch that is below the one before it."""
    GAP = "gap"
    """Offsets that nobody has removed, and that are not there."""
    CORRUPT = "corrupt"
    """The rest of a file is no batches."""
    TORN = "torn"
    """The rest of a file is a part of a batch, or zeros."""
    SHORT = "short"
    """The log ends ahead of its high watermark: committed records are lost."""
    UNREADABLE = "unreadable"
    """A file that the machine cannot read."""
    DIFFERENT = "different"
    """Replicas have other bytes, or other records, at the same offsets."""
    ABSENT = "absent"
    """Offsets that some replicas have and others lack."""
    NOTE = "note"
    """Nothing that is wrong."""


@dataclass(slots=True)
class Finding:
    """Something that is to be told; `is_fault` is whether records are damaged, lost, or others than elsewhere."""

    kind: FindingKind
    replicas: tuple[str, ...]
    detail: str
    first_offset: int | None = None
    last_offset: int | None = None
    path: str | None = None
    position: int | None = None
    is_fault: bool = True


class Findings:
    """What was found of a partition: all is counted, the first ones are kept. What goes on where the one before it
    ended is one finding.
    """

    def __init__(self, kept_max: int) -> None:
        self.kept: list[Finding] = []
        self.faults = 0
        self.left_out = 0
        self._kept_max = kept_max
        self._last: Finding | None = None

    def add(self, finding: Finding) -> None:
        """Takes one, in the order of their offsets."""
        last = self._last
        if (
            last is not None
            and finding.kind in (FindingKind.DIFFERENT, FindingKind.ABSENT)
            and (last.kind, last.replicas) == (finding.kind, finding.replicas)
            and last.last_offset is not None
            and finding.first_offset == last.last_offset + 1
        ):
            last.last_offset = finding.last_offset
            return
        self._last = finding
        self.faults += finding.is_fault
        if len(self.kept) < self._kept_max:
            self.kept.append(finding)
        else:
            self.left_out += 1


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A log file, by what its name says."""

    path: str
    base_offset: int


@dataclass(frozen=True, slots=True)
class Replica:
    """Where the records of a partition are once."""

    label: str
    """For people: the broker or the place."""
    files: Files
    segments: tuple[SegmentFile, ...]
    """By their base offsets."""
    high_watermark: int | None
    """Up to where its records are committed, as it knows it; None where all are."""
    cleaned_to: int = 0
    """The cleaner has been ahead of this offset: there records may be missing."""


@dataclass(slots=True)
class ReplicaTotals:
    """What was read of a replica."""

    segments: int = 0
    size_bytes: int = 0
    batches: int = 0
    records: int = 0
    first_offset: int | None = None
    end_offset: int | None = None
    """Behind the last one."""
    cleaned_gaps: int = 0
    """Places where the cleaner has removed whole batches."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A batch, or with no `facts` offsets of which nothing can be told; `descriptor` is open until the next one."""

    first_offset: int
    last_offset: int
    facts: BatchFacts | None = None
    descriptor: int = -1
    path: str = ""


@dataclass(slots=True)
class ReplicaReading:
    """Goes through a replica once; what is wrong with it goes to `findings`."""

    replica: Replica
    findings: Findings
    passed: Callable[[int], None]
    """Told how many bytes were read, now and then."""
    totals: ReplicaTotals = field(default_factory=ReplicaTotals)
    _next_offset: int | None = None
    _unknown_from: int | None = None
    """From here on nothing can be told until a sound batch comes; what is missing until then is no gap."""
    _epoch: int = NO_EPOCH
    _told_bytes: int = 0

    def batches(self) -> Iterator[Seen]:
        """Each batch in the order of offsets, and what cannot be told between them. Raises no OSError."""
        segments = self.replica.segments
        for number, segment in enumerate(segments):
            yield from self._segment(segment, is_last=number + 1 == len(segments))
        self.passed(self.totals.size_bytes - self._told_bytes)
        self.totals.end_offset = self._next_offset
        watermark, end = self.replica.high_watermark, self._next_offset or 0
        if self._unknown_from is not None:
            yield Seen(self._unknown_from, UNTIL_THE_END - 1)
        elif watermark is not None and end < watermark:
            detail = f"the log ends at {end}, and what is ahead of {watermark} was committed"
            self._found(FindingKind.SHORT, detail, end, watermark - 1)

    def _segment(self, segment: SegmentFile, *, is_last: bool) -> Iterator[Seen]:
        try:
            with self._opened(segment.path) as descriptor:
                yield from self._begin(segment)
                yield from self._batches_of(segment, descriptor, is_last=is_last)
        except FileNotFoundError:
            # Retention, or the cleaner, since the directory was listed.
            detail = f"{os.path.basename(segment.path)} was deleted or replaced while it was to be read"
            self._found(FindingKind.NOTE, detail, path=segment.path, is_fault=False)
            self._lose_track(segment)
        except OSError as error:
            self._found(FindingKind.UNREADABLE, f"it cannot be read: {error.strerror or error}", path=segment.path)
            self._lose_track(segment)

    def _lose_track(self, segment: SegmentFile) -> None:
        if self._next_offset is None:
            self._next_offset = segment.base_offset
        if self._unknown_from is None:
            self._unknown_from = self._next_offset

    def _regain(self, offset: int) -> Iterator[Seen]:
        """What is known again begins here."""
        if self._unknown_from is not None:
            if offset > self._unknown_from:
                yield Seen(self._unknown_from, offset - 1)
            self._next_offset = max(offset, self._next_offset or 0)
            self._unknown_from = None

    def _batches_of(self, segment: SegmentFile, descriptor: int, *, is_last: bool) -> Iterator[Seen]:
        before_bytes = self.totals.size_bytes
        for found in inspect_batches(self.replica.files, descriptor):
            if isinstance(found, Damage):
                self._damaged(segment, found, is_last=is_last)
                self._lose_track(segment)
                return
            self.totals.batches += 1
            self.totals.records += found.record_count or 0
            self.totals.size_bytes = before_bytes + found.end_position
            if self.totals.size_bytes - self._told_bytes >= _TOLD_EVERY_BYTES:
                self.passed(self.totals.size_bytes - self._told_bytes)
                self._told_bytes = self.totals.size_bytes
            if found.fault is not None:
                self._faulty(segment, found)
                continue
            yield from self._regain(found.base_offset)
            if self._is_in_order(segment, found):
                self._next_offset = found.last_offset + 1
                yield Seen(found.base_offset, found.last_offset, found, descriptor, segment.path)

    def _begin(self, segment: SegmentFile) -> Iterator[Seen]:
        self.totals.segments += 1
        if self._next_offset is None:
            self.totals.first_offset = self._next_offset = segment.base_offset
            return
        yield from self._regain(segment.base_offset)
        if segment.base_offset > self._next_offset:
            self._gap(segment.base_offset, segment.path)

    def _gap(self, until: int, path: str) -> None:
        """Offsets from where we are up to another are not there."""
        first = self._next_offset or 0
        self._next_offset = until
        cleaned_to = self.replica.cleaned_to
        if until <= cleaned_to:
            self.totals.cleaned_gaps += 1
            return
        why = f"the cleaner has come to {cleaned_to} only" if cleaned_to else "no cleaner was there"
        self._found(FindingKind.GAP, f"they are missing, and {why}", first, until - 1, path)

    def _faulty(self, segment: SegmentFile, facts: BatchFacts) -> None:
        kind = FindingKind.CHECKSUM if facts.is_crc_valid is False else FindingKind.MALFORMED
        detail = facts.fault or ""
        if facts.is_crc_valid and facts.base_offset < (self._next_offset or 0):
            kind = FindingKind.ORDER
        self._found(kind, detail, facts.base_offset, facts.last_offset, segment.path, facts.position)
        self._lose_track(segment)

    def _is_in_order(self, segment: SegmentFile, facts: BatchFacts) -> bool:
        """Whether a batch goes on from what was before it; tells what is wrong about that."""
        expected = self._next_offset or 0
        place = (facts.base_offset, facts.last_offset, segment.path, facts.position)
        if facts.base_offset < segment.base_offset:
            detail = f"its segment begins with offset {segment.base_offset} by its name"
            self._found(FindingKind.ORDER, detail, *place)
            return False
        if facts.base_offset < expected:
            # What was copied to remote storage may be there twice: by two leaders, one after the other.
            if self.replica.high_watermark is not None:
                detail = f"offsets ahead of {expected} were before it"
                self._found(FindingKind.ORDER, detail, *place)
            return False
        if facts.base_offset > expected:
            self._gap(facts.base_offset, segment.path)
        if facts.partition_leader_epoch < self._epoch:
            detail = f"its leader epoch {facts.partition_leader_epoch} comes behind epoch {self._epoch}"
            self._found(FindingKind.EPOCH, detail, *place)
        self._epoch = facts.partition_leader_epoch
        return True

    def _damaged(self, segment: SegmentFile, damage: Damage, *, is_last: bool) -> None:
        """The rest of a file. What was never committed may be torn at the end of a log: a recovery cuts it off."""
        is_torn = damage.kind is not DamageKind.CORRUPT
        watermark = self.replica.high_watermark
        end = segment.base_offset if self._next_offset is None else self._next_offset
        is_harmless = is_torn and is_last and watermark is not None and end >= watermark
        detail = damage.detail + ("; a broker cuts this off when it recovers the log" if is_harmless else "")
        kind = FindingKind.TORN if is_torn else FindingKind.CORRUPT
        self._found(kind, detail, end, None, segment.path, damage.position, is_fault=not is_harmless)

    def _found(
        self,
        kind: FindingKind,
        detail: str,
        first_offset: int | None = None,
        last_offset: int | None = None,
        path: str | None = None,
        position: int | None = None,
        *,
        is_fault: bool = True,
    ) -> None:
        where = (self.replica.label,)
        self.findings.add(Finding(kind, where, detail, first_offset, last_offset, path, position, is_fault))

    @contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        descriptor = self.replica.files.open(path, os.O_RDONLY)
        try:
            yield descriptor
        finally:
            self.replica.files.close(descriptor)
