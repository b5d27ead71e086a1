"""`barnabas.link.handshakes`: who has a place, who waits, who is sent away; without sockets and without OpenSSL."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest

from barnabas.kernel.host import Host
from barnabas.kernel.timers import Timers
from barnabas.link import handshakes as handshakes_module
from barnabas.link.handshakes import AT_ONCE, BEGUN_MAX, BEGUN_PER_ADDRESS_MAX, QUIET_SECONDS, Handshakes
from barnabas.testing.simulation import Simulation

Body = Callable[["World"], Awaitable[None]]


class Shaker:
    """A client's handshake: `is_in` once it has a place."""

    goes_first = False

    def __init__(self, world: World, address: str) -> None:
        self.address = address
        self.quiet_since = world.host.loop.time()
        self.is_in = self.is_sent_away = False
        self._world = world
        self.is_in = world.handshakes.enter(self)

    def do_step(self) -> None:
        self._world.worked.append(self)

    def step_done(self, _error: BaseException | None) -> None: ...

    def place_free(self) -> None:
        self.is_in = True
        self.quiet_since = self._world.host.loop.time()
        self._world.let_in.append(self)

    def evict(self) -> None:
        self.is_sent_away = True
        self.leave()

    def leave(self) -> bool:
        return self._world.handshakes.leave(self)


class World:
    def __init__(self, host: Host, timers: Timers) -> None:
        self.host = host
        self.timers = timers
        self.handshakes = Handshakes(host.loop, timers, host.offload)
        self.let_in: list[Shaker] = []
        self.worked: list[Shaker] = []

    def many(self, count: int, address: str) -> list[Shaker]:
        return [Shaker(self, address) for _ in range(count)]


def in_world(body: Body) -> None:
    async def main(host: Host) -> None:
        timers = Timers(host.loop)
        try:
            await body(World(host, timers))
        finally:
            timers.close()

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("server"), main, 600)


async def pause(world: World, seconds: float) -> None:
    future = world.host.loop.create_future()
    world.host.loop.call_later(seconds, future.set_result, None)
    await future


def test_those_of_one_address_leave_places_to_others_and_come_in_their_order() -> None:
    async def body(world: World) -> None:
        crowd = world.many(BEGUN_PER_ADDRESS_MAX + 3, "crowd")
        assert [each.is_in for each in crowd] == [True] * BEGUN_PER_ADDRESS_MAX + [False] * 3
        assert world.many(1, "other")[0].is_in
        crowd[-2].leave()
        for each in crowd[:2]:
            each.leave()
        assert world.let_in == [crowd[-3], crowd[-1]]
        for each in crowd:
            each.leave()
        assert (world.handshakes.begun, world.handshakes.waiting) == (1, 0)

    in_world(body)


def test_addresses_take_turns_where_all_places_are_taken() -> None:
    async def body(world: World) -> None:
        first = [each for number in range(4) for each in world.many(BEGUN_PER_ADDRESS_MAX, f"{number}")]
        waiting = [each for name in ("a", "b", "c") for each in world.many(3, name)]
        full = world.many(2, "0")
        assert world.handshakes.begun == BEGUN_MAX
        assert not any(each.is_in for each in (*waiting, *full))
        for each in first[BEGUN_PER_ADDRESS_MAX : BEGUN_PER_ADDRESS_MAX + 6]:
            each.leave()
        assert [each.address for each in world.let_in] == ["a", "b", "c", "a", "b", "c"]
        first[0].leave()
        assert world.let_in[6:] == [full[0]]  # which had to wait for a place of its own address

    in_world(body)


def test_the_quietest_go_as_many_as_others_wait_for_their_places() -> None:
    async def body(world: World) -> None:
        quiet = world.many(BEGUN_PER_ADDRESS_MAX, "quiet")
        await pause(world, 1.0)
        world.many(BEGUN_PER_ADDRESS_MAX, "busy")
        others = [each for number in range(2) for each in world.many(BEGUN_PER_ADDRESS_MAX, f"{number}")]
        for each in others:
            each.quiet_since = world.host.loop.time() + 100
        late = world.many(5, "late")
        await pause(world, QUIET_SECONDS)
        assert all(each.is_in for each in late)
        assert [each.is_sent_away for each in quiet] == [True] * 5 + [False] * (BEGUN_PER_ADDRESS_MAX - 5)
        # Of one address, whose places are all taken, its own go and no other's.
        for each in others:
            each.leave()
        more = world.many(2, "busy")
        await pause(world, QUIET_SECONDS)
        assert all(each.is_in for each in more)
        assert sum(each.is_sent_away for each in quiet) == 5

    in_world(body)


def test_nothing_is_done_for_who_has_gone_and_nobody_waits_behind_him() -> None:
    """Who came, said hello and went had a step done all the same: of a flood they were 25,000 after 15 seconds."""

    async def body(world: World) -> None:
        handshakes = world.handshakes
        for number in range(1_000):
            gone = Shaker(world, "flood")
            gone.goes_first = number % 2 == 0
            handshakes.work(gone)
            assert gone.leave() is (number >= AT_ONCE), "whether its step waited"
            assert not gone.leave()
        good = Shaker(world, "good")
        handshakes.work(good)
        assert handshakes.waiting == 1
        await pause(world, 1.0)
        assert len(world.worked) == AT_ONCE + 1
        assert world.worked[-1] is good
        assert handshakes.waiting == 0

    in_world(body)


def test_steps_are_worked_on_one_of_each_address_in_turn_and_last_first_where_somebody_else_bounds_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshakes_module, "AT_ONCE", 1)

    async def body(world: World) -> None:
        for owner, flood_order in ((None, [1, 2, 3, 4]), (100, [4, 3, 2, 1])):
            world.handshakes = handshakes = Handshakes(
                world.host.loop, world.timers, world.host.offload, of_one_owner=owner
            )
            world.worked.clear()
            flood = [Shaker(world, "flood") for _ in range(5)]
            for each in flood:
                handshakes.work(each)
            good, other = Shaker(world, "good"), Shaker(world, "other")
            handshakes.work(good)
            handshakes.work(other)
            gone = Shaker(world, "other")
            handshakes.work(gone)
            assert gone.leave()
            await pause(world, 1.0)
            first, second, third, fourth = (flood[number] for number in flood_order)
            assert world.worked == [flood[0], first, good, other, second, third, fourth]

    in_world(body)


def test_where_somebody_else_bounds_connections_all_may_begin_from_one_address() -> None:
    async def body(world: World) -> None:
        world.handshakes = Handshakes(world.host.loop, world.timers, world.host.offload, of_one_owner=200)
        assert all(each.is_in for each in world.many(200, "one"))
        assert not Shaker(world, "other").is_in

    in_world(body)


def test_very_many_that_wait_cost_each_little() -> None:
    """Waiting is free for a client, from as many addresses as it likes: neither their going nor a look may be dear."""

    async def body(world: World) -> None:
        def cost(count: int, *, addresses: bool) -> float:
            taken = [each for number in range(4) for each in world.many(BEGUN_PER_ADDRESS_MAX, f"taken {number}")]
            waiting = [Shaker(world, f"{number}" if addresses else "one") for number in range(count)]
            assert world.handshakes.waiting == count
            begun_at = time.thread_time()
            world.handshakes._look()
            for each in reversed(waiting):
                each.leave()
            took = time.thread_time() - begun_at
            for each in taken:
                each.leave()
            assert (world.handshakes.begun, world.handshakes.waiting) == (0, 0)
            return took

        for addresses in (False, True):
            cost(100, addresses=addresses)
            assert cost(20_000, addresses=addresses) < 0.5

    in_world(body)
