"""`barnabas group`: offsets, ends, lag and who reads, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from barnabas.client.admin import GroupDescription, GroupListing, GroupMemberDescription
from barnabas.wire.topics import TopicPartition
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import FakeCluster, partition, topic

Barnabas = Callable[..., Done]
MEMBER = GroupMemberDescription(
    "reader-0-uuid", None, "reader-0", "/10.0.0.1", (TopicPartition("flights", 0), TopicPartition("flights", 1))
)
IDLE = GroupMemberDescription("reader-1-uuid", "static-1", "reader-1", "/10.0.0.2", ())


@pytest.fixture
def readers(cluster: FakeCluster) -> FakeCluster:
    """A group: partition 0 is read and behind, 1 has no commit, 2 no member, 3 no leader; a topic is gone."""
    cluster.add(topic("flights", partition(1), partition(2), partition(3), partition(-1)))
    cluster.ends = {TopicPartition("flights", 0): 50, TopicPartition("flights", 1): 7, TopicPartition("flights", 2): 9}
    cluster.groups["readers"] = GroupDescription("readers", "Stable", "consumer", "range", (MEMBER, IDLE), 3)
    cluster.committed["readers"] = {
        TopicPartition("flights", 0): 42,
        TopicPartition("flights", 2): 9,
        TopicPartition("flights", 3): 5,
        TopicPartition("gone", 0): 1,
    }
    cluster.listings = [
        GroupListing("readers", "consumer", "Stable", "classic", 3),
        GroupListing("old", "consumer", "", "", 1),
    ]
    return cluster


def test_list(readers: FakeCluster, barnabas: Barnabas) -> None:
    assert [line.split() for line in barnabas("group", "list").output.splitlines()] == [
        ["Group", "State", "Protocol", "Type", "Coordinator"],
        ["readers", "Stable", "consumer", "classic", "3"],
        ["old", "-", "consumer", "-", "1"],
    ]
    assert barnabas("group", "list", "--state", "Stable", "--json").document == {
        "groups": [
            {
                "group_id": "readers",
                "state": "Stable",
                "protocol_type": "consumer",
                "type": "classic",
                "coordinator": 3,
            }
        ]
    }


def test_no_groups_are_no_error(cluster: FakeCluster, barnabas: Barnabas) -> None:
    assert barnabas("group", "list") == Done(0, "", "There are no groups.\n")
    assert barnabas("group", "list", "--state", "Dead") == Done(0, "", "There are no such groups.\n")
    assert barnabas("group", "describe") == Done(0, "", "There are no groups.\n")


def test_describe_shows_lag_and_members(readers: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("group", "describe", "readers")
    assert (done.status, done.errors) == (0, "")
    lines = done.rows
    assert lines[:6] == [
        "Group readers",
        "State Stable",
        "Protocol consumer range",
        "Coordinator broker 3 at host-3:9093",
        "Members 2",
        "Lag 8 records",
    ]
    assert lines[6:12] == [
        "Topic Partition Offset End Lag Member Host Client",
        "flights 0 42 50 8 reader-0-uuid 10.0.0.1 reader-0",
        "flights 1 - 7 - reader-0-uuid 10.0.0.1 reader-0",
        "flights 2 9 9 0 - - -",
        "flights 3 5 - - - - -",
        "gone 0 1 - - - - -",
    ]
    assert lines[13:] == [
        "Member Instance Host Client Partitions",
        "reader-0-uuid - 10.0.0.1 reader-0 2",
        "reader-1-uuid static-1 10.0.0.2 reader-1 0",
    ]


def test_describe_for_programs(readers: FakeCluster, barnabas: Barnabas) -> None:
    (found,) = barnabas("group", "describe", "readers", "--json").document["groups"]
    partitions, members = found.pop("partitions"), found.pop("members")
    assert found == {
        "group_id": "readers",
        "state": "Stable",
        "protocol_type": "consumer",
        "protocol": "range",
        "coordinator": {"id": 3, "host": "host-3", "port": 9093},
        "lag": 8,
    }
    assert partitions[0] == {
        "topic": "flights",
        "partition": 0,
        "offset": 42,
        "end_offset": 50,
        "lag": 8,
        "member_id": "reader-0-uuid",
        "host": "10.0.0.1",
        "client_id": "reader-0",
    }
    assert [(each["offset"], each["end_offset"], each["lag"]) for each in partitions[1:]] == [
        (None, 7, None),
        (9, 9, 0),
        (5, None, None),
        (1, None, None),
    ]
    assert members[1] == {
        "member_id": "reader-1-uuid",
        "group_instance_id": "static-1",
        "host": "10.0.0.2",
        "client_id": "reader-1",
        "partitions": 0,
    }


def test_a_group_without_members_still_has_its_offsets(readers: FakeCluster, barnabas: Barnabas) -> None:
    readers.groups["readers"] = GroupDescription("readers", "Empty", "consumer", "", (), 3)
    done = barnabas("group", "describe", "readers")
    lines = done.rows
    assert "Members 0" in lines
    assert "flights 0 42 50 8 - - -" in lines
    assert not any(line.startswith("Member Instance") for line in lines)


def test_of_a_group_of_the_newer_protocol_the_offsets_are_shown(readers: FakeCluster, barnabas: Barnabas) -> None:
    del readers.groups["readers"]
    readers.listings = [GroupListing("readers", "consumer", "Stable", "consumer", 3)]
    done = barnabas("group", "describe", "readers")
    assert done.errors == "Group readers uses KIP-848's protocol: its members are not shown.\n"
    lines = done.rows
    assert lines[1:3] == ["State Stable", "Protocol consumer"]
    assert "flights 0 42 50 8 - - -" in lines


def test_a_group_that_has_read_nothing_yet(cluster: FakeCluster, barnabas: Barnabas) -> None:
    cluster.groups["new"] = GroupDescription("new", "PreparingRebalance", "consumer", "", (IDLE,), 9)
    done = barnabas("group", "describe", "new")
    assert "Nothing is committed, and no partition is assigned." in done.output
    assert done.output.splitlines()[3].split() == ["Coordinator", "-"]
    assert barnabas("group", "describe", "new", "--json").document["groups"][0]["lag"] is None


def test_offsets_behind_the_end_of_a_log_that_was_cut_are_no_negative_lag(
    readers: FakeCluster, barnabas: Barnabas
) -> None:
    readers.ends[TopicPartition("flights", 0)] = 40
    (found,) = barnabas("group", "describe", "readers", "--json").document["groups"]
    assert (found["partitions"][0]["lag"], found["lag"]) == (0, 0)


def test_describe_takes_names_and_patterns(readers: FakeCluster, barnabas: Barnabas) -> None:
    readers.listings.append(GroupListing("re*", "consumer", "Empty", "classic", 1))
    readers.groups["re*"] = GroupDescription("re*", "Empty", "consumer", "", (), 1)
    readers.groups["old"] = GroupDescription("old", "Empty", "consumer", "", (), 1)

    def found(*names: str) -> list[str]:
        return [each["group_id"] for each in barnabas("group", "describe", "--json", *names).document["groups"]]

    assert found("r*s", "readers") == ["readers"]
    # The name of a group goes before the pattern that it looks like.
    assert found("re*") == ["re*"]
    assert found() == ["readers", "old", "re*"]


def test_describe_names_what_is_not_there(readers: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("group", "describe", "readers", "writers", "x?")
    assert done.status == 4
    assert "flights" in done.output
    assert done.errors == (
        "barnabas group describe: there are no groups x?, writers; `barnabas group list` shows which there are\n"
    )
