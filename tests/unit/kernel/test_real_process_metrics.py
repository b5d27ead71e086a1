"""What is measured of a process."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from barnabas.kernel import real_process_metrics
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.metrics_prometheus import scrape_in_steps
from barnabas.kernel.real_process_metrics import LoopIdleness, process_text
from barnabas.kernel.steps import at_once


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


def registered(monkeypatch: pytest.MonkeyPatch, io: Path) -> dict[str, float]:
    monkeypatch.setattr(real_process_metrics, "_IO", io)
    metrics = MetricsRegistry(time.monotonic)
    real_process_metrics.register_process_metrics(metrics)
    return samples(at_once(scrape_in_steps(metrics)))


def test_what_the_kernel_counts_of_disks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io = tmp_path / "io"
    io.write_text("rchar: 1\nwchar: 2\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 3\n")
    found = registered(monkeypatch, io)
    assert found["kafka_server_kafkaserver_linux_disk_read_bytes"] == 4096
    assert found["kafka_server_kafkaserver_linux_disk_write_bytes"] == 8192


def test_what_the_kernel_does_not_count_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io = tmp_path / "io"
    assert not any("disk" in name for name in registered(monkeypatch, io))
    io.write_text("rchar: 1\n")
    found = registered(monkeypatch, io)
    assert not any("disk" in name for name in found)
    assert 0 <= found["kafka_network_socketserver_networkprocessoravgidle_percent"] <= 1


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
