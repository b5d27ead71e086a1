"""The coordinator and its clients, unchanged, on simulated hosts that crash, lose power, pause, and lose each other.

What must hold at the end, whatever happened:

- Every transaction that a client was told of is there, and none that was never asked for.
- A transaction of two znodes is there whole or not at all.
- What anybody has seen stays: nobody sees a change that a crash takes back.
- A counter that is set with the version of the last read grows by one for each success (no lost update).
- The ephemeral znode of a session is gone once the session is over, and there as long as it is not.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from barnabas.coordination.client import Client
from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.coordination.embedded.server import EmbeddedCoordinator
from barnabas.coordination.errors import BadVersionError, ConnectionLossError, CoordinationError
from barnabas.coordination.operations import Create
from barnabas.coordination.protocol import CreateMode
from barnabas.coordination.session_settings import ClientSettings
from barnabas.kernel.host import Host
from barnabas.testing.faults import FaultKind, FaultSchedule, Nemesis
from barnabas.testing.simulated_host import Main
from barnabas.testing.simulation import Simulation, simulation_seeds

CONNECT = "coordinator:2181"
SESSION_TIMEOUT_MS = 4_000
CONNECT_TIMEOUT_MS = 20_000
HEALING_SECONDS = 5.0
THINKING_SECONDS_MAX = 0.04
CHECK_SECONDS = 120.0
FAULTS_PER_MINUTE = {
    FaultKind.POWER: 8.0,
    FaultKind.CRASH: 4.0,
    FaultKind.RESET: 4.0,
    FaultKind.PARTITION: 4.0,
    FaultKind.CUT: 4.0,
    FaultKind.PAUSE: 3.0,
    FaultKind.SLOW_DISK: 3.0,
    FaultKind.CLOCK_STEP: 3.0,
}


@dataclass(slots=True)
class Ledger:
    """What the clients were told, kept outside the simulated machines so that it outlives them."""

    asked: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    counted: int = 0
    counting_doubtful: int = 0
    names_given: int = 0
    sessions_lost: int = 0
    connections_lost: int = 0

    def next_name(self) -> str:
        self.names_given += 1
        return f"{self.names_given:06d}"


async def serve(host: Host) -> None:
    config = CoordinatorConfig(
        "/data", host=host.name, tick_time_ms=500, snapshot_transactions=500, snapshots_retained=2
    )
    coordinator = EmbeddedCoordinator(host, config)
    await coordinator.start()
    raise await coordinator.failure


def client_of(host: Host) -> Client:
    return Client(host, ClientSettings(CONNECT, session_timeout_ms=SESSION_TIMEOUT_MS))


async def write_pair(client: Client, ledger: Ledger) -> None:
    """Two znodes in one transaction."""
    name = ledger.next_name()
    ledger.asked.add(name)
    await client.multi([Create(f"/pairs/{name}-a", b"a" * 40), Create(f"/pairs/{name}-b", b"b" * 40)])
    ledger.acknowledged.add(name)


async def count_up(client: Client, ledger: Ledger) -> None:
    """One compare-and-set on the counter that all clients share."""
    read = await client.get_data("/counter")
    value = int(read.data or b"0") + 1
    # In doubt until there is an answer, which a crash of the client may keep from coming.
    ledger.counting_doubtful += 1
    try:
        await client.set_data("/counter", str(value).encode(), read.stat.version)
        ledger.counted += 1
    except BadVersionError:
        pass
    ledger.counting_doubtful -= 1


async def look(client: Client, ledger: Ledger) -> None:
    ledger.seen.update((await client.get_children("/pairs")).names)


async def work(client: Client, ledger: Ledger, host: Host) -> None:
    """Until the session is over."""
    await client.create(f"/alive/{host.name}", mode=CreateMode.EPHEMERAL_SEQUENTIAL)
    while True:
        step = host.random.choice(STEPS)
        try:
            await step(client, ledger)
        except ConnectionLossError:
            ledger.connections_lost += 1
        await asyncio.sleep(host.random.uniform(0.0, THINKING_SECONDS_MAX))


STEPS = (write_pair, write_pair, count_up, count_up, look)


def worker(ledger: Ledger) -> Main:
    async def main(host: Host) -> None:
        while True:
            client = client_of(host)
            try:
                await client.connect(CONNECT_TIMEOUT_MS)
                await work(client, ledger, host)
            except (CoordinationError, TimeoutError):
                ledger.sessions_lost += 1
            finally:
                await client.close()

    return main


async def prepare(host: Host) -> None:
    client = client_of(host)
    await client.connect(CONNECT_TIMEOUT_MS)
    for path in ("/pairs", "/counter", "/alive"):
        await client.create(path, b"0")
    await client.close()


async def settle(host: Host) -> tuple[list[str], int, list[str]]:
    """The pairs, the counter, and the ephemerals, after every session of the workers had time to expire."""
    client = client_of(host)
    await client.connect(60_000)
    while (await client.get_children("/alive")).names:
        await asyncio.sleep(0.5)
    names = (await client.get_children("/pairs")).names
    counter = int((await client.get_data("/counter")).data or b"")
    owned = await client.get_ephemerals("/")
    await client.close()
    return names, counter, owned


def run(seed: int, seconds: float) -> tuple[Ledger, Nemesis, str]:
    ledger = Ledger()
    with Simulation(seed) as simulation:
        coordinator = simulation.machine("coordinator")
        coordinator.start(serve)
        simulation.run_on(simulation.machine("preparer"), prepare)
        workers = [simulation.machine(f"worker-{number}") for number in range(2)]
        for machine in workers:
            machine.start(worker(ledger))
        schedule = FaultSchedule(FAULTS_PER_MINUTE, lasting_seconds_default=(0.2, 4.0))
        nemesis = Nemesis(simulation, [coordinator, *workers], schedule)
        nemesis.start()
        simulation.run_for(seconds)
        nemesis.stop()
        simulation.run_for(HEALING_SECONDS)
        for machine in workers:
            machine.crash()
        names, counter, owned = simulation.run_on(simulation.machine("checker"), settle, CHECK_SECONDS)
        check(ledger, set(names), counter, owned)
        return ledger, nemesis, simulation.trace.digest()


def check(ledger: Ledger, present: set[str], counter: int, owned: list[str]) -> None:
    firsts = {name[:-2] for name in present if name.endswith("-a")}
    seconds = {name[:-2] for name in present if name.endswith("-b")}
    assert firsts == seconds, "half of a transaction is there"
    assert firsts <= ledger.asked, "a znode is there that nobody asked for"
    assert ledger.acknowledged <= firsts, f"acknowledged, and lost: {sorted(ledger.acknowledged - firsts)[:5]}"
    assert ledger.seen <= present, f"seen by a client, and gone: {sorted(ledger.seen - present)[:5]}"
    assert ledger.counted <= counter <= ledger.counted + ledger.counting_doubtful
    assert owned == []


@pytest.mark.parametrize("seed", simulation_seeds(5))
def test_keeps_its_promises_under_faults(seed: int) -> None:
    ledger, nemesis, _ = run(seed, seconds=25.0)
    assert len(ledger.acknowledged) > 100, "hardly anything went through: the scenario tests nothing"
    assert sum(nemesis.strikes.values()) > 0


def test_meets_every_kind_of_trouble_over_the_suite() -> None:
    struck = dict.fromkeys(FAULTS_PER_MINUTE, 0)
    sessions_lost = connections_lost = 0
    for seed in range(1000, 1006):
        ledger, nemesis, _ = run(seed, seconds=20.0)
        sessions_lost += ledger.sessions_lost
        connections_lost += ledger.connections_lost
        for kind in struck:
            struck[kind] += nemesis.strikes[kind]
    assert all(struck.values()), struck
    assert sessions_lost > 0
    assert connections_lost > 0


def test_same_seed_gives_the_same_run() -> None:
    assert run(4242, seconds=10.0)[2] == run(4242, seconds=10.0)[2]
