"""A leader that nobody can reach: its followers try again and again, at little cost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.follower.fetcher_setting import BACKOFF_SECONDS, SESSION, Setting, fetched_response, in_setting


def test_a_request_that_names_all_is_not_made_for_a_leader_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt would hold the loop, with thousands of partitions for 50 ms and more."""

    async def test(setting: Setting) -> None:
        setting.follow()
        sent, _ = await setting.fetch_request()
        sent.on_response(fetched_response(high_watermark=0))
        sent, _ = await setting.fetch_request()
        setting.leader.is_gone = True
        sent.on_failure(ConnectionError("it broke"))
        partitions = setting.fetcher._partitions
        everything = partitions.everything
        looked_at: list[Any] = []

        def noted(at_most: int) -> Any:
            looked_at.append(everything(at_most))
            return looked_at[-1]

        monkeypatch.setattr(partitions, "everything", noted)
        await asyncio.sleep(10.5 * BACKOFF_SECONDS)
        assert setting.leader.attempts == 10
        assert not looked_at
        assert setting.leader.sent.empty()
        setting.leader.is_gone = False
        sent, asked = await setting.fetch_request()
        assert (sent.message.session_id, sent.message.session_epoch, len(asked)) == (SESSION, 0, 1)
        assert len(looked_at) == 1

    in_setting(test)
