"""`barnabas quota`: what it asks for, shows, and refuses."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from barnabas.wire.errors import ErrorCode, KafkaError
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import FakeCluster

Barnabas = Callable[..., Done]


def test_quotas_are_set_and_shown(cluster: FakeCluster, barnabas: Barnabas) -> None:
    done = barnabas("quota", "set", "--user", "ann", "--client-id", "app", "producer_byte_rate=1e6")
    assert (done.status, done.rows) == (
        0,
        ["User Client id Address Quota Value", "ann app - producer_byte_rate 1000000"],
    )
    assert barnabas("quota", "set", "--default-user", "request_percentage=12.5").status == 0
    assert barnabas("quota", "set", "--default-ip", "connection_creation_rate=5").status == 0
    assert cluster.quotas == {
        (("user", "ann"), ("client-id", "app")): {"producer_byte_rate": 1e6},
        (("user", None),): {"request_percentage": 12.5},
        (("ip", None),): {"connection_creation_rate": 5.0},
    }
    assert barnabas("quota", "list").rows == [
        "User Client id Address Quota Value",
        "ann app - producer_byte_rate 1000000",
        "<default> - - request_percentage 12.5",
        "- - <default> connection_creation_rate 5",
    ]
    assert barnabas("quota", "list", "--user", "ann", "--json").document == {
        "quotas": [{"entity": {"user": "ann", "client_id": "app"}, "values": {"producer_byte_rate": 1e6}}]
    }


def test_what_apache_kafka_stores_and_is_no_number_is_shown(cluster: FakeCluster, barnabas: Barnabas) -> None:
    cluster.quotas[("user", "ann"),] = {"request_percentage": math.nan}
    cluster.quotas[("user", "bob"),] = {"request_percentage": math.inf}
    assert barnabas("quota", "list").rows[1:] == ["ann - - request_percentage nan", "bob - - request_percentage inf"]
    shown = barnabas("quota", "list", "--json").document["quotas"]
    assert [each["values"]["request_percentage"] for each in shown] == ["nan", "inf"]


def test_what_is_shown_after_a_change_is_of_the_entity_alone(cluster: FakeCluster, barnabas: Barnabas) -> None:
    cluster.quotas[("user", "ann"), ("client-id", "app")] = {"producer_byte_rate": 1.0}
    done = barnabas("quota", "set", "--user", "ann", "producer_byte_rate=2")
    assert done.rows[1:] == ["ann - - producer_byte_rate 2"]


def test_quotas_are_removed(cluster: FakeCluster, barnabas: Barnabas) -> None:
    cluster.quotas[("client-id", "app"),] = {"producer_byte_rate": 1.0, "consumer_byte_rate": 2.0}
    done = barnabas("quota", "unset", "--client-id", "app", "consumer_byte_rate")
    assert done.rows[1:] == ["- app - producer_byte_rate 1"]
    done = barnabas("quota", "unset", "--client-id", "app", "--all")
    assert (done.status, done.output, done.errors) == (0, "", "No quota is set.\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("set", "producer_byte_rate=1"), "name whose quotas"),
        (("unset", "--all"), "name whose quotas"),
        (("set", "--user", "u"), "QUOTA=VALUE"),
        (("set", "--user", "", "producer_byte_rate=1"), "--user needs a name"),
        (("set", "--user", "u", "--default-user", "producer_byte_rate=1"), "--user or --default-user, not both"),
        (("list", "--ip", "::1", "--user", "u"), "an address has quotas of its own"),
        (("set", "--user", "u", "producer_byte_rate"), "'producer_byte_rate' has no value"),
        (("set", "--user", "u", "produce=1"), "there is no quota 'produce'"),
        (("set", "--ip", "::1", "producer_byte_rate=1"), "addresses have connection_creation_rate"),
        (("set", "--user", "u", "connection_creation_rate=1"), "users and client ids have producer_byte_rate"),
        (("set", "--user", "u", "producer_byte_rate=much"), "a number of at least 0, not 'much'"),
        (("set", "--user", "u", "producer_byte_rate=-1"), "a number of at least 0, not '-1'"),
        (("set", "--user", "u", "producer_byte_rate=inf"), "a number of at least 0, not 'inf'"),
        (("unset", "--user", "u"), "name the quotas to be removed, or --all"),
        (("unset", "--user", "u", "--all", "producer_byte_rate"), "name the quotas to be removed, or --all"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anybody_is_asked(
    cluster: FakeCluster, barnabas: Barnabas, arguments: tuple[str, ...], expected: str
) -> None:
    done = barnabas("quota", *arguments)
    assert done.status == 2
    assert expected in " ".join(done.errors.split())
    assert cluster.quotas == {}


def test_what_the_brokers_refuse_is_told(cluster: FakeCluster, barnabas: Barnabas) -> None:
    cluster.error = KafkaError(ErrorCode.INVALID_REQUEST, "quotas: must be a LONG value")
    done = barnabas("quota", "set", "--user", "u", "producer_byte_rate=1.5")
    assert done.status == 1
    assert "must be a LONG value" in done.errors
