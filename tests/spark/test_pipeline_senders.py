"""A batch that several senders send, in a run that is killed with -9 between two of their commits: the next one ends
it, with another number of senders, and a reader of committed records has each row once, those of a key in their order.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.spark.pipeline_process import PipelineProcess, java_processes
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.night("two whole runs, 50 s of processor time; found nothing yet: units and plan `outbox` by day"),
]

PARTITIONS: Final = 3
BATCH: Final = 9_000
ROWS: Final = 2 * BATCH
KEYS: Final = 50

# The command, which is killed when the second sender has committed its share of the second batch, and the third has
# not.
KILLED_BETWEEN_TWO_COMMITS = """
import asyncio, os, signal
from barnabas.cli.entry import run
from barnabas.pipelines.side_by_side import SideSender

commit_share = SideSender.commit_share


async def commit_and_end(sender, sent):
    if sent.next_batch == 2 and sender._number == 3:
        await asyncio.sleep(3600)
    await commit_share(sender, sent)
    if sent.next_batch == 2:
        os.kill(os.getpid(), signal.SIGKILL)


SideSender.commit_share = commit_and_end
run()
"""


def pipeline_file(directory: Path, senders: int) -> Path:
    """Several tasks read the one partition, and what they make of it differs each time."""
    path = directory / "numbers.yaml"
    path.write_text(f"""
name: numbers
sources:
  numbers:
    topic: numbers
    schema: "number INT"
    max_records_per_batch: {BATCH}
    options: {{minPartitions: 4}}
steps:
  - name: lucky
    sql: SELECT number % {KEYS} AS key, number, rand() AS luck, repeat('x', 400) AS filling FROM numbers
sinks:
  - {{topic: lucky, from: lucky, key: key, senders: {senders}}}
state: state
""")
    return path


def committed(brokers: str) -> list[int]:
    """The numbers that a reader of committed records is given now, those of a key in their order."""
    settings = {"bootstrap.servers": brokers, "group.id": "unused", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    found: list[int] = []
    try:
        consumer.assign([TopicPartition("lucky", number, 0) for number in range(PARTITIONS)])
        ends: set[int | None] = set()
        while len(ends) < PARTITIONS:
            message = consumer.poll(60)
            assert message is not None
            if message.error() is None:
                found.append(json.loads(message.value() or b"")["number"])
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ends.add(message.partition())
    finally:
        consumer.close()
    return found


def test_a_run_that_is_killed_between_the_commits_of_two_senders_leaves_no_row_lost_or_doubled(
    brokers: str, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": brokers})
    for made in admin.create_topics([NewTopic("numbers", 1, 1), NewTopic("lucky", PARTITIONS, 1)]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": brokers})
    for number in range(ROWS):
        producer.produce("numbers", json.dumps({"number": number}))
        producer.poll(0)
    assert producer.flush(60) == 0

    path = pipeline_file(tmp_path, senders=3)
    with PipelineProcess(path, brokers, program=("-c", KILLED_BETWEEN_TWO_COMMITS)) as run:
        assert run.wait() == -signal.SIGKILL, run.errors()
    manifest = json.loads((tmp_path / "state/outbox/lucky/batch-1/manifest.json").read_text())
    assert {file["sender"] for file in manifest["parts"][0]["files"]} == {1, 2, 3}
    wait_until(lambda: java_processes(tmp_path) == [], "Java is gone with the process that started it")

    with PipelineProcess(pipeline_file(tmp_path, senders=1), brokers, "--once") as run:
        *batches, summary = run.finish()
    assert batches[0]["batch_id"] == 1
    assert summary["lag"] == {"numbers": 0}
    # The end of the last transaction is acknowledged before its markers are written.
    wait_until(lambda: len(committed(brokers)) >= ROWS, "the topic is read", 60.0)
    numbers = committed(brokers)
    assert Counter(numbers) == Counter(range(ROWS))
    for key in range(KEYS):
        assert [number for number in numbers if number % KEYS == key] == list(range(key, ROWS, KEYS))
    assert [entry.name for entry in (tmp_path / "state/outbox/lucky").iterdir()] == ["sent.json"]
