"""Production brokers and the embedded coordinator on simulated machines, for tests that look into the brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.server.broker import Broker
from barnabas.server.entry import broker_main, coordinator_main
from barnabas.testing.simulated_host import SimulatedMachine
from barnabas.testing.simulation import Simulation


class BrokerMachines:
    """The machines, `coordinator` and `brokerN`, started; and the brokers that run on them now, by id."""

    def __init__(self, simulation: Simulation, broker_ids: Iterable[int], properties: Callable[[int], str]) -> None:
        """`properties` gives the server.properties of a broker."""
        self.simulation = simulation
        self.brokers: dict[int, Broker] = {}
        self.coordinator = simulation.machine("coordinator")
        self.coordinator.start(coordinator_main(CoordinatorConfig("/data", host="0.0.0.0")))
        self.machines: dict[int, SimulatedMachine] = {}
        for broker_id in broker_ids:
            machine = self.machines[broker_id] = simulation.machine(f"broker{broker_id}")
            machine.start(broker_main(properties(broker_id), on_started=self._started))

    def _started(self, broker: Broker) -> None:
        self.brokers[broker.broker_id] = broker
