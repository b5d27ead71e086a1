"""`barnabas.coordinators.transaction.metrics`: what a coordinator shows of itself, under Kafka's names."""

from __future__ import annotations

import math

from barnabas.kernel.metrics import Gauge
from barnabas.wire.errors import ErrorCode
from tests.unit.coordinators.transaction.transaction_world import TransactionWorld

UNKNOWN = "kafka.coordinator.transaction:type=TransactionMarkerChannelManager,name=UnknownDestinationQueueSize"
REFUSED = "kafka.coordinator.transaction:type=TransactionMarkerChannelManager,name=LogAppendRetryQueueSize"
LONGEST = "kafka.server:type=transaction-coordinator-metrics,name=partition-load-time-max"
MEAN = "kafka.server:type=transaction-coordinator-metrics,name=partition-load-time-avg"


def read(world: TransactionWorld) -> dict[str, float]:
    return {str(name): metric.read() for name, metric in world.metrics if isinstance(metric, Gauge)}


def test_markers_without_a_leader_are_counted_until_they_are_written(world: TransactionWorld) -> None:
    producers = {name: world.begun(name) for name in ("x", "y")}
    world.brokers.fates[0] = "leaderless"
    for name, producer in producers.items():
        world.add(producer, 0, 1, 3, name=name)
        world.end(producer, name=name)
    world.pass_ms(100)
    assert read(world)[UNKNOWN] == len(producers)
    world.brokers.fates.clear()
    world.pass_ms(2_000)
    assert read(world)[UNKNOWN] == 0


def test_last_records_that_the_log_refuses_are_counted(world: TransactionWorld) -> None:
    producers = {name: world.begun(name) for name in ("x", "y")}
    for name, producer in producers.items():
        world.add(producer, 0, name=name)
        world.end(producer, name=name)
    world.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    world.pass_ms(100)
    assert read(world)[REFUSED] == len(producers)
    world.log.refusal = None
    world.pass_ms(2_000)
    assert read(world)[REFUSED] == 0


def test_the_time_of_loading_is_shown_for_half_a_minute() -> None:
    world = TransactionWorld()
    assert math.isnan(read(world)[LONGEST])
    assert math.isnan(read(world)[MEAN])
    coordinator = world.coordinator
    for seconds in (0.010, 0.030):
        coordinator._metrics.loaded(seconds)
    assert (read(world)[LONGEST], read(world)[MEAN]) == (30, 20)
    world.pass_ms(20_000)
    coordinator._metrics.loaded(0.001)
    world.pass_ms(11_000)
    assert (read(world)[LONGEST], read(world)[MEAN]) == (1, 1)
    world.elect()
    assert read(world)[MEAN] != 1, "a shard was loaded"
    world.close()


def test_a_coordinator_that_has_stopped_shows_nothing(world: TransactionWorld) -> None:
    assert set(read(world)) == {UNKNOWN, REFUSED, LONGEST, MEAN}
    world.stop_broker()
    assert len(world.metrics) == 0
