"""`barnabas topic`: what people and programs are told, and what the cluster is asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from barnabas.cli.topic import PartitionHealth
from barnabas.client.admin import ConfigEntry
from barnabas.kernel.ids import Uuid
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import FakeCluster, partition, topic

Barnabas = Callable[..., Done]
TOPIC_ID = bytes(range(16))


@pytest.fixture
def flights(cluster: FakeCluster) -> FakeCluster:
    """A topic with one partition of each health, and an internal one."""
    cluster.add(
        topic(
            "flights",
            partition(1, epoch=4),
            partition(2, isr=(2, 3)),
            partition(3, isr=(3,)),
            partition(-1, isr=(1,)),
            topic_id=TOPIC_ID,
        ),
        topic("__consumer_offsets", partition(1), is_internal=True),
    )
    cluster.configs["flights"] = [
        ConfigEntry("retention.ms", "1000", 1, is_read_only=False, is_sensitive=False),
        ConfigEntry("min.insync.replicas", "2", 4, is_read_only=False, is_sensitive=False),
        ConfigEntry("cleanup.policy", "delete", 5, is_read_only=False, is_sensitive=False),
    ]
    return cluster


def test_list_shows_what_is_wrong(flights: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("topic", "list")
    assert (done.status, done.errors) == (0, "")
    assert [line.split() for line in done.output.splitlines()] == [
        ["Topic", "Partitions", "Replicas", "Under-replicated", "No", "leader"],
        ["__consumer_offsets", "1", "3", "0", "0"],
        ["flights", "4", "3", "3", "1"],
    ]


def test_list_for_programs(flights: FakeCluster, barnabas: Barnabas) -> None:
    assert barnabas("topic", "list", "--exclude-internal", "--json").document == {
        "topics": [
            {
                "name": "flights",
                "id": str(Uuid(TOPIC_ID)),
                "is_internal": False,
                "partitions": 4,
                "replication_factor": 3,
                "under_replicated": 3,
                "without_leader": 1,
            }
        ]
    }


def test_a_cluster_without_topics_is_no_error(cluster: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("topic", "list")
    assert (done.status, done.output) == (0, "")
    assert "barnabas topic create NAME" in done.errors
    assert barnabas("topic", "list", "--json").document == {"topics": []}


def test_describe_shows_partitions_and_own_configs(flights: FakeCluster, barnabas: Barnabas) -> None:
    lines = barnabas("topic", "describe", "flights").output.splitlines()
    assert lines[0].split() == ["Topic", "flights"]
    assert lines[1].split() == ["Id", str(Uuid(TOPIC_ID))]
    assert lines[3].split() == ["Configs", "retention.ms=1000"]
    assert [" ".join(line.split()) for line in lines[5:]] == [
        "0 1 4 1,2,3 1,2,3 - ok",
        "1 2 0 1,2,3 2,3 1 under-replicated",
        "2 3 0 1,2,3 3 1,2 too few in sync",
        "3 - 0 1,2,3 1 2,3 no leader",
    ]


def test_describe_for_programs(flights: FakeCluster, barnabas: Barnabas) -> None:
    (found,) = barnabas("topic", "describe", "flights", "--json").document["topics"]
    partitions = found.pop("partitions")
    assert found == {
        "name": "flights",
        "id": str(Uuid(TOPIC_ID)),
        "is_internal": False,
        "replication_factor": 3,
        "configs": {"retention.ms": "1000"},
    }
    assert partitions[0] == {
        "partition": 0,
        "leader": 1,
        "leader_epoch": 4,
        "replicas": [1, 2, 3],
        "isr": [1, 2, 3],
        "offline_replicas": [],
        "state": "ok",
    }
    assert partitions[3]["leader"] is None
    assert [each["state"] for each in partitions] == ["ok", "under_replicated", "under_min_isr", "without_leader"]


def test_describe_takes_names_and_patterns_each_topic_once(flights: FakeCluster, barnabas: Barnabas) -> None:
    def found(*names: str) -> list[str]:
        return [each["name"] for each in barnabas("topic", "describe", "--json", *names).document["topics"]]

    assert found("fl*", "flights") == ["flights"]
    assert found("flights", "__consumer_offset?") == ["__consumer_offsets", "flights"]
    assert found() == ["__consumer_offsets", "flights"]


def test_describe_shows_what_is_there_and_names_what_is_not(flights: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("topic", "describe", "nothing", "flights", "q*")
    assert done.status == 4
    assert "no leader" in done.output
    assert done.errors == (
        "barnabas topic describe: there are no topics q*, nothing; `barnabas topic list` shows which there are\n"
    )


def test_a_partition_with_fewer_replicas_than_min_isr_has_enough_with_all() -> None:
    assert PartitionHealth.of(partition(1, (1,)), min_isr=2) is PartitionHealth.OK


def test_create_asks_for_what_was_said_and_waits(cluster: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas(
        *("topic", "create", "flights", "--partitions", "6", "--replication-factor", "3"),
        *("--config", "retention.ms=5", "--config", "cleanup.policy=compact,delete"),
    )
    assert (done.status, done.errors) == (0, "")
    assert done.output == "Created topic flights: 6 partitions, 3 replicas each.\n"
    (made,) = cluster.created
    assert (made.partitions, made.replication_factor) == (6, 3)
    assert made.configs == {"retention.ms": "5", "cleanup.policy": "compact,delete"}
    assert cluster.waited_for == [("flights",)]


def test_create_leaves_the_rest_to_the_brokers(cluster: FakeCluster, barnabas: Barnabas) -> None:
    found = barnabas("topic", "create", "a", "b", "--json").document
    assert [(each["name"], each["partitions"], each["is_new"]) for each in found["topics"]] == [
        ("a", 1, True),
        ("b", 1, True),
    ]
    assert [(made.partitions, made.replication_factor) for made in cluster.created] == [(-1, -1), (-1, -1)]


def test_create_of_what_is_there(flights: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("topic", "create", "flights")
    assert done.status == 1
    assert done.errors == (
        "barnabas topic create: there is already a topic flights; choose another name, or add "
        "--if-not-exists to leave it as it is\n"
    )
    done = barnabas("topic", "create", "flights", "--if-not-exists")
    assert (done.status, done.errors) == (0, "")
    assert done.output == "There is already topic flights: 4 partitions, 3 replicas each.\n"


def test_one_topic_that_fails_does_not_stop_the_others(cluster: FakeCluster, barnabas: Barnabas) -> None:
    cluster.add(topic("b", partition(1)))
    done = barnabas("topic", "create", "a", "b", "c")
    assert done.status == 1
    assert [made.name for made in cluster.created] == ["a", "c"]
    assert "there is already a topic b" in done.errors
    done = barnabas("topic", "create", "d", "e", "--replication-factor", "4")
    assert done.errors.splitlines() == [
        f"barnabas topic create: {name}: too few brokers (INVALID_REPLICATION_FACTOR)" for name in "de"
    ]


@pytest.mark.parametrize(
    "arguments",
    [(), ("a", "--config", "retention.ms"), ("a", "--config", "=5"), ("a", "--partitions", "0")],
)
def test_create_written_wrongly_asks_nobody(
    cluster: FakeCluster, barnabas: Barnabas, arguments: tuple[str, ...]
) -> None:
    assert barnabas("topic", "create", *arguments).status == 2
    assert cluster.created == []


def test_delete_waits_until_they_are_gone(flights: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("topic", "delete", "flights")
    assert (done.status, done.output, done.errors) == (0, "Deleted topic flights.\n", "")
    assert (flights.deleted, flights.waited_for) == (["flights"], [("flights",)])


def test_delete_of_what_is_not_there(flights: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("topic", "delete", "nothing", "flights")
    assert (done.status, flights.deleted) == (4, ["flights"])
    assert "there is no topic nothing" in done.errors
    done = barnabas("topic", "delete", "nothing", "--if-exists", "--json")
    assert (done.status, done.document) == (0, {"deleted": [], "missing": ["nothing"]})


def test_delete_of_an_internal_topic_needs_force(flights: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("topic", "delete", "__consumer_offsets", "__transaction_state", "flights", "--json")
    assert (done.status, flights.deleted) == (1, ["flights"])
    assert done.output == '{"deleted":["flights"],"missing":[]}\n'
    assert "__consumer_offsets is internal, and has what every consumer group has committed" in done.errors
    assert done.errors.count("delete it with --force") == 2


def test_delete_that_is_refused(flights: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("topic", "delete", "__consumer_offsets", "--force")
    assert done.status == 1
    assert done.errors == "barnabas topic delete: __consumer_offsets: it is internal (INVALID_TOPIC_EXCEPTION)\n"
