"""A coordinator and three scripted brokers, each on a machine of one simulation."""

from __future__ import annotations

from dataclasses import dataclass, field

from barnabas.coordination.session_settings import ClientSettings
from barnabas.testing.simulated_host import SimulatedMachine
from barnabas.testing.simulation import Simulation
from tests.simulation.scripted_broker import (
    COORDINATOR_PORT,
    SESSION_TIMEOUT_MS,
    Disk,
    Observations,
    ScriptedBroker,
    broker_main,
    coordinator_main,
)

BROKERS = (1, 2, 3)


@dataclass(slots=True)
class Cluster:
    """The machines of one simulation, and what is seen of them."""

    simulation: Simulation
    balance_seconds: int | None = None
    """How often a controller has leaders go back to their preferred replicas; None: never."""
    coordinator: SimulatedMachine = field(init=False)
    brokers: dict[int, SimulatedMachine] = field(init=False)
    seen: Observations = field(default_factory=Observations)
    disks: dict[int, Disk] = field(default_factory=lambda: {broker_id: Disk() for broker_id in BROKERS})
    running: dict[int, ScriptedBroker] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.coordinator = self.simulation.machine("coordinator")
        self.coordinator.start(coordinator_main)
        self.brokers = {broker_id: self.simulation.machine(f"broker-{broker_id}") for broker_id in BROKERS}
        for broker_id in BROKERS:
            self.start(broker_id)

    @property
    def settings(self) -> ClientSettings:
        return ClientSettings(f"{self.coordinator.address}:{COORDINATOR_PORT}", SESSION_TIMEOUT_MS)

    def active(self) -> list[int]:
        return [
            broker_id
            for broker_id, broker in self.running.items()
            if self.brokers[broker_id].running and broker.controller.is_active
        ]

    def start(self, broker_id: int) -> None:
        machine = self.brokers[broker_id]
        coordinator = self.coordinator.address
        disk = self.disks[broker_id]
        main = broker_main(broker_id, machine.address, coordinator, disk, self.seen, self.running, self.balance_seconds)
        machine.start(main)

    def shut_down_some(self, seconds: float) -> None:
        """Stops a broker in order every now and then, for so long, and starts it again."""
        source = self.simulation.world.random("shut down")
        until = self.simulation.now + seconds

        def come() -> None:
            if self.simulation.now > until:
                return
            broker_id = source.choice(BROKERS)
            process = self.running[broker_id]
            process.on_stopped = lambda: self.simulation.after(source.uniform(0.5, 4.0), lambda: self.start(broker_id))
            process.stops = True
            self.simulation.after(source.uniform(5.0, 15.0), come)

        self.simulation.after(source.uniform(0.0, 10.0), come)

    def elect(self) -> int:
        """Runs until a broker is the controller."""
        self.simulation.run_until(lambda: bool(self.active()))
        return self.active()[0]
