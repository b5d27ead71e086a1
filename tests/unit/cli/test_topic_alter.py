"""`barnabas topic alter`: what is changed, what is checked before, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from barnabas.client.admin import ConfigEntry, ConfigOperation, ConfigSynonym, ResourceType
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import FakeCluster, partition, topic

Barnabas = Callable[..., Done]
RETENTION = ConfigEntry(
    "retention.ms",
    "1000",
    1,
    is_read_only=False,
    is_sensitive=False,
    synonyms=(ConfigSynonym("retention.ms", "1000", 1), ConfigSynonym("log.retention.ms", "9000", 4)),
)


@pytest.fixture
def flights(cluster: FakeCluster) -> FakeCluster:
    """Two topics of two partitions, one of them without a leader, and an internal one."""
    cluster.add(
        topic("flights", partition(1), partition(-1)),
        topic("copy", partition(1), partition(2)),
        topic("__consumer_offsets", partition(1), is_internal=True),
    )
    cluster.configs = {"flights": [RETENTION], "copy": [RETENTION]}
    return cluster


def test_partitions_are_added_and_only_these_are_waited_for(flights: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("topic", "alter", "flights", "copy", "--partitions", "3")
    assert done == Done(0, "Topic flights: 3 partitions, before 2.\nTopic copy: 3 partitions, before 2.\n", "")
    assert flights.grown == {"flights": 3, "copy": 3}
    assert flights.waited_for == [("flights-2", "copy-2")]


def test_configs_are_set_and_taken_back(flights: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("topic", "alter", "flights", "--config", "retention.ms=5")
    assert done.rows == ["Topic flights: 2 partitions, as before.", "Config Before After", "retention.ms 1000 5"]
    assert [is_dry_run for *_, is_dry_run in flights.altered] == [False]
    assert flights.altered[0][:3] == (ResourceType.TOPIC, "flights", [("retention.ms", ConfigOperation.SET, "5")])
    assert barnabas("topic", "alter", "flights", "--unset", "retention.ms", "--json").document == {
        "is_dry_run": False,
        "topics": [
            {
                "name": "flights",
                "partitions_before": 2,
                "partitions": 2,
                "configs": [{"name": "retention.ms", "before": "5", "after": "9000", "is_sensitive": False}],
            }
        ],
    }
    assert (flights.grown, flights.waited_for) == ({}, [])


@pytest.mark.parametrize("more", [("copy",), ("--partitions", "3")])
def test_all_is_checked_before_any_is_changed_where_there_are_several_changes(
    flights: FakeCluster, barnabas: Barnabas, more: tuple[str, ...]
) -> None:
    """One topic's configs are changed whole or not at all, as its partitions are."""
    topics = 1 + ("copy" in more)
    assert barnabas("topic", "alter", "flights", *more, "--config", "retention.ms=5").status == 0
    assert [is_dry_run for *_, is_dry_run in flights.altered] == [True] * topics + [False] * topics


def test_a_dry_run_changes_nothing(flights: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("topic", "alter", "flights", "--config", "retention.ms=5", "--partitions", "7", "--dry-run")
    assert done.rows[0] == "Topic flights: 7 partitions, before 2."
    assert done.errors == "Nothing was changed: that was a dry run.\n"
    assert (flights.grown, [is_dry_run for *_, is_dry_run in flights.altered]) == ({}, [True])


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        (("flights",), 2, "nothing to change: give --partitions, --config or --unset"),
        (("flights", "--partitions", "0"), 2, "0 is not in the range"),
        (("flights", "--config", "retention.ms"), 2, "must have the form KEY=VALUE"),
        (("flights", "--config", "retention.ms=1", "--unset", "retention.ms"), 2, "retention.ms is there twice"),
        (("copy", "gone", "--partitions", "4"), 4, "there is no topic gone"),
        (("copy", "--config", "retention.m=4"), 4, "did you mean retention.ms?"),
        (("copy", "flights", "--partitions", "1"), 1, "has 2 partitions, and none can be taken away"),
        (("copy", "--partitions", "4000", "--config", "retention.ms=1"), 1, "copy: too many (INVALID_PARTITIONS)"),
        (("copy", "--partitions", "4", "--config", "retention.ms=refused"), 1, "(INVALID_CONFIG)"),
        (
            ("__consumer_offsets", "--partitions", "4"),
            1,
            "is internal; if the brokers' own topic shall change, add --f",
        ),
    ],
)
def test_what_is_refused_changes_nothing(
    flights: FakeCluster, barnabas: Barnabas, arguments: tuple[str, ...], status: int, error: str
) -> None:
    done = barnabas("topic", "alter", *arguments)
    assert (done.status, done.output) == (status, "")
    assert error in done.errors
    assert flights.grown == {}
    assert all(is_dry_run for *_, is_dry_run in flights.altered)


def test_internal_topics_are_altered_by_force(flights: FakeCluster, barnabas: Barnabas) -> None:
    assert barnabas("topic", "alter", "__consumer_offsets", "--partitions", "4", "--force").status == 0
    assert flights.grown == {"__consumer_offsets": 4}


@pytest.mark.parametrize("what", ["partitions", "configs"])
def test_what_is_changed_before_an_error_is_told(flights: FakeCluster, barnabas: Barnabas, what: str) -> None:
    flights.add(topic("a", partition(1)), topic("b", partition(1)))
    flights.configs |= dict.fromkeys("ab", flights.configs["flights"])
    flights.refusing = {"b"}
    option = ("--partitions", "9") if what == "partitions" else ("--config", "retention.ms=5")
    done = barnabas("topic", "alter", "a", "b", "flights", *option)
    assert (done.status, done.output) == (1, "")
    assert done.errors.splitlines()[0] == (
        f"Before the error the {what} are changed of: a. Not done: b, flights. The same command again does the rest."
    )
    assert "flights" not in flights.grown
