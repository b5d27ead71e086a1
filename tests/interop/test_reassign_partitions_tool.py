"""`kafka-reassign-partitions` and `kafka-log-dirs` of Apache Kafka 3.9.1 against brokers of ours and of Apache Kafka:
the same output.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.apache_kafka import CONFIG_COMMAND, LOG_DIRS_COMMAND, REASSIGN_COMMAND, ToolRun, tool_run
from tests.support.apache_kafka_cluster import apache_kafka_cluster
from tests.support.broker_process import broker_cluster
from tests.support.command_suite import barnabas, fill, fill_in_batches
from tests.support.waiting import wait_until

DIRECTORIES: Final = ("a", "b")
OVERRIDES: Final = {
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 1,
    # A copy is made of many pieces, so that a throttle holds it back after the first.
    "replica.fetch.max.bytes": 65_536,
}
DONE_SECONDS: Final = 120.0
COPY_THROTTLE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
SLOW: Final = "1000"
BATCHES: Final = 40
BATCH_BYTES: Final = 100_000


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two clusters: the address of a broker, and the directory of all its files."""

    bootstrap: str
    directory: Path

    def reassign(self, *arguments: str) -> ToolRun:
        return self._run(REASSIGN_COMMAND, *arguments)

    def log_dirs(self, *arguments: str) -> ToolRun:
        return self._run(LOG_DIRS_COMMAND, "--describe", *arguments)

    def log_directory(self, broker_id: int, name: str) -> str:
        return str(self.directory / f"broker-{broker_id}" / name)

    def file(self, name: str, document: object) -> str:
        path = self.directory / f"{name}.json"
        path.write_text(json.dumps(document))
        return str(path)

    def plan(self, name: str, topic: str, *replicas: list[int], directories: tuple[str, ...] = ()) -> str:
        """A file with these brokers of each partition; of their directories one letter for each broker."""
        entries: list[dict[str, object]] = []
        for number, brokers in enumerate(replicas):
            entry: dict[str, object] = {"topic": topic, "partition": number, "replicas": brokers}
            if directories:
                pairs = zip(brokers, directories[number], strict=True)
                entry["log_dirs"] = [self.log_directory(each, letter) for each, letter in pairs]
            entries.append(entry)
        return self.file(name, {"version": 1, "partitions": entries})

    def replication_throttles(self, topic: str) -> list[tuple[int, list[str], str]]:
        """What `kafka-configs` says of the topic and of each broker."""
        of_topic = ("--entity-type", "topics", "--entity-name", topic)
        of_brokers = [("--entity-type", "brokers", "--entity-name", str(number)) for number in (1, 2, 3)]
        said = [self._run(CONFIG_COMMAND, *entity, "--describe") for entity in (of_topic, *of_brokers)]
        return [(done.status, sorted(done.output.splitlines()), done.errors) for done in said]

    def verified(self, path: str) -> ToolRun:
        return self.reassign("--reassignment-json-file", path, "--verify", "--preserve-throttles")

    def wait(self, path: str) -> None:
        """Until nothing of the file is on its way."""
        wait_until(
            lambda: (
                not any(
                    words in self.verified(path).output
                    for words in ("still in progress", "is being moved", "cannot be")
                )
            ),
            f"what {path} says is done",
            DONE_SECONDS,
        )

    def _run(self, main_class: str, *arguments: str) -> ToolRun:
        done = tool_run(main_class, ["--bootstrap-server", self.bootstrap, *arguments])
        words = (text.replace(str(self.directory), "ROOT") for text in (done.output, done.errors))
        return ToolRun(done.status, *words)


@pytest.fixture(scope="module")
def both(oracle_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """Ours and Apache Kafka's, three brokers with two log directories each."""
    directory = tmp_path_factory.mktemp("reassign")
    options: Any = {"overrides": OVERRIDES, "log_directories": DIRECTORIES}
    with (
        broker_cluster(directory / "ours", 3, **options) as ours,
        apache_kafka_cluster(directory / "theirs", 3, **options) as theirs,
    ):
        yield (
            Side(ours.brokers[1].address, directory / "ours"),
            Side(theirs.bootstrap_servers.split(",")[0], directory / "theirs"),
        )
        ours.check_that_none_exited_by_itself()


def compared(both: tuple[Side, Side], steps: Callable[[Side], dict[str, object]]) -> dict[str, Any]:
    """What the tools say of each step; AssertionError unless they say it of both."""
    with ThreadPoolExecutor(2) as pool:
        ours, theirs = pool.map(steps, both)
    assert list(ours) == list(theirs)
    for step, said in theirs.items():
        assert ours[step] == said, step
    return ours


def first_lines(done: ToolRun) -> tuple[int, list[str], list[str]]:
    """Behind its own words the tool prints a stack trace with lambdas' numbers."""
    return done.status, done.output.splitlines()[:1], done.errors.splitlines()[:1]


# Brokers.


def moves_between_brokers(side: Side) -> dict[str, object]:
    said: dict[str, object] = {}
    topic, run = "moved", side.reassign
    done = barnabas(side.bootstrap, "topic", "create", topic, "--partitions", "3", "--replication-factor", "1")
    assert done.status == 0, done.errors
    fill(side.bootstrap, topic, 3, 200)
    # From here on both have the same assignment, wherever the topic was created.
    first = side.plan("first", topic, [1, 2], [2, 3], [3, 1])
    run("--reassignment-json-file", first, "--execute")
    side.wait(first)
    topics = side.file("topics", {"version": 1, "topics": [{"topic": topic}]})
    generated = run("--topics-to-move-json-file", topics, "--broker-list", "2,3", "--generate")
    current, _, proposed = generated.output.partition("Proposed partition reassignment configuration")
    said["generate"] = generated.status, current, generated.errors
    said["proposed"] = [sorted(each["replicas"]) for each in json.loads(proposed)["partitions"]]
    second = side.plan("second", topic, [2, 3], [3, 1], [1, 2])
    said["execute"] = run("--reassignment-json-file", second, "--execute", "--throttle", "50000000")
    side.wait(second)
    said["verify"] = run("--reassignment-json-file", second, "--verify")
    said["verify again"] = run("--reassignment-json-file", second, "--verify")
    said["verify another"] = run("--reassignment-json-file", first, "--verify")
    said["cancel nothing"] = run("--reassignment-json-file", second, "--cancel")
    said["list"] = run("--list")
    for name, path in (
        ("no such broker", side.plan("broker", topic, [1, 9])),
        ("no such topic", side.plan("topic", "nowhere", [1, 2])),
        ("no such partition", side.plan("partition", topic, [1], [2], [3], [1])),
        ("twice", side.plan("twice", topic, [1, 1])),
        ("no replica", side.plan("none", topic, [])),
    ):
        said[name] = first_lines(run("--reassignment-json-file", path, "--execute"))
    return said


@pytest.mark.timeout(900)
def test_the_same_is_said_of_moves_between_brokers(both: tuple[Side, Side]) -> None:
    said = compared(both, moves_between_brokers)
    assert "Reassignment of partition moved-0 is completed." in said["verify"].output
    assert "Clearing broker-level throttles on brokers 1,2,3" in said["verify"].output


def moves_that_are_under_way(side: Side) -> dict[str, object]:
    said: dict[str, object] = {}
    topic, run = "slow", side.reassign
    done = barnabas(side.bootstrap, "topic", "create", topic, "--partitions", "1", "--replication-factor", "1")
    assert done.status == 0, done.errors
    first = side.plan("slow-first", topic, [1])
    run("--reassignment-json-file", first, "--execute")
    side.wait(first)
    fill_in_batches(side.bootstrap, topic, BATCHES, BATCH_BYTES)
    away, elsewhere = side.plan("slow-away", topic, [2]), side.plan("slow-elsewhere", topic, [3])
    said["execute"] = run("--reassignment-json-file", away, "--execute", "--throttle", SLOW)
    said["list"] = run("--list")
    said["verify"] = run("--reassignment-json-file", away, "--verify")
    said["configs"] = side.replication_throttles(topic)
    said["execute another"] = first_lines(run("--reassignment-json-file", elsewhere, "--execute"))
    said["cancel another partition"] = first_lines(
        # Without it the tool removes the rates of all brokers.
        run("--reassignment-json-file", side.plan("nobody", "nowhere", [1]), "--cancel", "--preserve-throttles")
    )
    additional = ("--execute", "--additional", "--throttle", SLOW)
    said["execute in its place"] = run("--reassignment-json-file", elsewhere, *additional)
    said["list again"] = run("--list")
    said["verify what was replaced"] = side.verified(away)
    said["configs again"] = side.replication_throttles(topic)
    said["cancel"] = run("--reassignment-json-file", elsewhere, "--cancel")
    said["list nothing"] = run("--list")
    said["verify what was cancelled"] = side.verified(elsewhere)
    said["verify where it was"] = side.verified(first)
    said["cancel again"] = run("--reassignment-json-file", elsewhere, "--cancel", "--preserve-throttles")
    said["configs in the end"] = side.replication_throttles(topic)
    return said


@pytest.mark.timeout(900)
def test_the_same_is_said_of_moves_that_are_under_way_replaced_and_cancelled(both: tuple[Side, Side]) -> None:
    said = compared(both, moves_that_are_under_way)
    assert "slow-0: replicas: 2,1. adding: 2. removing: 1." in said["list"].output
    assert "Reassignment of partition slow-0 is still in progress." in said["verify"].output
    assert "Cannot execute because there is an existing partition assignment." in "".join(said["execute another"][1])
    assert "slow-0: replicas: 3,1. adding: 3. removing: 1." in said["list again"].output
    assert "Successfully cancelled partition reassignment for: slow-0" in said["cancel"].output
    assert "No partition reassignments found." in said["list nothing"].output


# Log directories.


def described(done: ToolRun) -> tuple[int, list[str], list[tuple[object, ...]], str]:
    """What `kafka-log-dirs` says: lines, and of each log where it is. How far copies are is not alike."""
    *lines, document = done.output.splitlines()
    found: list[tuple[object, ...]] = []
    for broker in json.loads(document)["brokers"]:
        for directory in broker["logDirs"]:
            found.append((broker["broker"], directory["logDir"], directory["error"], sorted(directory)))
            for log in directory["partitions"]:
                how_far = () if log["isFuture"] else (log["size"], log["offsetLag"])
                found.append((broker["broker"], directory["logDir"], log["partition"], log["isFuture"], *how_far))
    return done.status, lines, sorted(found, key=repr), done.errors


def moves_between_directories(side: Side) -> dict[str, object]:
    said: dict[str, object] = {}
    topic, run = "spread", side.reassign
    of_topic = ("--topic-list", topic)

    def executed(path: str, *options: str) -> tuple[int, list[str], str]:
        """In which order replicas come to their brokers is not alike."""
        done = run("--reassignment-json-file", path, "--execute", "--timeout", "60000", *options)
        return done.status, sorted(done.output.splitlines()), done.errors

    done = barnabas(side.bootstrap, "topic", "create", topic, "--partitions", "2", "--replication-factor", "1")
    assert done.status == 0, done.errors
    places = ([1, 2], [2, 3])
    pinned = side.plan("pinned", topic, *places, directories=("ab", "aa"))
    executed(pinned)
    side.wait(pinned)
    fill_in_batches(side.bootstrap, topic, BATCHES, BATCH_BYTES)
    fill(side.bootstrap, topic, 1, 1)
    said["pinned"] = side.verified(pinned)
    said["described"] = described(side.log_dirs(*of_topic))
    said["described, of brokers"] = described(side.log_dirs(*of_topic, "--broker-list", "1,3"))
    said["described, no such topic"] = described(side.log_dirs("--topic-list", "nowhere"))
    said["described, no such broker"] = side.log_dirs("--broker-list", "1,9")

    # The throttle is there before a copy begins; the tool sets the same once more.
    for broker_id in (1, 2):
        done = barnabas(side.bootstrap, "config", "set", f"broker:{broker_id}", f"{COPY_THROTTLE}={SLOW}")
        assert done.status == 0, done.errors
    moved = side.plan("moved", topic, *places, directories=("ba", "aa"))
    said["execute"] = executed(moved, "--replica-alter-log-dirs-throttle", SLOW)
    said["on the way"] = side.verified(moved)
    said["on the way elsewhere"] = side.verified(pinned)
    said["described, on the way"] = described(side.log_dirs(*of_topic))
    said["cancel"] = run("--reassignment-json-file", moved, "--cancel")
    side.wait(pinned)
    said["cancelled"] = side.verified(moved)
    said["cancelled, where it was"] = side.verified(pinned)
    said["described, cancelled"] = described(side.log_dirs(*of_topic))

    said["execute again"] = executed(moved)
    side.wait(moved)
    said["verify"] = run("--reassignment-json-file", moved, "--verify")
    said["described, moved"] = described(side.log_dirs(*of_topic))

    # Another broker, and at once into a directory of it.
    onto = side.plan("onto", topic, [1, 3], [2, 3], directories=("bb", "aa"))
    said["onto another broker"] = executed(onto)
    side.wait(onto)
    said["onto another broker, there"] = side.verified(onto)
    said["described, onto another broker"] = described(side.log_dirs(*of_topic))

    nowhere = side.plan("nowhere", topic, [1, 3], directories=("bc",))
    said["no such directory"] = first_lines(run("--reassignment-json-file", nowhere, "--execute"))
    one_too_few = {"topic": topic, "partition": 0, "replicas": [1, 3], "log_dirs": ["any"]}
    path = side.file("few", {"version": 1, "partitions": [one_too_few]})
    said["too few directories"] = first_lines(run("--reassignment-json-file", path, "--execute"))
    return said


@pytest.mark.night("a minute, and no commit says that it has found anything")
@pytest.mark.timeout(900)
def test_the_same_is_said_of_moves_between_log_directories(both: tuple[Side, Side]) -> None:
    said = compared(both, moves_between_directories)
    assert "Reassignment of replica spread-0-1 is still in progress." in said["on the way"].output
    assert "is being moved to log dir ROOT/broker-1/b instead of ROOT/broker-1/a" in said["on the way elsewhere"].output
    assert "Successfully started moving log directory to ROOT/broker-1/a for replica spread-0" in said["cancel"].output
    assert "Reassignment of replica spread-0-1 completed successfully." in said["verify"].output
    futures = [row for row in said["described, on the way"][2] if row[3] is True]
    assert sorted(row[:3] for row in futures) == [
        (1, "ROOT/broker-1/b", "spread-0"),
        (2, "ROOT/broker-2/a", "spread-0"),
    ]
