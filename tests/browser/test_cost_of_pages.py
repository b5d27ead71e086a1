"""What an open page of the console costs the brokers of a cluster in processes: processor time, with it and without."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from barnabas.testing import KafkaCluster
from tests.browser.test_console_in_chromium import PAGES as ALL_PAGES
from tests.support.browser import Browser, browser_path
from tests.support.running_console import RunningConsole

pytestmark = pytest.mark.skipif(
    browser_path() is None, reason="there is no Chromium: install it (Debian: apt-get install chromium)"
)

# These are not fetched again by themselves: somebody reads one after another, with words that must be there.
READ_AGAIN = {
    "messages?topic=flights&count=20": "flights has 100 partitions",
    "messages?topic=flights&partition=0&count=20": "flights-0 has offsets 0 to",
    "messages?topic=flights&key=UA7": "flights has 100 partitions",
    "alerts/under-replicated": "UnderReplicated",
}
PAGES = [page for page in ALL_PAGES if page not in READ_AGAIN and not page.startswith("messages")]
OF_A_CORE_MAX = 0.02
# An open page is fetched again every 3 s, and the slowest question of the console is asked every 10 s.
SECONDS, REFRESH_SECONDS = 10.0, 3.0
TRIES = 3
PARTITIONS = 100
_TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    """Three broker processes with 300 replicas, and some records."""
    with KafkaCluster(brokers=3, processes=True) as running:
        running.create_topic("flights", partitions=PARTITIONS, replication_factor=3)
        running.create_topic("airports", partitions=3, replication_factor=3)
        producer = confluent_kafka.Producer({"bootstrap.servers": running.bootstrap_servers, "log_level": 0})
        for number in range(2_000):
            producer.produce("flights", f'{{"carrier": "UA", "delay": {number}}}', key=f"UA{number}")
        assert producer.flush(30) == 0
        # For the pages of one group and of one pipeline.
        for group in ("delays", "barnabas-pipeline-delays"):
            consumer = confluent_kafka.Consumer(
                {"bootstrap.servers": running.bootstrap_servers, "group.id": group, "log_level": 0}
            )
            consumer.commit(offsets=[confluent_kafka.TopicPartition("flights", 0, 5)], asynchronous=False)
            consumer.close()
        yield running


@pytest.fixture(scope="module")
def without(cluster: KafkaCluster) -> dict[str, float]:
    """What each broker spends in `SECONDS` without a console, once the cluster is quiet."""
    _spent(cluster, SECONDS / 2)
    return _spent(cluster, SECONDS)


@pytest.fixture(scope="module")
def console(cluster: KafkaCluster, without: dict[str, float]) -> Iterator[RunningConsole]:
    """Its console, which asks as often as `barnabas console` does, and has asked everything once."""
    with RunningConsole(cluster.bootstrap_servers, pace=1.0) as running:
        running.wait_for("/topics/flights", "flights")
        running.wait_for("/pipelines/delays", "Lag")
        _spent(cluster, SECONDS / 2)
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser that the tests share."""
    with Browser() as running:
        running.dress(1280, 860, "light")
        yield running


@pytest.mark.parametrize("page", PAGES)
def test_an_open_page_costs_no_broker_more_than_2_percent_of_a_core(
    cluster: KafkaCluster, without: dict[str, float], console: RunningConsole, browser: Browser, page: str
) -> None:
    def look() -> dict[str, float]:
        browser.go(console.url + page)
        asked = len(browser.asked_for)
        spent = _spent(cluster, SECONDS)
        browser.text()
        assert len(browser.asked_for) - asked >= 2, "it is fetched again while it is open"
        return spent

    _check(page, without, look)
    browser.go("about:blank")


@pytest.mark.parametrize("page", READ_AGAIN)
def test_a_page_that_is_read_again_and_again_costs_no_broker_more_than_that(
    cluster: KafkaCluster, without: dict[str, float], console: RunningConsole, browser: Browser, page: str
) -> None:
    def look() -> dict[str, float]:
        before = _processor_seconds_of_brokers(cluster)
        for _ in range(round(SECONDS / REFRESH_SECONDS)):
            browser.go(console.url + page)
            assert READ_AGAIN[page] in browser.text()
            time.sleep(REFRESH_SECONDS)
        return _since(cluster, before)

    _check(page, without, look)
    browser.go("about:blank")


# Inside.


def _check(page: str, without: dict[str, float], look: Callable[[], dict[str, float]]) -> None:
    costs: list[float] = []
    # What else runs on the machine can only add to it: the least of some tries counts.
    while len(costs) < TRIES and min(costs, default=1.0) > OF_A_CORE_MAX:
        spent = look()
        costs.append(max(spent[name] - without[name] for name in spent) / SECONDS)
    print(f"/{page}: {min(costs):.2%} of a core")
    assert min(costs) <= OF_A_CORE_MAX, costs


def _spent(cluster: KafkaCluster, seconds: float) -> dict[str, float]:
    """The processor time in seconds that each broker spends meanwhile."""
    before = _processor_seconds_of_brokers(cluster)
    time.sleep(seconds)
    return _since(cluster, before)


def _since(cluster: KafkaCluster, before: dict[str, float]) -> dict[str, float]:
    return {name: seconds - before[name] for name, seconds in _processor_seconds_of_brokers(cluster).items()}


def _processor_seconds_of_brokers(cluster: KafkaCluster) -> dict[str, float]:
    ids = cluster.process_ids
    return {name: _processor_seconds(number) for name, number in ids.items() if name.startswith("broker")}


def _processor_seconds(process_id: int) -> float:
    """Of all its threads, in its own code and in the system's (proc(5), fields 14 and 15)."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
