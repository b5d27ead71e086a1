"""How long operations take: a connection tells its owner, held against a list that notes each one."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest

from barnabas.coordination.connection import Batch, Connection
from barnabas.coordination.operations import Delete
from barnabas.coordination.protocol import REPLY_HEADER, XID_PING, ConnectRequest, ConnectResponse, OpCode, frame


class Owner:
    """Notes what it is told; a connection calls nothing else of it here."""

    def __init__(self) -> None:
        self.latencies: Counter[int] = Counter()

    def answered(self, count: int, latency_ms: float) -> None:
        assert count > 0
        self.latencies[round(latency_ms)] += count

    def established(self, _response: ConnectResponse) -> None: ...

    def progressed(self) -> None: ...

    def lost(self, _reason: str) -> None: ...


class Loop:
    """Time that stands still until the test moves it, and what is to be called at the end of a turn."""

    def __init__(self, futures: asyncio.AbstractEventLoop) -> None:
        self.now = 5.0
        self.create_future = futures.create_future
        self._due: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Callable[[], None]) -> None:
        self._due.append(call)

    def turn(self) -> None:
        due, self._due = self._due, []
        for call in due:
            call()


class Transport:
    def write(self, data: bytes) -> None: ...

    def abort(self) -> None: ...


@pytest.mark.parametrize("seed", range(20))
def test_each_operation_is_counted_once_with_the_time_since_it_was_sent(seed: int) -> None:
    chosen = random.Random(seed)
    futures = asyncio.new_event_loop()
    loop, owner = Loop(futures), Owner()
    connection = Connection(
        cast("Any", owner), cast("Any", loop), ConnectRequest(0, 6_000, 0, b""), chroot="", reply_bytes_max=1_000
    )
    connection.connection_made(cast("Any", Transport()))
    connection.data_received(frame(ConnectResponse(6_000, 7, b"p" * 16).pack()))
    queued: list[int] = []
    sent: list[tuple[int, float]] = []
    expected: Counter[int] = Counter()
    xid, rest = 0, b""
    for _ in range(300):
        match chosen.randrange(5):
            case 0 | 1:
                for _ in range(chosen.randrange(1, 5)):
                    xid += 1
                    connection.send(Delete("/a"), b"body", Batch(futures.create_future(), 1), 0)
                    queued.append(xid)
            case 2:
                connection.send_control(XID_PING, OpCode.PING, b"")
            case 3:
                loop.turn()
                sent += [(each, loop.now) for each in queued]
                queued.clear()
            case _:
                loop.now += chosen.randrange(1, 50) / 1_000
                answers = [sent.pop(0) for _ in range(chosen.randrange(len(sent) + 1))]
                data = rest + b"".join(frame(REPLY_HEADER.pack(number, 1, 0)) for number, _ in answers)
                # An answer of which a part is missing counts when the rest has come.
                cut = len(data) - (chosen.randrange(1, 20) if answers and chosen.random() < 0.3 else 0)
                connection.data_received(data[:cut])
                complete = len(answers) - (cut < len(data))
                expected.update(round((loop.now - at) * 1_000) for _, at in answers[:complete])
                if cut < len(data):
                    loop.now += 0.007
                    connection.data_received(data[cut:])
                    expected[round((loop.now - answers[-1][1]) * 1_000)] += 1
                assert owner.latencies == expected
    assert expected.total() > 100
    futures.close()
