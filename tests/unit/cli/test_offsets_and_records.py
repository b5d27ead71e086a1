"""`barnabas offsets` and `barnabas records delete`: what they show, do, and refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import NOW_MS, FakeCluster, partition, topic

Barnabas = Callable[..., Done]
FLIGHTS = [TopicPartition("flights", number) for number in range(3)]
INTERNAL = TopicPartition("__consumer_offsets", 0)


@pytest.fixture
def filled(cluster: FakeCluster) -> FakeCluster:
    """A topic of three partitions with records, and an internal one."""
    cluster.add(
        topic("flights", partition(1), partition(2), partition(3)),
        topic("__consumer_offsets", partition(1), is_internal=True),
    )
    cluster.starts = {FLIGHTS[0]: 10}
    cluster.ends = {FLIGHTS[0]: 50, FLIGHTS[1]: 7, FLIGHTS[2]: 0, INTERNAL: 5}
    return cluster


def test_offsets_of_all_partitions_and_of_some(filled: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("offsets", "flights")
    assert done.rows == [
        "Topic Partition Start End Offsets",
        "flights 0 10 50 40",
        "flights 1 0 7 7",
        "flights 2 0 0 0",
    ]
    done = barnabas("offsets", "flights:0", "flights:2", "--json")
    assert done.document == {
        "partitions": [
            {"topic": "flights", "partition": 0, "start_offset": 10, "end_offset": 50, "offsets": 40},
            {"topic": "flights", "partition": 2, "start_offset": 0, "end_offset": 0, "offsets": 0},
        ]
    }


def test_offsets_of_a_time_or_before_the_end(filled: FakeCluster, barnabas: Barnabas) -> None:
    filled.at_times = {FLIGHTS[0]: 33}
    done = barnabas("offsets", "flights:0-1", "--at", "2h")
    assert done.rows == [
        "Topic Partition Start End Offsets At To the end",
        "flights 0 10 50 40 33 17",
        "flights 1 0 7 7 7 0",
    ]
    assert filled.times_asked_for_ms == [NOW_MS - 7_200_000] * 2
    assert barnabas("offsets", "flights:1", "--at", "-3", "--json").document["partitions"][0]["offset"] == 4


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        ((), 2, "Missing argument"),
        (("flights", "--at", "tomorrow"), 2, "'tomorrow' is no place in a partition"),
        (("flights", "--at", "2099-01-01"), 2, "is in the future; write latest for the end"),
        (("flights:x",), 2, "names no partitions"),
        (("flights:3",), 4, "topic flights has no partition 3; it has 0 to 2"),
        (("fligths",), 4, "there is no topic fligths"),
    ],
)
def test_offsets_of_what_makes_no_sense(
    filled: FakeCluster, barnabas: Barnabas, arguments: tuple[str, ...], status: int, error: str
) -> None:
    done = barnabas("offsets", *arguments)
    assert (done.status, done.output) == (status, "")
    assert error in " ".join(done.errors.split())


def test_records_are_deleted_with_execute_only(filled: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("records", "delete", "flights:0-1", "--before", "7")
    assert done.rows == [
        "Topic Partition Start New start End Deleted",
        "flights 0 10 10 50 0",
        "flights 1 0 7 7 7",
    ]
    assert done.errors.splitlines() == [
        "flights-0 has offsets 10 to 50, and no 7: 10 is taken",
        "Nothing was deleted: add --execute to delete 7 offsets for good.",
    ]
    done = barnabas("records", "delete", "flights:0", "--before", "10")
    assert done.errors == "Nothing is ahead of that: there is nothing to delete.\n"
    assert filled.cut == {}
    done = barnabas("records", "delete", "flights", "--before", "-5", "--execute", "--json")
    assert [each["deleted"] for each in done.document["partitions"]] == [35, 2, 0]
    assert (done.document["is_executed"], done.errors) == (True, "Deleted 37 offsets.\n")
    # Where nothing goes, nobody is asked.
    assert filled.cut == {FLIGHTS[0]: 45, FLIGHTS[1]: 2}


def test_records_are_deleted_by_a_file(filled: FakeCluster, barnabas: Barnabas, tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    file.write_text('{"version": 1, "partitions": [{"topic": "flights", "partition": 0, "offset": 12}]}')
    assert barnabas("records", "delete", "--from-file", str(file), "--execute").status == 0
    assert filled.cut == {FLIGHTS[0]: 12}


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        ((), 2, "name topics and --before, or --from-file alone"),
        (("flights",), 2, "name topics and --before"),
        (("--before", "5"), 2, "name topics and --before"),
        (("flights", "--before", "5", "--from-file", "/dev/null"), 2, "--from-file alone"),
        (("--from-file", "/dev/null"), 1, "there is no offset in it"),
        (("flights", "--before", "2099-01-01"), 2, "is in the future"),
        (("flights", "--before", "5y"), 2, "'5y' is no place"),
        (("flights:9", "--before", "5"), 4, "no partition 9"),
        (("flights:0", "--before", "51"), 1, "flights-0 ends at 50, and 51 is beyond it: give an offset up to 50, or"),
        (("flights", "--before", "20"), 1, "flights-1 ends at 7, and 20 is beyond it"),
        (("flights", "--before", "9" * 5_000), 2, "999... (5,000 characters) is larger than any offset"),
        (("--from-file", "/no/such/file"), 4, "/no/such/file: there is no such file"),
        (("__consumer_offsets", "--before", "latest"), 1, "is internal; if the brokers' own records may go, add --f"),
    ],
)
def test_what_is_refused_deletes_nothing(
    filled: FakeCluster, barnabas: Barnabas, arguments: tuple[str, ...], status: int, error: str
) -> None:
    done = barnabas("records", "delete", *arguments, "--execute")
    assert (done.status, done.output) == (status, "")
    assert error in " ".join(done.errors.split())
    assert filled.cut == {}


def test_what_brokers_refuse(filled: FakeCluster, barnabas: Barnabas) -> None:
    filled.delete_error = KafkaError(ErrorCode.POLICY_VIOLATION, "deleting records of flights-0")
    done = barnabas("records", "delete", "flights", "--before", "latest", "--execute")
    assert (done.status, done.output) == (1, "")
    assert "deleting records of flights-0: a topic that is only compacted keeps its records" in done.errors
    filled.delete_error = KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "deleting records of flights-0")
    done = barnabas("records", "delete", "__consumer_offsets", "--before", "latest", "--execute", "--force")
    assert done.errors.endswith("(OFFSET_OUT_OF_RANGE)\n")


@pytest.mark.parametrize(
    "text", ['{"partitions": [{"topic": "flights", "partition": 0, "offset": -1}]}', "flights,0,-1"]
)
def test_the_end_in_a_file_of_kafka_delete_records(
    filled: FakeCluster, barnabas: Barnabas, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "offsets"
    file.write_text(text)
    done = barnabas("records", "delete", "--from-file", str(file), "--execute")
    assert (done.status, filled.cut) == (0, {FLIGHTS[0]: 50}), done.errors
    # Nobody resets a group to -1 by mistake.
    assert "is no offset" in barnabas("group", "reset", "readers", "--from-file", str(file)).errors


@pytest.mark.parametrize("offset", ["-2", "51", "9" * 30, "9" * 5_000])
def test_what_no_partition_has_in_a_file_deletes_nothing(
    filled: FakeCluster, barnabas: Barnabas, tmp_path: Path, offset: str
) -> None:
    file = tmp_path / "offsets"
    for text in (
        f'{{"partitions": [{{"topic": "flights", "partition": 0, "offset": {offset}}}]}}',
        f"flights,0,{offset}",
    ):
        file.write_text(text)
        done = barnabas("records", "delete", "--from-file", str(file), "--execute")
        assert (done.status, done.output, filled.cut) == (1, "", {})
        assert "is no offset" in done.errors or "51 is beyond it" in done.errors


def test_partitions_without_a_leader_are_named_at_once(cluster: FakeCluster, barnabas: Barnabas) -> None:
    cluster.add(topic("flights", partition(1), partition(-1), partition(2)))
    cluster.ends = dict.fromkeys(FLIGHTS, 5)
    cluster.committed["readers"] = dict.fromkeys(FLIGHTS, 3)
    for arguments in (
        ("offsets", "flights"),
        ("records", "delete", "flights", "--before", "latest", "--execute"),
        ("group", "reset", "readers", "--to", "earliest", "--execute"),
        ("group", "reset", "readers", "--to", "earliest", "--topic", "flights", "--execute"),
    ):
        done = barnabas(*arguments)
        assert (done.status, done.output) == (3, "")
        assert "flights-1 has no leader now; `barnabas cluster health` says which brokers to start" in done.errors
    assert (cluster.cut, set(cluster.committed["readers"].values())) == ({}, {3})
    assert barnabas("offsets", "flights:0", "flights:2").status == 0


def test_what_is_written_between_two_questions_is_behind_the_end(filled: FakeCluster, barnabas: Barnabas) -> None:
    filled.at_times = {FLIGHTS[0]: 53, FLIGHTS[1]: 2}
    (first, second) = barnabas("offsets", "flights:0-1", "--at", "2h", "--json").document["partitions"]
    assert (first["offset"], first["offsets_to_end"], second["offset"]) == (50, 0, 2)


def test_what_is_deleted_before_an_error_is_told(filled: FakeCluster, barnabas: Barnabas) -> None:
    filled.ends[FLIGHTS[2]] = 4
    filled.refusing = {"flights-1"}
    done = barnabas("records", "delete", "flights", "--before", "latest", "--execute")
    assert (done.status, filled.cut) == (1, {FLIGHTS[0]: 50})
    assert done.errors.splitlines()[0] == (
        "Deleted before the error: flights-0. Not done: flights-1, flights-2. The same command again does the rest."
    )
