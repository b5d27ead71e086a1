"""What is measured of a process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.metrics_prometheus import scrape
from barnabas.kernel.real_process_metrics import LoopIdleness, process_text, register_process_metrics


def samples(text: bytes) -> dict[str, float]:
    return {
        each.name: each.value for family in text_string_to_metric_families(text.decode()) for each in family.samples
    }


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc on this system")
def test_a_process_is_measured_as_by_every_client_library() -> None:
    found = samples(process_text())
    assert found["process_open_fds"] >= 3
    assert found["process_resident_memory_bytes"] > 1 << 20
    used = found["process_cpu_seconds_total"]
    deadline = time.process_time() + 0.1
    while time.process_time() < deadline:
        pass
    assert samples(process_text())["process_cpu_seconds_total"] >= used + 0.05


@pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="this kernel does not count what a process reads and writes"
)
def test_what_is_written_to_disks_is_counted(tmp_path: Path) -> None:
    metrics = MetricsRegistry(time.monotonic)
    register_process_metrics(metrics)
    name = "kafka_server_kafkaserver_linux_disk_write_bytes"
    before = samples(scrape(metrics))[name]
    with (tmp_path / "file").open("wb") as file:
        file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
    after = samples(scrape(metrics))[name]
    # A file system in memory has no disk.
    assert after >= before


def test_a_loop_that_works_is_less_idle_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    now, used = [100.0], [3.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "thread_time", lambda: used[0])
    idleness = LoopIdleness()

    def after(seconds: float, busy: float) -> float:
        now[0] += seconds
        used[0] += busy
        return idleness.read()

    assert after(60, 0) == 1
    assert after(600, 600) == pytest.approx(0, abs=0.001)
    assert idleness.read() == pytest.approx(0, abs=0.001), "a second reading in the same moment changes nothing"
    assert after(600, 300) == pytest.approx(0.5, abs=0.001)
    # Twice 30 s, or once 60: the same.
    assert after(60, 0) == pytest.approx(0.816, abs=0.001)
    assert after(60, 61) >= 0, "clocks that differ do not make it negative"
