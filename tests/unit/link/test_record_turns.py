"""`barnabas.link.record_turns`: whose small records are decrypted when, without sockets and without OpenSSL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.link.record_turns import SHARE_MIN, SMALL_RECORDS_PER_TURN, RecordTurns

OWN_MAX = 64
"""What a connection has decrypted in one go."""


class Loop:
    """Turns by hand."""

    def __init__(self) -> None:
        self._ready: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._ready.append(callback)

    def turn(self) -> None:
        ready, self._ready = self._ready, []
        for callback in ready:
            callback()

    @property
    def is_idle(self) -> bool:
        return not self._ready


class Client:
    """It has so many small records that have come."""

    def __init__(self, world: World, records: int, address: str = "one", *, goes_first: bool = False) -> None:
        self.address, self.goes_first, self.records = address, goes_first, records
        self._world = world
        self.turns: list[int] = []
        """How many were decrypted each time that it was its turn."""

    def read_on(self) -> None:
        count = min(self.records, OWN_MAX, self._world.turns.left)
        self.records -= count
        self.turns.append(count)
        self._world.turns.spend(count)
        self._world.decrypted += count
        if self.records:
            self._world.turns.wait(self)


class World:
    def __init__(self) -> None:
        self.loop = Loop()
        loop: Any = self.loop
        self.turns = RecordTurns(loop)
        self.decrypted = 0

    def turn(self) -> int:
        """What was decrypted in it."""
        before = self.decrypted
        self.loop.turn()
        return self.decrypted - before


def test_who_comes_last_in_a_flood_waits_for_one_share_of_each_and_not_until_they_have_no_more() -> None:
    world = World()
    flood = [Client(world, 100_000) for _ in range(1_000)]
    for each in flood:
        each.read_on()
    good = Client(world, 1)
    good.read_on()
    for _ in range(1 + len(flood) * SHARE_MIN // SMALL_RECORDS_PER_TURN):
        assert 0 < world.turn() <= SMALL_RECORDS_PER_TURN
    assert not good.records
    assert all(len(each.turns) > 1 for each in flood[9:])


def test_another_address_waits_for_one_share_of_each_address_and_brokers_for_none() -> None:
    world = World()
    for each in [Client(world, 100_000) for _ in range(1_000)]:
        each.read_on()
    other, broker = Client(world, 1, "other"), Client(world, 1, "third", goes_first=True)
    other.read_on()
    broker.read_on()
    assert world.turn() <= SMALL_RECORDS_PER_TURN
    assert (other.records, broker.records) == (0, 0)


def test_brokers_come_before_more_addresses_than_have_a_turn() -> None:
    world = World()
    for number in range(1_000):
        Client(world, 100, f"client {number}").read_on()
    broker = Client(world, 100, "broker", goes_first=True)
    broker.read_on()
    for _ in range(100 // SHARE_MIN + 1):
        assert world.turn() <= SMALL_RECORDS_PER_TURN
    assert not broker.records
    assert world.turns.waiting > 500


def test_who_comes_while_others_wait_takes_nothing_from_them() -> None:
    world = World()
    world.turns.spend(SMALL_RECORDS_PER_TURN)
    flood = [Client(world, 10_000) for _ in range(2)]
    for each in flood:
        each.read_on()
    assert world.turn() == 2 * OWN_MAX, "there would be room for more"
    assert world.turns.waiting == 2
    late = Client(world, 10)
    late.read_on()
    assert late.turns == [0]
    assert world.turns.left == 0
    world.loop.turn()
    assert late.records == 0


def test_few_have_more_each_and_nobody_is_woken_for_nothing() -> None:
    world = World()
    world.turns.spend(SMALL_RECORDS_PER_TURN)
    clients = [Client(world, 200) for _ in range(3)]
    for each in clients:
        each.read_on()
    for _ in range(4):
        assert world.turn() <= SMALL_RECORDS_PER_TURN
    assert world.turns.waiting == 0
    assert [each.turns for each in clients] == [[0, OWN_MAX, OWN_MAX, OWN_MAX, 8]] * 3
    world.loop.turn()
    assert world.turns.left == SMALL_RECORDS_PER_TURN
    assert world.loop.is_idle


def test_who_has_left_has_no_turn_and_keeps_nobody_waiting() -> None:
    world = World()
    flood = [Client(world, 1_000) for _ in range(20)]
    for each in flood:
        each.read_on()
    world.loop.turn()
    seen = [len(each.turns) for each in flood]
    assert world.turns.waiting == 20
    for each in flood[9:]:
        world.turns.leave(each)
        world.turns.leave(each)
    assert world.turns.waiting == 9
    for _ in range(1_000 * 9 // SMALL_RECORDS_PER_TURN + 2):
        world.loop.turn()
    assert world.turns.waiting == 0
    assert [len(each.turns) for each in flood[9:]] == seen[9:]
    assert all(each.records == 0 for each in flood[:9])


def test_a_connection_that_raises_takes_the_turn_of_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.turns.spend(SMALL_RECORDS_PER_TURN)
    broken, good = Client(world, 1), Client(world, 1)
    broken.read_on()
    good.read_on()

    def fail() -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(broken, "read_on", fail)
    raised = 0
    for _ in range(3):
        try:
            world.loop.turn()
        except RuntimeError:
            raised += 1
    assert (raised, good.records) == (1, 0)
