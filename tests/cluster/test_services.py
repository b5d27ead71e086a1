"""Coordinator and broker as services: what a service manager and a health check hear of real processes."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.embedded_coordinator import EmbeddedCoordinator
from tests.support.ports import free_port
from tests.support.waiting import wait_until


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "notify"))
        bound.settimeout(60)
        yield bound


def heard(manager: socket.socket, beginning: str) -> str:
    """The next message that begins so; those of the watchdog and of progress may come before."""
    while True:
        message = manager.recv(4096).decode()
        if message.startswith(beginning):
            return message
        assert message.startswith(("WATCHDOG=1", "EXTEND_TIMEOUT_USEC=")), message


def answered(port: int, path: str) -> tuple[int, str]:
    """Status and text of a health check; 0 while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def test_a_broker_says_when_it_is_alive_ready_and_stopping(tmp_path: Path, manager: socket.socket) -> None:
    metrics_port, coordinator_port = free_port(), free_port()
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "500000"}
    broker = BrokerProcess(
        tmp_path / "broker",
        1,
        f"127.0.0.1:{coordinator_port}",
        overrides={"barnabas.metrics.port": metrics_port},
        environment=environment,
    )
    coordinator = EmbeddedCoordinator(tmp_path / "coordinator", port=coordinator_port)
    broker.start(wait=False)
    try:
        # Alive before it can serve, so that a check does not end it: its coordinator is not there yet.
        wait_until(lambda: answered(metrics_port, "/livez") == (200, "alive\n"), "it is alive", 60, broker.log_tail)
        assert answered(metrics_port, "/readyz") == (503, "not ready: starting\n")
        assert heard(manager, "EXTEND_TIMEOUT_USEC=90000000\nSTATUS=starting")
        coordinator.start()
        assert heard(manager, "READY=1\n").startswith("READY=1\nSTATUS=broker 1 of cluster ")
        assert answered(metrics_port, "/readyz") == (200, "ready\n")
        assert heard(manager, "WATCHDOG=1")
        assert broker.stop() == 0
        assert heard(manager, "STOPPING=1\n") == "STOPPING=1\nSTATUS=moving leaders away"
    finally:
        broker.kill()
        coordinator.stop()
