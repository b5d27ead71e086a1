"""A session that expires at any step of a broker's start or stop: whatever watches hears of later changes all the same.

A step of the start is a call of the broker's session, one of the stop is what its log calls one. The session is ended
by its own ticket on another connection, which is how an expiry looks from here: the connection breaks, and the next one
is told that the session is no more. Or the network is cut for longer than the session may be silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from barnabas.coordination.client import Client
from barnabas.coordination.errors import NodeExistsError, SessionExpiredError
from barnabas.coordination.layout.admin import delete_topic_path
from barnabas.coordination.layout.brokers import BrokerRegistration, broker_id_path
from barnabas.coordination.layout.cluster import FEATURE_PATH, FeatureStatus, FinalizedFeatures
from barnabas.coordination.layout.configs import CONFIG_CHANGES_PATH
from barnabas.coordination.layout.controller import CONTROLLER_PATH
from barnabas.coordination.layout.notifications import ISR_CHANGES_PATH, LOG_DIR_EVENTS_PATH
from barnabas.coordination.layout.topics import partition_state_path, topic_path
from barnabas.coordination.operations import Create, Multi
from barnabas.coordination.protocol import CreateMode
from barnabas.coordination.session import Session
from barnabas.coordination.session_settings import ClientSettings
from barnabas.coordination.session_state import SessionState
from barnabas.kernel.host import Host
from barnabas.kernel.logs import Logs
from barnabas.server.broker import Broker
from barnabas.server.config import read_server_config
from barnabas.server.lifecycle import BrokerState
from barnabas.testing.simulated_link import Link
from barnabas.testing.simulation import Simulation
from barnabas.wire.endpoints import BrokerEndpoint
from tests.unit.server.coordinated import COORDINATOR, PORT, TIMEOUT_MS, Lines, start_coordinator

BROKER, OTHER = 4, 1
HEARD_WITHIN_SECONDS = 10.0
RENEWED_WITHIN_SECONDS = 2.0
CUT_OFF_SECONDS = 2 * TIMEOUT_MS / 1000
START_SECONDS_MAX = 5.0
CALLS_MAX = 500


class Moment(enum.Enum):
    """When the session ends, as one call of it sees it."""

    BEFORE = "before it is sent"
    UNDER_WAY = "while it is under way"
    AFTER = "with its answer"
    CUT_OFF = "while nothing gets through for longer than its time-out"
    RENEWED = "with its answer, and the next session is there before the next call"


class Ending:
    """Ends the session at the call number `at` of those that are counted."""

    def __init__(self, moment: Moment, at: int) -> None:
        self.broker: Broker | None = None
        self.counts = False
        self.calls = 0
        self.happened = False
        self.pause_seconds = 0.0
        self.links: list[Link] = []
        self.other_leads = self.other_leaves = False
        self._moment = moment
        self._at = at
        self._submit = Session.submit

    async def submit(self, session: Session, operations: Sequence[Any]) -> list[Any]:
        """Stands in for `Session.submit`."""
        if self.broker is not None and self.broker.state is BrokerState.SHUTTING_DOWN:
            assert not any(_registers(operation) for operation in operations), "a broker that stops has registered"
        if not self.counts or self.broker is None or session is not self.broker._session._client:
            return await self._submit(session, operations)
        self.calls += 1
        if self.calls != self._at or session.state is not SessionState.CONNECTED:
            return await self._submit(session, operations)
        self.happened = True
        if self._moment is Moment.CUT_OFF:
            for link in self.links:
                link.cut()
                asyncio.get_running_loop().call_later(CUT_OFF_SECONDS, link.heal)
            return await self._submit(session, operations)
        if self._moment is Moment.BEFORE:
            await self.expire(session)
            return await self._submit(session, operations)
        if self._moment is Moment.UNDER_WAY:
            ending = asyncio.ensure_future(self.expire(session))
            outcomes = await self._submit(session, operations)
            await ending
            return outcomes
        outcomes = await self._submit(session, operations)
        await self.expire(session)
        # Nothing is awaited between this answer and whoever deals with the end of a session.
        if self._moment is Moment.RENEWED and not any(_registers(operation) for operation in operations):
            await self.renewed(session)
        return outcomes

    async def expire(self, session: Session) -> None:
        """Ends the session at the server."""
        assert self.broker is not None
        settings = ClientSettings(f"{COORDINATOR}:{PORT}", TIMEOUT_MS, ticket=session.ticket)
        other = Client(self.broker.host, settings)
        with contextlib.suppress(SessionExpiredError):  # it has ended already
            await other.connect()
        await other.close()

    async def renewed(self, session: Session) -> None:
        """Returns when there is another session, or when none comes: it waits for the controller's event to end."""
        assert self.broker is not None
        present = self.broker._session
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RENEWED_WITHIN_SECONDS):
                while present._client is session or present.state is not SessionState.CONNECTED:
                    await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)


def _registers(operation: Any) -> bool:
    return isinstance(operation, Multi) and any(
        isinstance(each, Create) and each.path == broker_id_path(BROKER) for each in operation.operations
    )


def broker_on(host: Host, lines: Lines, broker_id: int = BROKER) -> Broker:
    text = "\n".join(
        [
            f"broker.id={broker_id}",
            "listeners=PLAINTEXT://:0",
            f"zookeeper.connect={COORDINATOR}:{PORT}",
            f"zookeeper.session.timeout.ms={TIMEOUT_MS}",
            "log.dirs=/data",
        ]
    )
    return Broker(read_server_config(text, "test"), host, Logs(host.name, host.clock, lines))


def ended_at(
    monkeypatch: pytest.MonkeyPatch,
    moment: Moment,
    at: int,
    work: Callable[[Broker, Ending], Awaitable[object]],
    *,
    beside_controller: bool = False,
) -> Ending:
    """Does `work` with a broker whose session ends at that call of those that are counted.

    The other broker, where there is one, is the controller until `work` has it leave.
    """
    ending = Ending(moment, at)
    lines = Lines()

    async def main(host: Host) -> None:
        ending.broker = broker = broker_on(host, lines)
        try:
            await work(broker, ending)
        finally:
            ending.counts = False
            await broker.stop()

    async def submit(session: Session, operations: Sequence[Any]) -> list[Any]:
        return await ending.submit(session, operations)

    with monkeypatch.context() as patch, Simulation(at) as simulation:
        patch.setattr(Session, "submit", submit)
        start_coordinator(simulation)
        if moment is Moment.CUT_OFF:
            simulation.machine("broker")
            network = simulation.network
            ending.links = [network.link("broker", COORDINATOR), network.link(COORDINATOR, "broker")]
        if beside_controller:
            other = simulation.machine("other").start(lambda host: until_asked_to_leave(host, ending, lines))
            simulation.run_until(lambda: ending.other_leads or other.ended, 30)
        try:
            simulation.run_on(simulation.machine("broker"), main, 300)
        except BaseException as error:
            error.add_note(f"the session ended {moment.value}, call {at}")
            raise
    # An office that cannot be taken over for want of a connection is given up, which is no news.
    allowed = "Could not take over as controller" if moment is Moment.CUT_OFF else "nothing"
    errors = [line for line in lines.lines if (" ERROR " in line or "Traceback" in line) and allowed not in line]
    assert errors == [], (moment, at)
    return ending


async def until_asked_to_leave(host: Host, ending: Ending, lines: Lines) -> None:
    """The main of the other broker."""
    broker = broker_on(host, lines, OTHER)
    await broker.start()
    await broker.ready()
    ending.other_leads = True
    while not ending.other_leaves:
        await asyncio.sleep(0.1)
    await broker.stop()


class Observer:
    """Changes znodes, and sees that the broker follows."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._client = Client(broker.host, ClientSettings(f"{COORDINATOR}:{PORT}", TIMEOUT_MS))

    async def check(self) -> None:
        await self._client.connect()
        try:
            for check in (
                self._registered,
                self._topic_configs,
                self._broker_configs,
                self._features,
                self._topics,
                self._brokers,
                self._announcements,
                self._election,
                self._topics_again,
            ):
                try:
                    await check()
                except BaseException as error:
                    error.add_note(f"in {check.__name__}")
                    raise
        finally:
            await self._client.close()

    async def _registered(self) -> None:
        session, components = self._broker._session, self._broker.components
        await self._until(lambda: self._is_gone(broker_id_path(OTHER)))
        for path in (broker_id_path(BROKER), CONTROLLER_PATH):
            await self._until(lambda path=path: self._is_owned(path))  # type: ignore[misc]
        stat = await self._client.exists(broker_id_path(BROKER))
        assert stat is not None
        assert (stat.czxid, stat.ephemeral_owner) == (components.registration.broker_epoch, session.session_id)
        await self._until(lambda: components.controller.is_active)

    async def _is_owned(self, path: str) -> bool:
        stat = await self._client.exists(path)
        return stat is not None and stat.ephemeral_owner == self._broker._session.session_id

    async def _topic_configs(self) -> None:
        topics = self._broker.components.storage.topic_configs
        for value in (5, 6):
            await self._configure("topics/configured", {"retention.ms": str(value)})
            await self._until(lambda value=value: topics.values("configured")["retention.ms"] == value)  # type: ignore[misc]

    async def _broker_configs(self) -> None:
        configs = self._broker.components.storage.broker_configs
        await self._configure("brokers/<default>", {"log.segment.bytes": "54321"})
        await self._until(lambda: configs.values["log.segment.bytes"] == 54_321)

    async def _configure(self, entity: str, configs: dict[str, str]) -> None:
        await self._put(f"/config/{entity}", json.dumps({"version": 1, "config": configs}).encode())
        announcement = json.dumps({"version": 2, "entity_path": entity}).encode()
        await self._client.create(
            f"{CONFIG_CHANGES_PATH}/config_change_", announcement, mode=CreateMode.PERSISTENT_SEQUENTIAL
        )

    async def _features(self) -> None:
        for _ in range(2):
            await self._put(FEATURE_PATH, FinalizedFeatures(FeatureStatus.ENABLED, {}).encode())
            stat = await self._client.exists(FEATURE_PATH)
            assert stat is not None
            await self._until(lambda version=stat.version: self._broker.components.features.epoch == version)  # type: ignore[misc]

    async def _topics(self, name: str = "made") -> None:
        partitions = {"0": [BROKER]}
        await self._put(topic_path(name), json.dumps({"version": 1, "partitions": partitions}).encode())
        await self._until(lambda: self._exists(partition_state_path(name, 0)))
        await self._put(
            topic_path(name), json.dumps({"version": 1, "partitions": {**partitions, "1": [BROKER]}}).encode()
        )
        await self._until(lambda: self._exists(partition_state_path(name, 1)))
        await self._client.create(delete_topic_path(name))
        await self._until(lambda: self._is_gone(topic_path(name)))

    async def _topics_again(self) -> None:
        await self._topics("made-again")

    async def _brokers(self) -> None:
        image = self._broker.components.metadata_cache
        for port in (1, 2):
            endpoints = (BrokerEndpoint("PLAINTEXT", "nowhere", port, "PLAINTEXT"),)
            registration = BrokerRegistration(endpoints, 0)
            await self._put(broker_id_path(9), registration.encode(), CreateMode.EPHEMERAL)
            await self._until(
                lambda port=port: (
                    9 in image.image.brokers  # type: ignore[misc]
                    and image.image.brokers[9].endpoints["PLAINTEXT"].port == port
                )
            )
        await self._client.delete(broker_id_path(9))
        await self._until(lambda: 9 not in image.image.brokers)

    async def _announcements(self) -> None:
        for path, prefix, data in (
            (ISR_CHANGES_PATH, "isr_change_", b'{"version":1,"partitions":[]}'),
            (LOG_DIR_EVENTS_PATH, "log_dir_event_", b'{"version":1,"broker":4,"event":1}'),
        ):
            await self._client.create(f"{path}/{prefix}", data, mode=CreateMode.PERSISTENT_SEQUENTIAL)
            await self._until(lambda path=path: self._is_empty(path))  # type: ignore[misc]

    async def _election(self) -> None:
        controller = self._broker.components.controller
        epoch = controller.epoch
        await self._client.delete(CONTROLLER_PATH)
        await self._until(lambda: controller.epoch > epoch)

    async def _exists(self, path: str) -> bool:
        return await self._client.exists(path) is not None

    async def _is_gone(self, path: str) -> bool:
        return await self._client.exists(path) is None

    async def _is_empty(self, path: str) -> bool:
        return not (await self._client.get_children(path)).names

    async def _put(self, path: str, data: bytes, mode: CreateMode = CreateMode.PERSISTENT) -> None:
        try:
            await self._client.create(path, data, mode=mode)
        except NodeExistsError:
            await self._client.set_data(path, data)

    async def _until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(HEARD_WITHIN_SECONDS):
            while True:
                found = condition()
                if found is True or (found is not False and await found):
                    return
                await asyncio.sleep(0.02)


async def start_and_be_watched(broker: Broker, ending: Ending) -> None:
    ending.counts = True
    async with asyncio.timeout(START_SECONDS_MAX + (CUT_OFF_SECONDS if ending.links else 0)):
        await broker.start()
        await broker.ready()
    # What a start has begun goes on after it.
    await asyncio.sleep(1.0)
    while any(not link.is_open() for link in ending.links):
        await asyncio.sleep(0.1)
    ending.counts = False
    ending.other_leaves = True
    await Observer(broker).check()


async def stop_and_be_gone(broker: Broker, ending: Ending, monkeypatch: pytest.MonkeyPatch, at: int) -> list[str]:
    """Stops a broker whose session ends before the step number `at`; the steps that there are."""
    await broker.start()
    await broker.ready()
    await asyncio.sleep(1.0)
    loop = asyncio.get_running_loop()
    steps: list[str] = []
    take_step = Broker._step

    async def step(stopped: Broker, name: str, take: Callable[[], Awaitable[object]]) -> None:
        steps.append(name)
        if len(steps) == at:
            await ending.expire(broker._session._client)
            await asyncio.sleep(ending.pause_seconds)
        await take_step(stopped, name, take)

    began = loop.time()
    with monkeypatch.context() as patch:
        patch.setattr(Broker, "_step", step)
        await broker.stop()
    assert loop.time() - began < TIMEOUT_MS / 1000
    assert broker.state is BrokerState.NOT_RUNNING
    assert "the controlled shutdown" in steps
    client = Client(broker.host, ClientSettings(f"{COORDINATOR}:{PORT}", TIMEOUT_MS))
    await client.connect()
    for path in (broker_id_path(BROKER), CONTROLLER_PATH):
        assert await client.exists(path) is None
    await client.close()
    return steps


@pytest.mark.parametrize("moment", Moment)
def test_everything_that_watches_outlives_an_expiry_at_any_call_of_the_start(
    moment: Moment, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    while ended_at(monkeypatch, moment, calls + 1, start_and_be_watched).happened:
        calls += 1
        assert calls < CALLS_MAX
    assert calls > 20


@pytest.mark.parametrize("moment", [Moment.AFTER, Moment.RENEWED])
def test_a_broker_beside_a_controller_outlives_an_expiry_at_any_call_and_follows_it(
    moment: Moment, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    while ended_at(monkeypatch, moment, calls + 1, start_and_be_watched, beside_controller=True).happened:
        calls += 1
        assert calls < CALLS_MAX
    assert calls > 10


@pytest.mark.parametrize("pause_seconds", [0.0, 1.0])
def test_a_stop_outlives_an_expiry_at_any_step_and_leaves_nothing(
    pause_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, steps = 0, 1
    while at < steps:
        at += 1

        async def work(broker: Broker, ending: Ending, at: int = at) -> None:
            nonlocal steps
            ending.pause_seconds = pause_seconds
            steps = len(await stop_and_be_gone(broker, ending, monkeypatch, at))

        ended_at(monkeypatch, Moment.BEFORE, at, work)
    assert steps > 10
