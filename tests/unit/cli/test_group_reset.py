"""`barnabas group reset`, `delete` and `delete-offsets`: what they show, do, and refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.client.admin import GroupDescription, GroupListing, GroupMemberDescription
from barnabas.client.errors import CommitFailedError
from barnabas.wire.topics import TopicPartition
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import NOW_MS, FakeCluster, partition, topic

Barnabas = Callable[..., Done]
FLIGHTS = [TopicPartition("flights", number) for number in range(3)]
OTHER = TopicPartition("other", 0)
MEMBER = GroupMemberDescription("reader-0-uuid", None, "reader-0", "/10.0.0.1", (FLIGHTS[0],))


@pytest.fixture
def idle(cluster: FakeCluster) -> FakeCluster:
    """A group without members that has read two partitions of three, and one of a topic that is gone."""
    cluster.add(topic("flights", partition(1), partition(2), partition(3)), topic("other", partition(1)))
    cluster.starts = {FLIGHTS[0]: 10}
    cluster.ends = {FLIGHTS[0]: 50, FLIGHTS[1]: 7, FLIGHTS[2]: 9, OTHER: 3}
    cluster.groups["readers"] = GroupDescription("readers", "Empty", "consumer", "", (), 3)
    cluster.committed["readers"] = {FLIGHTS[0]: 42, FLIGHTS[1]: 7, TopicPartition("gone", 0): 1}
    cluster.listings = [GroupListing("readers", "consumer", "Empty", "classic", 3)]
    return cluster


def new_offsets(barnabas: Barnabas, *arguments: str) -> dict[tuple[str, int], int]:
    found = barnabas("group", "reset", "readers", *arguments, "--json").document
    return {(each["topic"], each["partition"]): each["new_offset"] for each in found["partitions"]}


def test_without_execute_the_effect_is_shown_only(idle: FakeCluster, barnabas: Barnabas) -> None:
    before = dict(idle.committed["readers"])
    done = barnabas("group", "reset", "readers", "--to", "earliest")
    assert done.rows == [
        "Topic Partition Current New End Lag New lag",
        "flights 0 42 10 50 8 40",
        "flights 1 7 0 7 0 7",
    ]
    assert done.errors.splitlines() == [
        "Left out, as these topics are gone: gone.",
        "Nothing was changed: add --execute to do it.",
    ]
    assert (done.status, idle.committed["readers"]) == (0, before)


def test_with_execute_the_group_reads_on_from_there(idle: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("group", "reset", "readers", "--to", "latest", "--topic", "flights", "--execute", "--json")
    assert done.document == {
        "group_id": "readers",
        "is_executed": True,
        "partitions": [
            {
                "topic": "flights",
                "partition": number,
                "offset": offset,
                "new_offset": end,
                "end_offset": end,
                "lag": lag,
                "new_lag": 0,
            }
            for number, offset, end, lag in [(0, 42, 50, 8), (1, 7, 7, 0), (2, None, 9, None)]
        ],
    }
    assert done.errors == "Reset group readers: 3 partitions.\n"
    assert [idle.committed["readers"][each] for each in FLIGHTS] == [50, 7, 9]


def test_by_offset_and_shift_within_the_log(idle: FakeCluster, barnabas: Barnabas) -> None:
    assert new_offsets(barnabas, "--to", "20", "--topic", "flights:0") == {("flights", 0): 20}
    done = barnabas("group", "reset", "readers", "--to", "5")
    assert "flights-0 has offsets 10 to 50, and no 5: 10 is taken" in done.errors
    assert "flights 1 7 5 7 0 2" in done.rows
    done = barnabas("group", "reset", "readers", "--shift", "-40", "--topic", "flights:0-1")
    assert [row.split()[3] for row in done.rows[1:]] == ["10", "0"]
    assert "flights-1 has offsets 0 to 7, and no -33: 0 is taken" in done.errors
    assert new_offsets(barnabas, "--to", "-3") == {("flights", 0): 47, ("flights", 1): 4}


def test_by_time_and_by_duration(idle: FakeCluster, barnabas: Barnabas) -> None:
    idle.at_times = {FLIGHTS[0]: 33}
    # Where no record is as new, it is the end.
    expected = {("flights", 0): 33, ("flights", 1): 7}
    assert new_offsets(barnabas, "--to", "2023-01-01T00:00:00Z") == expected
    assert new_offsets(barnabas, "--to", "2h") == expected
    assert {*idle.times_asked_for_ms} == {1_672_531_200_000, NOW_MS - 7_200_000}


@pytest.mark.parametrize(
    "text",
    [
        "flights,0,20\nflights,2,4\n",
        '\ufeff"flights",0,20\r\n\r\nflights, 2 ,4',
        json.dumps({"partitions": [{"topic": "flights", "partition": n, "offset": o} for n, o in ((0, 20), (2, 4))]}),
        json.dumps(
            {
                "partitions": [
                    {"topic": "flights", "partition": 0, "offset": 1, "new_offset": 20},
                    {"topic": "flights", "partition": 2, "offset": None, "new_offset": 4},
                ]
            }
        ),
    ],
)
def test_from_a_file(idle: FakeCluster, barnabas: Barnabas, tmp_path: Path, text: str) -> None:
    file = tmp_path / "offsets"
    file.write_text(text)
    assert new_offsets(barnabas, "--from-file", str(file)) == {("flights", 0): 20, ("flights", 2): 4}


@pytest.mark.parametrize(
    ("data", "status", "error"),
    [
        (b"", 1, "there is no offset in it; it must be lines of TOPIC,PARTITION,OFFSET, or"),
        (b"flights,0,1\nflights;0;20", 1, "offsets, line 2: 'flights;0;20' is not TOPIC,PARTITION,OFFSET"),
        (b"flights,0,1,2", 1, "line 1: 'flights,0,1,2' is not TOPIC,PARTITION,OFFSET"),
        (b"flights,0,-1", 1, "line 1: '-1' is no offset: write a number from 0 on"),
        (b"flights,x,1", 1, "line 1: 'x' is no partition"),
        (b"flights,0,9223372036854775808", 1, "is no offset"),
        (b"flights,2147483648,1", 1, "is no partition"),
        (b"flights,0,1\nflights,0,2", 1, "line 2: flights-0 is there twice"),
        (b"\xff\x00\x01", 1, "byte 1 is not UTF-8"),
        (b"{nonsense", 1, "it is not JSON"),
        (b"[" * 100_000, 1, "it is not JSON"),
        (b"{}", 1, "it has no list of partitions"),
        (b'{"partitions": [3]}', 1, "partition 1 of the list: it names no topic"),
        (b'{"partitions": [{"topic": "a", "partition": true, "offset": 1}]}', 1, "true is no partition"),
        (b'{"partitions": [{"topic": "a", "partition": 0}]}', 1, "null is no offset"),
        (b"flights,7,1", 4, "topic flights has no partition 7; it has 0 to 2"),
        (b"nowhere,0,1", 4, "there is no topic nowhere"),
    ],
)
def test_a_file_with_garbage_changes_nothing(
    idle: FakeCluster, barnabas: Barnabas, tmp_path: Path, data: bytes, status: int, error: str
) -> None:
    before = dict(idle.committed["readers"])
    file = tmp_path / "offsets"
    file.write_bytes(data)
    done = barnabas("group", "reset", "readers", "--execute", "--from-file", str(file))
    assert (done.status, done.output) == (status, "")
    assert error in done.errors
    assert len(done.errors.splitlines()) == 1
    assert idle.committed["readers"] == before


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        (("readers",), 2, "say where to, in one way: --to, --shift, --to-current or --from-file"),
        (("readers", "--to", "latest", "--shift", "1"), 2, "in one way"),
        (("readers", "--to", "soon"), 2, "'soon' is no place in a partition"),
        (("readers", "--to", "2x"), 2, "2h (ago)"),
        (("readers", "--to", "2099-01-01"), 2, "2099-01-01T00:00:00.000Z is in the future; write latest for the end"),
        (("readers", "--to", "latest", "--topic", "flights:"), 2, "names no partitions: write TOPIC, or TOPIC:0,2-4"),
        (("readers", "--to", "latest", "--topic", "flights:2-1"), 2, "the smaller number first"),
        (("readers", "--to", "latest", "--topic", "flights:5"), 4, "topic flights has no partition 5; it has 0 to 2"),
        (("readers", "--to", "latest", "--topic", "fligths"), 4, "there is no topic fligths"),
        (("readerz", "--to", "latest"), 4, "there is no group readerz; did you mean readers?"),
        (("x", "--to", "latest"), 4, "there is no group x; `barnabas group list` shows which there are"),
        (("x", "--to", "latest", "--create"), 2, "a new group has no offsets yet: name topics with --topic"),
        (("readers", "--shift", "1", "--topic", "flights:2"), 1, "nothing is committed for flights-2"),
        (("readers", "--from-file", "/no/such/file"), 4, "/no/such/file: there is no such file"),
    ],
)
def test_what_makes_no_sense_is_refused(
    idle: FakeCluster, barnabas: Barnabas, arguments: tuple[str, ...], status: int, error: str
) -> None:
    done = barnabas("group", "reset", *arguments, "--execute")
    assert (done.status, done.output) == (status, "")
    assert error in " ".join(done.errors.split())


def test_a_new_group_begins_where_it_is_told(idle: FakeCluster, barnabas: Barnabas) -> None:
    options = ("--create", "--to", "latest", "--topic", "flights:0", "--execute")
    assert barnabas("group", "reset", "new", *options).status == 0
    assert idle.committed["new"] == {FLIGHTS[0]: 50}


def test_a_group_with_members_is_not_reset(idle: FakeCluster, barnabas: Barnabas) -> None:
    idle.groups["readers"] = GroupDescription("readers", "Stable", "consumer", "range", (MEMBER,) * 7, 3)
    done = barnabas("group", "reset", "readers", "--to", "earliest", "--execute")
    assert (done.status, done.output) == (1, "")
    who = ", ".join(["reader-0 at 10.0.0.1"] * 5)
    assert done.errors.splitlines()[-1] == (
        f"barnabas group reset: group readers has 7 members: {who}, 2 more; stop them, and reset it then"
    )
    assert idle.committed["readers"][FLIGHTS[0]] == 42
    done = barnabas("group", "reset", "readers", "--to", "earliest")
    assert done.status == 0
    assert "Nothing was changed, and nothing can be now: group readers has 7 members" in done.errors


def test_a_member_that_comes_meanwhile_is_told_of(idle: FakeCluster, barnabas: Barnabas) -> None:
    idle.commit_error = CommitFailedError("its partitions belong to others")
    done = barnabas("group", "reset", "readers", "--to", "earliest", "--execute")
    assert done.status == 1
    assert "a member has come into group readers meanwhile; 0 of 2 offsets are reset" in done.errors


def test_groups_are_deleted(idle: FakeCluster, barnabas: Barnabas) -> None:
    idle.groups["busy"] = GroupDescription("busy", "Stable", "consumer", "range", (MEMBER,), 1)
    done = barnabas("group", "delete", "readers", "busy", "nobody")
    assert (done.status, done.output) == (4, "Deleted group readers, with 3 offsets.\n")
    assert done.errors.splitlines() == [
        "barnabas group delete: group busy has 1 member: reader-0 at 10.0.0.1; stop them, and delete it then",
        "barnabas group delete: there is no group nobody; `barnabas group list` shows which there are",
    ]
    done = barnabas("group", "delete", "nobody", "--if-exists", "--json")
    assert done.document == {"is_dry_run": False, "deleted": [], "missing": ["nobody"], "offsets": []}
    assert idle.deleted == ["readers"]


def test_a_dry_run_shows_what_would_go_and_deletes_nothing(idle: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("group", "delete", "readers", "--dry-run")
    assert done.rows == [
        "Group Topic Partition Offset",
        "readers flights 0 42",
        "readers flights 1 7",
        "readers gone 0 1",
    ]
    assert done.errors == "Nothing was deleted: that was a dry run. 1 group could be.\n"
    assert barnabas("group", "delete", "readers", "nobody", "--dry-run").status == 4
    done = barnabas("group", "delete-offsets", "readers", "--topic", "flights:1", "--dry-run")
    assert done.rows[1:] == ["flights 1 7"]
    assert done.errors == "Nothing was deleted: that was a dry run.\n"
    idle.groups["readers"] = GroupDescription("readers", "Stable", "consumer", "range", (MEMBER,), 3)
    done = barnabas("group", "delete-offsets", "readers", "--topic", "flights:1", "--dry-run", "--json")
    assert (done.document["is_dry_run"], "The group has members" in done.errors) == (True, True)
    assert (idle.deleted, len(idle.committed["readers"])) == ([], 3)


def test_a_group_without_a_name_is_not_looked_for(idle: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("group", "delete", "")
    assert (done.status, "a group needs a name" in done.errors) == (2, True)


def test_a_group_that_brokers_do_not_delete(idle: FakeCluster, barnabas: Barnabas) -> None:
    idle.groups["undeletable"] = GroupDescription("undeletable", "Empty", "consumer", "", (), 1)
    done = barnabas("group", "delete", "undeletable")
    assert (done.status, done.output) == (1, "")
    assert done.errors.endswith("(NON_EMPTY_GROUP)\n")


def test_offsets_of_a_topic_are_deleted(idle: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("group", "delete-offsets", "readers", "--topic", "flights:1-2")
    assert done.rows == ["Topic Partition Deleted offset", "flights 1 7"]
    assert FLIGHTS[1] not in idle.committed["readers"]
    done = barnabas("group", "delete-offsets", "readers", "--topic", "flights", "--json")
    assert done.document == {
        "group_id": "readers",
        "is_dry_run": False,
        "deleted": [{"topic": "flights", "partition": 0, "offset": 42}],
    }
    done = barnabas("group", "delete-offsets", "readers", "--topic", "flights")
    assert done.status == 4
    assert "group readers has committed nothing for flights; `barnabas group describe readers` shows" in done.errors


def test_offsets_that_members_go_on_from_are_not_deleted(idle: FakeCluster, barnabas: Barnabas) -> None:
    idle.groups["readers"] = GroupDescription("readers", "Stable", "consumer", "range", (MEMBER,), 3)
    done = barnabas("group", "delete-offsets", "readers", "--topic", "flights")
    assert (done.status, done.output) == (1, "")
    assert "stop them, and delete offsets of topics that they read then" in done.errors


def test_to_where_it_is(idle: FakeCluster, barnabas: Barnabas) -> None:
    committed = dict(idle.committed["readers"])
    assert new_offsets(barnabas, "--to-current") == {("flights", 0): 42, ("flights", 1): 7}
    # What it has never read begins at the end, as with kafka-consumer-groups.
    assert new_offsets(barnabas, "--to-current", "--topic", "flights:1-2") == {("flights", 1): 7, ("flights", 2): 9}
    assert idle.committed["readers"] == committed


def test_all_groups_that_have_offsets_and_no_members(idle: FakeCluster, barnabas: Barnabas) -> None:
    idle.groups["others"] = replace(idle.groups["readers"], group_id="others")
    idle.groups["busy"] = replace(
        idle.groups["readers"],
        group_id="busy",
        state="Stable",
        members=(GroupMemberDescription("m", None, "c", "/h", ()),),
    )
    idle.groups["elsewhere"] = replace(idle.groups["readers"], group_id="elsewhere")
    place = TopicPartition("flights", 0)
    idle.committed |= {"others": {place: 11}, "busy": {place: 12}, "elsewhere": {}}
    names = [("readers", "consumer"), ("others", ""), ("busy", "consumer"), ("elsewhere", "consumer"), ("x", "connect")]
    idle.listings = [GroupListing(name, protocol, "Empty", "classic", 1) for name, protocol in names]
    shown_only = barnabas("group", "reset", "--all-groups", "--to", "earliest")
    assert [row.split()[:3] for row in shown_only.rows[1:]][-1] == ["others", "flights", "0"]
    assert idle.committed["others"] == {place: 11}
    done = barnabas("group", "reset", "--all-groups", "--to", "earliest", "--topic", "flights:0", "--execute")
    assert done.status == 1
    assert "left out, as they have members: busy; stop these" in done.errors
    assert (idle.committed["others"][place], idle.committed["readers"][place]) == (10, 10)
    assert (idle.committed["busy"], idle.committed["elsewhere"]) == ({place: 12}, {})
    for arguments in (("readers", "--all-groups", "--to", "earliest"), ("--to", "earliest")):
        done = barnabas("group", "reset", *arguments)
        assert (done.status, done.output) == (2, "")
        assert "name a group, or say --all-groups" in done.errors
