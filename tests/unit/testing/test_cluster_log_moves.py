"""`barnabas.testing.cluster_log_moves`: what breaks an invariant of log directories is noted, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.testing.cluster_history import History
from barnabas.testing.cluster_log_moves import LogMoves
from barnabas.testing.simulated_files import SimulatedFiles
from barnabas.testing.simulation import Simulation
from barnabas.wire.topics import TopicPartition

EVENTS = TopicPartition("events", 0)
DIRECTORIES = ("/one", "/two")


class World:
    """One broker with two log directories, of which a partition and its log are what a test says."""

    def __init__(self, simulation: Simulation) -> None:
        self.machine = simulation.machine("broker")
        self.machine.start(self._main)
        self.files = SimulatedFiles(self.machine.disk, "test", lambda _seconds: None)
        for path in DIRECTORIES:
            self.files.make_directories(path)
        self.live = [*DIRECTORIES]
        self.replica: Any = None
        self.log: Any = None
        self.history = History()
        observer: Any = SimpleNamespace(
            running={1: SimpleNamespace(machine=self.machine, broker=SimpleNamespace(components=self._components()))},
            all_partitions=lambda: [EVENTS],
            history=self.history,
            coverage=Counter(),
        )
        nobody: Any = None
        self.moves = LogMoves(simulation, observer, nobody, nobody, {1: self.machine}, DIRECTORIES)

    async def _main(self, host: Any) -> None:
        await host.clock.sleep(100)

    def _components(self) -> Any:
        world = self

        class Manager:
            @property
            def live_directories(self) -> list[Any]:
                return [SimpleNamespace(path=path) for path in world.live]

            def get_log(self, _: TopicPartition) -> Any:
                return world.log

        replicas = SimpleNamespace(find_partition=lambda _: world.replica)
        return SimpleNamespace(replica_manager=replicas, storage=SimpleNamespace(log_manager=Manager()))


@pytest.fixture
def world() -> Iterator[World]:
    with Simulation(1) as simulation:
        yield World(simulation)


def test_a_partition_that_lies_in_two_directories_is_noted_once(world: World) -> None:
    world.files.make_directories("/one/events-0")
    world.files.make_directories("/two/events-00")
    world.moves.look()
    assert world.history.misplaced == []
    world.files.make_directories("/two/events-0")
    world.moves.look()
    world.moves.look()
    assert world.history.misplaced == ["events-0 on broker 1 lies in /one and in /two, at 0.000 s"]


def test_what_lies_in_a_directory_that_is_offline_or_gone_counts_for_nothing(world: World) -> None:
    for path in DIRECTORIES:
        world.files.make_directories(f"{path}/events-0")
    world.live = ["/one", "/gone"]
    world.moves.look()
    assert world.history.misplaced == []


def test_a_replica_of_a_replaced_log_is_noted(world: World) -> None:
    world.log = object()
    world.replica = SimpleNamespace(log=world.log)
    world.moves.look()
    assert world.history.misplaced == []
    world.replica = SimpleNamespace(log=object())
    world.moves.look()
    assert world.history.misplaced == ["events-0 on broker 1 goes on with a log that was replaced, at 0.000 s"]


def test_a_copy_that_stays_is_noted_where_its_replica_is(world: World) -> None:
    world.files.make_directories("/two/events-0.0123456789abcdef0123456789abcdef-future")
    world.moves.judge()
    assert world.history.misplaced == []
    world.replica = SimpleNamespace(log=None)
    world.moves.judge()
    (found,) = world.history.misplaced
    assert "has a copy that stays: /two/events-0." in found
