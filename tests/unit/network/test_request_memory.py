"""What large requests and unread answers may hold together: who waits, in which order, and who is closed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from barnabas.kernel.timers import Timers
from barnabas.network import request_memory
from barnabas.network.config import ListenerConfig, NetworkConfig
from barnabas.network.request_memory import (
    LARGEST_BYTES,
    MEGABYTE,
    NO_FRAME_BYTES,
    ORDINARY_BYTES_MAX,
    PACE_BYTES,
    STALLED_SECONDS,
    VERY_LARGE_BYTES_MAX,
    Claim,
    RequestMemory,
)
from tests.unit.kernel.virtual_loop import run_virtually
from tests.unit.network.serving import DATA, LOOPS_THAT_TELL_WHEN_FULL, Client, Serving, framed
from tests.unit.network.test_server import scenario

Run = Callable[[Coroutine[Any, Any, Any]], Any]
FRAME = 200_000


class Setting:
    """The memory of a broker, and what it did to connections."""

    def __init__(self, frame_bytes_max: int = -1) -> None:
        self.timers = Timers(asyncio.get_running_loop())
        self.memory = RequestMemory(self.timers, frame_bytes_max)
        self.closed: list[str] = []
        self.admitted: list[int] = []

    def frame(self, number: int, size: int, progress: Callable[[], int | None] = lambda: 0) -> Claim:
        return self.memory.of_frame(
            size,
            lambda: self.admitted.append(number),
            lambda reason: self.closed.append(f"{number}: {reason}"),
            progress,
        )

    def work(self, frame_bytes: int) -> Claim:
        return self.memory.of_work(frame_bytes, self.closed.append)


def virtually(body: Callable[[Setting], Coroutine[Any, Any, None]], frame_bytes_max: int = -1) -> None:
    async def test() -> None:
        setting = Setting(frame_bytes_max)
        await body(setting)
        setting.memory.close()
        setting.timers.close()

    run_virtually(test())


def test_whoever_finds_no_room_waits_in_the_order_of_arrival() -> None:
    async def body(setting: Setting) -> None:
        claims = [setting.frame(number, size) for number, size in enumerate((60, 60, 10, 200, 10))]
        assert setting.admitted == [0]
        assert setting.memory.waiting == 4
        claims[0].end()
        assert setting.admitted == [0, 1, 2]  # the third fits beside the second, the fourth is to have all alone
        claims[2].end()
        assert setting.admitted == [0, 1, 2]
        claims[1].end()
        assert setting.admitted == [0, 1, 2, 3]
        claims[3].end()
        claims[3].end()
        assert setting.admitted == [0, 1, 2, 3, 4]
        assert (setting.memory.frames.held, setting.memory.waiting) == (10, 0)

    virtually(body, 100)


def test_whoever_gives_up_waiting_lets_the_next_go_on() -> None:
    async def body(setting: Setting) -> None:
        first, second, third = setting.frame(0, 60), setting.frame(1, 60), setting.frame(2, 40)
        assert setting.admitted == [0]
        second.end()
        assert setting.admitted == [0, 1, 2]  # the second is told that it need not wait
        assert third.is_held
        first.end()
        third.end()
        assert (setting.memory.frames.held, setting.memory.waiting) == (0, 0)

    virtually(body, 100)


def test_very_large_requests_do_not_hold_up_ordinary_ones() -> None:
    async def body(setting: Setting) -> None:
        largest = [setting.work(50 * MEGABYTE) for _ in range(20)]
        assert [claim.is_held for claim in largest] == [True] + [False] * 19
        assert setting.memory.very_large.held == LARGEST_BYTES <= VERY_LARGE_BYTES_MAX
        ordinary = [setting.work(0) for _ in range(ORDINARY_BYTES_MAX // NO_FRAME_BYTES + 1)]
        assert [claim.is_held for claim in ordinary[-2:]] == [True, False]

    virtually(body)


def test_what_is_worked_on_is_held_until_the_work_has_ended() -> None:
    async def body(setting: Setting) -> None:
        first, second = setting.work(MEGABYTE * 8), setting.work(MEGABYTE * 8)
        first.is_working = True
        first.end()
        assert setting.memory.waiting == 1
        first.work_ended()
        assert second.is_held

    virtually(body)


def test_a_stalled_holder_is_closed_once_others_wait_for_it() -> None:
    async def body(setting: Setting) -> None:
        seconds = 0
        stalled, slow, held_up, _dripping = (
            setting.frame(0, 25),
            setting.frame(1, 25, lambda: seconds * PACE_BYTES),
            setting.frame(2, 25, lambda: None),
            setting.frame(3, 25, lambda: seconds),  # a byte a second
        )
        await setting.timers.sleep(60_000.0)
        assert setting.closed == []
        waiting = setting.frame(4, 40)
        for _ in range(STALLED_SECONDS + 3):
            seconds += 1
            await setting.timers.sleep(1_000.0)
        assert setting.closed == [
            f"{each}: it has held 25 bytes of memory for 10 s without progress, and others wait for them"
            for each in (0, 3)
        ]
        assert waiting.is_held
        stalled.end()
        assert slow.is_held
        assert held_up.is_held

    virtually(body, 100)


def test_who_sends_less_than_the_pace_is_closed_however_it_is_spread() -> None:
    """Nine seconds of nothing and then something would be for ever; whoever catches up may go on."""

    async def body(setting: Setting) -> None:
        second = 0
        in_bursts, too_slow = (
            setting.frame(0, 50, lambda: second // 8 * 8 * PACE_BYTES),
            setting.frame(1, 50, lambda: second // 8 * 2 * PACE_BYTES),
        )
        waiting = setting.frame(2, 50)
        for _ in range(40):
            second += 1
            await setting.timers.sleep(1_000.0)
        assert [line[0] for line in setting.closed] == ["1"]
        assert (in_bursts.is_held, too_slow.is_held, waiting.is_held) == (True, True, True)

    virtually(body, 100)


def test_a_request_that_waits_for_something_to_happen_does_not_hold_others_up_for_long() -> None:
    async def body(setting: Setting) -> None:
        parked, next_one = setting.work(MEGABYTE * 8), setting.work(MEGABYTE * 8)
        parked.is_working = True
        await setting.timers.sleep(60_000.0)
        assert setting.closed == []  # the broker's work, however long, is no stall
        parked.resize(MEGABYTE * 400)
        parked.work_ended()
        await setting.timers.sleep((STALLED_SECONDS + 2) * 1_000.0)
        assert len(setting.closed) == 1
        assert next_one.is_held

    virtually(body)


def test_very_large_requests_wait_while_too_much_is_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(setting: Setting) -> None:
        monkeypatch.setattr(setting.memory.unread, "bytes_max", 100)
        deaf = setting.memory.of_unread(110, lambda reason: setting.closed.append(f"deaf: {reason}"), lambda: 110)
        left = 80

        def fewer() -> int:
            nonlocal left
            left -= 1
            return left

        setting.memory.of_unread(80, lambda reason: setting.closed.append(f"slow: {reason}"), fewer)
        request = setting.work(MEGABYTE)
        assert [request.is_held, setting.work(1000).is_held] == [False, True]
        await setting.timers.sleep((STALLED_SECONDS + 2) * 1_000.0)
        assert [line.partition(":")[0] for line in setting.closed] == ["deaf"]
        assert request.is_held
        deaf.end()

    virtually(body)


def test_a_parked_request_is_not_closed_for_what_others_do_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(setting: Setting) -> None:
        monkeypatch.setattr(setting.memory.unread, "bytes_max", 100)
        parked = setting.work(MEGABYTE)
        left = 1000

        def fewer() -> int:
            nonlocal left
            left -= 1
            return left

        slow = setting.memory.of_unread(110, setting.closed.append, fewer)
        request = setting.work(MEGABYTE)
        await setting.timers.sleep((STALLED_SECONDS + 2) * 1_000.0)
        assert (setting.closed, parked.is_held, request.is_held) == ([], True, False)
        slow.end()
        await setting.timers.sleep(2_000.0)
        assert request.is_held

    virtually(body)


def test_large_frames_wait_for_what_was_copied_out_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(setting: Setting) -> None:
        copies = [setting.memory.of_copy(60, setting.closed.append) for _ in range(3)]
        assert setting.memory.frames.held == 180  # they are there, whatever the bound is
        frame = setting.frame(0, 50)
        await setting.timers.sleep((STALLED_SECONDS + 2) * 1_000.0)
        assert (setting.closed, frame.is_held) == ([], False)
        for copy in copies:
            copy.end()
            copy.work_ended()
        assert (setting.memory.frames.held, frame.is_held) == (50, True)

    virtually(body, 100)


def test_beyond_twice_the_bound_a_reader_is_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(setting: Setting) -> None:
        monkeypatch.setattr(setting.memory.unread, "bytes_max", 100)
        for size in (60, 90, 60):
            setting.memory.of_unread(size, setting.closed.append, lambda: 0)
        assert len(setting.closed) == 1
        assert "it has 90 of them" in setting.closed[0]
        assert setting.memory.unread.held == 120

    virtually(body)


@pytest.mark.parametrize("seed", range(20))
def test_random_claims_keep_the_bound_and_all_have_their_turn(seed: int) -> None:
    source = random.Random(seed)

    async def body(setting: Setting) -> None:
        live: list[Claim] = []
        made = 0
        for _ in range(500):
            if source.random() < 0.5:
                live.append(setting.frame(made, source.choice((1, 20, 50, 150))))
                made += 1
            elif live:
                live.pop(source.randrange(len(live))).end()
            frames = setting.memory.frames
            held = [claim for claim in live if claim.is_held]
            assert frames.held == sum(claim.size for claim in held)
            assert frames.held <= 100 or len(held) == 1
            assert frames.waiting == len(live) - len(held)
            assert held or not live
        while live:
            live.pop(0).end()
        assert sorted(setting.admitted) == list(range(made))
        assert (setting.memory.frames.held, setting.memory.waiting) == (0, 0)

    virtually(body, 100)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_becomes_of_work_its_memory_is_given_back(seed: int) -> None:
    """Work is admitted, begins, is answered, parks with less, and its connection ends, in any order."""
    source = random.Random(seed)

    async def body(setting: Setting) -> None:
        share = setting.memory.very_large
        live: list[Claim] = []
        over: set[Claim] = set()
        most_waiting = 0
        for _ in range(1_000):
            claim = source.choice(live) if live else None
            match source.randrange(6):
                case 0:
                    live.append(setting.work(source.choice((1, 3, 9)) * MEGABYTE))
                case 1 if claim is not None and claim.is_held and claim not in over:
                    claim.is_working = True
                case 2 if claim is not None and claim.is_working:
                    claim.resize(source.randrange(claim.size + 1))
                    claim.work_ended()
                case 3 | 4 if claim is not None:
                    claim.end()
                    over.add(claim)
            live = [claim for claim in live if claim.is_working or claim not in over]
            assert share.held == sum(claim.size for claim in live if claim.is_held)
            assert share.waiting == sum(not claim.is_held for claim in live)
            assert share.holders or not live
            most_waiting = max(most_waiting, share.waiting)
        assert most_waiting
        for claim in live:
            claim.end()
            claim.work_ended()
        assert (share.held, share.waiting, len(share.holders)) == (0, 0, 0)

    virtually(body)


# With connections.


def test_large_frames_beyond_the_bound_wait_and_small_ones_go_on(run: Run) -> None:
    async def body(served: Serving, connect: Callable[..., Coroutine[Any, Any, Client]]) -> None:
        memory = served.server.memory
        first, second, third = await connect(), await connect(), await connect()
        frame = framed(b"x" * FRAME)
        first.writer.write(frame[: FRAME // 2])
        await until(lambda: memory.frames.held)
        second.send(b"y" * FRAME)
        await until(lambda: memory.frames.waiting)
        third.send(b"small")
        assert await third.receive() == b"small"
        assert served.handler.handled == [b"small"]
        first.writer.write(frame[FRAME // 2 :])
        assert await first.receive() == b"x" * FRAME
        assert await second.receive() == b"y" * FRAME
        third.send(b"z" * FRAME)
        assert await third.receive() == b"z" * FRAME
        assert (memory.frames.held, memory.waiting) == (0, 0)

    scenario(run, body, NetworkConfig(queued_request_bytes_max=FRAME + 100))


def test_frames_of_clients_that_have_not_logged_in_hold_up_no_others(run: Run) -> None:
    """As many as they send, and though each sends a byte now and then, so that it never stalls."""
    logging_in = ListenerConfig("LOGIN", "127.0.0.1", 0, authenticates=True)

    async def body(served: Serving, connect: Callable[..., Coroutine[Any, Any, Client]]) -> None:
        memory, frame = served.server.memory, framed(b"x" * FRAME)
        strangers = [await connect("LOGIN") for _ in range(4)]
        for stranger in strangers:
            stranger.writer.write(frame[: FRAME // 2])
        await until(lambda: memory.logins.waiting == 2)
        assert memory.logins.held == 2 * FRAME + 8
        known = await connect()
        known.send(b"y" * FRAME)
        assert await known.receive() == b"y" * FRAME
        for stranger in strangers:
            stranger.writer.transport.abort()
        await until(lambda: not memory.logins.held and not memory.waiting)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_memory, "LOGIN_BYTES_MAX", 2 * FRAME + 100)
        scenario(run, body, NetworkConfig(queued_request_bytes_max=FRAME + 100), (DATA, logging_in))


def test_a_connection_that_ends_gives_its_memory_back(run: Run) -> None:
    async def body(served: Serving, connect: Callable[..., Coroutine[Any, Any, Client]]) -> None:
        memory = served.server.memory
        holder, gone, waiting = await connect(), await connect(), await connect()
        frame = framed(b"x" * FRAME)
        holder.writer.write(frame[: FRAME // 2])
        await until(lambda: memory.frames.held)
        for number, client in enumerate((gone, waiting)):
            client.send(b"y" * FRAME)
            await until(lambda: memory.frames.waiting == number + 1)  # noqa: B023 - called in this turn
        gone.writer.transport.abort()
        holder.writer.transport.abort()
        assert await waiting.receive() == b"y" * FRAME
        await until(lambda: not memory.frames.held and not memory.waiting)

    scenario(run, body, NetworkConfig(queued_request_bytes_max=FRAME + 100))


@pytest.mark.parametrize("run", LOOPS_THAT_TELL_WHEN_FULL, indirect=True)
def test_what_a_client_does_not_read_is_counted_until_it_does(run: Run) -> None:
    async def body(served: Serving, connect: Callable[..., Coroutine[Any, Any, Client]]) -> None:
        memory = served.server.memory
        client = await connect()
        client.send(*[b"big"] * 30)
        await until(lambda: memory.unread.held > MEGABYTE)
        for _ in range(30):
            await client.receive()
        await until(lambda: not memory.unread.held)
        client.send(*[b"big"] * 30)
        await until(lambda: memory.unread.held > MEGABYTE)
        client.writer.transport.abort()
        await until(lambda: not memory.unread.held)

    scenario(run, body)


async def until(condition: Callable[[], Any]) -> None:
    """Returns once the condition holds; the test's own limit bounds it."""
    while not condition():
        await asyncio.sleep(0.001)
