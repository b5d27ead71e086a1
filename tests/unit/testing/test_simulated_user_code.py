"""User code in virtual time that does what it must not, or is killed: a clear error, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import secrets
import socket
import sys
import threading
import uuid
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import aiokafka
import pytest

from barnabas.testing import SimulatedCluster
from barnabas.testing.killed_code import close_quietly, no_news_of_the_killed
from barnabas.testing.simulation import Simulation, SimulationFailedError


async def _consume(servers: str, topic: str) -> None:
    consumer = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest")
    await consumer.start()
    async for _ in consumer:
        pass


async def _write(servers: str, topic: str) -> None:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id="writer") as producer:
        while True:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"x")
                await asyncio.sleep(0.1)


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "running at the end"])
@pytest.mark.parametrize("function", [_consume, _write])
def test_of_clients_that_were_killed_nothing_is_left_that_warns_later(
    function: Callable[[str, str], Awaitable[None]], is_killed: bool
) -> None:
    with SimulatedCluster(brokers=1, config={"transaction.state.log.replication.factor": 1}) as cluster:
        process = cluster.start(function, cluster.bootstrap_servers, cluster.create_topic())  # type: ignore[arg-type]
        cluster.run_for(5)
        if is_killed:
            process.crash()
            cluster.run_for(1)
    # As errors, warnings would have failed this test: they are in pytest's ini.
    gc.collect()


def test_a_client_that_ended_code_has_not_closed_still_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forgets(servers: str) -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers)
        await producer.start()

    said: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: said.append(str(unraisable.exc_value)))
    with SimulatedCluster(brokers=1) as cluster:
        cluster.run(forgets, cluster.bootstrap_servers)
        gc.collect()
    assert any("Unclosed AIOKafkaProducer" in each for each in said)


def test_a_coroutine_that_awaits_in_its_finally_is_closed_all_the_same() -> None:
    said: list[str] = []

    async def inner() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            said.append("never")

    async def outer() -> None:
        try:
            await inner()
        except Exception as error:  # noqa: BLE001 - what a supervisor does
            said.append(repr(error))
            await asyncio.sleep(1)

    with Simulation(1) as simulation:
        machine = simulation.machine("one")

        async def main(_host: Any) -> None:
            await outer()

        process = machine.start(main)
        simulation.run_for(1)
        process.crash()
    gc.collect()
    assert said == []


def test_a_coroutine_that_never_ends_is_given_up() -> None:
    async def stubborn() -> None:
        while True:
            with contextlib.suppress(BaseException):
                await asyncio.sleep(0)

    coroutine: Any = stubborn()
    coroutine.send(None)
    close_quietly(coroutine)
    # Python itself cannot end it either, and says so where it is collected.
    assert coroutine.cr_frame is not None
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda unraisable: said.append(str(unraisable.exc_value)))
        del coroutine
        gc.collect()
    assert said == ["coroutine ignored GeneratorExit"]


class _App:
    """An object that names its task, which names it."""

    def __init__(self, lasts: float) -> None:
        self.task: asyncio.Task[None] | None = None
        self.lasts = lasts

    async def main(self) -> None:
        self.task = asyncio.create_task(self.fail(), name="worker")
        await asyncio.sleep(self.lasts)

    async def fail(self) -> None:
        await asyncio.sleep(1)
        raise ValueError("lost in a ring")


@pytest.mark.parametrize("lasts", [5, 5_000], ids=["ended", "still runs"])
def test_what_a_task_raised_fails_the_run_though_its_object_names_it(lasts: float) -> None:
    with (
        pytest.raises(SimulationFailedError, match=r"(?s)worker raised.*lost in a ring"),
        SimulatedCluster(brokers=1) as cluster,
    ):
        cluster.start(_App(lasts).main)
        cluster.run_for(10)


def test_what_a_task_raised_and_somebody_took_fails_nothing() -> None:
    async def takes() -> str:
        app = _App(0)
        await app.main()
        assert app.task is not None
        await asyncio.wait([app.task])
        return str(app.task.exception())

    with SimulatedCluster(brokers=1) as cluster:
        assert cluster.run(takes) == "lost in a ring"


def test_randomness_of_the_system_is_that_of_the_seed() -> None:
    async def draw() -> tuple[object, ...]:
        futures = {asyncio.get_running_loop().create_future(): number for number in range(30)}
        for future, number in futures.items():
            asyncio.get_running_loop().call_later(0.001 * number, future.set_result, None)
        done, _ = await asyncio.wait(list(futures))
        return (
            uuid.uuid4(),
            os.urandom(4),
            secrets.token_hex(),
            secrets.randbelow(10**9),
            [futures[one] for one in done],
        )

    def run(seed: int) -> tuple[object, ...]:
        with SimulatedCluster(seed, brokers=1) as cluster:
            return cluster.run(draw)

    real = os.urandom
    found = run(1)
    kept = [object() for _ in range(1_000)]  # so that addresses differ
    assert run(1) == found
    assert run(2)[:-1] != found[:-1]
    assert os.urandom is real
    assert len(kept) == 1_000


def test_threads_that_call_a_simulated_loop_are_refused() -> None:
    refused: list[BaseException] = []

    async def wait_for_a_thread() -> None:
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def set_result() -> None:
            try:
                loop.call_soon_threadsafe(future.set_result, None)
            except RuntimeError as error:
                refused.append(error)

        thread = threading.Thread(target=set_result)
        thread.start()
        thread.join()
        await future

    with (
        pytest.raises(SimulationFailedError, match="a thread of its own calls code of app"),
        SimulatedCluster(brokers=1) as cluster,
    ):
        cluster.run(wait_for_a_thread)
    assert len(refused) == 1


def test_real_sockets_are_refused_at_once() -> None:
    async def by_hand() -> None:
        socket.create_connection(("127.0.0.1", 9), 5)

    async def by_kafka_python(servers: str) -> None:
        import kafka

        kafka.KafkaProducer(bootstrap_servers=servers)

    with SimulatedCluster(brokers=1) as cluster:
        with pytest.raises(RuntimeError, match="a simulation has no real sockets"):
            cluster.run(by_hand)
        with pytest.raises(RuntimeError, match="a simulation has no real sockets"):
            cluster.run(by_kafka_python, cluster.bootstrap_servers)
        socket.socket().close()


@pytest.mark.parametrize("is_error", [True, False])
def test_what_others_have_left_warns_as_ever(is_error: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: said.append(str(unraisable.exc_value)))
    with warnings.catch_warnings(record=not is_error) as found:
        warnings.simplefilter("error" if is_error else "always")
        with no_news_of_the_killed():
            warnings.warn("somebody's", ResourceWarning, stacklevel=1)
    assert [*said, *(str(each.message) for each in found or ())] == ["somebody's"]
