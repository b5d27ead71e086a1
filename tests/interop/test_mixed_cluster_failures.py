"""Brokers of Barnabas and of Apache Kafka 3.9.1 die by kill -9 in one cluster under load, on either coordinator.

Whoever leads, follows or controls, and whoever takes over: every acknowledged record is there exactly once and in
order, the group goes on, replicas are whole again, and all brokers tell clients the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import DeleteTopicsRequest
from tests.support.by_night import by_night
from tests.support.mixed_cluster import IDS, Kind, MixedCluster, kind_of, mixed_cluster
from tests.support.waiting import wait_until
from tests.support.wire_calls import call, create_topic
from tests.support.workload import Workload

AGAIN: Final = "a minute or two and three JVMs, and no commit says that it has found anything"
PARTITIONS: Final = 8
PATIENCE_SECONDS: Final = 90.0
TOPIC: Final = "under-load"
# Of those that sleep while the other of their kind dies.
LONG_SESSION: Final = {"zookeeper.session.timeout.ms": 20_000}
PROVOKED_COMPLAINTS: Final = (
    # A broker asks for producer ids before the controller has read of it.
    "The controller allocated no producer ids, trying again: BROKER_ID_NOT_REGISTERED",
    # Two are dead, or one is and another lags on a slow machine: min.insync.replicas does what it is for.
    r"The size of the current ISR Set\(\d+\) is insufficient to satisfy the min.isr requirement of 2",
    # That refused one of several requests in flight, and the next one comes when there are enough again.
    r"Out of order sequence number for producer \d+ at offset \d+ in partition under-load-\d+",
)


@contextlib.contextmanager
def cluster_under_load(directory: Path, coordinator: str) -> Iterator[tuple[MixedCluster, Workload]]:
    """A topic with RF 3 and min.insync.replicas 2, led by both kinds, under load; at the end everything is counted."""
    with mixed_cluster(directory, coordinator=coordinator, overrides_of_second=LONG_SESSION) as cluster:
        create_topic(cluster.port(1), TOPIC, PARTITIONS, 3, **{"min.insync.replicas": "2"})
        cluster.wait_until_whole(TOPIC)
        workload = Workload(cluster.bootstrap_servers, TOPIC, PARTITIONS)
        workload.start()
        try:
            wait_until(lambda: workload.consumed_count, "the group reads", PATIENCE_SECONDS)
            yield cluster, workload
            cluster.wait_until_whole(TOPIC)
            workload.finish()
        finally:
            workload.abandon()
        cluster.wait_until_agreed()
        assert cluster.unexpected_complaints(*PROVOKED_COMPLAINTS) == []


def progress(workload: Workload, records: int = 500) -> None:
    """Waits until so many more records are acknowledged."""
    target = workload.acknowledged_count + records
    wait_until(lambda: workload.acknowledged_count >= target, f"{records} more acknowledged", PATIENCE_SECONDS)


def wait_until_led_without(cluster: MixedCluster, broker_id: int) -> None:
    """Waits until others lead what the broker led, and all know it."""
    for partition in range(PARTITIONS):
        assert cluster.leader(TOPIC, partition) != broker_id


def wait_until_led_without_sleeper(cluster: MixedCluster, broker_id: int) -> None:
    """Waits until the session of the sleeping broker is over, and others lead what it led."""

    def is_over() -> bool:
        states = [cluster.partition_state(TOPIC, partition) for partition in range(PARTITIONS)]
        return broker_id not in {state["leader"] for state in states} and str(broker_id) not in cluster.children(
            "/brokers/ids"
        )

    wait_until(is_over, f"others lead than {broker_id}", PATIENCE_SECONDS, cluster.log_tails)


def restart(cluster: MixedCluster, workload: Workload, broker_id: int) -> None:
    progress(workload)
    cluster.brokers[broker_id].start()
    cluster.wait_until_whole(TOPIC)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("coordinator", ["embedded", *by_night(AGAIN, "zookeeper")])
def test_loses_nothing_when_controllers_of_one_kind_are_succeeded_by_the_other(
    oracle_jars: Path, tmp_path: Path, coordinator: str
) -> None:
    with cluster_under_load(tmp_path, coordinator) as (cluster, workload):
        for kind in Kind:
            controller, fellow = IDS[kind]
            cluster.move_controller(controller)
            progress(workload)
            epoch = cluster.controller_epoch()
            # The fellow sleeps through the election; its session lives on.
            with cluster.suspended(fellow):
                cluster.brokers[controller].kill()
                wait_until(lambda: cluster.controller_epoch() == epoch + 1, "another controls", PATIENCE_SECONDS)  # noqa: B023
            assert kind_of(cluster.controller()) is kind.other
            wait_until_led_without(cluster, controller)
            restart(cluster, workload, controller)


@pytest.mark.night(AGAIN)
@pytest.mark.timeout(900)
def test_loses_nothing_when_brokers_of_one_kind_die_or_sleep_under_a_controller_of_the_other(
    oracle_jars: Path, tmp_path: Path
) -> None:
    with cluster_under_load(tmp_path, "zookeeper") as (cluster, workload):
        for kind in Kind:
            victim, controller = IDS[kind][0], IDS[kind.other][1]
            cluster.move_controller(controller)
            doomed = f"doomed-{kind.value}"
            create_topic(cluster.port(controller), doomed, 4, 4)
            cluster.wait_until_whole(doomed)
            progress(workload)
            cluster.brokers[victim].kill()
            wait_until_led_without(cluster, victim)
            # A topic of which the dead one has replicas is deleted for good when it is back.
            request = DeleteTopicsRequest(topic_names=[doomed], timeout_ms=0)
            (answer,) = call(cluster.port(controller), ApiKey.DELETE_TOPICS, 4, request).responses
            assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
            progress(workload)
            assert cluster.children("/admin/delete_topics") == [doomed]
            cluster.brokers[victim].start()
            wait_until(lambda: not cluster.children("/admin/delete_topics"), "it is deleted", PATIENCE_SECONDS)
            cluster.wait_until_whole(TOPIC)
            epoch = cluster.broker_epoch(victim)
            with cluster.suspended(victim):
                wait_until_led_without_sleeper(cluster, victim)
                progress(workload)
            wait_until(lambda: cluster.broker_epoch(victim) > epoch, "it is registered again", PATIENCE_SECONDS)  # noqa: B023
            cluster.wait_until_whole(TOPIC)
            assert cluster.controller() == controller
