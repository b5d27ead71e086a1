"""Cuts a stream of bytes into frames, sans I/O: where to receive to, and which frames are complete."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeVar

from barnabas.link.buffers import SMALL_BYTES, BufferPool
from barnabas.link.errors import FrameSizeError
from barnabas.wire.primitives import Buffer

SIZE_BYTES: Final = 4
COPIED_BYTES_MAX: Final = 4096
"""Up to this size, bytes are cheaper to copy than to keep where they were received."""
_size_at = struct.Struct(">i").unpack_from

TakeFrame = Callable[[bytearray | memoryview, int, int], bool]
"""Is given a frame: buffer, start (behind the size) and end. The bytes may be changed, and are valid until it returns.
False asks for no more frames for now."""

Owner = TypeVar("Owner")
OfferFrame = Callable[[Owner, bytearray, int, int], bool]
"""Is given a frame with the one it belongs to: owner, buffer, start and end; the rest is as for `TakeFrame`. False: it
has not been taken."""


class KeptFrame:
    """A frame that is valid until `release`, which may be called twice: `buffer[start:end]`."""

    __slots__ = ("_pool", "buffer", "end", "start", "when_released")

    def __init__(self, buffer: bytearray | memoryview, start: int, end: int, pool: BufferPool | None) -> None:
        """`pool` owns the large buffer."""
        self.when_released: Callable[[], object] | None = None
        """Called once, when it is released."""
        self.buffer = buffer
        self.start = start
        self.end = end
        self._pool = pool

    def release(self) -> None:
        """The frame is no longer used."""
        buffer, self.buffer = self.buffer, bytearray()
        pool, self._pool = self._pool, None
        if pool is not None and isinstance(buffer, memoryview):
            pool.release_large(buffer)
        when_released, self.when_released = self.when_released, None
        if when_released is not None:
            when_released()


class FrameReceiver:
    """Cuts a stream into frames: an int32, and as many bytes as it says.

    Use: receive into `target()`, tell `received(count)`, and when that says so, `deliver(take)`. Between frames nothing
    is owned. Few bytes are copied out of the spare buffer at once: all connections receive into the same memory, which
    stays in the processor's cache, and frames that wait for their turn take no more room than they have bytes. A frame
    that does not fit a small buffer is received exactly to its end, in place.
    """

    __slots__ = (
        "_buffer",
        "_carry",
        "_filled",
        "_frame_bytes_max",
        "_limit",
        "_pool",
        "_start",
        "_view",
        "_wanted",
        "large_bytes",
    )

    def __init__(self, pool: BufferPool, frame_bytes_max: int) -> None:
        self._pool = pool
        self._frame_bytes_max = frame_bytes_max
        # With a large buffer, `_buffer` and `_view` are the same object; with none, there may be a `_carry`, which is
        # what has come and was not delivered.
        self._buffer: bytearray | memoryview | None = None
        self._view: memoryview | None = None
        self._carry: bytes | bytearray = b""
        self._start = 0
        self._filled = 0
        self._limit = 0
        self._wanted = SIZE_BYTES  # from `_start` on, until there is something to deliver
        self.large_bytes = 0
        """The size of the frame that is received into a large buffer; 0 while there is none."""

    def limit(self, frame_bytes_max: int) -> None:
        """A frame that begins from now on must not be larger."""
        self._frame_bytes_max = frame_bytes_max

    @property
    def is_full(self) -> bool:
        """Nothing can be received before what is there has been delivered: `target()` would be empty."""
        return self._filled == self._limit if self._view is not None else len(self._carry) == SMALL_BYTES

    @property
    def has_frame(self) -> bool:
        """Enough bytes have arrived for `deliver`."""
        return (self._filled - self._start if self._view is not None else len(self._carry)) >= self._wanted

    @property
    def pending_bytes(self) -> int:
        """The bytes that were received and not delivered."""
        return self._filled - self._start if self._view is not None else len(self._carry)

    def peek(self, count: int) -> bytes:
        """A copy of the first bytes that have come and were not delivered, `count` at most. They begin a frame."""
        if self._view is not None:
            return bytes(self._view[self._start : min(self._start + count, self._filled)])
        return bytes(self._carry[:count])

    def target(self) -> memoryview:
        """Where to receive to now; another receiver of the pool may get the same until `received` is called."""
        if self._view is not None:
            return self._view[self._filled : self._limit]
        view = self._pool.spare_view
        return view[len(self._carry) :] if self._carry else view

    def received(self, count: int) -> bool:
        """So many bytes are in what `target` gave last; True if `deliver` is worth the call."""
        if self._view is None:
            carry = self._carry
            total = len(carry) + count
            if total <= COPIED_BYTES_MAX:
                spare = self._pool.spare_view
                if carry:
                    spare[: len(carry)] = carry
                self._carry = bytearray(spare[:total])
                return total >= self._wanted
            self._take_small()
        self._filled += count
        return self._filled - self._start >= self._wanted

    def offer(self, count: int, take: OfferFrame[Owner], owner: Owner, frames_max: int) -> tuple[int, int]:
        """Gives `take` the small frames at the beginning of the `count` bytes in what `target` gave last, where they
        are, `frames_max` at most, until it returns False for one, which it must not have changed.

        Returns how many it took, and how many bytes are left; those are to be told `received` next, if there are any.
        """
        if self._view is not None or self._carry:
            return 0, count
        pool = self._pool
        buffer = pool.spare
        if SIZE_BYTES < count <= COPIED_BYTES_MAX and _size_at(buffer)[0] == count - SIZE_BYTES:
            # The only one, as nearly always: the loop below would do the same.
            if not take(owner, buffer, SIZE_BYTES, count):
                return 0, count
            if pool.poisons:
                pool.poison(pool.spare_view[:count])
            return 1, 0
        start = taken = 0
        while count - start > SIZE_BYTES and taken < frames_max:
            first = start + SIZE_BYTES
            end = first + _size_at(buffer, start)[0]
            if not first < end <= count or end - first > COPIED_BYTES_MAX or not take(owner, buffer, first, end):
                break
            start = end
            taken += 1
        rest = count - start
        if start:
            view = pool.spare_view
            if rest:
                view[:rest] = view[start:count]
            if pool.poisons:
                pool.poison(view[rest:count])
        return taken, rest

    def offer_only(self, count: int, take: OfferFrame[Owner], owner: Owner) -> bool:
        """Like `offer`, where the `count` bytes are one small frame and no others are waiting; False where they are
        not, or it is not taken, and then all of them are left.
        """
        if self._view is not None or self._carry or not SIZE_BYTES < count <= COPIED_BYTES_MAX:
            return False
        pool = self._pool
        buffer = pool.spare
        if _size_at(buffer)[0] != count - SIZE_BYTES or not take(owner, buffer, SIZE_BYTES, count):
            return False
        if pool.poisons:
            pool.poison(pool.spare_view[:count])
        return True

    def deliver(self, take: TakeFrame) -> None:
        """Gives each complete frame to `take`, until it returns False.

        Raises FrameSizeError for a size that is negative or too large, and whatever `take` raises; then only `release`
        is left to call. `take` may call `release`.
        """
        if self._view is None:
            carry = self._carry
            if isinstance(carry, bytearray):
                self._deliver_carry(carry, take)
                return
            if not carry:
                return
            self._take_small()
        buffer = self._buffer
        filled = self._filled
        start = self._start
        if buffer is None:
            return
        while filled - start >= SIZE_BYTES:
            size = _size_at(buffer, start)[0]
            if not 0 <= size <= self._frame_bytes_max:
                raise FrameSizeError(f"a frame of {size} bytes; at most {self._frame_bytes_max} are allowed")
            end = start + SIZE_BYTES + size
            if end > filled:
                break
            self._start = end
            going_on = take(buffer, start + SIZE_BYTES, end)
            start = end
            if not going_on:
                break
        if self._buffer is buffer:
            self._settle()

    def _deliver_carry(self, carry: bytearray, take: TakeFrame) -> None:
        """Like `deliver`, from the copy of few bytes."""
        filled = len(carry)
        start = 0
        while filled - start >= SIZE_BYTES:
            size = _size_at(carry, start)[0]
            if not 0 <= size <= self._frame_bytes_max:
                raise FrameSizeError(f"a frame of {size} bytes; at most {self._frame_bytes_max} are allowed")
            end = start + SIZE_BYTES + size
            if end > filled:
                break
            going_on = take(carry, start + SIZE_BYTES, end)
            start = end
            if not going_on:
                break
        if self._carry is not carry:
            return  # released meanwhile
        if start == filled:
            self._carry = b""
            self._wanted = SIZE_BYTES
        else:
            if start:
                self._carry = carry[start:]
            self._want_rest(self._carry)
        if start and self._pool.poisons:
            self._pool.poison(memoryview(carry)[:start])

    def _want_rest(self, rest: bytes | bytearray) -> None:
        """Few bytes are left: finds how many make a frame, and where to receive them."""
        wanted = self._bytes_wanted(rest, 0, len(rest))
        self._wanted = wanted
        if wanted > SMALL_BYTES:
            self._carry = b""
            self._take_large(rest, wanted)

    def keep(self, frame: bytearray | memoryview, start: int, end: int) -> KeptFrame:
        """The frame that `deliver` is giving at this moment, to be used for longer: what is in a large buffer stays
        there until it is released, anything else is copied.
        """
        if self._view is frame and end == self._limit:
            self._buffer = self._view = None
            self._start = self._filled = self._limit = self.large_bytes = 0
            self._wanted = SIZE_BYTES
            return KeptFrame(frame, start, end, self._pool)
        return KeptFrame(bytearray(memoryview(frame)[start:end]), 0, end - start, None)

    def compact(self) -> None:
        """Gives a small buffer back and keeps a copy of what was not delivered, since it will not be soon."""
        view = self._view
        if view is not None and self._buffer is not view:
            self._carry = bytes(view[self._start : self._filled])
            self._give_back()

    def release(self) -> None:
        """Forgets everything; nothing is owned afterwards."""
        self._carry = b""
        self._wanted = SIZE_BYTES
        self._give_back()

    def _take_small(self) -> None:
        """Owns the spare buffer; what was kept of the stream goes in front of what was just received into it."""
        self._buffer, self._view = self._pool.take()
        carry = self._carry
        if carry:
            self._view[: len(carry)] = carry
            self._carry = b""
        self._filled = len(carry)
        self._start = 0
        self._limit = SMALL_BYTES

    def _settle(self) -> None:
        """After delivery: keeps what is left in the cheapest way."""
        view, start = self._view, self._start
        if view is None:
            return
        rest = self._filled - start
        if not rest:
            self._wanted = SIZE_BYTES
            self._give_back()
            return
        wanted = self._wanted = self._bytes_wanted(view, start, rest)
        if rest >= wanted:
            return  # delivery was stopped
        if wanted > SMALL_BYTES:
            self._take_large(view[start : self._filled], wanted)
        else:
            carry = view[start : self._filled]
            self._carry = bytearray(carry) if rest <= COPIED_BYTES_MAX else bytes(carry)
            self._give_back()

    def _bytes_wanted(self, buffer: Buffer, start: int, rest: int) -> int:
        """How many bytes make the frame that begins at `start`, of which `rest` are there."""
        if rest < SIZE_BYTES:
            return SIZE_BYTES
        size: int = _size_at(buffer, start)[0]
        # A size that is not allowed is found at once by the next delivery.
        return SIZE_BYTES + size if 0 <= size <= self._frame_bytes_max else SIZE_BYTES

    def _take_large(self, rest: Buffer, wanted: int) -> None:
        """Goes on in a buffer that holds all of the frame."""
        count = len(rest)
        large = self._pool.take_large(wanted)
        large[:count] = rest
        self._give_back()
        self._buffer = self._view = large
        self._start, self._filled, self._limit = 0, count, wanted
        self.large_bytes = wanted

    def _give_back(self) -> None:
        buffer, view = self._buffer, self._view
        self._buffer = self._view = None
        self._start = self._filled = self._limit = self.large_bytes = 0
        if view is None:
            return
        if isinstance(buffer, bytearray):
            self._pool.release(buffer, view)
        else:
            self._pool.release_large(view)
