"""What a process as a whole uses: its memory, processor time and open files, how idle its loop is, and what it reads
from disks and writes to them."""

from __future__ import annotations

import functools
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.kernel.metrics import ONE_MINUTE_SECONDS, MetricName

if TYPE_CHECKING:
    from barnabas.kernel.metrics import MetricsRegistry

_IO: Final = Path("/proc/self/io")
_DISK: Final = {"linux-disk-read-bytes": "read_bytes", "linux-disk-write-bytes": "write_bytes"}


def process_text() -> bytes:
    """`process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_open_fds` and so on, as every program with
    Prometheus' client library has them, in the text format; empty where there is no /proc.

    For a thread that is not the loop's: loading the library takes longer than a turn may, as does counting very many
    open files.
    """
    from prometheus_client.exposition import generate_latest
    from prometheus_client.process_collector import ProcessCollector
    from prometheus_client.registry import CollectorRegistry

    # Of this scrape alone: the library's own registry is global.
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class LoopIdleness:
    """Which part of the last minute the loop's thread had nothing to do, from 0 to 1, as Kafka's
    RequestHandlerAvgIdlePercent. Time in which it waits for a disk counts as idle. To be read in that thread.
    """

    def __init__(self) -> None:
        self._average = 1.0
        self._read_at, self._used = time.monotonic(), time.thread_time()

    def read(self) -> float:
        now, used = time.monotonic(), time.thread_time()
        elapsed = now - self._read_at
        if elapsed > 0:
            recent = min(1.0, max(0.0, 1 - (used - self._used) / elapsed))
            self._average += (recent - self._average) * -math.expm1(-elapsed / ONE_MINUTE_SECONDS)
            self._read_at, self._used = now, used
        return self._average


def register_process_metrics(metrics: MetricsRegistry) -> None:
    """The gauges of a broker's process that Kafka has under names of its own; call it in the loop's thread.

    One loop does what Kafka's network and request handler threads do, so that both are equally idle.
    """
    idleness = LoopIdleness()
    metrics.gauge(MetricName("kafka.server", "KafkaRequestHandlerPool", "RequestHandlerAvgIdlePercent"), idleness.read)
    metrics.gauge(MetricName("kafka.network", "SocketServer", "NetworkProcessorAvgIdlePercent"), idleness.read)
    if _IO.exists():
        for name, field in _DISK.items():
            metrics.gauge(MetricName("kafka.server", "KafkaServer", name), functools.partial(_disk_bytes, field))


def _disk_bytes(field: str) -> int:
    """Raises ValueError where the kernel does not count it, OSError where it may not be read."""
    for line in _IO.read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(": ")
        if key == field:
            return int(value)
    raise ValueError(f"{_IO} has no {field}")
