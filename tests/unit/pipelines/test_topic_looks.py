"""Looks at topics where no answer comes in time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.pipelines import topic_looks
from barnabas.pipelines.definition import PipelineUnreachableError
from barnabas.pipelines.topic_looks import TopicLooks
from tests.support.waiting import wait_until


class SilentClient:
    """One that never knows its cluster; `made` has all of them."""

    made: list[SilentClient]

    def __init__(self, *_arguments: Any) -> None:
        self.is_closed = False
        self.made.append(self)

    async def start(self, _timeout_ms: float) -> None:
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        self.is_closed = True


def test_a_look_that_was_given_up_leaves_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SilentClient, "made", [], raising=False)
    monkeypatch.setattr(topic_looks, "Client", SilentClient)
    monkeypatch.setattr(topic_looks, "client_settings", lambda *_: None)
    monkeypatch.setattr(topic_looks, "_ANSWER_SECONDS_MAX", 0.2)
    pipeline: Any = None
    looks = TopicLooks(pipeline, "127.0.0.1:1")
    # The first has to wait for the thread, which a machine that is busy starts late.
    monkeypatch.setattr(looks._ready, "wait", lambda _seconds: type(looks._ready).wait(looks._ready, 60.0))
    try:
        for _ in range(2):
            with pytest.raises(PipelineUnreachableError, match=r'topic "orders" ends: no answer within 0\.2 s'):
                looks.look("orders")
        assert SilentClient.made
        wait_until(lambda: all(client.is_closed for client in SilentClient.made), "they are closed")
    finally:
        looks.close()
