"""A broker, a topic, a pipeline that writes it, and the senders of a run; modules have others of these names."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.pipelines.definition import Pipeline
from barnabas.pipelines.outbox_thread import OutboxSenders, sending
from barnabas.testing.kafka_cluster import KafkaCluster
from tests.unit.pipelines.made_pipelines import made_pipeline
from tests.unit.pipelines.outbox_cluster import PARTITIONS, sink_of


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster(config={"transaction.max.timeout.ms": 100_000}) as running:
        yield running


@pytest.fixture
def topic(cluster: KafkaCluster) -> Iterator[str]:
    yield cluster.create_topic(partitions=PARTITIONS)
    cluster.clear_faults()


@pytest.fixture
def pipeline(tmp_path: Path, topic: str) -> Pipeline:
    return made_pipeline(tmp_path, name=topic, sinks=(sink_of(topic),))


@pytest.fixture
def senders(cluster: KafkaCluster, pipeline: Pipeline) -> Iterator[OutboxSenders]:
    with sending(pipeline, "one", cluster.bootstrap_servers, threading.Event()) as running:
        yield running
