"""`barnabas.link.outgoing` on simulated hosts: crashes, pauses and cuts of the broker, one seed each."""

from __future__ import annotations

import asyncio
import logging

import pytest

from barnabas.kernel.host import Host
from barnabas.kernel.timers import Timers
from barnabas.link.buffers import BufferPool
from barnabas.link.connection import LinkContext
from barnabas.link.errors import ConnectionLostError, RequestTimeoutError
from barnabas.link.limits import LinkLimits
from barnabas.link.outgoing import Outgoing, OutgoingSettings
from barnabas.testing.faults import FaultKind, FaultSchedule, Nemesis
from barnabas.testing.simulation import Simulation
from barnabas.wire.messages import HeartbeatRequest
from tests.unit.link.scripted_broker import ScriptedBroker

PORT = 9092
HEARTBEAT = HeartbeatRequest(group_id="g")
SECONDS = 60.0
LASTING_SECONDS = (0.2, 4.0)


async def serve(host: Host) -> None:
    broker = ScriptedBroker()
    broker.port = PORT
    await broker.listen("0.0.0.0")
    await host.loop.create_future()


@pytest.mark.parametrize("seed", range(1, 6))
def test_every_request_ends_once_whatever_happens_to_the_broker(seed: int) -> None:
    with Simulation(seed) as simulation:
        broker = simulation.machine("broker")
        broker.start(serve)
        client = simulation.machine("client")
        outcomes: list[str] = []

        async def ask(host: Host) -> None:
            timers = Timers(host.loop)
            pool = BufferPool(poisons=True)
            context = LinkContext.of(host.loop, timers, LinkLimits(), logging.getLogger("outgoing"), pool=pool)
            settings = OutgoingSettings(connect_timeout_ms=2_000)
            outgoing = Outgoing(context, host.random, "broker", PORT, settings=settings)

            ends_at = host.loop.time() + SECONDS

            async def one_after_another() -> None:
                while host.loop.time() < ends_at:
                    sent_at = host.loop.time()
                    try:
                        await outgoing.send(HEARTBEAT, 4, 1_000)
                        outcomes.append("answered")
                        await timers.sleep(host.random.uniform(0, 200))
                    except (ConnectionLostError, RequestTimeoutError) as error:
                        outcomes.append(type(error).__name__)
                    assert host.loop.time() - sent_at < 1.3

            await asyncio.gather(*(one_after_another() for _ in range(8)))
            outgoing.close()
            await outgoing.wait_closed()
            assert len(timers) == 0
            assert pool.lent == 0

        kinds = (FaultKind.CRASH, FaultKind.POWER, FaultKind.PAUSE, FaultKind.CUT, FaultKind.RESET)
        nemesis = Nemesis(
            simulation,
            [broker, simulation.machine("another")],
            FaultSchedule(
                dict.fromkeys((FaultKind.CRASH, FaultKind.POWER, FaultKind.PAUSE), 4.0),
                lasting_seconds_default=LASTING_SECONDS,
            ),
        )
        links = Nemesis(
            simulation,
            [broker, client],
            FaultSchedule(
                dict.fromkeys((FaultKind.CUT, FaultKind.RESET), 4.0), lasting_seconds_default=LASTING_SECONDS
            ),
        )
        nemesis.start()
        links.start()
        simulation.run_on(client, ask, limit_seconds=SECONDS + 30)
        nemesis.stop()
        links.stop()
        assert sum(nemesis.strikes[kind] + links.strikes[kind] for kind in kinds) > 3
        assert set(outcomes) == {"answered", "ConnectionLostError", "RequestTimeoutError"}
        assert outcomes.count("answered") > 300
        assert len(outcomes) < 10_000, "the pauses pace those who ask again and again"


def test_pauses_double_up_to_a_bound_and_begin_anew_after_a_connection_that_worked() -> None:
    settings = OutgoingSettings(reconnect_backoff_ms=50, reconnect_backoff_ms_max=200)
    with Simulation(1) as simulation:
        broker = simulation.machine("broker")

        async def ask(host: Host) -> None:
            context = LinkContext.of(host.loop, Timers(host.loop), LinkLimits(), logging.getLogger("outgoing"))
            outgoing = Outgoing(context, host.random, "broker", PORT, settings=settings)

            async def pauses_ms(failures: int) -> list[float]:
                found = []
                for _ in range(failures):
                    with pytest.raises(ConnectionLostError):
                        await outgoing.send(HEARTBEAT, 4, 5_000)
                    found.append(outgoing.backs_off_ms)
                return found

            for pause, most in zip(await pauses_ms(5), (50, 100, 200, 200, 200), strict=True):
                assert 0.8 * most - 1 < pause <= 1.2 * most
            broker.start(serve)
            await outgoing.send(HEARTBEAT, 4, 5_000)
            broker.crash()
            while outgoing.is_connected:
                await context.timers.sleep(1)
            lost = outgoing.backs_off_ms
            assert 0.8 * 50 - 2 < lost <= 1.2 * 50, "a connection that worked starts the pauses anew"
            (again,) = await pauses_ms(1)
            assert 0.8 * 100 - 1 < again <= 1.2 * 100
            outgoing.close()
            await outgoing.wait_closed()

        simulation.run_on(simulation.machine("client"), ask)
