"""When the controller looks whether leadership is balanced (auto.leader.rebalance.enable): first five seconds after it
took over, and from then on an interval after each end, also after one that failed, and in each term anew. What a look
moves: `test_leader_balance`.
"""

from __future__ import annotations

import pytest

from barnabas.controller.effects import Steps
from barnabas.controller.replica_elections import ReplicaElections
from barnabas.controller.term import ControllerTerm
from barnabas.testing.probes import after
from barnabas.testing.simulation import Simulation
from tests.simulation.broker_machines import BrokerMachines

INTERVAL_SECONDS = 20
FIRST_SECONDS = 5.0
SECONDS_MAX = 60.0
BROKERS = (1, 2)


def properties(broker_id: int) -> str:
    return "\n".join(
        [
            f"broker.id={broker_id}",
            "listeners=PLAINTEXT://:9092",
            "zookeeper.connect=coordinator:2181",
            "log.dirs=/data",
            f"leader.imbalance.check.interval.seconds={INTERVAL_SECONDS}",
        ]
    )


def test_it_looks_after_five_seconds_and_then_at_the_interval_in_each_term(monkeypatch: pytest.MonkeyPatch) -> None:
    with Simulation(1) as simulation:
        began: list[float] = []
        looked: list[float] = []
        rebalance = ReplicaElections.rebalance

        def counted(elections: ReplicaElections) -> Steps[None]:
            looked.append(simulation.now)
            if len(looked) == 2:
                raise ValueError("the second look fails")
            return rebalance(elections)

        monkeypatch.setattr(ReplicaElections, "rebalance", counted)
        with after(ControllerTerm, "take_over", lambda *_: began.append(simulation.now)):
            cluster = BrokerMachines(simulation, BROKERS, properties)
            simulation.run_until(lambda: bool(began), SECONDS_MAX)
            simulation.run_for(FIRST_SECONDS + 2.5 * INTERVAL_SECONDS)
            assert [round(each - began[0]) for each in looked] == [5, 25, 45]
            # The controller is gone, and its next look with it.
            (controller,) = [
                each for each, broker in cluster.brokers.items() if broker.components.controller.term is not None
            ]
            cluster.machines[controller].power_fail()
            simulation.run_until(lambda: len(began) == 2, SECONDS_MAX)
            looked.clear()
            looked += [0.0, 0.0]
            simulation.run_for(FIRST_SECONDS + 1.5 * INTERVAL_SECONDS)
            assert [round(each - began[1]) for each in looked[2:]] == [5, 25]
