"""The plugin, as it runs in a session of pytest of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

_COMMAND = (
    sys.executable,
    "-m",
    "pytest",
    "-p",
    "barnabas.testing.pytest_plugin",
    "-p",
    "no:cacheprovider",
    "-q",
    "-rA",
)
_SOURCE = str(Path(__file__).resolve().parents[3] / "src")


def run_pytest(directory: Path, tests: str, ini: str = "", *options: str) -> str:
    """The output of a session that has these tests."""
    (directory / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = error\n{ini}")
    (directory / "test_it.py").write_text(textwrap.dedent(tests))
    ran = subprocess.run(
        [*_COMMAND, "-o", "addopts=", *options],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={
            "PYTHONPATH": _SOURCE,
            "PATH": "/usr/bin:/bin",
            "HOME": str(directory),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
    )
    return ran.stdout + ran.stderr


def test_one_cluster_for_the_session_a_topic_for_each_test_and_faults_that_end_with_a_test(tmp_path: Path) -> None:
    said = run_pytest(
        tmp_path,
        """
        import confluent_kafka
        import pytest

        seen = []

        @pytest.mark.parametrize("number", [1, 2])
        def test_it(kafka_cluster, kafka_topic, number):
            seen.append((kafka_cluster, kafka_topic))
            producer = confluent_kafka.Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers})
            offsets = []
            producer.produce(kafka_topic, b"x", on_delivery=lambda error, message: offsets.append(message.offset()))
            assert producer.flush(30) == 0
            assert offsets == [0]
            kafka_cluster.fail_requests("Produce", "MESSAGE_TOO_LARGE", count=100)
            kafka_cluster.kill(2)

        def test_afterwards(kafka_cluster):
            (first, first_topic), (second, second_topic) = seen
            assert first is second is kafka_cluster
            assert first_topic != second_topic
            assert kafka_cluster.broker_ids == (1, 2)
            assert kafka_cluster.is_running(2)
            assert kafka_cluster.requests_to_fail("Produce") == 0

        @pytest.mark.kafka_cluster(brokers=1, config={"auto.create.topics.enable": "false"})
        def test_own(kafka_cluster):
            assert kafka_cluster is not seen[0][0]
            assert kafka_cluster.broker_ids == (1,)

        @pytest.mark.kafka_cluster(scope="session", brokers=1)
        @pytest.mark.parametrize("number", [1, 2])
        def test_shared(kafka_cluster, number):
            seen.append((kafka_cluster, None))
            assert kafka_cluster is seen[2][0]
        """,
        "kafka_brokers = 2\nkafka_session_timeout_ms = 500\nkafka_config =\n    num.partitions=3\n",
    )
    assert "6 passed" in said, said


@pytest.mark.parametrize(
    ("marker", "ini", "error"),
    [
        ("brokres=3", "", "takes brokers, config, durable"),
        ("scope='module'", "", "takes a scope of function or session"),
        ("brokers=1", "kafka_config = nothing", "'nothing' must have the form KEY=VALUE"),
        ("brokers=1", "kafka_brokers = many", "kafka_brokers must be a number, not 'many'"),
    ],
)
def test_mistakes_are_said(tmp_path: Path, marker: str, ini: str, error: str) -> None:
    tests = f"import pytest\n@pytest.mark.kafka_cluster({marker})\ndef test_it(kafka_cluster):\n    pass\n"
    said = run_pytest(tmp_path, tests, ini)
    assert error in said, said
    assert "1 error" in said, said


def test_a_session_that_does_not_use_it_imports_nothing_of_the_broker(tmp_path: Path) -> None:
    said = run_pytest(
        tmp_path,
        """
        import sys

        def test_it():
            own = [name for name in sys.modules if name.startswith("barnabas")]
            assert own == ["barnabas", "barnabas.testing", "barnabas.testing.pytest_plugin"]
        """,
    )
    assert "1 passed" in said, said


def test_each_worker_of_xdist_has_a_cluster_of_its_own(tmp_path: Path) -> None:
    said = run_pytest(
        tmp_path,
        """
        import pathlib
        import time

        def use(cluster):
            folder = pathlib.Path(__file__).parent / "servers"
            folder.mkdir(exist_ok=True)
            (folder / cluster.bootstrap_servers).touch()
            ends_at = time.monotonic() + 200
            while len(list(folder.iterdir())) < 2:
                assert time.monotonic() < ends_at, "no other worker has a cluster"
                time.sleep(0.01)

        def test_one(kafka_cluster):
            use(kafka_cluster)

        def test_two(kafka_cluster):
            use(kafka_cluster)
        """,
        "",
        *("-p", "xdist", "-n", "2"),
    )
    assert "2 passed" in said, said
