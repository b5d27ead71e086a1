"""What the benchmarks of replication share: topics on given brokers, a load for them, a producer that measures."""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import CreateTopicsRequest, ProduceRequest
from barnabas.wire.record_builder import RecordBatchBuilder
from benchmarks.brokers.load import LoadGenerator
from benchmarks.brokers.servers import Cluster
from tests.support.waiting import wait_until
from tests.support.wire_calls import Connection, call, controller_port, metadata

START_SECONDS_MAX = 60.0
_INTERVAL_SECONDS = 0.005
_RECORD_BYTES, _RECORDS_PER_BATCH = 1_000, 1_000
_CREATE_VERSION, _PRODUCE_VERSION = 5, 8


def create_topic(running: Cluster, topic: str, replicas: list[int]) -> None:
    """A topic of one partition on these brokers, the first of which leads; returns when all are in sync."""
    (port, *_) = (broker.port for broker in running.brokers)
    assignment = CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)
    wanted = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=-1, replication_factor=-1, assignments=[assignment]
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=60_000)
    (result,) = call(controller_port(port), ApiKey.CREATE_TOPICS, _CREATE_VERSION, request).topics
    if result.error_code:
        raise RuntimeError(f"topic {topic} was not created: {result.error_code}")
    wait_until(lambda: in_sync(port, topic) == set(replicas), f"{topic} is in sync", START_SECONDS_MAX)


def in_sync(port: int, topic: str) -> set[int]:
    """The brokers that are in sync in all partitions of a topic, as the broker at the port knows it."""
    (found,) = metadata(port, [topic]).topics
    return {broker_id for each in found.partitions for broker_id in each.isr_nodes}


def fill(running: Cluster, directory: Path, leaders: dict[str, int], size_bytes: int) -> None:
    """So many bytes to each topic, whose leader is named, with acks=all, one topic after another."""
    load = LoadGenerator(directory)
    for topic, leader in leaders.items():
        load.produce(
            running.brokers[leader].port,
            topic,
            connections=1,
            depth=5,
            records_per_batch=_RECORDS_PER_BATCH,
            value_bytes=[_RECORD_BYTES],
            requests=max(1, size_bytes // (_RECORD_BYTES * _RECORDS_PER_BATCH)),
            acks=-1,
        )


class Probe:
    """A producer with one request in flight that has a record for one partition every few milliseconds."""

    def __init__(self, port: int, topic: str) -> None:
        builder = RecordBatchBuilder()
        builder.append(int(time.time() * 1000), None, bytes(100))
        data = ProduceRequest.PartitionProduceData(index=0, records=memoryview(builder.build()))
        self._request = ProduceRequest(
            acks=-1,
            timeout_ms=30_000,
            topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
        )
        self._port = port
        self._taken_ms: list[float] = []
        self._failure: Exception | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def forget(self) -> None:
        """What was measured so far does not count."""
        self._taken_ms = []

    def end(self) -> None:
        self._ending.set()
        self._thread.join()
        if self._failure is not None:
            raise RuntimeError("a record was not taken") from self._failure

    def p99_ms(self) -> float:
        return statistics.quantiles(self._taken_ms, n=100, method="inclusive")[98]

    def median_ms(self) -> float:
        return statistics.median(self._taken_ms)

    def longest_ms(self) -> float:
        return max(self._taken_ms)

    def _run(self) -> None:
        try:
            with Connection(self._port) as connection:
                while not self._ending.wait(_INTERVAL_SECONDS):
                    began = time.perf_counter()
                    answer = connection.call(ApiKey.PRODUCE, _PRODUCE_VERSION, self._request)
                    self._taken_ms.append(1000 * (time.perf_counter() - began))
                    ((partition,),) = (each.partition_responses for each in answer.responses)
                    if partition.error_code:
                        raise RuntimeError(f"error {partition.error_code}")
        except (OSError, RuntimeError) as failure:
            self._failure = failure


def table(found: dict[str, dict[str, float]], goals: dict[str, str]) -> str:
    """The rows, with a column for each cluster."""
    lines = [f"| what | {' | '.join(found)} | goal |", "|---" * (len(found) + 2) + "|"]
    for name in next(iter(found.values())):
        figures = " | ".join(f"{each[name]:.3g}" for each in found.values())
        lines.append(f"| {name} | {figures} | {goals.get(name, '')} |")
    return "\n".join(lines)
