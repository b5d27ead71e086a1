"""`barnabas cluster health`: each thing that can be wrong is told, with what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from barnabas.client.admin import ConfigEntry
from barnabas.client.cluster_health import Observed, Severity, diagnose
from barnabas.client.errors import ClientTimeoutError
from barnabas.client.reassignments import PartitionReassignment
from barnabas.link.errors import UnsupportedVersionError
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import FakeCluster, partition, topic

Barnabas = Callable[..., Done]


def kinds(observed: Observed) -> list[str]:
    return [problem.kind for problem in diagnose(observed)]


def test_nothing_is_wrong() -> None:
    topics = {"flights": topic("flights", partition(1), partition(2, (2, 3, 1)))}
    assert diagnose(Observed(topics, {1, 2, 3}, 1)) == []


def test_no_controller() -> None:
    (problem,) = diagnose(Observed({}, {1}, None))
    assert (problem.kind, problem.severity) == ("no_controller", Severity.CRITICAL)


def test_a_partition_without_leader_names_who_was_last_in_sync() -> None:
    topics = {"flights": topic("flights", partition(1), partition(-1, (2, 3), isr=(3,)))}
    (problem, gone) = diagnose(Observed(topics, {1, 2}, 1))[:2]
    assert (problem.kind, problem.partitions, problem.brokers) == (
        "without_leader",
        (TopicPartition("flights", 1),),
        (3,),
    )
    assert "start broker 3, the last in sync" in problem.advice
    assert (gone.kind, gone.brokers) == ("broker_gone", (3,))


def test_too_few_in_sync_is_worse_than_behind() -> None:
    topics = {"flights": topic("flights", *[partition(1, isr=(1,))] * 7)}
    refused, behind = diagnose(Observed(topics, {1, 2, 3}, 1, {"flights": 2}))
    assert (refused.kind, refused.severity) == ("under_min_isr", Severity.CRITICAL)
    assert refused.what.startswith("flights-0, flights-1, flights-2, flights-3, flights-4 and 2 more: fewer")
    assert (behind.kind, behind.severity, behind.brokers) == ("under_replicated", Severity.WARNING, (2, 3))
    assert "disk and network of brokers 2, 3" in behind.advice
    assert kinds(Observed(topics, {1, 2, 3}, 1, {"flights": 1})) == ["under_replicated"]


def test_replicas_that_a_reassignment_is_making_are_not_behind() -> None:
    """As Apache Kafka's tools and metrics have it: a broker that is being filled is no fault of its disk or network."""
    topics = {"flights": topic("flights", partition(1, (3, 1, 2), isr=(1, 2)), partition(1, (3, 1, 2), isr=(1,)))}
    moves = {TopicPartition("flights", number): (3,) for number in (0, 1)}
    (behind,) = diagnose(Observed(topics, {1, 2, 3}, 1, adding=moves))
    assert (behind.partitions, behind.brokers) == ((TopicPartition("flights", 1),), (2,))
    assert "whether `barnabas reassign status` shows throttles that were left" in behind.advice


def test_what_is_refused_while_replicas_are_made_names_all_that_are_missing() -> None:
    """Brokers count a replica that is being made among those of which min.insync.replicas may ask for."""
    topics = {"flights": topic("flights", partition(1, (3, 1), isr=(1,)), partition(2, (2, 4), isr=(2,)))}
    moves = {TopicPartition("flights", 0): (3,)}
    refused, behind = diagnose(Observed(topics, {1, 2, 3, 4}, 1, {"flights": 2}, adding=moves))
    assert (refused.kind, refused.brokers) == ("under_min_isr", (3, 4))
    assert (behind.kind, behind.brokers) == ("under_replicated", (4,))


def test_who_brings_replicas_back_is_of_the_partitions_that_refuse() -> None:
    topics = {"flights": topic("flights", partition(1, (1, 2, 3), isr=(1,)), partition(1, (1, 4, 5), isr=(1, 4)))}
    refused, behind = diagnose(Observed(topics, {1, 2, 3, 4, 5}, 1, {"flights": 2}))
    assert (refused.brokers, behind.brokers) == ((2, 3), (2, 3, 5))


def test_min_isr_is_never_more_than_there_are_replicas() -> None:
    topics = {"flights": topic("flights", partition(1, (1,)))}
    assert kinds(Observed(topics, {1}, 1, {"flights": 2})) == []


def test_brokers_and_directories() -> None:
    observed = Observed({}, {1, 2}, 1, {}, [2], [(1, "/data", "KAFKA_STORAGE_ERROR")])
    assert [(each.kind, each.brokers) for each in diagnose(observed)] == [
        ("broker_silent", (2,)),
        ("log_directory", (1,)),
    ]


def test_leaders_elsewhere_count_past_a_tenth() -> None:
    home, away = partition(1, (1, 2)), partition(2, (1, 2))
    topics = {"flights": topic("flights", *[home] * 9, away)}
    assert kinds(Observed(topics, {1, 2}, 1)) == []
    topics = {"flights": topic("flights", *[home] * 8, away, away)}
    (problem,) = diagnose(Observed(topics, {1, 2}, 1))
    assert problem.what == "broker 1 leads 8 of the 10 partitions that it is preferred for"
    # What cannot lead now is no imbalance.
    topics = {"flights": topic("flights", partition(2, (1, 2), isr=(2,)))}
    assert "leader_imbalance" not in kinds(Observed(topics, {1, 2}, 1))


def test_the_command_ends_with_1_where_something_is_wrong(cluster: FakeCluster, barnabas: Barnabas) -> None:
    cluster.add(topic("flights", partition(1, (1, 2), isr=(1,))))
    cluster.configs["flights"] = [
        ConfigEntry("min.insync.replicas", "2", 4, is_read_only=False, is_sensitive=False),
    ]
    done = barnabas("cluster", "health")
    assert (done.status, done.errors) == (1, "barnabas cluster health: 2 problems\n")
    assert done.rows[1].startswith("critical flights-0: fewer replicas in sync than min.insync.replicas")
    done = barnabas("cluster", "health", "--json")
    found = json.loads(done.output)["problems"]
    assert [(each["kind"], each["partitions"], each["brokers"]) for each in found] == [
        ("under_min_isr", [{"topic": "flights", "partition": 0}], [2]),
        ("under_replicated", [{"topic": "flights", "partition": 0}], [2]),
    ]


def test_the_command_asks_the_controller_what_is_being_moved(cluster: FakeCluster, barnabas: Barnabas) -> None:
    cluster.add(topic("flights", partition(1, (3, 1), isr=(1,))))
    assert barnabas("cluster", "health").status == 1
    cluster.reassignments = {TopicPartition("flights", 0): PartitionReassignment((3, 1), (3,), ())}
    assert barnabas("cluster", "health") == Done(0, "All is well: 3 brokers, 1 partition.\n", "")
    # Who may not ask, or is not answered, is told as ever.
    refused = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    for error in (refused, ClientTimeoutError("nobody answers"), UnsupportedVersionError("too old")):
        cluster.reassignments_error = error
        assert "flights-0: replicas are behind" in barnabas("cluster", "health").output


def test_the_command_on_a_whole_cluster(cluster: FakeCluster, barnabas: Barnabas) -> None:
    cluster.add(topic("flights", partition(1)))
    assert barnabas("cluster", "health") == Done(0, "All is well: 3 brokers, 1 partition.\n", "")
    cluster.cluster = replace(cluster.cluster, controller_id=-1)
    assert "no broker is controller" in barnabas("cluster", "health").output


def test_the_imbalance_is_the_controllers_own(cluster: FakeCluster, barnabas: Barnabas) -> None:
    home, away = partition(1, (1, 2)), partition(2, (1, 2))
    cluster.add(topic("flights", *[home] * 8, away, away))
    assert "leads 8 of the 10" in barnabas("cluster", "health").output
    name = "leader.imbalance.per.broker.percentage"
    cluster.configs["2"] = [ConfigEntry(name, "20", 5, is_read_only=True, is_sensitive=False)]
    assert barnabas("cluster", "health").status == 0


def test_long_names_leave_room_for_what_to_do() -> None:
    topics = {"t" * 249: topic("t" * 249, *[partition(1, isr=(1,))] * 9)}
    (behind,) = diagnose(Observed(topics, {1, 2, 3}, 1))
    assert behind.what == f"{'t' * 60}...-0, {'t' * 60}...-1 and 7 more: replicas are behind"
    assert len(behind.partitions) == 9
