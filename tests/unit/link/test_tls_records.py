"""`barnabas.link.tls_records`: where records begin, however they come, and whether they carry anything."""

from __future__ import annotations

import random

import pytest

from barnabas.link.tls_records import Records


def record(size: int) -> bytes:
    return b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(size)


@pytest.mark.parametrize("seed", range(20))
def test_pieces_end_where_records_do_however_the_bytes_come(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice([0, 1, 22, 300, 16_640]) for _ in range(chance.randint(1, 60))]
    stream = b"".join(map(record, sizes))
    ends = [sum(5 + size for size in sizes[: number + 1]) for number in range(len(sizes))]
    records, position, pieces = Records(), 0, 0
    most = chance.randint(1, 9)
    while position < len(stream):
        received = memoryview(stream)[position : position + chance.choice([1, 2, 4, 5, 6, 100, 5_000, 65_536])]
        while received:
            before = position
            end = records.cut(received, most)
            assert 0 < end <= len(received)
            position += end
            # Those that begin in a piece are at most so many, and a piece that others follow ends with one.
            assert sum(before <= start < position for start in [0, *ends[:-1]]) <= most + 1
            if end < len(received):
                assert position in ends
                pieces += 1
            received = received[end:]
    assert position == len(stream)
    if len(sizes) > 40 and most < 4:
        assert pieces


def test_who_sends_records_and_no_data_is_found_and_who_sends_small_ones_is_not() -> None:
    def sends(sizes: list[int], data_bytes: int) -> bool:
        records, is_well = Records(), True
        records.cut(b"".join(map(record, [22] * 63)), 1_000)
        records.begin()  # of a handshake nothing is asked
        for size in sizes:
            records.cut(record(size), 1_000)
            is_well = records.carry_data(data_bytes, is_all=True) and is_well
        return is_well

    assert sends([22] * 63, 0)
    assert not sends([22] * 64, 0)
    assert not sends([22] * 64, 1)
    assert sends([21, 31] * 64, 2)


def test_one_record_that_has_come_whole_and_is_not_small_is_known_and_nothing_else() -> None:
    def is_only(data: bytes) -> bool:
        return records.is_only(data, len(data))

    records = Records()
    assert is_only(record(64))
    assert is_only(record(16_640))
    for other in (b"", record(64)[:4], record(63), record(300)[:-1], record(300) + b"\x17", record(300) + record(300)):
        assert not is_only(other)
    assert records.cut(record(300)[:100], 1) == 100
    assert not is_only(record(64)), "these bytes are of the record that has begun"
    assert records.cut(record(300)[100:], 1) == 205
    assert is_only(record(64))
    assert records.cut(record(300)[:3], 1) == 3
    assert not is_only(record(64)), "these bytes are of the header that has begun"


def test_an_only_record_counts_where_it_carried_nothing_and_its_data_otherwise() -> None:
    def is_well_after(*carried: int) -> bool:
        records = Records()
        for data_bytes in carried:
            records.carry(data_bytes)
        return records.carry_data(0, is_all=True)

    assert is_well_after(*[0] * 63)
    assert not is_well_after(*[0] * 64)
    assert is_well_after(*[0] * 64, 200)


def test_data_that_its_connection_does_not_take_yet_is_not_missed() -> None:
    records = Records()
    records.cut(b"".join(map(record, [40] * 100)), 1_000)
    assert records.carry_data(20, is_all=False)
    assert records.carry_data(180, is_all=True)
    records.cut(b"".join(map(record, [40] * 100)), 1_000)
    assert not records.carry_data(199, is_all=True)


@pytest.mark.parametrize("sizes", [[22], [63], [64], [22, 63, 64, 300]], ids=str)
def test_small_records_are_counted_and_none_is_taken_where_there_is_no_turn(sizes: list[int]) -> None:
    data = b"".join(map(record, sizes))
    records = Records()
    assert (records.cut(data, 0), records.small) == (0, 0)
    assert (records.cut(data, -3), records.small) == (0, 0)
    assert (records.cut(data, 10), records.small) == (len(data), sum(size < 64 for size in sizes))
    assert (records.cut(record(300), 10), records.small) == (305, 0), "of those alone that it took last"
