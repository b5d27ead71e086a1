"""`barnabas reassign` where a file names log directories: what brokers are told, what is shown, what is cancelled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.cli.reassignment_directories import Located
from barnabas.cli.reassignment_throttles import DIRECTORY_RATE, LISTS, RATES
from barnabas.cli.reassignment_view import State
from barnabas.client.admin import ConfigEntry
from barnabas.client.errors import ClientTimeoutError
from barnabas.client.reassignments import PartitionReassignment
from barnabas.wire.errors import ErrorCode
from barnabas.wire.topics import TopicPartition
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import FakeCluster, partition, topic
from tests.unit.cli.test_log_dirs import directory

Barnabas = Callable[..., Done]
F0, F1 = TopicPartition("flights", 0), TopicPartition("flights", 1)


@pytest.fixture
def two(cluster: FakeCluster) -> FakeCluster:
    """Both partitions are on brokers 1 and 2, in /a; a disk of broker 3 has failed."""
    cluster.add(topic("flights", partition(1, (1, 2)), partition(2, (2, 1))))
    logs = ("flights", 0, 100, 0, False), ("flights", 1, 50, 0, False)
    cluster.log_directories = {
        1: [directory("/a", *logs), directory("/b")],
        2: [directory("/a", *logs), directory("/b")],
        3: [directory("/a"), directory("/b"), directory("/c", error=ErrorCode.KAFKA_STORAGE_ERROR)],
    }
    return cluster


def file(path: Path, *entries: tuple[int, list[int], list[str]]) -> str:
    partitions = [
        {"topic": "flights", "partition": number, "replicas": replicas, "log_dirs": directories}
        for number, replicas, directories in entries
    ]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(path)


def directories_of(document: Any) -> list[tuple[object, ...]]:
    return [tuple(each.values()) for each in document["directories"]]


@pytest.mark.parametrize(
    ("located", "state"),
    [
        (Located("/a"), State.NEITHER),
        (Located("/b"), State.DONE),
        (Located("/a", "/b"), State.MOVING),
        (Located("/a", "/c"), State.NEITHER),
        (Located("/b", "/a"), State.NEITHER),
        (Located(), State.NEITHER),
    ],
)
def test_where_a_replica_is_on_its_way_to_b(located: Located, state: State) -> None:
    assert located.state("/b") is state


def test_replicas_go_to_their_directories(two: FakeCluster, barnabas: Barnabas, tmp_path: Path) -> None:
    plan = file(tmp_path / "plan.json", (0, [1, 2], ["/b", "any"]), (1, [2, 1], ["/a", "/b"]))
    back = tmp_path / "back.json"
    done = barnabas("reassign", "execute", plan, "--save-current", str(back))
    assert done.status == 0, done.errors
    assert done.errors.splitlines() == [
        "flights-0 onto 1:/b, 100 B (1 of 2)",
        "flights-1 onto 1:/b, 50 B (2 of 2)",
        "Done: 2 replicas between log directories.",
    ]
    # Broker 2 has its replica of flights-1 in /a already.
    assert two.log_moves == [(1, {F0: "/b", F1: "/b"})]
    assert [each["log_dirs"] for each in json.loads(back.read_text())["partitions"]] == [["/a", "/a"], ["/a", "/a"]]
    again = barnabas("reassign", "execute", plan)
    assert (again.status, again.errors) == (0, "All partitions are there already.\n")
    assert len(two.log_moves) == 1


def test_a_broker_knows_the_directory_before_its_replica_comes(
    two: FakeCluster, barnabas: Barnabas, tmp_path: Path
) -> None:
    plan = file(tmp_path / "plan.json", (0, [1, 3], ["/b", "/b"]))
    found = barnabas("reassign", "execute", plan, "--json").document
    assert found["is_done"]
    assert [each["after"] for each in found["partitions"]] == [[1, 3]]
    assert directories_of(found) == [("flights", 0, 1, "/a", "/b"), ("flights", 0, 3, None, "/b")]
    # Told before, and once more when the reassignment has begun.
    assert two.log_moves == [(3, {F0: "/b"}), (1, {F0: "/b"}), (3, {F0: "/b"})]
    rows = directories_of(barnabas("reassign", "status", plan, "--json").document)
    assert [row[2:6] for row in rows] == [(1, "done", "/b", "/b"), (3, "done", "/b", "/b")]


def test_what_is_on_its_way_is_shown_and_can_be_cancelled(two: FakeCluster, barnabas: Barnabas, tmp_path: Path) -> None:
    two.is_slow = True
    plan = file(tmp_path / "plan.json", (0, [1, 2], ["/b", "/b"]), (1, [2, 1], ["/b", "any"]))
    done = barnabas("reassign", "execute", plan, "--no-wait")
    assert done.errors.startswith("Begun: 3 replicas between log directories; ")
    status = barnabas("reassign", "status")
    assert (status.status, status.errors) == (0, "")
    assert status.rows == [
        "Topic Partition Broker State In To Copied Of",
        "flights 0 1 moving /a /b 50 B 100 B",
        "flights 0 2 moving /a /b 50 B 100 B",
        "flights 1 2 moving /a /b 25 B 50 B",
    ]
    assert directories_of(barnabas("reassign", "status", "--json").document)[2] == (
        *("flights", 1, 2, "moving", "/a", "/b", 25, 50),
    )
    # Of a file, what it names: not the replica of broker 2.
    one = file(tmp_path / "one.json", (0, [1, 2], ["/b", "any"]))
    cancelled = barnabas("reassign", "cancel", "--from-file", one, "--json").document
    assert (cancelled["cancelled"], directories_of(cancelled)) == ([], [("flights", 0, 1, "/a")])
    assert two.log_moves[-1] == (1, {F0: "/a"})
    assert barnabas("reassign", "status", plan).status == 1
    assert "flights-0 neither" not in barnabas("reassign", "status", one).output
    done = barnabas("reassign", "cancel", "flights:1")
    assert done.rows == ["Topic Partition Broker In", "flights 1 2 /a"]
    assert done.errors == "Cancelled: 1 replica between log directories.\n"
    assert barnabas("reassign", "cancel", "flights:1").status == 4
    assert barnabas("reassign", "cancel", "--all").errors == "Cancelled: 1 replica between log directories.\n"
    assert barnabas("reassign", "status").errors == "Nothing is being moved.\n"
    assert barnabas("reassign", "status", plan, "--json").status == 1


def test_a_replica_that_is_removed_with_its_reassignment_is_told_nothing(two: FakeCluster, barnabas: Barnabas) -> None:
    two.log_directories[3][0] = directory("/a", ("flights", 0, 5, 0, False))
    two.log_directories[3][1] = directory("/b", ("flights", 0, 2, 9, True))
    two.reassignments[F0] = PartitionReassignment((1, 2, 3), (3,), (2,))
    found = barnabas("reassign", "cancel", "flights", "--json").document
    assert ([each["replicas"] for each in found["cancelled"]], found["directories"]) == ([[1, 2]], [])
    assert two.log_moves == []


def test_somebody_else_has_ended_it(two: FakeCluster, barnabas: Barnabas, tmp_path: Path) -> None:
    """The brokers say that a copy has begun, and then there is none."""
    plan = file(tmp_path / "plan.json", (0, [1, 2], ["/b", "any"]))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tests.unit.cli.fake_cluster.FakeAdmin.alter_replica_log_dirs", _nothing)
        done = barnabas("reassign", "execute", plan)
    assert done.status == 1
    assert "1 partition not where the file has them, and not on the way: flights-0;" in done.errors


async def _nothing(_self: object, _node_id: int, directories: dict[TopicPartition, str]) -> dict[TopicPartition, None]:
    return dict.fromkeys(directories)


@pytest.mark.parametrize(
    ("entry", "status", "error"),
    [
        ((0, [1, 2], ["/nowhere", "any"]), 4, "broker 1 has no log directory /nowhere; it has /a, /b"),
        ((0, [1, 3], ["any", "/c"]), 1, "/c of broker 3 cannot be used (KAFKA_STORAGE_ERROR): choose another one"),
        ((0, [1, 2], ["any", "/b\n"]), 4, "broker 2 has no log directory /b\\n; it has /a, /b"),
    ],
)
def test_a_directory_that_its_broker_cannot_use_moves_nothing(
    two: FakeCluster,
    barnabas: Barnabas,
    tmp_path: Path,
    entry: tuple[int, list[int], list[str]],
    status: int,
    error: str,
) -> None:
    done = barnabas("reassign", "execute", file(tmp_path / "plan.json", entry))
    assert (done.status, done.output) == (status, "")
    assert error in done.errors
    assert two.log_moves == []


def test_a_broker_that_is_silent_or_gone_cannot_be_told(two: FakeCluster, barnabas: Barnabas, tmp_path: Path) -> None:
    plan = file(tmp_path / "plan.json", (0, [1, 2], ["/b", "/b"]))
    two.log_directories[2] = ClientTimeoutError("it does not answer")
    silent = barnabas("reassign", "execute", plan)
    assert (silent.status, "broker 2 does not tell its log directories" in silent.errors) == (3, True)
    two.cluster = type(two.cluster)("cluster-1", 1, {1: two.cluster.brokers[1]}, two.topics)
    gone = barnabas("reassign", "execute", plan)
    assert (gone.status, "broker 2 is not in the cluster, and cannot be told" in gone.errors) == (1, True)
    assert two.log_moves == []


def test_what_is_being_moved_elsewhere_goes_where_the_file_has_it(
    two: FakeCluster, barnabas: Barnabas, tmp_path: Path
) -> None:
    """Also back to where it was, which looks as if there were nothing to do."""
    plan = file(tmp_path / "plan.json", (0, [1, 2], ["any", "any"]), (1, [2, 1], ["any", "any"]))
    two.reassignments[F0] = PartitionReassignment((1, 3, 2), (3,), (2,))
    refused = barnabas("reassign", "execute", plan)
    assert (refused.status, refused.output) == (1, "")
    assert "partitions are being moved already: flights-0; `barnabas reassign status` shows" in refused.errors
    assert F0 in two.reassignments
    done = barnabas("reassign", "execute", plan, "--additional", "--json").document
    assert done["partitions"] == [{"topic": "flights", "partition": 0, "before": [1, 2], "after": [1, 2]}]
    assert two.reassignments == {}


@pytest.mark.parametrize(
    ("moving", "arguments", "removed"),
    [
        ("brokers", ["flights"], {*RATES, *LISTS} - {DIRECTORY_RATE}),
        ("directories", ["flights"], {DIRECTORY_RATE}),
        ("brokers", ["--all"], {*RATES, *LISTS}),
        ("", ["--all"], {*RATES, *LISTS}),
        ("", ["flights"], set()),
        ("brokers", ["flights", "--preserve-throttles"], set()),
        ("", ["--all", "--preserve-throttles"], set()),
    ],
)
def test_the_throttles_of_what_is_cancelled_are_removed(
    two: FakeCluster, barnabas: Barnabas, moving: str, arguments: list[str], removed: set[str]
) -> None:
    if moving == "brokers":
        two.reassignments[F0] = PartitionReassignment((1, 2, 3), (3,), (2,))
    elif moving == "directories":
        two.log_directories[2][1] = directory("/b", ("flights", 0, 2, 9, True))
    two.configs["2"] = [ConfigEntry(name, "5", 2, is_read_only=True, is_sensitive=False) for name in RATES]
    two.configs["flights"] = [ConfigEntry(name, "0:1", 1, is_read_only=False, is_sensitive=False) for name in LISTS]
    assert barnabas("reassign", "cancel", *arguments).status == (4 if arguments == ["flights"] and not moving else 0)
    assert {name for _, _, changes, _ in two.altered for name, _, _ in changes} == removed
