"""`barnabas txn`: what is refused before anybody is asked, and what ends while it is looked for.

What it shows and does is tested with brokers (tests/support/transaction_command_suite.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Self

import pytest

from barnabas.cli import txn
from barnabas.client import transaction_admin
from barnabas.client.transaction_admin import PartitionProducer
from barnabas.coordinators.transaction.states import TransactionState
from barnabas.wire.topics import TopicPartition
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import FakeCluster, partition, topic

Barnabas = Callable[..., Done]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("list", "--state", "busy"), "'busy' is not one of"),
        (("list", "--longer-than", "soon"), "'soon' is no duration"),
        (("describe",), "Missing argument"),
        (("producers",), "Missing argument"),
        (("producers", "t:"), "'t:' names no partitions"),
        (("find-hanging", "--older-than", ""), "'' is no duration"),
        (("abort", "t:0"), "Missing option '--start-offset'"),
        (("abort", "t", "--start-offset", "1"), "name one partition, as TOPIC:0"),
        (("abort", "t:0,1", "--start-offset", "1"), "name one partition, as TOPIC:0"),
        (("abort", "t:0", "--start-offset", "-1"), "-1 is not in the range"),
    ],
)
def test_what_makes_no_sense_is_refused(
    cluster: FakeCluster, barnabas: Barnabas, arguments: tuple[str, ...], expected: str
) -> None:
    done = barnabas("txn", *arguments)
    assert (done.status, cluster.waited_for) == (2, [])
    assert expected in " ".join(done.errors.split())


def test_states_are_those_of_the_brokers() -> None:
    assert set(txn.STATES) == {each.value for each in TransactionState}


def test_what_ends_while_it_is_looked_for_does_not_hang_and_is_not_aborted(
    cluster: FakeCluster, barnabas: Barnabas, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = TopicPartition("t", 0)
    cluster.add(topic("t", partition(1)))
    answers = [[PartitionProducer(7, 0, 0, 0, 0, 5)], [PartitionProducer(7, 0, 0, 0, 0, None)]]
    left = iter(answers * 2)

    class Admin:
        def __init__(self, _client: object) -> None: ...

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_error: object) -> None: ...

        async def describe_producers(self, partitions: Collection[TopicPartition], _broker: Any = None) -> Any:
            assert [*partitions] == [place]
            return {place: next(left)}

        async def list_transactions(self, **_picked: Any) -> list[Any]:
            return []

        async def describe_transactions(self, _ids: Collection[str]) -> dict[str, Any]:
            return {}

    monkeypatch.setattr(transaction_admin, "TransactionAdmin", Admin)
    assert barnabas("txn", "find-hanging", "--json").document == {"hanging": []}
    refused = barnabas("txn", "abort", "t:0", "--start-offset", "5")
    assert refused.status == 1
    assert "does not hang" in refused.errors
