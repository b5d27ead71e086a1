"""What a scrape has: all that public boards for Apache Kafka ask for, but for what is listed with a reason; and all
that our own board and alerts do."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.board_metrics import ANY, BOARDS, MISSING, SELECTED
from tests.support.barnabas_up import Up

CONTRIB: Final = Path(__file__).resolve().parents[2] / "contrib"
_NAME: Final = re.compile(r"\b(?:kafka|barnabas|process)_[a-z0-9_]+")
TOPIC: Final = "orders"
LATER: Final = {"barnabas_kernel_eventloop_longturns_total"}
"""What has samples only when it has happened."""


def scraped(port: int) -> dict[str, list[dict[str, str]]]:
    """The labels of each sample, by name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    """Of both brokers of a cluster that has a topic with two replicas, and some records in it."""
    up = Up(tmp_path_factory.mktemp("monitored") / "data", 2, "--metrics-port", "0")
    try:
        producer = Producer({"bootstrap.servers": up.bootstrap_servers, "acks": "all"})
        for number in range(100):
            producer.produce(TOPIC, b"%d" % number)
        assert not producer.flush(60)
        found: dict[str, list[dict[str, str]]] = {}
        for broker in up.said["brokers"]:
            for name, labels in scraped(broker["metrics_port"]).items():
                found.setdefault(name, []).extend(labels)
        return found
    finally:
        assert up.stop() == 0


@pytest.mark.parametrize("board", BOARDS)
def test_a_public_board_finds_what_it_asks_for(metrics: dict[str, list[dict[str, str]]], board: str) -> None:
    missing = {name for name in BOARDS[board] if name not in metrics and not name.startswith(tuple(MISSING))}
    assert missing == set()


@pytest.mark.parametrize("board", BOARDS)
def test_what_a_public_board_asks_for_by_labels_has_them(metrics: dict[str, list[dict[str, str]]], board: str) -> None:
    def is_as(labels: dict[str, str], wanted: Mapping[str, str]) -> bool:
        return all(
            labels.get(label) == (TOPIC if label == "topic" else value)
            if value != ANY or label == "topic"
            else label in labels
            for label, value in wanted.items()
        )

    assert {name for name, _ in SELECTED[board]} <= BOARDS[board]
    assert [
        (name, wanted) for name, wanted in SELECTED[board] if not any(is_as(labels, wanted) for labels in metrics[name])
    ] == []


def test_what_is_said_to_be_missing_is_asked_for_and_is(metrics: dict[str, list[dict[str, str]]]) -> None:
    asked = frozenset().union(*BOARDS.values())
    for beginning in MISSING:
        assert any(name.startswith(beginning) for name in asked), beginning
        assert not any(name.startswith(beginning) for name in metrics), beginning


@pytest.mark.parametrize("file", ["grafana/barnabas.json", "prometheus/alerts.yml"])
def test_our_board_and_alerts_ask_for_what_there_is(metrics: dict[str, list[dict[str, str]]], file: str) -> None:
    asked = set(_NAME.findall((CONTRIB / file).read_text("utf-8")))
    assert len(asked) > 10
    assert asked - LATER - metrics.keys() == set()


def test_labels_are_those_of_the_exporter(metrics: dict[str, list[dict[str, str]]]) -> None:
    for name, keys in (
        ("kafka_log_log_size", {"topic", "partition"}),
        ("kafka_network_requestmetrics_totaltimems", {"request", "quantile"}),
        ("kafka_server_fetcherlagmetrics_consumerlag", {"clientId", "topic", "partition"}),
    ):
        assert all(labels.keys() == keys for labels in metrics[name]), metrics[name][0]
    lags = {(labels["topic"], labels["clientId"]) for labels in metrics["kafka_server_fetcherlagmetrics_consumerlag"]}
    assert any(topic == TOPIC and re.fullmatch(r"ReplicaFetcherThread-0-[12]", client) for topic, client in lags)
