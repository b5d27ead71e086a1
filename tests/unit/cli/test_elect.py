"""`barnabas elect`: what it asks for, shows, and refuses."""

from __future__ import annotations

from collections.abc import Callable

import click
import pytest

from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import ElectionType, TopicPartition
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import FakeCluster, partition, topic

Barnabas = Callable[..., Done]
F0, F1, F2 = (TopicPartition("flights", number) for number in range(3))
E0 = TopicPartition("events", 0)


@pytest.fixture
def filled(cluster: FakeCluster) -> FakeCluster:
    """Of four partitions one has its preferred leader, two another one, one none."""
    cluster.add(
        topic("flights", partition(1), partition(2), partition(-1, isr=(3,))),
        topic("events", partition(3)),
    )
    return cluster


def test_preferred_leaders_of_all_partitions(filled: FakeCluster, barnabas: Barnabas) -> None:
    filled.election_errors = {F2: KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "broker 1 is dead")}
    done = barnabas("elect", "preferred", "--all")
    assert done.rows == [
        "Topic Partition Before Leader Outcome",
        "events 0 3 1 ELECTED",
        "flights 1 2 1 ELECTED",
        "flights 2 - - PREFERRED_LEADER_NOT_AVAILABLE",
    ]
    assert done.status == 1
    assert "1 partition had the preferred leader already" in done.errors
    assert "1 of 3 elections failed, of flights-2 because" in done.errors
    assert "broker 1 is dead" in done.errors
    assert filled.elections == [(ElectionType.PREFERRED, [E0, F0, F1, F2])]


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (("--topic", "flights", "--partition", "1", "--partition", "0"), [F0, F1]),
        (("--topic", "flights:0-1"), [F0, F1]),
        (("--topic", "flights:1", "--topic", "events"), [E0, F1]),
    ],
)
def test_some_partitions(
    filled: FakeCluster, barnabas: Barnabas, arguments: tuple[str, ...], asked: list[TopicPartition]
) -> None:
    assert barnabas("elect", "preferred", *arguments).status == 0
    assert filled.elections == [(ElectionType.PREFERRED, asked)]


def test_unclean_elections_are_of_partitions_without_leader_and_show_who_leads(
    filled: FakeCluster, barnabas: Barnabas
) -> None:
    done = barnabas("elect", "unclean", "--all", "--yes", "--json")
    assert done.document == {
        "election_type": "unclean",
        "partitions": [
            {
                "topic": "flights",
                "partition": 2,
                "leader_before": None,
                "leader": 1,
                "outcome": "ELECTED",
                "message": None,
            }
        ],
    }
    assert filled.elections == [(ElectionType.UNCLEAN, [F2])]


def test_where_all_have_leaders_nothing_is_elected_uncleanly(filled: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("elect", "unclean", "--topic", "events")
    assert (done.status, filled.elections) == (0, [])
    assert "All partitions have a leader already" in done.errors


def test_nobody_is_elected_uncleanly_unless_somebody_says_yes(filled: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("elect", "unclean", "--all")
    assert (done.status, filled.elections) == (1, [])
    assert "Without a leader: flights-2." in done.errors
    assert "lost for good" in done.errors
    assert "add --yes" in done.errors


@pytest.mark.parametrize(("answer", "count"), [("y\n", 1), ("n\n", 0), ("\n", 0)])
def test_on_a_terminal_it_asks(
    filled: FakeCluster, barnabas: Barnabas, monkeypatch: pytest.MonkeyPatch, answer: str, count: int
) -> None:
    monkeypatch.setattr("barnabas.cli.elect.is_anybody_there", lambda: True)
    monkeypatch.setattr("barnabas.cli.elect.click.confirm", lambda *_, **__: answer.startswith("y"))
    done = barnabas("elect", "unclean", "--all")
    assert (done.status, len(filled.elections)) == (1 - count, count)


@pytest.mark.parametrize(
    ("how", "status", "said"), [(KeyboardInterrupt, 130, "interrupted"), (EOFError, 1, "no answer was given")]
)
def test_ctrl_c_and_the_end_of_input_are_answers_too(
    filled: FakeCluster,
    barnabas: Barnabas,
    monkeypatch: pytest.MonkeyPatch,
    how: type[BaseException],
    status: int,
    said: str,
) -> None:
    def asked(*_: object, **__: object) -> bool:
        """As click does."""
        try:
            raise how
        except how:
            raise click.Abort from None

    monkeypatch.setattr("barnabas.cli.elect.is_anybody_there", lambda: True)
    monkeypatch.setattr("barnabas.cli.elect.click.confirm", asked)
    done = barnabas("elect", "unclean", "--all")
    assert (done.status, filled.elections) == (status, [])
    assert done.errors.endswith(f"\nbarnabas: {said}\n")


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        ((), 2, "Missing argument"),
        (("clean", "--all"), 2, "'clean' is not one of"),
        (("preferred",), 2, "name --topic, or --all"),
        (("preferred", "--all", "--topic", "flights"), 2, "name --topic, or --all"),
        (("preferred", "--partition", "1", "--all"), 2, "--partition goes with one --topic"),
        (("preferred", "--partition", "1", "--topic", "flights:0"), 2, "--partition goes with one --topic"),
        (("preferred", "--topic", "flights:x"), 2, "names no partitions"),
        (("preferred", "--topic", "flights", "--partition", "3"), 4, "topic flights has no partition 3"),
        (("preferred", "--topic", "fligths"), 4, "there is no topic fligths"),
    ],
)
def test_what_makes_no_sense(
    filled: FakeCluster, barnabas: Barnabas, arguments: tuple[str, ...], status: int, error: str
) -> None:
    done = barnabas("elect", *arguments)
    assert (done.status, filled.elections) == (status, [])
    assert error in done.errors
