"""`barnabas.client.elsewhere`, and who is asked what any broker can answer, when one of them is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from barnabas.client.client import GONE_SECONDS
from barnabas.client.cluster import BrokerNode
from barnabas.client.connections import Connections, Lane
from barnabas.client.elsewhere import LAST_SILENCE_MS, SILENCE_MS, first_answer
from barnabas.kernel.host import Host
from barnabas.link.errors import RequestTimeoutError
from barnabas.wire.errors import ErrorCode, KafkaError
from tests.unit.client.scripted_client import ScriptedClient, cluster_of, simulated, turns

NODES = tuple(BrokerNode(number, f"broker-{number}", 9092) for number in (1, 2, 3))
Ask = Callable[[], Coroutine[Any, Any, str]]


class Brokers:
    """Answers a text, raises an error, or (None) is silent; `cancelled` counts those that were not waited for."""

    def __init__(self, *answers: str | Exception | None) -> None:
        self.asked = 0
        self.cancelled = 0
        self.asks: list[Ask] = [self._ask_for(answer) for answer in answers]

    def _ask_for(self, answer: str | Exception | None) -> Ask:
        async def ask() -> str:
            self.asked += 1
            if answer is None:
                try:
                    await asyncio.get_running_loop().create_future()
                except asyncio.CancelledError:
                    self.cancelled += 1
                    raise
            if isinstance(answer, Exception):
                raise answer
            return str(answer)

        return ask


LOST = ConnectionError("lost")
REFUSED = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)


@pytest.mark.parametrize(
    ("answers", "outcome", "asked", "silences"),
    [
        (["a", "b"], "a", 1, []),
        ([None, "b", "c"], "b", 2, [0]),
        ([None, None, "c"], "c", 3, [0, 1]),
        ([LOST, "b"], "b", 2, []),
        ([RequestTimeoutError("late"), LOST, "c"], "c", 3, []),
        ([None, LOST, "c"], "c", 3, [0]),
        ([LOST, LOST], LOST, 2, []),
        ([REFUSED, "b"], REFUSED, 1, []),
        ([ValueError("no such version"), "b"], ValueError, 1, []),
        ([], ConnectionError, 0, []),
    ],
)
def test_the_next_is_asked_when_one_fails_or_says_nothing(
    answers: list[Any], outcome: Any, asked: int, silences: list[int]
) -> None:
    async def main(host: Host) -> None:
        brokers = Brokers(*answers)
        silent: list[int] = []
        began = host.loop.time()
        if isinstance(outcome, str):
            assert await first_answer(brokers.asks, silent.append) == outcome
        else:
            with pytest.raises(outcome if isinstance(outcome, type) else type(outcome)):
                await first_answer(brokers.asks, silent.append)
        await turns()
        assert (brokers.asked, silent, brokers.cancelled) == (asked, silences, answers[:asked].count(None))
        assert host.loop.time() - began == pytest.approx(len(silences) * SILENCE_MS / 1_000, abs=0.1)

    simulated(main)


@pytest.mark.parametrize("answers", [(None, LOST), (LOST, None), (None, LOST, None)])
def test_when_some_have_failed_the_silent_are_not_waited_for_long(answers: tuple[Any, ...]) -> None:
    async def main(host: Host) -> None:
        brokers = Brokers(*answers)
        began = host.loop.time()
        with pytest.raises(ConnectionError, match="lost"):
            await first_answer(brokers.asks)
        assert LAST_SILENCE_MS <= (host.loop.time() - began) * 1_000 <= LAST_SILENCE_MS + 2 * SILENCE_MS
        await turns()
        assert brokers.cancelled == answers.count(None)

    simulated(main)


def test_cancelling_leaves_nobody_who_waits() -> None:
    async def main(_host: Host) -> None:
        brokers = Brokers(None, None)
        asking = asyncio.create_task(first_answer(brokers.asks))
        await turns()
        asking.cancel()
        await asyncio.wait([asking])
        await turns()
        assert brokers.cancelled == brokers.asked == 1

    simulated(main)


def test_a_broker_that_was_silent_is_asked_last_for_a_while() -> None:
    async def main(host: Host) -> None:
        asked: list[int] = []

        async def nobody(_request: Any, _lane: Lane) -> Any:
            raise AssertionError

        async def ask(node: BrokerNode) -> str:
            asked.append(node.node_id)
            if node.node_id == 2:
                await host.loop.create_future()
            return "here"

        client = ScriptedClient(host, nobody, {})
        client.metadata.cluster = cluster_of({}, NODES)
        while 2 not in asked:
            assert await client.ask_any(ask) == "here"
        asked.clear()
        began = host.loop.time()
        for _ in range(50):
            await client.ask_any(ask)
        assert 2 not in asked
        assert host.loop.time() - began < 0.5
        await client.timers.sleep(31_000)
        while 2 not in asked:
            await client.ask_any(ask)
        await client.close()

    simulated(main)


class GoneConnections(Connections):
    """Says what it has, and notes what it gives up."""

    def __init__(self) -> None:
        self.given_up: list[int] = []

    @property
    def node_ids(self) -> set[int]:
        return {1, 2}

    def close_node(self, node_id: int) -> None:
        self.given_up.append(node_id)

    async def close(self) -> None:
        return


def test_connections_are_given_up_to_who_is_gone_for_long() -> None:
    """One image may be that of a broker which knows little yet."""

    async def main(host: Host) -> None:
        async def nobody(_request: Any, _lane: Lane) -> Any:
            raise AssertionError

        client = ScriptedClient(host, nobody, {})
        connections = GoneConnections()
        client.connections = connections
        there, gone = cluster_of({}, NODES[:2]), cluster_of({}, NODES[:1])
        for image in (gone, there, gone):
            client.metadata._replace(image)
            await client.timers.sleep(GONE_SECONDS * 600)
        assert not connections.given_up
        await client.timers.sleep(GONE_SECONDS * 600)
        client.metadata._replace(gone)
        assert connections.given_up == [2]
        await client.close()

    simulated(main)
