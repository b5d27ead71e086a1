"""What happened in a simulation, in order: the record by which two runs of one seed are compared bit for bit.

An event is a time in virtual seconds, what happened (`Occurrence`), where (a label: a host, a connection, a link) and
one integer whose meaning depends on the occurrence (a number of bytes, of callbacks, ...). Events are packed, 19 bytes
each; the newest are kept, all of them enter the digest.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

KEPT_BYTES_MAX = 32 * 1024 * 1024
LABELS_MAX = 1_000_000
_LAYOUT = struct.Struct("<dBIq")


class Occurrence(enum.IntEnum):
    """What an event of the trace says; in parentheses, what its number means."""

    TICK = 1  # a loop ran what was ready (callbacks)
    NOTE = 2  # `Simulation.note`, text in the label (number given by the caller)
    PROCESS_STARTED = 3
    PROCESS_ENDED = 4  # main returned (0) or raised (1)
    PROCESS_CRASHED = 5
    PROCESS_PAUSED = 6
    PROCESS_RESUMED = 7
    POWER_FAILED = 8
    POWER_RESTORED = 9
    CONNECT = 10  # a connection attempt reached its target (connection)
    REFUSED = 11
    ARRIVED = 12  # bytes reached the receiving machine (bytes)
    READ = 13  # bytes were handed to a protocol (bytes)
    LOST = 14  # connection_lost was called (0 without, 1 with an exception)
    LINK_CUT = 15
    LINK_HEALED = 16
    CLOCK_SET = 17  # (milliseconds stepped, or parts per billion of drift)
    OFFLOAD_STARTED = 18  # (number of the work)
    OFFLOAD_FINISHED = 19  # (number of the work)
    FILE_CHANGED = 20  # a write, truncate, create, rename or removal (number of the disk operation)
    FILE_SYNCED = 21  # (number of the disk operation)
    FILE_FAULT = 22  # an injected error was raised (errno)
    CHILD_STARTED = 23  # (process id)
    CHILD_ENDED = 24  # (exit status)
    SURVIVAL = 25  # what a power failure spared (unsynced changes that survived, wholly or partly)


@dataclass(frozen=True, slots=True)
class Event:
    """One event, unpacked."""

    time_seconds: float
    occurrence: Occurrence
    label: str
    number: int

    def __str__(self) -> str:
        return f"{self.time_seconds:14.9f} {self.label} {self.occurrence.name.lower()} {self.number}"


class EventTrace:
    """The events of one simulation; memory is bounded by the two limits, the digest is of all events and labels."""

    def __init__(self, kept_bytes_max: int = KEPT_BYTES_MAX, labels_max: int = LABELS_MAX) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._labels_max = labels_max
        self._packed = bytearray()
        self._digest = hashlib.blake2b(digest_size=16)
        self._digested = 0
        self._labels: list[str] = ["(one of too many)"]
        self._numbers: dict[str, int] = {}
        self.dropped_events = 0

    def label(self, text: str) -> int:
        """The number that stands for a label in `add`; labels are few: hosts, links, connections' ends, notes."""
        number = self._numbers.get(text)
        if number is None:
            self._digest_now()
            self._digest.update(text.encode())
            number = len(self._labels)
            if number > self._labels_max:
                return 0
            self._numbers[text] = number
            self._labels.append(text)
        return number

    def add(self, time_seconds: float, occurrence: int, label: int, number: int = 0) -> None:
        """Appends one event; `label` comes from `label()`."""
        self._packed += _LAYOUT.pack(time_seconds, occurrence, label, number)
        if len(self._packed) > self._kept_bytes_max:
            self._drop_older_half()

    def _digest_now(self) -> None:
        self._digest.update(memoryview(self._packed)[self._digested :])
        self._digested = len(self._packed)

    def _drop_older_half(self) -> None:
        self._digest_now()
        events = len(self._packed) // _LAYOUT.size // 2
        del self._packed[: events * _LAYOUT.size]
        self._digested = len(self._packed)
        self.dropped_events += events

    def digest(self) -> str:
        """Hexadecimal digest of every event so far; equal for two runs exactly when they did the same at the same
        virtual times.
        """
        self._digest_now()
        return self._digest.hexdigest()

    def __len__(self) -> int:
        return self.dropped_events + len(self._packed) // _LAYOUT.size

    def events(self, last: int | None = None) -> Iterator[Event]:
        """The kept events, oldest first; only the newest `last` of them where given."""
        first = 0 if last is None else max(0, len(self._packed) // _LAYOUT.size - last)
        for time_seconds, occurrence, label, number in _LAYOUT.iter_unpack(bytes(self._packed[first * _LAYOUT.size :])):
            yield Event(time_seconds, Occurrence(occurrence), self._labels[label], number)
