"""What a supervisor tells about its processes, unasked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """A process ended, or could not be started again, and nobody had asked it to.

    `status` is its exit status, negative for minus a signal's number; None where there was no process. `reason` is what
    it said last, empty when it said nothing; `log` is where it said more. It is started again in `pause_seconds`, or,
    with None, stays down.
    """

    name: str
    status: int | None
    reason: str
    log: str
    pause_seconds: float | None


@dataclass(frozen=True, slots=True)
class ProcessRestarted:
    """A process that had ended runs again, and serves."""

    name: str
    process_id: int


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that a person should know about a process that serves."""

    name: str
    text: str


SupervisorEvent = ProcessEnded | ProcessRestarted | Remark
