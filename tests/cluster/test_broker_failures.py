"""Three broker processes lose members by kill -9 and SIGSTOP while idempotent producers (acks=all) and a group run.

Every acknowledged record must be there exactly once, in order per partition, and the group must go on. A short round by
default; 45 s (BARNABAS_FAILURE_SECONDS) at random, and a real ZooKeeper ensemble, with BARNABAS_LONG_FAILURES=1
(`make test-cluster`).
"""

from __future__ import annotations

import contextlib
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import FindCoordinatorRequest
from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.by_night import by_night
from tests.support.waiting import wait_until, where_others_work
from tests.support.wire_calls import call, create_topic, leaders, metadata
from tests.support.workload import Workload

LONG = os.environ.get("BARNABAS_LONG_FAILURES") == "1"
REAL_ZOOKEEPER = by_night("up to a minute for each test, and no commit says that it has found anything", "zookeeper")
OTHER_ROLE = "20 s, and no commit says that it has found anything"
COORDINATORS = ("embedded", *REAL_ZOOKEEPER) if LONG else ("embedded",)
ROLES = ("leader", "follower", "controller", *(("coordinator of the group",) if LONG else ()))
RANDOM_SECONDS = float(os.environ.get("BARNABAS_FAILURE_SECONDS", "45")) if LONG else 6.0
SEED = int(os.environ.get("BARNABAS_FAILURE_SEED", "0")) or random.randrange(1, 1_000_000)
BROKERS = 3
PARTITIONS = 6
SESSION_TIMEOUT_MS = 3_000
RECOVERY_SECONDS = 60.0
# A quiet machine needs less than one; the rest is for one that is slow, and more where it is busy.
LEADERS_AFTER_EXPIRY_SECONDS = 10.0
OVERRIDES = {
    "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
    "offsets.topic.num.partitions": 3,
    "offsets.topic.replication.factor": 3,
    "group.initial.rebalance.delay.ms": 0,
    "replica.lag.time.max.ms": 3_000,
    "controlled.shutdown.retry.backoff.ms": 200,
}


@pytest.fixture(params=COORDINATORS)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path, BROKERS, coordinator=request.param, overrides=OVERRIDES) as running:
        yield running
        running.check_that_none_exited_by_itself()


@contextlib.contextmanager
def workload_on(cluster: BrokerCluster, *, partitions: int = PARTITIONS) -> Iterator[Workload]:
    """A topic with RF 3 and min.insync.replicas 2 under load; at the end everything is counted."""
    topic = f"topic-{uuid.uuid4()}"
    create_topic(any_port(cluster), topic, partitions, BROKERS, **{"min.insync.replicas": "2"})
    wait_until_led(cluster, topic, partitions)
    workload = Workload(cluster.bootstrap_servers, topic, partitions)
    workload.start()
    try:
        progress(workload, 500)
        wait_until(lambda: workload.consumed_count, "the group reads", RECOVERY_SECONDS)
        yield workload
        wait_until_whole(cluster, topic, partitions)
        workload.finish()
    finally:
        workload.abandon()


def any_port(cluster: BrokerCluster) -> int:
    return next(broker.port for broker in cluster.brokers.values() if broker.process.is_running)


def progress(workload: Workload, records: int) -> None:
    """Waits until so many more records are acknowledged."""
    target = workload.acknowledged_count + records
    wait_until(
        lambda: workload.acknowledged_count >= target or workload.failures,
        f"{records} more acknowledged",
        RECOVERY_SECONDS,
    )
    assert not workload.failures, workload.failures[:3]


def wait_until_led(cluster: BrokerCluster, topic: str, partitions: int) -> None:
    for broker in cluster.brokers.values():
        wait_until(
            lambda: len(leaders(broker.port, topic)) == partitions,  # noqa: B023
            f"{broker.process.name} knows the leaders of {topic}",
            RECOVERY_SECONDS,
            cluster.log_tails,
        )


def wait_until_whole(cluster: BrokerCluster, topic: str, partitions: int) -> None:
    """Every broker is back in every ISR, and all of them say so: of the same leaders and the same controller."""

    def is_whole() -> bool:
        answers = [metadata(broker.port, [topic]) for broker in cluster.brokers.values()]
        found = [answer.topics[0].partitions for answer in answers]
        whole = [each for each in found if [len(partition.isr_nodes) for partition in each] == [BROKERS] * partitions]
        views = {
            (answer.controller_id, *sorted((each.partition_index, each.leader_id, each.leader_epoch) for each in view))
            for answer, view in zip(answers, found, strict=True)
        }
        return len(whole) == BROKERS and len(views) == 1

    wait_until(is_whole, f"{topic} has all replicas in sync", RECOVERY_SECONDS, cluster.log_tails)


def controller_id(cluster: BrokerCluster) -> int:
    def known() -> int | None:
        found = metadata(any_port(cluster)).controller_id
        return found if found in cluster.brokers and cluster.brokers[found].process.is_running else None

    return wait_until(known, "a controller is known", RECOVERY_SECONDS, cluster.log_tails)


def leader_of(cluster: BrokerCluster, topic: str) -> int:
    return wait_until(lambda: leaders(any_port(cluster), topic).get(0), "partition 0 has a leader", RECOVERY_SECONDS)


def coordinator_of_group(cluster: BrokerCluster, group: str) -> int:
    """The broker that coordinates the group."""
    request = FindCoordinatorRequest(key=group, key_type=0)

    def known() -> int | None:
        answer = call(any_port(cluster), ApiKey.FIND_COORDINATOR, 2, request)
        return answer.node_id if answer.error_code == 0 else None

    return wait_until(known, "the group has a coordinator", RECOVERY_SECONDS, cluster.log_tails)


def victim(cluster: BrokerCluster, workload: Workload, role: str) -> int:
    leader, controller = leader_of(cluster, workload.topic), controller_id(cluster)
    if role == "leader":
        return leader
    if role == "controller":
        return controller
    if role == "coordinator of the group":
        return coordinator_of_group(cluster, workload.group)
    return next(broker for broker in cluster.brokers if broker not in (leader, controller))


def kill(cluster: BrokerCluster, broker_id: int) -> None:
    """SIGKILL to a broker that runs: had it ended by itself, that would be the finding."""
    broker = cluster.brokers[broker_id]
    assert broker.process.is_running, f"it has ended by itself: {broker.log_tail()}"
    broker.kill()


def kill_coordinator(cluster: BrokerCluster) -> None:
    assert cluster.coordinator.is_running, f"it has ended by itself: {cluster.coordinator.log_tail()}"
    cluster.coordinator.kill()


def kill_and_restart(cluster: BrokerCluster, broker_id: int, between: Callable[[], None]) -> None:
    kill(cluster, broker_id)
    between()
    cluster.brokers[broker_id].start()


@pytest.mark.timeout(400)
def test_loses_nothing_when_each_role_is_killed_in_turn(cluster: BrokerCluster) -> None:
    with workload_on(cluster) as workload:
        for role in ROLES:
            broker_id = victim(cluster, workload, role)
            kill_and_restart(cluster, broker_id, lambda: progress(workload, 500))
            wait_until_whole(cluster, workload.topic, PARTITIONS)
        kill_coordinator(cluster)
        progress(workload, 200)
        cluster.coordinator.start()
        progress(workload, 500)


@pytest.mark.timeout(600)
def test_loses_nothing_when_anything_is_killed_at_random(cluster: BrokerCluster) -> None:
    source = random.Random(SEED)
    print(f"repeat with BARNABAS_FAILURE_SEED={SEED}")
    with workload_on(cluster) as workload:
        deadline = time.monotonic() + RANDOM_SECONDS
        while time.monotonic() < deadline:
            broker_id = source.choice([*cluster.brokers, *cluster.brokers, None])
            records = source.randrange(50, 400)
            if broker_id is None:
                kill_coordinator(cluster)
                progress(workload, records)
                cluster.coordinator.start()
            else:
                kill_and_restart(cluster, broker_id, lambda: progress(workload, records))  # noqa: B023
            wait_until_whole(cluster, workload.topic, PARTITIONS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("role", ["controller", *by_night(OTHER_ROLE, "other")] if LONG else ["controller"])
def test_elects_new_leaders_as_soon_as_the_session_expires(cluster: BrokerCluster, role: str) -> None:
    with workload_on(cluster) as workload:
        # When the controller itself dies, a new one is elected first.
        controller = controller_id(cluster)
        broker_id = controller if role == "controller" else next(each for each in cluster.brokers if each != controller)
        kill(cluster, broker_id)
        # The session expires so long after the broker's last ping, which was no later than the kill.
        killed = time.monotonic()

        def others_lead() -> bool:
            found = leaders(any_port(cluster), workload.topic)
            return len(found) == PARTITIONS and broker_id not in found.values()

        wait_until(others_lead, "the others lead", RECOVERY_SECONDS, cluster.log_tails)
        took = time.monotonic() - killed
        print(f"led by others after {took * 1000:.0f} ms")
        expired = SESSION_TIMEOUT_MS * cluster.expiry_granularity / 1_000
        assert took <= expired + where_others_work(LEADERS_AFTER_EXPIRY_SECONDS)
        cluster.brokers[broker_id].start()


@pytest.mark.skipif(
    not LONG, reason="test_up stops brokers in order; here it takes a cluster under load: make test-cluster"
)
@pytest.mark.timeout(300)
def test_a_rolling_restart_hands_the_leaders_over_before_it_stops_a_broker(cluster: BrokerCluster) -> None:
    with workload_on(cluster) as workload:
        for broker_id, broker in cluster.brokers.items():
            assert broker.stop() == 0, broker.log_tail()
            # It had handed its leaders over, and what the controller has decided reaches the others a moment later.
            assert "Controlled shutdown completed" in broker.log_path.read_text("utf-8")
            wait_until(
                lambda: (
                    len(found := leaders(any_port(cluster), workload.topic)) == PARTITIONS
                    and broker_id not in found.values()  # noqa: B023
                ),
                "the others lead",
                RECOVERY_SECONDS,
                cluster.log_tails,
            )
            progress(workload, 100)
            broker.start()
            wait_until_whole(cluster, workload.topic, PARTITIONS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("role", ["controller", *by_night(OTHER_ROLE, "leader")] if LONG else ["controller"])
def test_a_broker_that_sleeps_past_its_session_is_fenced_and_rejoins(cluster: BrokerCluster, role: str) -> None:
    with workload_on(cluster) as workload:
        broker_id = victim(cluster, workload, role)
        sleeper = cluster.brokers[broker_id]
        sleeper.process.suspend()
        try:
            awake = next(broker for each, broker in cluster.brokers.items() if each != broker_id)

            def others_lead() -> bool:
                found = leaders(awake.port, workload.topic)
                return len(found) == PARTITIONS and broker_id not in found.values()

            wait_until(others_lead, "the others lead", RECOVERY_SECONDS, cluster.log_tails)
            progress(workload, 300)
        finally:
            sleeper.process.resume()
        wait_until_whole(cluster, workload.topic, PARTITIONS)


@pytest.mark.timeout(300)
def test_the_last_broker_of_an_isr_dies_and_returns_with_everything(cluster: BrokerCluster) -> None:
    topic = f"topic-{uuid.uuid4()}"
    create_topic(any_port(cluster), topic, 1, BROKERS, **{"min.insync.replicas": "1"})
    wait_until_led(cluster, topic, 1)
    workload = Workload(cluster.bootstrap_servers, topic, 1)
    workload.start()
    try:
        progress(workload, 300)
        last = leader_of(cluster, topic)
        others = [each for each in cluster.brokers if each != last]
        for each in others:
            kill(cluster, each)

        def is_alone() -> bool:
            (found,) = metadata(cluster.brokers[last].port, [topic]).topics
            return list(found.partitions[0].isr_nodes) == [last]

        wait_until(is_alone, "the last one is the whole ISR", RECOVERY_SECONDS, cluster.log_tails)
        progress(workload, 300)
        kill(cluster, last)
        for each in others:
            cluster.brokers[each].start(wait=False)
        # Those that are out of the ISR lack records: they must not lead.
        port = cluster.brokers[others[0]].port
        wait_until(lambda: len(metadata(port).brokers) == 2, "the others are back", RECOVERY_SECONDS, cluster.log_tails)
        assert not leaders(port, topic)
        cluster.brokers[last].start()
        wait_until_whole(cluster, topic, 1)
        workload.finish()
    finally:
        workload.abandon()


@pytest.mark.timeout(300)
def test_everything_is_killed_at_once_and_comes_back(cluster: BrokerCluster) -> None:
    with workload_on(cluster) as workload:
        for broker_id in cluster.brokers:
            kill(cluster, broker_id)
        kill_coordinator(cluster)
        cluster.coordinator.start()
        for broker in cluster.brokers.values():
            broker.start(wait=False)
        for broker in cluster.brokers.values():
            broker.wait_until_ready()
        progress(workload, 500)
