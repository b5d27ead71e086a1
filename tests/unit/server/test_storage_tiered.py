"""A broker without remote storage does not take over logs that have a part of theirs there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.server.errors import BrokerStartError
from barnabas.server.storage import Storage


def storage_with(tiered: list[str]) -> Any:
    asked: list[tuple[str, str]] = []

    def topics_with(name: str, text: str) -> list[str]:
        asked.append((name, text))
        return tiered

    made = Storage.__new__(Storage)
    made.topic_configs = SimpleNamespace(topics_with=topics_with)  # type: ignore[assignment]
    return made, asked


def test_topics_that_are_tiered_keep_the_broker_from_starting() -> None:
    storage, asked = storage_with(["b", "a"])
    with pytest.raises(BrokerStartError, match=r"2 topics have remote.storage.enable=true \(a, b\): set"):
        storage._check_that_none_is_tiered()
    assert asked == [("remote.storage.enable", "true")]


def test_others_do_not() -> None:
    storage, _ = storage_with([])
    storage._check_that_none_is_tiered()
