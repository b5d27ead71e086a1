"""Who is told of a change of a partition, and when."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.leader.wake_ups import WakeUps
from barnabas.wire.topics import TopicPartition

KEY = TopicPartition("orders", 0)


class Rounds:
    """Instead of `Tick`: runs what was asked for when told so."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], object]] = []

    def before_send(self, callback: Callable[[], object]) -> None:
        self.callbacks.append(callback)

    def run(self) -> None:
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()


class CheckedKeys:
    """Instead of `Purgatory`: somebody waits under the key."""

    def __init__(self) -> None:
        self.watched_keys = {KEY: None}
        self.checked: list[TopicPartition] = []

    def check_and_complete(self, key: TopicPartition) -> None:
        self.checked.append(key)


class Watched:
    """A partition with one watcher, which is this."""

    topic_partition = KEY

    def __init__(self) -> None:
        self.watchers: dict[Any, None] = {self: None}
        self.told = 0

    def partition_changed(self, partition: Watched) -> None:
        assert partition is self
        self.told += 1


class Setting:
    def __init__(self) -> None:
        self.tick, self.purgatory, self.partition = Rounds(), CheckedKeys(), Watched()
        self.wake_ups = WakeUps(
            self.tick,  # type: ignore[arg-type]
            (self.purgatory,),  # type: ignore[arg-type]
            logging.getLogger("barnabas.tests.wake_ups"),
        )

    def run(self) -> tuple[int, int]:
        """How often the watcher was told and the purgatory checked, so far."""
        self.tick.run()
        assert not self.tick.callbacks
        return self.partition.told, len(self.purgatory.checked)


def test_tells_all_who_wait_once_of_many_changes() -> None:
    setting = Setting()
    for _ in range(3):
        setting.wake_ups.add(setting.partition)
    assert setting.run() == (1, 1)


def test_log_that_has_grown_is_news_for_watchers_only() -> None:
    setting = Setting()
    setting.wake_ups.add_grown(setting.partition)
    setting.wake_ups.add_grown(setting.partition)
    assert setting.run() == (1, 0)


@pytest.mark.parametrize("order", ["grown, changed", "changed, grown", "grown, changed, grown"])
def test_change_is_told_to_all_whatever_has_grown_before_or_after(order: str) -> None:
    setting = Setting()
    for each in order.split(", "):
        {"grown": setting.wake_ups.add_grown, "changed": setting.wake_ups.add}[each](setting.partition)
    assert setting.run() == (1, 1)
    setting.wake_ups.add_grown(setting.partition)
    assert setting.run() == (2, 1), "what was told is forgotten"
    setting.wake_ups.add(setting.partition)
    assert setting.run() == (3, 2)


def test_nothing_is_asked_of_the_tick_where_nobody_waits() -> None:
    setting = Setting()
    setting.partition.watchers.clear()
    setting.wake_ups.add_grown(setting.partition)
    assert not setting.tick.callbacks
    setting.purgatory.watched_keys.clear()
    setting.wake_ups.add(setting.partition)
    assert not setting.tick.callbacks


def test_change_while_others_are_told_is_told_in_the_next_round() -> None:
    setting = Setting()
    told = setting.partition.partition_changed

    def change_again(partition: Watched) -> None:
        told(partition)
        if partition.told == 1:
            setting.wake_ups.add(partition)

    setting.partition.partition_changed = change_again  # type: ignore[method-assign]
    setting.wake_ups.add_grown(setting.partition)
    setting.tick.run()
    assert (setting.partition.told, len(setting.purgatory.checked)) == (1, 0)
    assert setting.run() == (2, 1)
