"""Bounds of connections under faults: whatever ends a connection, it is taken off each count once, and rates hold."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from barnabas.kernel.host import Host
from barnabas.link.limits import LinkLimits
from barnabas.network.config import ListenerConfig, NetworkConfig
from barnabas.network.server import NetworkServer
from barnabas.quotas.connection_rates import UNLIMITED, ConnectionRates
from barnabas.quotas.settings import ClientQuotaSettings
from barnabas.testing.simulated_host import SimulatedMachine
from barnabas.testing.simulation import Simulation, simulation_seeds
from tests.unit.network.serving import Client, Serving, serving

TOGETHER = 3
SEEDS = simulation_seeds(TOGETHER)
GROUPS = [SEEDS[start : start + TOGETHER] for start in range(0, len(SEEDS), TOGETHER)]
FAULTS = ("reset", "cut", "power", "crash", "bounds", "address")
CLIENTS = ("one", "two", "three")
SECONDS = 40.0
RATE = 6
WINDOWS = 3
IDLE_MS = 4_000
DATA = ListenerConfig("DATA", "0.0.0.0", 9092, backlog=8)
OTHER = ListenerConfig("OTHER", "0.0.0.0", 9093, backlog=8, connections_max=9)
BROKERS = ListenerConfig("BROKERS", "0.0.0.0", 9094, is_protected=True)
CONTROL = ListenerConfig("CONTROL", "0.0.0.0", 9095, is_control_plane=True)


def miscounted(server: NetworkServer) -> list[str]:
    """What does not fit together; each connection is let in, or waits, or is to be closed."""
    counted, admission = list(server._counted), server._admission
    limited = [each for each in counted if not each.listener.is_control_plane]
    expected = {
        "connections": (server.connections, len(counted) + admission.waiting),
        "by listener": (server._by_listener, Counter(each.listener.name for each in counted)),
        "by address": (server._by_address, Counter(each.address for each in limited)),
        "limited": (server._limited, len(limited)),
        "listed": (len([each for each in counted if each not in server._connections]), 0),
    }
    return [f"{what}: {found} and not {wanted}" for what, (found, wanted) in expected.items() if found != wanted]


class Run:
    """One server, and what its clients do."""

    def __init__(self, simulation: Simulation, seed: int) -> None:
        self.simulation = simulation
        self.chance = random.Random(seed)
        self.rates = ConnectionRates(ClientQuotaSettings(window_count=WINDOWS, window_seconds=1))
        self.served: Serving | None = None
        self.findings: list[str] = []
        self.seen: Counter[str] = Counter()
        self.accepted: list[float] = []
        self.ends_at = SECONDS

    @property
    def server(self) -> NetworkServer:
        assert self.served is not None
        return self.served.server

    async def serve(self, host: Host) -> None:
        config = NetworkConfig(
            link=LinkLimits(idle_ms_max=IDLE_MS), connections_max=9, connections_per_ip_overrides={"10.0.0.2": 12}
        )
        listeners = (DATA, OTHER, BROKERS, CONTROL)
        async with serving(host, config, listeners, rates=self.rates) as self.served:
            self.rates.limit_broker(RATE)
            self.rates.limit_listener("OTHER", 3)
            # The quota of all addresses counts for brokers too, as in Kafka.
            self.rates.limit_address(self.simulation.machine("broker").address, UNLIMITED)
            seen = 0
            while self.simulation.now < self.ends_at + 30:
                await asyncio.sleep(0.02)
                self.findings += miscounted(self.server)
                for connection in self.served.handler.opened[seen:]:
                    self.accepted += [self.simulation.now] if connection.listener in (DATA, OTHER) else []
                seen = len(self.served.handler.opened)
                if self.chance.random() < 0.02:
                    for slot in self.served.handler.slots.values():
                        slot.complete([b"late"])
                    self.served.handler.slots.clear()

    async def visit(self, host: Host, chance: random.Random) -> None:
        """A client connects, asks or not, stays or not, and goes in one of several ways."""
        try:
            client = await Client.connect(host, chance.choice((DATA, DATA, OTHER)).port, "server")
        except OSError:
            return
        try:
            async with asyncio.timeout(chance.choice([0.05, 1.0, 6.0])):
                if chance.random() < 0.7:
                    client.send(b"x", b"park %d" % chance.getrandbits(60) if chance.random() < 0.2 else b"y")
                    await client.receive()
                    self.seen["answered"] += 1
                await asyncio.sleep(chance.choice([0.0, 0.5, 20.0]))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            self.seen["ended otherwise"] += 1
        if chance.random() < 0.5:
            client.writer.close()
        else:
            client.writer.transport.abort()

    async def come_and_go(self, host: Host) -> None:
        chance = random.Random(self.chance.random())
        visits = set()
        while self.simulation.now < self.ends_at:
            visits.add(asyncio.create_task(self.visit(host, chance)))
            await asyncio.sleep(chance.expovariate(4.0))
        await asyncio.wait(visits)

    async def be_a_broker(self, host: Host) -> None:
        """Which nothing happens to, and nobody keeps out."""
        chance = random.Random(self.chance.random())
        while self.simulation.now < self.ends_at:
            client = await Client.connect(host, chance.choice((BROKERS, CONTROL)).port, "server")
            try:
                for _ in range(3):
                    async with asyncio.timeout(1.0):
                        client.send(b"fetch")
                        assert await client.receive() == b"fetch"
                    await asyncio.sleep(0.3)
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                self.findings.append(f"a broker was kept out at {self.simulation.now:.2f}: {error!r}")
            client.writer.transport.abort()
            self.seen["brokers"] += 1

    def break_something(self) -> None:
        chance, network = self.chance, self.simulation.network
        name = chance.choice(CLIENTS)
        machine = self.simulation.machine(name)
        what = chance.choice(
            ["reset", "reset", "cut", "bounds", "address", *(["power", "crash"] if machine.running else [])]
        )
        self.seen[what] += 1
        if what == "reset":
            network.reset_connections(name, "server")
        elif what == "cut":
            network.cut(name, "server")
            self.simulation.after(chance.uniform(0.1, 6.0), network.heal_all)
        elif what in ("power", "crash"):
            (machine.power_fail if what == "power" else machine.crash)()
            self.simulation.after(chance.uniform(0.1, 4.0), lambda: self.come_back(machine))
        elif what == "bounds":
            self.server.limit_connections(
                chance.choice([5, 9]), chance.choice([3, 50]), {"OTHER": chance.choice([2, 9])}
            )
        else:
            self.rates.limit_address(chance.choice([None, "10.0.0.3"]), chance.choice([None, 0, 1]))
        if self.simulation.now < self.ends_at - 10:
            self.simulation.after(chance.expovariate(1.5), self.break_something)

    def come_back(self, machine: SimulatedMachine) -> None:
        if not machine.powered:
            machine.power_restore()
        machine.restart()

    def settle(self) -> None:
        self.simulation.network.heal_all()
        self.rates.limit_address(None, None)
        self.rates.limit_address("10.0.0.3", None)


def judged(seed: int) -> Counter[str]:
    """What a run has met; everything about it must be well."""
    with Simulation(seed) as simulation:
        run = Run(simulation, seed)
        simulation.machine("server").start(run.serve)
        for name in CLIENTS:
            simulation.machine(name).start(run.come_and_go)
        simulation.run_for(0.5)
        simulation.machine("broker").start(run.be_a_broker)
        simulation.after(1.0, run.break_something)
        simulation.run_for(SECONDS - 0.5)
        run.settle()
        simulation.run_for(20.0)
        assert run.findings[:5] == [], f"seed {seed}"
        server = run.server
        assert (server.connections, server._admission.waiting, server._limited) == (0, 0, 0), f"seed {seed}"
        assert (server._by_address, server._by_listener) == ({}, {}), f"seed {seed}"
        latest = [sum(at - 10 < each <= at for each in run.accepted) for at in run.accepted]
        assert max(latest) <= RATE * (10 + WINDOWS), f"seed {seed}"
        run.seen += Counter(refused=server.connections_refused, displaced=server.connections_displaced)
        return run.seen


@pytest.mark.parametrize("seeds", GROUPS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_every_connection_is_counted_once_however_it_ends(seeds: list[int]) -> None:
    seen = sum(map(judged, seeds), Counter[str]())
    if len(seeds) == TOGETHER:
        for what in (*FAULTS, "answered", "ended otherwise", "brokers", "refused", "displaced"):
            assert seen[what], f"{what}: none"
