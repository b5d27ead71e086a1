"""`kafka-topics`, `kafka-configs` and `kafka-leader-election` of Apache Kafka 3.9.1, against three brokers of ours and
three of Apache Kafka's: the same output, line by line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.interop.test_administration import NOT_ALIKE, OUR_OWN
from tests.support.apache_kafka import CONFIG_COMMAND, LEADER_ELECTION_COMMAND, TOPIC_COMMAND
from tests.support.command_suite import barnabas
from tests.support.tool_comparison import Command, Said, TwoClusters, two_clusters
from tests.support.waiting import wait_until
from tests.support.wire_calls import metadata

OVERRIDES: Final = {
    "auto.leader.rebalance.enable": "false",
    "auto.create.topics.enable": "false",
    "controlled.shutdown.retry.backoff.ms": "200",
    "default.replication.factor": "3",
    "num.partitions": "2",
    "min.insync.replicas": "2",
    "log.index.size.max.bytes": "1048576",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "3",
    "zookeeper.session.timeout.ms": "6000",
}
PATIENCE_SECONDS: Final = 90.0
ALL: Final = (1, 2, 3)


@pytest.fixture(scope="module")
def both(oracle_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoClusters]:
    with two_clusters(tmp_path_factory.mktemp("tools"), OVERRIDES) as clusters:
        yield clusters


def topics(*arguments: str) -> Command:
    return (TOPIC_COMMAND, *arguments)


def configs(*arguments: str) -> Command:
    return (CONFIG_COMMAND, *arguments)


def elect(kind: str, *arguments: str) -> Command:
    return (LEADER_ELECTION_COMMAND, "--election-type", kind, *arguments)


def wait_for(
    both: TwoClusters, names: Sequence[str], condition: Callable[[Any], bool], what: str, asked: Sequence[int] = ALL
) -> None:
    """Waits until each broker of `asked`, in both clusters, says of each partition of these topics what is wanted."""

    def says(port: int) -> bool:
        answer = metadata(port, list(names))
        return all(
            topic.error_code == 0 and all(condition(partition) for partition in topic.partitions)
            for topic in answer.topics
        )

    for servers in both.bootstrap_servers:
        for broker_id, server in enumerate(servers.split(","), 1):
            if broker_id in asked:
                port = int(server.rpartition(":")[2])
                wait_until(
                    lambda: says(port),  # noqa: B023 - called in this turn
                    f"broker {broker_id} of {servers} says: {what}",
                    PATIENCE_SECONDS,
                )


def is_whole(partition: Any) -> bool:
    """All replicas are in sync, and one leads."""
    return partition.leader_id >= 0 and len(partition.isr_nodes) == len(partition.replica_nodes)


def is_without(broker_id: int) -> Callable[[Any], bool]:
    """The broker leads nothing, and is in no ISR but alone."""

    def condition(partition: Any) -> bool:
        return partition.leader_id != broker_id and (
            partition.isr_nodes == [broker_id] or broker_id not in partition.isr_nodes
        )

    return condition


def json_file(path: Path, *partitions: tuple[str, int]) -> str:
    path.write_text(json.dumps({"partitions": [{"topic": name, "partition": number} for name, number in partitions]}))
    return str(path)


# kafka-topics.

DESCRIBE_OPTIONS: Final = (
    "--under-replicated-partitions",
    "--unavailable-partitions",
    "--under-min-isr-partitions",
    "--at-min-isr-partitions",
    "--topics-with-overrides",
)


@pytest.mark.timeout(1_800)
def test_topics_are_created_altered_and_deleted_with_the_same_words(both: TwoClusters) -> None:
    differing = both.differences(
        [
            topics("--create", "--topic", "plain"),
            topics("--create", "--topic", "plain"),
            topics("--create", "--topic", "plain", "--if-not-exists"),
            topics("--create", "--topic", "dot.ted", "--replica-assignment", "1:2:3", "--config", "retention.ms=5000"),
            topics("--create", "--topic", "dot_ted"),
            topics("--create", "--topic", "hand", "--replica-assignment", "1:2:3,2:3:1"),
            topics("--create", "--topic", "bad name"),
            topics("--create", "--topic", "x" * 250),
            topics("--create", "--topic", "t", "--partitions", "0"),
            topics("--create", "--topic", "t", "--replication-factor", "4"),
            topics("--create", "--topic", "t", "--config", "retention.ms=soon"),
            topics("--create", "--topic", "t", "--config", "nobody.knows=1"),
            topics("--create", "--topic", "t", "--replica-assignment", "1:1"),
            topics("--create", "--topic", "t", "--replica-assignment", "1:7"),
            topics("--create", "--topic", "t", "--replica-assignment", "1:2,1"),
            topics("--alter", "--topic", "plain", "--partitions", "4"),
            topics("--alter", "--topic", "plain", "--partitions", "4"),
            topics("--alter", "--topic", "plain", "--partitions", "3"),
            topics("--alter", "--topic", "nobody", "--partitions", "3"),
            topics("--alter", "--topic", "nobody", "--partitions", "3", "--if-exists"),
            topics("--alter", "--topic", "hand", "--partitions", "3", "--replica-assignment", "1:2:3,2:3:1,3:1:2"),
            topics("--alter", "--topic", "hand", "--partitions", "4", "--replica-assignment", "1:2:3,2:3:1"),
            topics("--alter", "--topic", "hand", "--partitions", "4", "--replica-assignment", "1:2:3,2:3:1,3:1:2,1:9"),
            topics("--list"),
            topics("--list", "--exclude-internal", "--topic", "(hand|plain)"),
        ]
    )
    wait_for(both, ["plain", "hand", "dot.ted"], is_whole, "all are in sync")
    differing += both.differences(
        [
            topics("--describe", "--topic", "hand"),
            topics("--describe", "--topic", "dot.ted|hand"),
            topics("--describe", "--topic", "nobody"),
            topics("--describe", "--topic", "nobody", "--if-exists"),
            topics("--describe", "--topic-id", "AAAAAAAAAAAAAAAAAAAAAQ"),
            topics("--describe", "--exclude-internal", "--topic", "hand"),
            *(topics("--describe", option) for option in DESCRIBE_OPTIONS),
            topics("--delete", "--topic", "nobody"),
            topics("--delete", "--topic", "nobody", "--if-exists"),
            topics("--delete", "--topic", "dot.*|plain"),
        ]
    )
    assert not differing, "\n".join(differing)


# kafka-configs.


@pytest.mark.timeout(1_800)
def test_configs_are_altered_and_described_with_the_same_words(both: TwoClusters) -> None:
    topic = ("--entity-type", "topics", "--entity-name", "configured")
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    default = ("--entity-type", "brokers", "--entity-default")
    logger = ("--entity-type", "broker-loggers", "--entity-name", "2")
    differing = both.differences(
        [
            topics("--create", "--topic", "configured", "--replica-assignment", "1:2:3"),
            configs(*topic, "--describe"),
            configs(*topic, "--alter", "--add-config", "retention.ms=9000,cleanup.policy=[compact,delete]"),
            configs(*topic, "--alter", "--add-config", "retention.ms=soon"),
            configs(*topic, "--alter", "--add-config", "retention.ms=-2"),
            configs(*topic, "--alter", "--add-config", "min.cleanable.dirty.ratio=2"),
            configs(*topic, "--alter", "--add-config", "compression.type=fast"),
            configs(*topic, "--alter", "--add-config", "cleanup.policy=[compact,burn]"),
            configs(*topic, "--alter", "--add-config", "unclean.leader.election.enable=perhaps"),
            configs(*topic, "--alter", "--add-config", "nobody.knows=1"),
            configs(*topic, "--alter", "--delete-config", "segment.ms"),
            configs(*topic, "--describe"),
            configs("--topic", "configured", "--describe", "--all"),
            configs(*topic, "--alter", "--delete-config", "retention.ms", "--add-config", "segment.ms=70000"),
            configs("--entity-type", "topics", "--describe"),
            configs("--topic", "nobody", "--describe"),
            configs("--topic", "nobody", "--alter", "--add-config", "retention.ms=1"),
            configs(*topic, "--alter", "--add-config", "retention.ms=99999999999999999999"),
            configs(*topic, "--alter", "--add-config", "min.insync.replicas=0,segment.bytes=100000"),
            configs(*default, "--alter", "--add-config", "log.retention.ms=5000000,log.segment.bytes=100000000"),
            configs(*default, "--describe"),
            configs(*broker, "--alter", "--add-config", "log.segment.bytes=200000000,log.cleaner.threads=2"),
            configs(*broker, "--describe"),
            configs("--broker", "1", "--describe"),
            configs(*broker, "--alter", "--add-config", "log.retention.ms=soon"),
            configs("--broker-defaults", "--alter", "--delete-config", "log.retention.ms"),
            configs("--broker-defaults", "--describe"),
            configs("--broker", "1", "--alter", "--delete-config", "log.segment.bytes,log.cleaner.threads"),
            configs("--entity-type", "brokers", "--describe"),
            configs("--topic", "configured", "--describe"),
            configs(*logger, "--alter", "--add-config", "kafka.controller.KafkaController=WARN"),
            configs(*logger, "--alter", "--add-config", "kafka.controller.KafkaController=LOUD"),
            configs(*logger, "--alter", "--add-config", "nobody=WARN"),
            configs(*logger, "--alter", "--delete-config", "root"),
        ]
    )
    controller_log = "kafka.controller.KafkaController"
    differing += both.differences([configs(*logger, "--describe")], lambda line: controller_log in line)
    differing += both.differences(
        [
            configs("--broker-logger", "2", "--alter", "--delete-config", controller_log),
            configs(*broker, "--describe", "--all"),
        ],
        is_alike,
    )
    assert not differing, "\n".join(differing)
    for refused in (
        configs(*broker, "--alter", "--add-config", "log.dirs=/x"),  # Kafka shows a collection of Scala
        configs(*default, "--alter", "--add-config", "advertised.listeners=PLAINTEXT://x:1"),
        configs(*broker, "--alter", "--add-config", "log.cleaner.threads=0"),  # Kafka divides by zero
    ):
        ours, theirs = both.run(refused)
        assert without_words(ours) == without_words(theirs)


def without_words(said: Said) -> Said:
    """With the error's class, and not with what it says."""
    return replace(said, errors=tuple(line.rpartition("Exception: ")[0] for line in said.errors))


def is_alike(line: str) -> bool:
    """Not about what differs between the two for good reason, as `test_administration` has it."""
    key = line.strip().partition("=")[0]
    return key not in NOT_ALIKE and not key.startswith(OUR_OWN)


# kafka-leader-election.


@pytest.mark.night("a minute or more while brokers die and come back; no commit says that it has found anything")
@pytest.mark.timeout(1_800)
def test_what_fails_is_described_alike_and_leaders_are_elected_alike(both: TwoClusters, tmp_path: Path) -> None:
    """Broker 3 alone has what is committed in `two`; it and the only replica of `alone` are away for a while."""
    names = ["even", "two", "alone"]
    everywhere = json_file(tmp_path / "all.json", ("even", 0), ("even", 1), ("even", 2), ("two", 0), ("alone", 0))
    some = json_file(tmp_path / "some.json", ("even", 0), ("nobody", 0), ("even", 9))
    lost = json_file(tmp_path / "lost.json", ("two", 0))
    named = topics("--describe", "--topic", "|".join(names))
    describe = [named, *(topics("--describe", option) for option in DESCRIBE_OPTIONS)]
    differing = both.differences(
        [
            topics("--create", "--topic", "even", "--replica-assignment", "1:2:3,2:3:1,3:1:2"),
            topics("--create", "--topic", "two", "--replica-assignment", "3:1"),
            topics("--create", "--topic", "alone", "--replica-assignment", "3"),
        ]
    )
    wait_for(both, names, is_whole, "all are in sync")
    differing += both.differences(
        [
            elect("preferred", "--all-topic-partitions"),
            elect("unclean", "--all-topic-partitions"),
            elect("preferred", "--topic", "even", "--partition", "1"),
            elect("unclean", "--topic", "even", "--partition", "1"),
            elect("preferred", "--topic", "nobody", "--partition", "0"),
            elect("unclean", "--topic", "even", "--partition", "3"),
            elect("preferred", "--path-to-json-file", everywhere),
            elect("preferred", "--path-to-json-file", some),
            elect("unclean", "--path-to-json-file", some),
        ]
    )
    both.kill_broker(1)
    wait_for(both, names, is_without(1), "broker 1 is out of sync", [2, 3])
    differing += both.differences([elect("preferred", "--all-topic-partitions"), *describe])
    both.kill_broker(3)
    wait_for(both, names, is_without(3), "broker 3 leads nothing", [2])
    both.start_broker(1)
    wait_for(both, ["even"], lambda each: sorted(each.isr_nodes) == [1, 2], "broker 1 is in sync", [1, 2])
    wait_for(both, ["two", "alone"], lambda each: each.leader_id == -1, "two have no leader", [1, 2])
    differing += both.differences(
        [
            topics("--describe", "--unavailable-partitions"),
            topics("--describe", "--under-min-isr-partitions"),
            elect("preferred", "--all-topic-partitions"),
            elect("preferred", "--path-to-json-file", everywhere),
            elect("unclean", "--topic", "alone", "--partition", "0"),
            elect("unclean", "--path-to-json-file", lost),
            elect("unclean", "--all-topic-partitions"),
            named,
        ]
    )
    both.start_broker(3)
    wait_for(both, names, is_whole, "all are in sync again")
    for servers in both.bootstrap_servers:
        done = barnabas(servers, "elect", "preferred", "--topic", "even")
        assert done.rows[1:] == ["even 2 2 3 ELECTED"], done.errors
        assert done.errors == "2 partitions had the preferred leader already.\n"
    differing += both.differences([elect("preferred", "--path-to-json-file", everywhere)])
    wait_for(both, names, lambda each: each.leader_id == each.replica_nodes[0], "the preferred replicas lead")
    differing += both.differences([elect("preferred", "--all-topic-partitions")])
    assert not differing, "\n".join(differing)
