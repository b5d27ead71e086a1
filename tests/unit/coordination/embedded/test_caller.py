"""The client of these tests keeps every event, however the bytes come."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from tests.support.raw_zookeeper import Encoder, Operation, Reply, WatchEvent, read
from tests.unit.coordination.embedded.caller import Caller

DELETED, CONNECTED = 2, 3
SESSION = struct.pack(">iiiqi", 20, 0, 4000, 1, 0)
PING_REPLY = struct.pack(">iiqi", 16, -2, 7, 0)
EXISTS_REPLY = struct.pack(">iiqi", 16, 1, 7, -101)
EVENT_BODY = bytes(Encoder().pack("iqi", -1, -1, 0).pack("ii", DELETED, CONNECTED).text("/a").output)
EVENT = struct.pack(">i", len(EVENT_BODY)) + EVENT_BODY
SEEN = WatchEvent(DELETED, CONNECTED, "/a", -1)


class AnsweringTransport(asyncio.Transport):
    """Has the answer arrive, in one piece, as soon as anything is written."""

    def __init__(self, caller: Caller, answer: bytes) -> None:
        super().__init__()
        self._caller = caller
        self._answer = answer

    def is_closing(self) -> bool:
        return False

    def write(self, _data: bytes | bytearray | memoryview) -> None:
        self._caller.data_received(self._answer)


def caller_answered(answer: bytes) -> Caller:
    caller = Caller()
    caller.data_received(SESSION)
    caller.transport = AnsweringTransport(caller, answer)
    return caller


def test_an_event_right_behind_the_reply_to_a_ping_is_kept(run: Callable[[Any], Any]) -> None:
    async def scenario() -> None:
        for answer in (PING_REPLY + EVENT, EVENT + PING_REPLY):
            caller = caller_answered(answer)
            await caller.ping()
            assert caller.take() == [SEEN]

    run(scenario())


def test_replies_to_requests_stay_among_the_events(run: Callable[[Any], Any]) -> None:
    async def scenario() -> None:
        caller = caller_answered(EXISTS_REPLY + EVENT)
        await caller.call(read(Operation.EXISTS, "/a"))
        assert caller.take() == [Reply(1, 7, -101, None), SEEN]

    run(scenario())
