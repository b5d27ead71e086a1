"""Administration of a cluster of Barnabas and Apache Kafka 3.9.1 by Apache Kafka's tools and by ours, either kind being
the controller: partitions go from brokers of one kind to those of the other with every byte that they had.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.interop.test_mixed_cluster import create_assigned_topic, wait_until_equal
from tests.support.admin_command_suite import configs
from tests.support.apache_kafka import (
    CONFIG_COMMAND,
    LEADER_ELECTION_COMMAND,
    LOG_DIRS_COMMAND,
    REASSIGN_COMMAND,
    TOPIC_COMMAND,
    ToolRun,
    tool_run,
)
from tests.support.by_night import by_night
from tests.support.command_suite import barnabas, fill_in_batches
from tests.support.mixed_cluster import ALL_IDS, IDS, Kind, MixedCluster, mixed_cluster
from tests.support.waiting import wait_until

OVERRIDES: Final = {
    "zookeeper.session.timeout.ms": 9_000,
    # A copy is made of many pieces, so that a throttle holds it back after the first.
    "replica.fetch.max.bytes": 65_536,
}
AGAIN: Final = "20 to 40 s for each, and no commit says that one has found anything"


def kinds(by_day: Kind) -> pytest.MarkDecorator:
    """Of the controller: this one by day, by night both."""
    return pytest.mark.parametrize("kind", [by_day, *by_night(AGAIN, by_day.other)], ids=lambda kind: kind.value)


PATIENCE_SECONDS: Final = 90.0
BATCHES: Final = 20
BATCH_BYTES: Final = 100_000
FAST: Final = "50000000"
SLOW: Final = "1000"
OURS: Final = (1, 2)
THEIRS: Final = (11, 12)


@pytest.fixture(scope="module")
def cluster(oracle_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    directory = tmp_path_factory.mktemp("mixed-administration")
    with mixed_cluster(directory, coordinator="zookeeper", overrides=OVERRIDES) as running:
        yield running


def address(cluster: MixedCluster, broker_id: int) -> str:
    return f"127.0.0.1:{cluster.port(broker_id)}"


def tool(cluster: MixedCluster, asked: int, main_class: str, *arguments: str) -> ToolRun:
    """One of Apache Kafka's tools, told of this broker."""
    return tool_run(main_class, ["--bootstrap-server", address(cluster, asked), *arguments])


def plan(directory: Path, topic: str, replicas: Sequence[int]) -> str:
    """A file with these brokers of partition 0."""
    entry = {"topic": topic, "partition": 0, "replicas": list(replicas)}
    path = directory / f"{topic}-{'-'.join(map(str, replicas))}.json"
    path.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    return str(path)


def assignment(cluster: MixedCluster, topic: str) -> tuple[Any, Any, Any]:
    """The replicas of partition 0, and which of them come and go."""
    found = cluster.znode(f"/brokers/topics/{topic}")
    return found["partitions"]["0"], found["adding_replicas"].get("0"), found["removing_replicas"].get("0")


def wait_until_moved(cluster: MixedCluster, topic: str, replicas: Sequence[int]) -> bytes:
    """Waits until these and no other are replicas of partition 0, in sync and alike; returns their bytes."""
    wait_until(
        lambda: assignment(cluster, topic) == (list(replicas), None, None),
        f"{topic}-0 is at {replicas}",
        PATIENCE_SECONDS,
        cluster.log_tails,
    )
    cluster.wait_until_whole(topic)
    gone = [each for each in ALL_IDS if each not in replicas]
    wait_until(
        lambda: not any((cluster.data_directory(each) / f"{topic}-0").exists() for each in gone),
        f"{topic}-0 is at no other broker",
        PATIENCE_SECONDS,
    )
    return wait_until_equal(cluster, topic, 0, replicas)


def throttled(cluster: MixedCluster, topic: str) -> set[str]:
    """What is set of throttles in the coordinator, at the topic and at brokers."""
    paths = (f"/config/topics/{topic}", *(f"/config/brokers/{each}" for each in ALL_IDS))
    found = (cluster.znode(path) or {"config": {}} for path in paths)
    return {name for each in found for name in each["config"] if ".replication.throttled." in name}


@pytest.mark.timeout(900)
@kinds(Kind.BARNABAS)
def test_partitions_go_to_the_other_kind_and_back(cluster: MixedCluster, kind: Kind, tmp_path: Path) -> None:
    cluster.move_controller(IDS[kind][0])
    topic = f"moved-under-{kind.value}"
    create_assigned_topic(cluster, topic, [OURS])
    fill_in_batches(address(cluster, 1), topic, BATCHES, BATCH_BYTES)
    before = wait_until_equal(cluster, topic, 0, OURS)
    assert len(before) > BATCHES * BATCH_BYTES

    # By Kafka's tool, which is told of a broker of ours: cancelled first, then done.
    there = plan(tmp_path, topic, THEIRS)
    done = tool(cluster, 2, REASSIGN_COMMAND, "--reassignment-json-file", there, "--execute", "--throttle", SLOW)
    assert (done.status, f"Successfully started partition reassignment for {topic}-0" in done.output) == (0, True), done
    done = tool(cluster, 12, REASSIGN_COMMAND, "--reassignment-json-file", there, "--verify", "--preserve-throttles")
    assert f"Reassignment of partition {topic}-0 is still in progress." in done.output, done
    listed = [tool(cluster, each, REASSIGN_COMMAND, "--list") for each in (1, 11)]
    assert listed[0] == listed[1]
    assert f"{topic}-0: replicas: 11,12,1,2. adding: 11,12. removing: 1,2." in listed[0].output
    done = tool(cluster, 11, REASSIGN_COMMAND, "--reassignment-json-file", there, "--cancel")
    assert (done.status, f"Successfully cancelled partition reassignment for: {topic}-0" in done.output) == (0, True), (
        done
    )
    assert wait_until_moved(cluster, topic, OURS) == before
    assert throttled(cluster, topic) == set()

    done = tool(cluster, 1, REASSIGN_COMMAND, "--reassignment-json-file", there, "--execute", "--throttle", FAST)
    assert done.status == 0, done
    assert wait_until_moved(cluster, topic, THEIRS) == before
    assert throttled(cluster, topic) != set()
    done = tool(cluster, 2, REASSIGN_COMMAND, "--reassignment-json-file", there, "--verify")
    assert f"Reassignment of partition {topic}-0 is completed." in done.output, done
    assert "Clearing broker-level throttles on brokers 1,2,11,12" in done.output
    assert throttled(cluster, topic) == set()

    # By our command, which is told of a broker of Apache Kafka's. What was written there comes along.
    fill_in_batches(address(cluster, 11), topic, 1, BATCH_BYTES)
    grown = wait_until_equal(cluster, topic, 0, THEIRS)
    assert (grown.startswith(before), len(grown) > len(before) + BATCH_BYTES) == (True, True)
    back = plan(tmp_path, topic, OURS)
    ours = barnabas(address(cluster, 11), "reassign", "execute", back, "--throttle", "50MiB")
    assert ours.status == 0, ours.errors
    assert wait_until_moved(cluster, topic, OURS) == grown
    wait_until(lambda: throttled(cluster, topic) == set(), "the throttles are gone", PATIENCE_SECONDS)


@pytest.mark.timeout(900)
@kinds(Kind.APACHE_KAFKA)
def test_preferred_leaders_are_elected(cluster: MixedCluster, kind: Kind, tmp_path: Path) -> None:
    cluster.move_controller(IDS[kind][0])
    topic = f"elected-under-{kind.value}"
    create_assigned_topic(cluster, topic, [(1, 11)])
    one = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    for preferred, other, asked in ((11, 1, 2), (1, 11, 12)):
        done = barnabas(address(cluster, asked), "reassign", "execute", plan(tmp_path, topic, (preferred, other)))
        assert done.status == 0, done.errors
        assert cluster.leader(topic) == other
        if asked == 2:
            elected = tool(cluster, asked, LEADER_ELECTION_COMMAND, *one)
            assert elected.status == 0, elected
            words = f"Successfully completed leader election (PREFERRED) for partitions {topic}-0"
            assert words in elected.output
        else:
            done = barnabas(address(cluster, asked), "elect", "preferred", "--topic", topic)
            assert done.status == 0, done.errors
        wait_until(lambda: cluster.leader(topic) == preferred, f"{preferred} leads", PATIENCE_SECONDS)  # noqa: B023
    again = [tool(cluster, each, LEADER_ELECTION_COMMAND, *one) for each in (1, 11)]
    assert again[0] == again[1]
    assert f"Valid replica already elected for partitions {topic}-0" in again[0].output


@pytest.mark.timeout(900)
@kinds(Kind.BARNABAS)
def test_topics_and_configs_are_told_alike_by_both_kinds(cluster: MixedCluster, kind: Kind) -> None:
    cluster.move_controller(IDS[kind][0])
    topic = f"told-under-{kind.value}"

    def both(main_class: str, *arguments: str) -> str:
        """What the tool prints, told of a broker of either kind: the same."""
        said: list[ToolRun] = []

        def same() -> bool:
            said[:] = [tool(cluster, each, main_class, *arguments) for each in (1, 11)]
            return said[0] == said[1]

        wait_until(same, f"{arguments} is answered alike", PATIENCE_SECONDS, lambda: str(said))
        assert said[0].status == 0, said
        return said[0].output

    options = ("--partitions", "2", "--replication-factor", "4", "--config", "retention.ms=1000000")
    done = tool(cluster, 11, TOPIC_COMMAND, "--create", "--topic", topic, *options)
    assert (done.status, done.output) == (0, f"Created topic {topic}.\n"), done
    cluster.wait_until_whole(topic)  # before another broker is asked for it
    done = tool(cluster, 2, TOPIC_COMMAND, "--alter", "--topic", topic, "--partitions", "5")
    assert done.status == 0, done
    cluster.wait_until_whole(topic)
    assert "PartitionCount: 5\tReplicationFactor: 4" in both(TOPIC_COMMAND, "--describe", "--topic", topic)
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    done = tool(cluster, 1, CONFIG_COMMAND, "--alter", *of_topic, "--add-config", "cleanup.policy=compact")
    assert done.status == 0, done
    described = both(CONFIG_COMMAND, "--describe", *of_topic)
    assert ("cleanup.policy=compact" in described, "retention.ms=1000000" in described) == (True, True)
    assert topic in both(LOG_DIRS_COMMAND, "--describe", "--topic-list", topic)

    # Of all brokers, and of one: told to a broker of either kind, in force at both kinds.
    size = {Kind.BARNABAS: "2000001", Kind.APACHE_KAFKA: "2000002"}[kind]
    for asked, resource, in_force in (
        (IDS[kind][0], ("--entity-default",), ALL_IDS),
        (2, ("--entity-name", "12"), (12,)),
    ):
        for change in (("--add-config", f"message.max.bytes={size}"), ("--delete-config", "message.max.bytes")):
            done = tool(cluster, asked, CONFIG_COMMAND, "--alter", "--entity-type", "brokers", *resource, *change)
            assert done.status == 0, done
            wanted = change[0] == "--add-config"
            wait_until(
                lambda: all(
                    (configs(address(cluster, each), f"broker:{each}").get("message.max.bytes", ("",))[0] == size)
                    == wanted  # noqa: B023
                    for each in in_force  # noqa: B023
                ),
                f"{change} is in force at {in_force}",
                PATIENCE_SECONDS,
            )
    done = tool(cluster, 12, TOPIC_COMMAND, "--delete", "--topic", topic)
    assert done.status == 0, done
    wait_until(lambda: not cluster.children("/admin/delete_topics"), "the topic is deleted", PATIENCE_SECONDS)
    assert topic not in [*cluster.children("/brokers/topics"), *cluster.children("/config/topics")]
    assert topic not in both(TOPIC_COMMAND, "--list").splitlines()
