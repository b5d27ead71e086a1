"""Configs that are changed from a page: tried by a broker first, done once, and not where they changed meanwhile."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from barnabas.client.config_admin import ConfigOperation, ResourceType
from barnabas.testing import KafkaCluster
from tests.support.running_console import Answer, RunningConsole
from tests.unit.console.test_changes import as_admin, confirmed, field, post

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    """Two brokers."""
    with KafkaCluster(brokers=2, config={"ssl.key.password": "hunter2", "log.retention.hours": "24"}) as running:
        running.create_topic("flights", partitions=1, config={"retention.ms": "86400000"})
        yield running


@pytest.fixture(scope="module")
def console(cluster: KafkaCluster) -> Iterator[RunningConsole]:
    """Its console, which may change it."""
    with RunningConsole(cluster.bootstrap_servers, may_change=True) as running:
        running.wait_for("/configs/topics/flights", "other than the default")
        running.wait_for("/configs/brokers/1", "other than the default")
        yield running


def value_of(cluster: KafkaCluster, topic: str, key: str) -> str | None:
    found: list[str | None] = []

    async def ask(admin: object) -> None:
        entries = await admin.describe_configs(ResourceType.TOPIC, topic, 10_000)  # type: ignore[attr-defined]
        found.append(entries[key].value)

    as_admin(cluster, ask)
    return found[0]


def said(answer: Answer) -> str:
    assert answer.status == 200, answer.words
    return answer.words


def test_a_topics_config_is_set_once_it_is_confirmed_and_taken_back(
    cluster: KafkaCluster, console: RunningConsole
) -> None:
    page = console.get("/configs/topics/flights?change=retention.ms")
    assert 'value="86400000"' in page.text
    asked = post(console, "config", topic="flights", key="retention.ms", value="1000000")
    assert "retention.ms of topic flights was 86400000; it becomes 1000000." in said(asked)
    assert value_of(cluster, "flights", "retention.ms") == "86400000"
    done = confirmed(console, asked)
    assert "it is now 1000000" in said(done)
    assert value_of(cluster, "flights", "retention.ms") == "1000000"
    assert "retention.ms 1000000" in console.wait_for("/configs/topics/flights", "other than the default").words
    back = {name: field(done, name) for name in ("topic", "key", "value")}
    assert back == {"topic": "flights", "key": "retention.ms", "value": "86400000"}
    confirmed(console, post(console, "config", **back))
    assert value_of(cluster, "flights", "retention.ms") == "86400000"
    assert any("retention.ms of topic flights was 86400000; it becomes 1000000." in each for each in console.changes)


def test_what_was_not_set_is_undone_by_taking_it_away(cluster: KafkaCluster, console: RunningConsole) -> None:
    asked = post(console, "config", topic="flights", key="max.message.bytes", value="2000")
    assert "was not set: 1048588 (default, message.max.bytes); it becomes 2000." in said(asked)
    done = confirmed(console, asked)
    assert value_of(cluster, "flights", "max.message.bytes") == "2000"
    page = console.wait_for("/configs/topics/flights?change=max.message.bytes", "Take it away from topic flights")
    assert 'name="away"' in page.text
    back = {name: field(done, name) for name in ("topic", "key", "away")}
    asked = post(console, "config", **back)
    assert "was 2000; it becomes not set: 1048588 (default, message.max.bytes)." in said(asked)
    confirmed(console, asked)
    assert value_of(cluster, "flights", "max.message.bytes") == "1048588"


def test_a_value_that_was_changed_meanwhile_is_left_alone(cluster: KafkaCluster, console: RunningConsole) -> None:
    asked = post(console, "config", topic="flights", key="segment.bytes", value="1000000")

    async def other(admin: object) -> None:
        await admin.alter_configs(  # type: ignore[attr-defined]
            ResourceType.TOPIC, "flights", [("segment.bytes", ConfigOperation.SET, "2000000")], 10_000
        )

    as_admin(cluster, other)
    done = confirmed(console, asked)
    assert "Nothing was changed: segment.bytes of topic flights is 2000000 by now." in said(done)
    assert "Undo" not in done.words
    assert value_of(cluster, "flights", "segment.bytes") == "2000000"


def test_one_broker_and_all_of_them(console: RunningConsole) -> None:
    page = console.wait_for(
        "/configs/brokers/1?change=log.cleaner.threads", "Value for broker 1", "Value for all brokers"
    )
    assert 'name="all"' in page.text
    asked = post(console, "config", broker="1", all="1", key="log.cleaner.threads", value="2")
    assert "log.cleaner.threads of all brokers was not set: " in said(asked)
    assert "it is now 2" in said(confirmed(console, asked))
    console.wait_for("/configs", "log.cleaner.threads 2")
    one = post(console, "config", broker="1", key="log.cleaner.threads", value="3")
    assert "of broker 1 was not set: 2 (all brokers, while they run); it becomes 3." in said(one)
    assert "it is now 3" in said(confirmed(console, one))
    assert "log.cleaner.threads 3" in console.wait_for("/configs/brokers/1", "this broker, while it runs").words
    for fields in ({"broker": "1"}, {"broker": "1", "all": "1"}):
        confirmed(console, post(console, "config", key="log.cleaner.threads", away="1", **fields))
    assert "log.cleaner.threads" not in console.get("/configs").words


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"topic": "none", "key": "retention.ms", "value": "1"}, "There is no such topic or broker"),
        ({"broker": "9", "key": "retention.ms", "value": "1"}, "There is no such topic or broker"),
        ({"key": "retention.ms", "value": "1"}, "There is no such topic or broker"),
        ({"topic": "flights", "key": EVIL, "value": "1"}, "There is no config"),
        ({"topic": "flights", "value": "1"}, "There is no config"),
        ({"topic": "flights", "key": "retention.ms", "value": "soon"}, "The broker would refuse retention.ms=soon"),
        ({"topic": "flights", "key": "retention.ms", "value": "1\x07"}, "all of which can be shown"),
        ({"topic": "flights", "key": "retention.ms", "value": "1" * 40_000}, "A value has up to"),
        ({"topic": "flights", "key": "retention.ms", "value": "86400000"}, "is that already"),
        ({"topic": "flights", "key": "cleanup.policy", "away": "1"}, "cleanup.policy is not set on topic flights"),
        ({"broker": "1", "key": "ssl.key.password", "value": "x"}, "is a secret"),
        ({"broker": "1", "key": "log.dirs", "value": "/x"}, "is read when a broker starts"),
    ],
)
def test_what_cannot_be_changed_is_refused_before_it_is_asked_for(
    console: RunningConsole, fields: dict[str, str], why: str
) -> None:
    answer = post(console, "config", **fields)
    assert (answer.status, why in answer.words) == (400, True), answer.words
    assert EVIL not in answer.text


def test_no_page_has_a_form_for_a_secret_or_for_what_is_read_only(console: RunningConsole) -> None:
    page = console.wait_for("/configs/brokers/1", "hidden: it is a secret")
    assert "hunter2" not in page.text
    assert "change=log.retention.ms" in page.text
    for name in ("ssl.key.password", "log.dirs", "nothing"):
        assert f"change={name}" not in page.text
        assert "Look at it first" not in console.get(f"/configs/brokers/1?change={name}").words


def test_a_broker_that_does_not_look_at_a_change_lets_nothing_be_confirmed(
    cluster: KafkaCluster, console: RunningConsole
) -> None:
    cluster.lose_answers("IncrementalAlterConfigs", count=1_000, client_id="barnabas-console")
    try:
        answer = post(console, "config", topic="flights", key="retention.ms", value="5")
    finally:
        cluster.clear_faults()
    assert (answer.status, "No broker has looked at it" in answer.words) == (400, True)
    assert value_of(cluster, "flights", "retention.ms") == "86400000"


def test_a_console_that_only_reads_has_no_such_link(cluster: KafkaCluster) -> None:
    with RunningConsole(cluster.bootstrap_servers) as reading:
        page = reading.wait_for("/configs/topics/flights?change=retention.ms", "other than the default")
        assert "Look at it first" not in page.words
        assert "change=" not in page.text
        assert re.search(r"barnabas config set topic:flights", page.words)
