"""A staged batch sent by one sender and by several, side by side, without Spark: what is behind `delivery`.

    python -m benchmarks.spark.sending [--rounds N] [--records N] [--senders N ...] [--delay SECONDS]

Three of our brokers, three replicas, six partitions. In each round all take turns, after one that only warms up;
figures are medians. With --delay brokers answer each Produce so much later, as those that are far away, or slow.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

from barnabas.pipelines.definition import Delivery, TopicSink
from barnabas.pipelines.outbox import Outbox
from barnabas.pipelines.outbox_thread import sending
from barnabas.pipelines.staged_batches import StagedBatch
from barnabas.pipelines.state_directory import BatchesDone
from barnabas.testing.kafka_cluster import KafkaCluster
from benchmarks.spark.delivery import PARTITIONS, Way, read, rows
from benchmarks.spark.work import REPLICAS

VIEW = "rows"
TOPIC = "copies"
REQUESTS_MAX = 1_000_000


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.sending", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--senders", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--delay", type=float, default=0.0)
    options = parser.parse_args(arguments)
    found: dict[int, list[float]] = {count: [] for count in options.senders}
    with tempfile.TemporaryDirectory(prefix="sending-") as name:
        directory = Path(name)
        with KafkaCluster(brokers=REPLICAS, processes=True) as cluster:
            cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=REPLICAS)
            if options.delay:
                cluster.delay_requests("Produce", options.delay, count=REQUESTS_MAX)
            for number in range(options.rounds + 1):
                for count in options.senders if number % 2 else options.senders[::-1]:
                    seconds = sent_in(
                        directory / f"{number}-{count}", cluster.bootstrap_servers, count, options.records
                    )
                    print(f"round {number}: {count} senders {seconds:.2f} s", file=sys.stderr, flush=True)
                    if number:
                        found[count].append(seconds)
    print("| senders | rows/s | beside the first |\n|---|---|---|")
    for count, times in found.items():
        ratio = statistics.median(one / other for one, other in zip(found[options.senders[0]], times, strict=True))
        print(f"| {count} | {options.records / statistics.median(times):,.0f} | {ratio:.2f} |")
    return 0


def sent_in(directory: Path, addresses: str, count: int, records: int) -> float:
    """Stages a batch, and sends it; the seconds of that."""
    directory.mkdir()
    pipeline = read(directory, TOPIC, Way(Delivery.EXACTLY_ONCE, count), records)
    sinks = [sink for sink in pipeline.sinks if isinstance(sink, TopicSink)]
    state_id = directory.name
    with sending(pipeline, state_id, addresses, threading.Event()) as senders:
        outbox = Outbox(directory / "outbox", state_id, {}, senders.sender(VIEW, sinks), count)
        outbox.open(BatchesDone(-1, -1))
        batch = staged(outbox, count, records)
        began = time.monotonic()
        outbox.deliver(batch)
        return time.monotonic() - began


def staged(outbox: Outbox, count: int, records: int) -> StagedBatch:
    lines: dict[int, list[bytes]] = {}
    for record in rows(records):
        key, value = record.key or b"", record.value or b""
        lines.setdefault(zlib.crc32(key) % count + 1, []).extend((key, value))
    for sender, content in lines.items():
        place = outbox.staged.being_written(0, 0) / f"sender={sender}"
        place.mkdir(parents=True)
        (place / "part-0").write_bytes(b"\n".join(content) + b"\n")
    return outbox.staged.publish(0, [(TOPIC, True)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
