"""`barnabas controller move` on a running cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.broker_process import broker_cluster
from tests.support.waiting import wait_until
from tests.support.wire_calls import create_topic, leaders, metadata

TIMEOUT_SECONDS = 60


def move(connect: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "barnabas.cli", "controller", "move", "--zookeeper", connect, "--json"]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)


def test_the_controller_moves_and_the_cluster_goes_on(tmp_path: Path) -> None:
    with broker_cluster(tmp_path, 2, overrides={"offsets.topic.replication.factor": 1}) as cluster:
        ports = [broker.port for broker in cluster.brokers.values()]
        before = wait_until(lambda: metadata(ports[0]).controller_id, "a controller is known")
        done = move(cluster.coordinator.address)
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert said["before"]["broker"] == before
        assert said["after"]["epoch"] == said["before"]["epoch"] + 1
        after = said["after"]["broker"]
        for port in ports:
            wait_until(lambda: metadata(port).controller_id == after, "both brokers know the new one")  # noqa: B023
        create_topic(ports[0], "after-the-move", 4, 2)
        for port in ports:
            wait_until(lambda: len(leaders(port, "after-the-move")) == 4, "the new one leads")  # noqa: B023


def test_says_that_nobody_answers() -> None:
    done = move("127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("barnabas controller move: ")
    assert "Traceback" not in done.stderr
