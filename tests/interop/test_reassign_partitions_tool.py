"""`kafka-reassign-partitions` of Apache Kafka 3.9.1 against brokers of ours and of Apache Kafka: the same output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from tests.support.apache_kafka import ToolRun, tool_run
from tests.support.apache_kafka_cluster import apache_kafka_cluster
from tests.support.broker_process import broker_cluster
from tests.support.command_suite import barnabas, fill
from tests.support.waiting import wait_until

REASSIGN_COMMAND: Final = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
OVERRIDES: Final = {"offsets.topic.num.partitions": 4, "offsets.topic.replication.factor": 1}
TOPIC: Final = "moved"
DONE_SECONDS: Final = 60.0


def steps(bootstrap: str, directory: Path) -> dict[str, object]:
    """What the tool says of each step; with it, what only has to be alike."""
    said: dict[str, object] = {}

    def run(*arguments: str) -> ToolRun:
        return tool_run(REASSIGN_COMMAND, ["--bootstrap-server", bootstrap, *arguments])

    def file(name: str, document: object) -> str:
        path = directory / f"{name}.json"
        path.write_text(json.dumps(document))
        return str(path)

    def plan(name: str, *replicas: list[int], topic: str = TOPIC) -> str:
        entries = [{"topic": topic, "partition": at, "replicas": each} for at, each in enumerate(replicas)]
        return file(name, {"version": 1, "partitions": entries})

    done = barnabas(bootstrap, "topic", "create", TOPIC, "--partitions", "3", "--replication-factor", "1")
    assert done.status == 0, done.errors
    fill(bootstrap, TOPIC, 3, 200)
    # From here on both have the same assignment, wherever the topic was created.
    first = plan("first", [1, 2], [2, 3], [3, 1])
    run("--reassignment-json-file", first, "--execute")

    def verified(path: str) -> ToolRun:
        return run("--reassignment-json-file", path, "--verify", "--preserve-throttles")

    def wait(path: str) -> None:
        wait_until(lambda: "still in progress" not in verified(path).output, "the reassignment is done", DONE_SECONDS)

    wait(first)
    topics = file("topics", {"version": 1, "topics": [{"topic": TOPIC}]})
    generated = run("--topics-to-move-json-file", topics, "--broker-list", "2,3", "--generate")
    current, _, proposed = generated.output.partition("Proposed partition reassignment configuration")
    said["generate"] = generated.status, current, generated.errors
    said["proposed"] = [sorted(each["replicas"]) for each in json.loads(proposed)["partitions"]]
    second = plan("second", [2, 3], [3, 1], [1, 2])
    said["execute"] = run("--reassignment-json-file", second, "--execute", "--throttle", "50000000")
    wait(second)
    said["verify"] = run("--reassignment-json-file", second, "--verify")
    said["verify again"] = run("--reassignment-json-file", second, "--verify")
    said["verify another"] = run("--reassignment-json-file", first, "--verify")
    said["cancel nothing"] = run("--reassignment-json-file", second, "--cancel")
    said["list"] = run("--list")
    for name, path in (
        ("no such broker", plan("broker", [1, 9])),
        ("no such topic", plan("topic", [1, 2], topic="nowhere")),
        ("no such partition", plan("partition", [1], [2], [3], [1])),
        ("twice", plan("twice", [1, 1])),
        ("no replica", plan("none", [])),
    ):
        done_so = run("--reassignment-json-file", path, "--execute")
        # Behind its own words the tool prints a stack trace with lambdas' numbers.
        said[name] = done_so.status, done_so.output.splitlines()[:1], done_so.errors.splitlines()[:1]
    return said


@pytest.mark.timeout(400)
def test_the_tool_says_the_same_of_both(oracle_jars: Path, tmp_path: Path) -> None:
    for name in ("ours", "kafka"):
        (tmp_path / name).mkdir()
    with broker_cluster(tmp_path / "ours" / "data", 3, overrides=OVERRIDES) as cluster:
        ours = steps(cluster.brokers[1].address, tmp_path / "ours")
    with apache_kafka_cluster(tmp_path / "kafka" / "data", 3) as kafka:
        theirs = steps(kafka.bootstrap_servers.split(",")[0], tmp_path / "kafka")
    assert set(ours) == set(theirs)
    for step, said in theirs.items():
        assert ours[step] == said, step
    verified = ours["verify"]
    assert isinstance(verified, ToolRun)
    assert "Reassignment of partition moved-0 is completed." in verified.output
    assert "Clearing broker-level throttles on brokers 1,2,3" in verified.output
