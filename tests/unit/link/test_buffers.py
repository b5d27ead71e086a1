"""`barnabas.link.buffers`."""

from __future__ import annotations

from barnabas.link.buffers import SMALL_BYTES, BufferPool


def test_a_small_buffer_is_used_again() -> None:
    pool = BufferPool()
    pool.spare_view[:3] = b"abc"
    buffer, view = pool.take()
    assert bytes(buffer[:3]) == b"abc"
    assert pool.spare_view is not view
    assert pool.lent == 1
    pool.release(buffer, view)
    assert pool.lent == 0
    pool.take()
    assert pool.take()[0] is buffer


def test_a_large_buffer_is_used_again_for_a_size_like_its_own() -> None:
    pool = BufferPool()
    large = pool.take_large(1_000_000)
    assert len(large) == 1 << 20
    assert not large.readonly
    pool.release_large(large)
    assert pool.take_large(600_000) is large
    assert pool.lent == 1


def test_keeps_no_more_than_its_bound() -> None:
    pool = BufferPool()
    views = [pool.take_large(16 << 20) for _ in range(4)]
    for view in views:
        pool.release_large(view)
    again = [pool.take_large(16 << 20) for _ in range(4)]
    assert sum(any(view is kept for kept in views) for view in again) == 2


def test_a_poisoning_pool_overwrites_what_is_given_back() -> None:
    pool = BufferPool(poisons=True)
    buffer, view = pool.take()
    kept = view[:4]
    kept[:] = b"kept"
    pool.release(buffer, view)
    assert kept == b"\xdb" * 4
    large = pool.take_large(SMALL_BYTES + 1)
    large[:4] = b"kept"
    pool.release_large(large)
    assert large[:4] == b"\xdb" * 4
