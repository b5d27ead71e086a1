"""`barnabas.link.frames`."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.link.buffers import SMALL_BYTES, BufferPool
from barnabas.link.errors import FrameSizeError
from barnabas.link.frames import COPIED_BYTES_MAX, FrameReceiver, KeptFrame

FRAME_BYTES_MAX = 300_000


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


class Feeder:
    """Puts a stream into a receiver, in the chunks asked for, and collects what it delivers."""

    def __init__(self, pool: BufferPool | None = None) -> None:
        self.pool = pool or BufferPool(poisons=True)
        self.receiver = FrameReceiver(self.pool, FRAME_BYTES_MAX)
        self.frames: list[bytes] = []
        self.stop_after: int | None = None

    def take(self, buffer: bytearray | memoryview, start: int, end: int) -> bool:
        self.frames.append(bytes(buffer[start:end]))
        buffer[start:end] = bytes(end - start)  # the frame is ours to write to
        return self.stop_after is None or len(self.frames) < self.stop_after

    def feed(self, data: bytes) -> None:
        while data:
            target = self.receiver.target()
            count = min(len(target), len(data))
            assert count
            target[:count] = data[:count]
            data = data[count:]
            if self.receiver.received(count):
                self.receiver.deliver(self.take)


sizes = st.one_of(
    st.integers(0, 40),
    st.integers(SMALL_BYTES - 9, SMALL_BYTES + 9),
    st.integers(0, FRAME_BYTES_MAX),
)


@given(st.lists(sizes, max_size=8), st.lists(st.integers(1, 100_000), min_size=1, max_size=6), st.integers(0, 255))
def test_any_frames_in_any_chunks_come_out_as_they_went_in(lengths: list[int], chunks: list[int], fill: int) -> None:
    sent = [bytes([(fill + number) % 256]) * length for number, length in enumerate(lengths)]
    stream = b"".join(map(framed, sent))
    feeder = Feeder()
    position = number = 0
    while position < len(stream):
        size = chunks[number % len(chunks)]
        number += 1
        feeder.feed(stream[position : position + size])
        position += size
    assert feeder.frames == sent
    assert feeder.pool.lent == 0


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_byte_by_byte(lengths: list[int]) -> None:
    sent = [bytes([number]) * length for number, length in enumerate(lengths)]
    feeder = Feeder()
    for byte in b"".join(map(framed, sent)):
        feeder.feed(bytes([byte]))
    assert feeder.frames == sent


@given(st.binary(min_size=1, max_size=300))
def test_garbage_is_frames_or_a_frame_size_error(garbage: bytes) -> None:
    feeder = Feeder()
    try:
        feeder.feed(garbage)
    except FrameSizeError:
        feeder.receiver.release()
    assert sum(len(frame) + 4 for frame in feeder.frames) <= len(garbage)
    feeder.receiver.release()
    assert feeder.pool.lent == 0


@pytest.mark.parametrize("size", [-1, -(2**31), FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_refuses_a_size_that_is_not_allowed_before_it_takes_memory_for_it(size: int) -> None:
    feeder = Feeder()
    with pytest.raises(FrameSizeError, match=f"a frame of {size} bytes"):
        feeder.feed(framed(b"good") + struct.pack(">i", size))
    assert feeder.frames == [b"good"]
    assert feeder.pool.lent == 0
    feeder.receiver.release()
    assert feeder.pool.lent == 0


def test_owns_nothing_between_frames_and_only_the_bytes_of_a_half_one() -> None:
    feeder = Feeder()
    feeder.feed(framed(b"whole") + framed(b"half of it")[:7])
    assert feeder.frames == [b"whole"]
    assert feeder.pool.lent == 0
    assert feeder.receiver.pending_bytes == 7
    feeder.feed(framed(b"half of it")[7:])
    assert feeder.frames == [b"whole", b"half of it"]


def test_receives_a_large_frame_exactly_to_its_end() -> None:
    feeder = Feeder()
    frame = framed(bytes(200_000))
    feeder.feed(frame[:10])
    # The size is known only after the first delivery; from then on the target ends with the frame.
    assert len(feeder.receiver.target()) == len(frame) - 10
    feeder.feed(frame[10:])
    assert feeder.frames == [bytes(200_000)]


def test_stops_where_it_is_told_and_goes_on_there() -> None:
    feeder = Feeder()
    sent = [bytes([number]) * 10 for number in range(5)]
    feeder.stop_after = 2
    feeder.feed(b"".join(map(framed, sent)))
    assert feeder.frames == sent[:2]
    assert feeder.receiver.has_frame
    feeder.stop_after = None
    feeder.receiver.deliver(feeder.take)
    assert feeder.frames == sent
    assert feeder.receiver.pending_bytes == 0


def test_compacted_it_owns_no_buffer_and_loses_nothing() -> None:
    feeder = Feeder()
    sent = [bytes([number]) * 10 for number in range(5)]
    feeder.stop_after = 1
    feeder.feed(b"".join(map(framed, sent)))
    feeder.receiver.compact()
    assert feeder.pool.lent == 0
    assert feeder.receiver.has_frame
    feeder.stop_after = None
    feeder.receiver.deliver(feeder.take)
    assert feeder.frames == sent


def test_a_full_buffer_says_so() -> None:
    feeder = Feeder()
    feeder.stop_after = 1
    frame = framed(bytes(996))
    stream = frame * 66
    target = feeder.receiver.target()
    target[:] = stream[: len(target)]
    assert feeder.receiver.received(len(target))
    assert feeder.receiver.is_full
    feeder.receiver.deliver(feeder.take)
    assert feeder.receiver.is_full
    feeder.stop_after = None
    feeder.receiver.deliver(feeder.take)
    assert len(feeder.frames) == 65  # and a part of the next
    assert len(feeder.receiver.target()) > 0


def test_may_be_released_by_the_taker() -> None:
    pool = BufferPool(poisons=True)
    receiver = FrameReceiver(pool, FRAME_BYTES_MAX)
    seen = []

    def take(buffer: bytearray | memoryview, start: int, end: int) -> bool:
        seen.append(bytes(buffer[start:end]))
        receiver.release()
        return False

    stream = framed(b"one") + framed(b"two")
    receiver.target()[: len(stream)] = stream
    assert receiver.received(len(stream))
    receiver.deliver(take)
    assert seen == [b"one"]
    assert pool.lent == 0
    assert not receiver.has_frame


@given(st.lists(st.integers(1, 200), max_size=12), st.lists(st.integers(1, 700), min_size=1, max_size=6), st.data())
def test_frames_that_are_offered_and_those_that_are_not_taken_come_in_order(
    lengths: list[int], chunks: list[int], choice: st.DataObject
) -> None:
    sent = [bytes([number]) * length for number, length in enumerate(lengths)]
    stream = b"".join(map(framed, sent))
    feeder = Feeder()
    receiver = feeder.receiver

    def take(frames: list[bytes], buffer: bytearray, start: int, end: int) -> bool:
        if choice.draw(st.booleans()):
            frames.append(bytes(buffer[start:end]))
            return True
        return False

    position = number = 0
    while position < len(stream):
        chunk = stream[position : position + chunks[number % len(chunks)]]
        receiver.target()[: len(chunk)] = chunk
        position += len(chunk)
        number += 1
        before = len(feeder.frames)
        taken, rest = receiver.offer(len(chunk), take, feeder.frames, 1_000)
        assert len(feeder.frames) == before + taken
        assert rest <= len(chunk)
        if rest and receiver.received(rest):
            receiver.deliver(feeder.take)
    assert feeder.frames == sent
    assert receiver.pending_bytes == 0
    assert feeder.pool.lent == 0


def test_offers_nothing_that_is_large_or_of_a_wrong_size() -> None:
    for stream in (framed(bytes(COPIED_BYTES_MAX + 1)), struct.pack(">i", -1) + bytes(20), framed(b""), b"\0\0\0"):
        feeder = Feeder()
        feeder.receiver.target()[: len(stream)] = stream

        def take(_owner: None, _buffer: bytearray, _start: int, _end: int) -> bool:
            raise AssertionError("it was offered")

        assert feeder.receiver.offer(len(stream), take, None, 1_000) == (0, len(stream))
        assert not feeder.receiver.offer_only(len(stream), take, None)


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_frame_that_is_all_there_is_can_be_taken_where_it_is(is_taken: bool) -> None:
    feeder = Feeder()
    stream = framed(b"alone")
    seen: list[bytes] = []

    def take(_owner: None, buffer: bytearray, start: int, end: int) -> bool:
        seen.append(bytes(buffer[start:end]))
        return is_taken

    for _ in range(2):
        feeder.receiver.target()[: len(stream)] = stream
        assert feeder.receiver.offer_only(len(stream), take, None) is is_taken
    assert seen == [b"alone"] * 2
    assert feeder.receiver.pending_bytes == 0


@pytest.mark.parametrize("before", [b"", b"\0"], ids=["cut off", "behind the beginning of another"])
def test_no_part_of_a_frame_is_taken_for_all_there_is(before: bytes) -> None:
    feeder = Feeder()
    if before:
        feeder.receiver.target()[: len(before)] = before
        assert not feeder.receiver.received(len(before))
    stream = framed(b"x" * 200) if before else framed(b"x" * 200)[:-1]
    feeder.receiver.target()[: len(stream)] = stream

    def take(_owner: None, _buffer: bytearray, _start: int, _end: int) -> bool:
        raise AssertionError("it was offered")

    assert not feeder.receiver.offer_only(len(stream), take, None)


@pytest.mark.parametrize("size", [10, COPIED_BYTES_MAX + 1, SMALL_BYTES + 1, 200_000])
def test_a_frame_can_be_kept_beyond_its_delivery(size: int) -> None:
    pool = BufferPool(poisons=True)
    receiver = FrameReceiver(pool, FRAME_BYTES_MAX)
    kept: list[KeptFrame] = []

    def keep(buffer: bytearray | memoryview, start: int, end: int) -> bool:
        kept.append(receiver.keep(buffer, start, end))
        return False

    def receive(data: bytes) -> None:
        rest = data
        while rest:
            target = receiver.target()
            count = min(len(target), len(rest))
            target[:count] = rest[:count]
            rest = rest[count:]
            if receiver.received(count):
                receiver.deliver(keep)

    first, second = bytes([1]) * size, bytes([2]) * size
    receive(framed(first))
    receive(framed(second))
    assert [bytes(frame.buffer[frame.start : frame.end]) for frame in kept] == [first, second]
    assert receiver.pending_bytes == 0
    assert pool.lent == (2 if size > SMALL_BYTES else 0)
    for frame in kept * 2:
        frame.release()
    assert pool.lent == 0


def test_offers_no_more_frames_than_asked_for() -> None:
    """A buffer has a thousand small requests, which may take 60 us each."""
    feeder = Feeder()
    stream = b"".join(framed(b"x" * 10) for _ in range(100))
    feeder.receiver.target()[: len(stream)] = stream
    offered: list[int] = []

    def take(_owner: None, _buffer: bytearray, start: int, _end: int) -> bool:
        offered.append(start)
        return True

    assert feeder.receiver.offer(len(stream), take, None, 30) == (30, 70 * 14)
    assert len(offered) == 30
    assert feeder.receiver.received(70 * 14)
    feeder.receiver.deliver(feeder.take)
    assert len(feeder.frames) == 70
