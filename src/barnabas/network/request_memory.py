"""The memory that large requests and unread responses of all connections may hold together.

Five shares, each with its bound: frames above 64 KiB while they are received and wait, and records that are copied out
of frames to be checked in steps; such frames of clients that have not logged in, apart, since those could keep all
others out; requests that are worked on in steps, ordinary and very large ones apart, so that these do not hold up
those; and answers that clients do not read. Whoever finds no room in the first four waits for it, in the order of
arrival; small requests, control connections and everything that is no request need none.

Nobody can hold a share for ever: while others wait, whoever has held a part of it for `STALLED_SECONDS` without getting
on (a client that does not send the rest of its frame at `PACE_BYTES`, or does not read its answer; a request that waits
for something to happen) has its connection closed, with a line in the log.

Invariant: a request asks for the shares in one order (frame, work), and unread answers never wait. So whatever a
waiting request waits for goes on or stalls, and is then closed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from barnabas.wire.primitives import ELEMENTS_MAX

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from barnabas.kernel.timers import Timer, Timers

MEGABYTE: Final = 1024 * 1024
FRAME_BYTES_MAX: Final = 512 * MEGABYTE
"""Where `queued.max.request.bytes` is -1."""
LOGIN_BYTES_MAX: Final = 16 * MEGABYTE
"""Of frames above 64 KiB before the login: no login that succeeds has any, so whoever waits here is no loss."""
PER_FRAME_BYTE: Final = 60
"""What a request that is worked on may hold at most, as a multiple of its frame."""
PARKED_PER_FRAME_BYTE: Final = 12
"""... and once it waits for something to happen, when it was taken apart."""
PER_ELEMENT_BYTES: Final = 1024
LARGEST_BYTES: Final = ELEMENTS_MAX * PER_ELEMENT_BYTES
"""What a request may hold at most, however large its frame: that has records, of which nothing is made."""
NO_FRAME_BYTES: Final = 8 * MEGABYTE
"""What a small request with a large answer is taken for, while that is made."""
ORDINARY_BYTES: Final = 16 * MEGABYTE
"""A request that may hold more is a very large one."""
ORDINARY_BYTES_MAX: Final = 256 * MEGABYTE
VERY_LARGE_BYTES_MAX: Final = 512 * MEGABYTE
UNREAD_BYTES_MAX: Final = 512 * MEGABYTE
"""Beyond it very large requests wait, and stalled readers are closed; beyond twice as much one is closed at once."""
STALLED_SECONDS: Final = 10
PACE_BYTES: Final = 8192
"""What the sender of a large frame has to send in a second while others wait; who has sent less is as one who was quiet
for a part of it.
"""
_LOOK_MS: Final = 1000.0


class Claim:
    """A part of a share that one connection holds or waits for. Made by `RequestMemory`."""

    __slots__ = (
        "_admitted",
        "_is_over",
        "_seen",
        "_share",
        "fail",
        "is_held",
        "is_working",
        "pace",
        "progress",
        "quiet",
        "size",
    )

    def __init__(
        self, share: Share, size: int, admitted: Callable[[], object] | None, fail: Callable[[str], object]
    ) -> None:
        self._share = share
        self._admitted = admitted
        self._is_over = False
        self._seen: int | None = None
        self.size = size
        self.fail = fail
        self.is_held = False
        """It has its part, or does not wait for it any more."""
        self.is_working = False
        """The broker is at work for it: it does not stall, and holds its part until `work_ended`."""
        self.progress: Callable[[], int | None] | None = None
        """What changes when its client gets on; None while the client cannot."""
        self.pace = 0
        """How much progress there has to be in a second; 0: any."""
        self.quiet = 0.0
        """How many looks have seen no progress; less of the senders of frames that have sent more than they had to."""

    def admit(self) -> None:
        """For the share: the claim has its part now."""
        self.is_held = True
        admitted, self._admitted = self._admitted, None
        if admitted is not None:
            admitted()

    async def wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Returns when there is room; also when the claim is over before."""
        if not self.is_held:
            admitted = loop.create_future()
            self._admitted = lambda: None if admitted.done() else admitted.set_result(None)
            await admitted

    def resize(self, size: int) -> None:
        """It holds so much from now on."""
        if self.is_held and not self._is_over:
            self._share.resize(self, size)

    def work_ended(self) -> None:
        """The broker is not at work for it any more."""
        self.is_working = False
        if self._is_over:
            self._share.leave(self)

    def end(self) -> None:
        """Nothing is held or waited for any more, once no work is under way. May be called again."""
        if not self._is_over:
            self._is_over = True
            if not self.is_working:
                self._share.leave(self)

    def look(self) -> bool:
        """Once in a second while others wait; True if it has stalled."""
        seen = 0 if self.progress is None else self.progress()
        if self.is_working or seen is None or self._seen is None:
            self.quiet = 0
        elif not self.pace:
            self.quiet = 0 if seen != self._seen else self.quiet + 1
        else:
            self.quiet = max(0, self.quiet + 1 - (seen - self._seen) / self.pace)
        self._seen = seen
        return self.quiet >= STALLED_SECONDS


class Share:
    """One bound for all that hold parts of it; who finds no room waits in a line."""

    __slots__ = ("_changed", "_line", "bytes_max", "held", "holders", "is_open", "waiting")

    def __init__(self, bytes_max: int, is_open: Callable[[], bool], changed: Callable[[], object]) -> None:
        """No claim is granted unless `is_open()`; `changed()` is called when a claim begins to wait."""
        self.bytes_max = bytes_max
        self.is_open = is_open
        self._changed = changed
        self._line: deque[Claim] = deque()  # those that were given up too, until their turn comes
        self.holders: dict[Claim, None] = {}
        self.held = 0
        """Bytes."""
        self.waiting = 0
        """How many claims wait."""

    def enter(self, claim: Claim, *, at_once: bool = False) -> None:
        """Gives the claim its part, or has it wait. `at_once` gives it without looking."""
        if at_once or (not self.waiting and self._has_room(claim)):
            self._let_in(claim)
        else:
            self._line.append(claim)
            self.waiting += 1
            self._changed()

    def leave(self, claim: Claim) -> None:
        if claim in self.holders:
            del self.holders[claim]
            self.held -= claim.size
            self.go_on()
        elif not claim.is_held:
            self.waiting -= 1
            claim.admit()
            self.go_on()

    def resize(self, claim: Claim, size: int) -> None:
        self.held += size - claim.size
        claim.size = size
        self.go_on()

    def go_on(self) -> None:
        """Lets in those at the head of the line for whom there is room."""
        line = self._line
        while line and (line[0].is_held or self._has_room(line[0])):
            claim = line.popleft()
            if not claim.is_held:  # otherwise it was given up
                self.waiting -= 1
                self._let_in(claim)

    def _has_room(self, claim: Claim) -> bool:
        # One that is larger than all of the share has it alone.
        return (not self.holders or self.held + claim.size <= self.bytes_max) and self.is_open()

    def _let_in(self, claim: Claim) -> None:
        self.holders[claim] = None
        self.held += claim.size
        claim.admit()


class RequestMemory:
    """The shares of one broker. Everything of it runs on the loop."""

    def __init__(self, timers: Timers, frame_bytes_max: int = -1) -> None:
        """`frame_bytes_max` is `queued.max.request.bytes`; -1 leaves it at `FRAME_BYTES_MAX`."""
        self._timers = timers
        self._timer: Timer | None = None
        self._is_closed = False
        self.frames = Share(frame_bytes_max if frame_bytes_max > 0 else FRAME_BYTES_MAX, _always, self._watch)
        self.logins = Share(LOGIN_BYTES_MAX, _always, self._watch)
        self.ordinary = Share(ORDINARY_BYTES_MAX, _always, self._watch)
        self.very_large = Share(VERY_LARGE_BYTES_MAX, lambda: not self._is_much_unread, self._watch)
        self.unread = Share(UNREAD_BYTES_MAX, _always, self._watch)

    @property
    def waiting(self) -> int:
        """How many requests wait for room."""
        return sum(share.waiting for share in self._waited_for)

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def of_frame(
        self,
        size: int,
        admitted: Callable[[], object],
        fail: Callable[[str], object],
        progress: Callable[[], int | None],
        *,
        is_of_login: bool = False,
    ) -> Claim:
        """For a frame of which the first bytes have come; `admitted()` is called now or later. With `is_of_login` it
        comes before its client is known.
        """
        share = self.logins if is_of_login else self.frames
        claim = Claim(share, size, admitted, fail)
        claim.pace = PACE_BYTES
        claim.progress = progress
        share.enter(claim)
        return claim

    def of_copy(self, size: int, fail: Callable[[str], object]) -> Claim:
        """For bytes that are copied out of a frame to be worked on: they are there already, so large frames wait."""
        claim = Claim(self.frames, size, None, fail)
        claim.is_working = True
        self.frames.enter(claim, at_once=True)
        return claim

    def of_work(self, frame_bytes: int, fail: Callable[[str], object]) -> Claim:
        """For a request that is worked on in steps; `frame_bytes` is 0 for one that is small itself."""
        size = min(frame_bytes * PER_FRAME_BYTE, LARGEST_BYTES) or NO_FRAME_BYTES
        share = self.very_large if size > ORDINARY_BYTES else self.ordinary
        claim = Claim(share, size, None, fail)
        share.enter(claim)
        return claim

    def of_unread(self, size: int, fail: Callable[[str], object], progress: Callable[[], int]) -> Claim:
        """For what a client has not read, which is there already."""
        claim = Claim(self.unread, size, None, fail)
        claim.progress = progress
        self.unread.enter(claim, at_once=True)
        self.unread_grew()
        return claim

    def unread_grew(self) -> None:
        if self._is_much_unread:
            self._watch()
            if self.unread.held > 2 * self.unread.bytes_max:
                self._close_reader()

    @property
    def _waited_for(self) -> tuple[Share, ...]:
        return self.frames, self.logins, self.ordinary, self.very_large

    @property
    def _is_much_unread(self) -> bool:
        return self.unread.held > self.unread.bytes_max

    def _close_reader(self) -> None:
        """One that has read nothing for longest, and of several that with most."""
        claim = max(self.unread.holders, key=lambda holder: (holder.quiet, holder.size))
        all_bytes = self.unread.held
        claim.end()
        claim.fail(
            f"{all_bytes} bytes of all clients wait to be read, and it has {claim.size} of them;"
            f" at most {2 * self.unread.bytes_max} may wait"
        )

    def _watch(self) -> None:
        if self._timer is None and not self._is_closed:
            self._timer = self._timers.call_after(_LOOK_MS, self._look)

    def _look(self) -> None:
        self._timer = None
        waited_for = [share for share in self._waited_for if share.waiting]
        if self._is_much_unread:
            waited_for.append(self.unread)
        for share in waited_for:
            if not share.is_open():
                continue  # it is not its holders whom the others wait for
            stalled = [claim for claim in share.holders if claim.look()]
            for claim in stalled:
                claim.end()
                claim.fail(
                    f"it has held {claim.size} bytes of memory for {STALLED_SECONDS} s without progress,"
                    " and others wait for them"
                )
        if waited_for:
            self._watch()
        if not self._is_much_unread:
            self.very_large.go_on()


def _always() -> bool:
    return True
