"""Requests that wait for topics in the metadata."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.api.administration import topic_waits
from barnabas.cluster.image import TopicMetadata
from tests.unit.api.administration.admin_world import AdminWorld, in_world


def test_waits_until_every_partition_has_a_leader() -> None:
    async def main(world: AdminWorld) -> None:
        waiting = asyncio.create_task(world.waits.until_led({"a": 2, "b": 1}, 60_000))
        await asyncio.sleep(1)
        for leaders in ({"a": [1]}, {"a": [1, -1]}, {"a": [1, 2]}, {"other": [1]}):
            world.show(leaders)
            await asyncio.sleep(1)
            assert not waiting.done()
        world.show({"b": [3]})
        assert await waiting == []
        assert world.waits.purgatory.delayed == 0

    in_world(main)


def test_what_is_led_already_is_not_waited_for() -> None:
    async def main(world: AdminWorld) -> None:
        world.show({"a": [1]})
        before = world.host.loop.time()
        assert await world.waits.until_led({"a": 1}, 60_000) == []
        assert await world.waits.until_led({}, 60_000) == []
        assert world.host.loop.time() == before

    in_world(main)


@pytest.mark.parametrize("timeout_ms", [0, -1, 500])
def test_the_time_out_ends_it_and_says_what_is_missing(timeout_ms: int) -> None:
    async def main(world: AdminWorld) -> None:
        world.show({"a": [1], "b": [-1]})
        before = world.host.loop.time()
        assert await world.waits.until_led({"a": 1, "b": 1, "c": 1}, timeout_ms) == ["b", "c"]
        assert world.host.loop.time() - before == pytest.approx(max(timeout_ms, 0) / 1000, abs=0.01)
        assert await world.waits.until_gone(["a", "c"], timeout_ms) == ["a"]
        assert world.waits.purgatory.delayed == 0

    in_world(main)


def test_waits_until_topics_are_gone() -> None:
    async def main(world: AdminWorld) -> None:
        world.show({"a": [1, 1], "b": [1]})
        waiting = asyncio.create_task(world.waits.until_gone(["a", "b"], 60_000))
        await asyncio.sleep(1)
        world.show({"b": [-2]})
        await asyncio.sleep(1)
        assert not waiting.done()
        world.show({"a": [-2, -2]})
        assert await waiting == []

    in_world(main)


def test_who_gives_up_leaves_nothing_behind() -> None:
    async def main(world: AdminWorld) -> None:
        waiting = asyncio.create_task(world.waits.until_led({"a": 1}, 60_000))
        await asyncio.sleep(1)
        assert world.waits.purgatory.delayed == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert world.waits.purgatory.delayed == 0

    in_world(main)


def test_a_thousand_topics_are_not_looked_at_a_thousand_times_each(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    look = topic_waits._UntilLed.is_as_it_shall_be

    def counted(waiting: topic_waits._UntilLed, topic: str, known: TopicMetadata | None) -> bool:
        looks.append(topic)
        return look(waiting, topic, known)

    monkeypatch.setattr(topic_waits._UntilLed, "is_as_it_shall_be", counted)
    topics = [f"t{number}" for number in range(1000)]

    async def main(world: AdminWorld) -> None:
        waiting = asyncio.create_task(world.waits.until_led(dict.fromkeys(topics, 1), 60_000))
        await asyncio.sleep(1)
        for topic in topics:
            world.show({topic: [1]})
        assert await waiting == []

    in_world(main)
    assert len(looks) < 5 * len(topics)
