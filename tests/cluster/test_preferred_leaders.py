"""Three broker processes: the leader of some partitions dies by kill -9 and comes back, and leads them again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ElectLeadersRequest
from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.waiting import wait_until
from tests.support.wire_calls import call, controller_port, create_topic, metadata

BROKERS = 3
PARTITIONS = 6
TOPIC = "balanced"
INTERVAL_SECONDS = 5
PATIENCE_SECONDS = 60.0


def partitions_at(port: int) -> list[Any]:
    return sorted(metadata(port, [TOPIC]).topics[0].partitions, key=lambda each: each.partition_index)


def is_whole(cluster: BrokerCluster) -> bool:
    """Every broker knows every replica in sync."""
    return all(
        [len(each.isr_nodes) for each in partitions_at(broker.port)] == [BROKERS] * PARTITIONS
        for broker in cluster.brokers.values()
    )


def is_balanced(cluster: BrokerCluster) -> bool:
    """Every broker knows the preferred leader of each partition as its leader."""
    return all(
        [each.leader_id for each in found] == [each.replica_nodes[0] for each in found]
        for found in map(partitions_at, [broker.port for broker in cluster.brokers.values()])
    )


def wait_for(cluster: BrokerCluster, condition: Any, what: str) -> None:
    wait_until(lambda: condition(cluster), what, PATIENCE_SECONDS, cluster.log_tails)


def lose_a_leader(cluster: BrokerCluster) -> list[int]:
    """A broker that leads and is not the controller is killed, replaced and started again; returns the partitions that
    it is to lead.
    """
    port = controller_port(next(iter(cluster.brokers.values())).port)
    create_topic(port, TOPIC, PARTITIONS, BROKERS)
    wait_for(cluster, is_whole, "all replicas are in sync")
    wait_for(cluster, is_balanced, "the first leaders are the preferred ones")
    victim = next(broker for broker in cluster.brokers.values() if broker.port != port)
    own = [each.partition_index for each in partitions_at(port) if each.replica_nodes[0] == victim.broker_id]
    assert own
    victim.kill()

    def are_replaced() -> bool:
        return all(partitions_at(port)[number].leader_id not in (-1, victim.broker_id) for number in own)

    wait_until(are_replaced, "others lead its partitions", PATIENCE_SECONDS, cluster.log_tails)
    victim.start()
    return own


@pytest.mark.timeout(300)
def test_a_leader_that_was_killed_leads_again_after_the_interval(tmp_path: Path) -> None:
    overrides = {"leader.imbalance.check.interval.seconds": INTERVAL_SECONDS}
    with broker_cluster(tmp_path, BROKERS, overrides=overrides) as cluster:
        lose_a_leader(cluster)
        wait_for(cluster, lambda each: is_whole(each) and is_balanced(each), "leadership is balanced again")
        cluster.check_that_none_exited_by_itself()


@pytest.mark.timeout(300)
def test_leadership_goes_back_at_once_when_somebody_asks(tmp_path: Path) -> None:
    overrides = {"auto.leader.rebalance.enable": "false"}
    with broker_cluster(tmp_path, BROKERS, overrides=overrides) as cluster:
        own = lose_a_leader(cluster)
        wait_for(cluster, is_whole, "it is in sync again")
        assert not is_balanced(cluster)
        controller = controller_port(next(iter(cluster.brokers.values())).port)
        other = next(broker.port for broker in cluster.brokers.values() if broker.port != controller)
        request = ElectLeadersRequest(topic_partitions=None, timeout_ms=30_000)
        assert codes(call(other, ApiKey.ELECT_LEADERS, 2, request)) == dict.fromkeys(
            range(PARTITIONS), ErrorCode.NOT_CONTROLLER
        )
        answer = call(controller, ApiKey.ELECT_LEADERS, 2, request, PATIENCE_SECONDS)
        assert codes(answer) == dict.fromkeys(own, ErrorCode.NONE)
        assert [each.leader_id for each in partitions_at(controller)] == [
            each.replica_nodes[0] for each in partitions_at(controller)
        ], "the answer comes when the controller's broker shows it"
        wait_for(cluster, is_balanced, "all brokers have heard")
        assert codes(call(controller, ApiKey.ELECT_LEADERS, 2, request)) == {}
        cluster.check_that_none_exited_by_itself()


def codes(response: Any) -> dict[int, int]:
    assert response.error_code == 0
    return {
        result.partition_id: result.error_code
        for topic in response.replica_election_results
        for result in topic.partition_result
    }
