"""`barnabas.client.partitioners`: the Java client's hash, and batches that stay together."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from barnabas.client.partitioners import (
    StickyPartitioner,
    murmur2,
    murmur2_of_many,
    partition_of_key,
    partitions_of_keys,
)


# Signed results of org.apache.kafka.common.utils.Utils.murmur2.
@pytest.mark.parametrize(
    ("data", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_the_java_clients(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed % 2**32


def test_a_key_has_one_partition_and_keys_spread() -> None:
    counts = Counter(partition_of_key(b"key %d" % number, 10) for number in range(10_000))
    assert set(counts) == set(range(10))
    assert min(counts.values()) > 800
    assert partition_of_key(b"abc", 7) == 479470107 % 7


def test_sticks_to_a_partition_for_about_a_batch_and_then_takes_another() -> None:
    partitioner = StickyPartitioner(Random(1), 100)
    chosen = [partitioner.choose([0, 1, 2], 30) for _ in range(400)]
    runs = [chosen[place : place + 4] for place in range(0, 400, 4)]
    assert all(len(set(run)) == 1 for run in runs)
    assert all(one[0] != other[0] for one, other in itertools.pairwise(runs))
    assert set(chosen) == {0, 1, 2}


def test_leaves_a_partition_that_has_lost_its_leader() -> None:
    partitioner = StickyPartitioner(Random(1), 1_000)
    first = partitioner.choose([0, 1], 1)
    assert partitioner.choose([1 - first], 1) == 1 - first
    assert partitioner.choose([1 - first], 1) == 1 - first


def test_keeps_to_its_partition_until_it_is_time_to_choose() -> None:
    partitioner = StickyPartitioner(Random(1), 100)
    assert partitioner.keep(30) is None
    chosen = partitioner.choose([0, 1, 2], 30)
    assert [partitioner.keep(30) for _ in range(4)] == [chosen, chosen, chosen, None]


def test_a_long_key_has_its_partition_without_being_remembered() -> None:
    for key in (b"k" * 64, b"k" * 65, b"k" * 100_000):
        assert [partition_of_key(key, 7) for _ in range(2)] == [(murmur2(key) & 0x7FFFFFFF) % 7] * 2


@pytest.mark.parametrize("length", [*range(20), 63, 64, 65, 100])
@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 500])
def test_keys_hashed_together_have_the_hashes_of_each(length: int, count: int) -> None:
    draw = Random(length * 1_000 + count)
    keys = [draw.choice((draw.randbytes(length), b"\xff" * length, bytes(length))) for _ in range(count)]
    assert list(murmur2_of_many(b"".join(keys), count)) == [murmur2(key) for key in keys]
    for partitions in (1, 3, 64):
        assert partitions_of_keys(keys, partitions) == [partition_of_key(key, partitions) for key in keys]


def test_keys_of_many_lengths_go_where_each_goes() -> None:
    draw = Random(7)
    keys = [draw.randbytes(draw.choice((0, 1, 8, 8, 8, 36, 36, 200))) for _ in range(2_000)]
    assert partitions_of_keys(keys, 7) == [partition_of_key(key, 7) for key in keys]
    assert partitions_of_keys([], 7) == []


def test_keys_of_very_many_lengths_are_looked_at_a_few_times_each() -> None:
    class Watched(list[bytes]):
        looked_at = 0

        def __iter__(self) -> Iterator[bytes]:
            self.looked_at += len(self)
            return super().__iter__()

        def __getitem__(self, place: Any) -> Any:
            self.looked_at += 1
            return super().__getitem__(place)

    keys = Watched([b"k" * (number % 300) for number in range(3_000)])
    found = partitions_of_keys(keys, 7)
    assert keys.looked_at <= 4 * len(keys)
    assert found == [partition_of_key(key, 7) for key in keys]
