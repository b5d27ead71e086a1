"""`barnabas controller show`: of ours everything that it tells, of another only who it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from barnabas.cli.controller_show import age, shown_time
from barnabas.client.errors import ClientTimeoutError
from barnabas.wire.messages import DescribeControllerResponse as Response
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import BROKERS, NOW_MS, FakeCluster

Barnabas = Callable[..., Done]


def controller(queued_events: int = 0) -> Response:
    return Response(
        software_version="1.2.3",
        controller_id=2,
        controller_epoch=9,
        elected_at_ms=NOW_MS - 3_725_000,
        state="TOPIC_CHANGE" if queued_events else "IDLE",
        queued_events=queued_events,
        oldest_event_age_ms=250 * queued_events,
        counts=[
            Response.Count(name="OfflinePartitionsCount", value=1), Response.Count(name="ZkMigrationState", value=4),
        ],
        timings=[Response.Timing(name="TopicChangeRateAndTimeMs", count=3, mean_ms=1.25, maximum_ms=2)],
        channels=[Response.Channel(broker_id=1, queued_requests=0), Response.Channel(broker_id=2, queued_requests=5)],
        transitions=[
            Response.Transition(
                time_ms=NOW_MS - 1, topic="flights", partition=3, before="OFFLINE", after="ONLINE",
                leader=2, leader_epoch=5, isr=[2, 3],
            ),
            Response.Transition(
                time_ms=NOW_MS, topic="flights", partition=3, broker_id=1, before="NEW", after="OFFLINE",
                fault="it is not allowed",
            ),
        ],
    )  # fmt: skip


def test_ours(cluster: FakeCluster, barnabas: Barnabas) -> None:
    cluster.controller = BROKERS[2], controller()
    done = barnabas("controller", "show")
    assert (done.status, done.errors) == (0, "")
    assert done.rows == [
        "Controller broker 2 at host-2:9092",
        "Software Barnabas 1.2.3",
        "Epoch 9",
        "Since 2023-11-14 21:12:55.000 UTC, 1 h 2 min ago",
        "Doing nothing",
        "Waiting 0 events",
        "To be sent 0 to broker 1, 5 to broker 2",
        "",
        "Gauge Value",
        "OfflinePartitionsCount 1",
        "ZkMigrationState 4",
        "",
        "What it did Times Mean ms Longest ms",
        "TopicChangeRateAndTimeMs 3 1.2 2",
        "",
        "Time (UTC) Partition Replica From To Leader Epoch In sync",
        "22:14:59.999 flights-3 - offline online 2 5 2,3",
        "22:15:00.000 flights-3 1 new not offline - - -",
        "flights-3 failed it is not allowed",
    ]


def test_ours_at_work(cluster: FakeCluster, barnabas: Barnabas) -> None:
    cluster.controller = BROKERS[2], controller(queued_events=4)
    lines = barnabas("controller", "show").rows
    assert "Doing topic change" in lines
    assert "Waiting 4 events, the oldest for 1000 ms" in lines


def test_ours_for_programs(cluster: FakeCluster, barnabas: Barnabas) -> None:
    cluster.controller = BROKERS[2], controller(queued_events=4)
    assert barnabas("controller", "show", "--json").document == {
        "id": 2,
        "host": "host-2",
        "port": 9092,
        "software": "barnabas",
        "software_version": "1.2.3",
        "epoch": 9,
        "elected_at_ms": NOW_MS - 3_725_000,
        "state": "topic_change",
        "queued_events": 4,
        "oldest_event_age_ms": 1000,
        "gauges": {"OfflinePartitionsCount": 1, "ZkMigrationState": 4},
        "timings": [{"name": "TopicChangeRateAndTimeMs", "count": 3, "mean_ms": 1.25, "maximum_ms": 2}],
        "queued_requests": {"1": 0, "2": 5},
        "transitions": [
            {
                "time_ms": NOW_MS - 1,
                "topic": "flights",
                "partition": 3,
                "replica": None,
                "from": "offline",
                "to": "online",
                "leader": 2,
                "leader_epoch": 5,
                "isr": [2, 3],
                "fault": None,
            },
            {
                "time_ms": NOW_MS,
                "topic": "flights",
                "partition": 3,
                "replica": 1,
                "from": "new",
                "to": "offline",
                "leader": None,
                "leader_epoch": None,
                "isr": [],
                "fault": "it is not allowed",
            },
        ],
    }


def test_a_controller_that_has_done_nothing_yet(cluster: FakeCluster, barnabas: Barnabas) -> None:
    fresh = controller()
    fresh.transitions, fresh.timings = [], []
    cluster.controller = BROKERS[2], fresh
    done = barnabas("controller", "show")
    assert done.status == 0
    assert "What it did" not in done.output
    assert "Replica" not in done.output


def test_another_s(cluster: FakeCluster, barnabas: Barnabas) -> None:
    cluster.controller = BROKERS[2], None
    done = barnabas("controller", "show")
    assert done.status == 0
    assert done.output.splitlines() == [
        "Controller  broker 2 at host-2:9092",
        "It is Apache Kafka or another broker, not Barnabas: the protocol says no more about it.",
    ]
    assert barnabas("controller", "show", "--json").document == {
        "id": 2,
        "host": "host-2",
        "port": 9092,
        "software": "other",
    }


@pytest.mark.parametrize(
    ("controller_id", "status", "complaint"),
    [(-1, 1, "the cluster has no controller now; an election may be"), (2, 3, "it was not done; check that")],
)
def test_none_that_answers(
    cluster: FakeCluster, barnabas: Barnabas, controller_id: int, status: int, complaint: str
) -> None:
    cluster.controller = ClientTimeoutError("it was not done")
    cluster.cluster = replace(cluster.cluster, controller_id=controller_id)
    done = barnabas("controller", "show")
    assert done.status == status
    assert done.errors.startswith(f"barnabas controller show: {complaint}")


@pytest.mark.parametrize(
    ("age_ms", "expected"),
    [(-5, "0 s"), (999, "0 s"), (61_000, "1 min 1 s"), (3_600_000, "1 h 0 min"), (90_061_000, "1 d 1 h")],
)
def test_ages_have_two_units(age_ms: int, expected: str) -> None:
    assert age(age_ms) == expected


def test_times_of_another_day_have_their_date() -> None:
    assert shown_time(NOW_MS - 86_400_000, NOW_MS) == "2023-11-13 22:15:00.000"
