"""Configs: what differs from the default comes first, secrets stay so, and brokers are asked once for all."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from barnabas.client.config_entries import ConfigEntry, ConfigSynonym
from barnabas.console.pages.configs import differs
from barnabas.testing import KafkaCluster
from tests.support.running_console import PACE, RunningConsole
from tests.unit.console.test_pages import checked

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    """Two brokers; one topic has configs of its own."""
    with KafkaCluster(brokers=2, config={"log.retention.hours": "24", "ssl.key.password": "hunter2"}) as running:
        running.create_topic("flights", partitions=1, config={"retention.ms": "86400000", "cleanup.policy": "compact"})
        running.create_topic("plain", partitions=1)
        yield running


@pytest.fixture(scope="module")
def console(cluster: KafkaCluster) -> Iterator[RunningConsole]:
    """Its console."""
    with RunningConsole(cluster.bootstrap_servers) as running:
        running.wait_for("/configs", "flights", "plain", without="not known")
        yield running


@pytest.mark.parametrize("path", ["/configs", "/configs/topics/flights", "/configs/brokers/1"])
def test_a_page_is_well_formed(console: RunningConsole, path: str) -> None:
    answer = console.get(path)
    assert answer.status == 200
    assert all(console.get(each).status == 200 for each in checked(answer.text).links if not each.startswith("#"))


def test_what_differs_comes_first(console: RunningConsole) -> None:
    said = console.wait_for("/configs/topics/flights", "configs other than the default").words
    others, _, defaults = said.partition("as the default")
    assert "cleanup.policy compact this topic delete log.cleanup.policy default" in others
    assert "retention.ms 86400000 this topic" in others
    assert "retention.ms" not in defaults.replace("delete.retention.ms", "").replace("local.retention.ms", "")
    assert "max.message.bytes 1048588 default" in defaults


def test_a_broker_tells_where_a_value_comes_from(console: RunningConsole) -> None:
    said = console.wait_for("/configs/brokers/1", "configs other than the default").words
    assert re.search(r"log\.retention\.hours (read only )?24 server\.properties 168 default", said)
    assert "hunter2" not in said
    assert "hidden: it is a secret" in said


def test_topics_that_have_configs_of_their_own_say_which(console: RunningConsole) -> None:
    said = console.get("/configs?q=FLI").words
    assert "cleanup.policy=compact retention.ms=86400000" in said
    assert "plain" not in said
    assert "nothing: as the brokers have it" in console.get("/configs?q=plain").words


def test_configs_are_found_by_name_or_value(console: RunningConsole) -> None:
    said = console.get("/configs/topics/flights?q=COMPACT").words
    assert "cleanup.policy" in said
    assert "max.message.bytes" not in said


@pytest.mark.parametrize(
    "path",
    ["topics/none", "topics", "brokers/9", "brokers/x", "x/y", "topics/flights/0", EVIL.replace("/", "%2f")],
)
def test_what_is_not_there(console: RunningConsole, path: str) -> None:
    answer = console.get("/configs/" + path.replace("<", "%3C").replace(">", "%3E"))
    assert answer.status == 404
    assert EVIL not in answer.text


def test_however_many_look_a_broker_is_asked_once_for_a_while(cluster: KafkaCluster, console: RunningConsole) -> None:
    each = 10_000
    # The controller is asked for its imbalance percentage too, and the other one for nothing but this page.
    broker = next(broker_id for broker_id in cluster.broker_ids if broker_id != cluster.controller())
    cluster.delay_requests("DescribeConfigs", 0.001, count=each, client_id="barnabas-console", broker=broker)

    def asked() -> int:
        return each - cluster.requests_to_fail("DescribeConfigs")

    began = time.monotonic()
    looks = 0
    try:
        # Longer than an answer is kept, so that there is a second question.
        while looks < 100 or (asked() < 2 and time.monotonic() < began + 30):
            assert console.get(f"/configs/brokers/{broker}").status == 200
            looks += 1
        passed, found = time.monotonic() - began, asked()
    finally:
        cluster.clear_faults()
    assert 2 <= found <= passed * PACE / 10 + 2
    assert found < looks / 2


def test_a_broker_that_refuses_is_shown_with_its_words_and_what_was_known(
    cluster: KafkaCluster, console: RunningConsole
) -> None:
    console.wait_for("/configs/topics/plain", "as the default")
    cluster.fail_requests("DescribeConfigs", "TOPIC_AUTHORIZATION_FAILED", count=10_000, client_id="barnabas-console")
    try:
        said = console.wait_for("/configs/topics/plain", "No newer answer").words
    finally:
        cluster.clear_faults()
    assert "TOPIC_AUTHORIZATION_FAILED" in said or "Not authorized to access topics" in said
    assert "max.message.bytes" in said


def _entry(value: str | None, source: int, *synonyms: ConfigSynonym, secret: bool = False) -> ConfigEntry:
    return ConfigEntry("a", value, source, False, secret, synonyms)


@pytest.mark.parametrize(
    ("entry", "is_other"),
    [
        (_entry("1", 5), False),
        (_entry("1", 4, ConfigSynonym("a", "1", 4), ConfigSynonym("a", "1", 5)), False),
        (_entry("2", 4, ConfigSynonym("a", "2", 4), ConfigSynonym("a", "1", 5)), True),
        (_entry("2", 4), True),
        (_entry("2", 4, ConfigSynonym("a", "2", 4), ConfigSynonym("a.hours", "2", 5)), True),
        (_entry(None, 4, secret=True), True),
        (_entry(None, 5, secret=True), False),
    ],
)
def test_what_counts_as_other_than_the_default(entry: ConfigEntry, is_other: bool) -> None:
    assert differs(entry) is is_other
