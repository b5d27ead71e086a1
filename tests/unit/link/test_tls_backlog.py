"""`barnabas.link.tls_backlog`: what waits to be encrypted leaves in its order, in pieces, and is counted."""

from __future__ import annotations

import random

import pytest

from barnabas.link.tls_backlog import Backlog


@pytest.mark.parametrize("seed", range(10))
def test_all_leaves_in_order_however_much_is_taken_at_a_time(seed: int) -> None:
    chance = random.Random(seed)
    backlog, expected, taken = Backlog(), b"", bytearray()

    def take(view: memoryview) -> int:
        count = chance.randint(1, len(view))
        taken.extend(view[:count])
        return count

    for _ in range(50):
        buffers = [chance.randbytes(chance.choice([0, 1, 100, 5_000])) for _ in range(chance.randint(0, 4))]
        backlog.add(buffers)
        expected += b"".join(buffers)
        bytes_max, before = chance.choice([1, 64, 4_096]), len(taken)
        assert backlog.give(take, bytes_max) == len(taken) - before <= bytes_max
        assert backlog.size_bytes == len(expected) - len(taken)
    while backlog.size_bytes:
        backlog.give(take, 4_096)
    assert taken == expected


def test_who_takes_nothing_is_not_asked_again_and_may_have_it_forgotten() -> None:
    asked = []

    def take(view: memoryview) -> int:
        asked.append(len(view))
        backlog.clear()
        return 0

    backlog = Backlog()
    backlog.add([b"first", b"second"])
    assert backlog.give(take, 100) == 100
    assert asked == [5]
    assert not backlog.size_bytes
