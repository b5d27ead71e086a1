"""`tests.support.tool_server`: a tool that shares a JVM does what it does in one of its own."""

from __future__ import annotations

import contextlib
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.apache_kafka import (
    CONFIG_COMMAND,
    CONSOLE_CONSUMER,
    CONSOLE_PRODUCER,
    DUMP_LOG_SEGMENTS,
    TOPIC_COMMAND,
    ApacheKafkaBroker,
    run_tool,
    tool_run,
)
from tests.support.apache_kafka_jars import class_path
from tests.support.tool_server import ToolServer
from tests.support.zookeeper import ZooKeeperServer


def test_tools_get_their_input_and_keep_their_outputs_apart(kafka_broker: ApacheKafkaBroker) -> None:
    where = ["--bootstrap-server", kafka_broker.address, "--topic", "shared-jvm"]
    run_tool(TOPIC_COMMAND, [*where, "--create"])
    for text in ("one", "zwölf"):
        run_tool(CONSOLE_PRODUCER, where, standard_input=f"{text}\n")
    # It counts what it has read in a static field: the second run begins at 0, too.
    for _ in range(2):
        read = tool_run(CONSOLE_CONSUMER, [*where, "--from-beginning", "--max-messages", "2"])
        assert read.status == 0
        assert read.output.split() == ["one", "zwölf"]
        assert read.errors.splitlines()[-1] == "Processed a total of 2 messages"
    with ThreadPoolExecutor(2) as both:
        described = both.map(lambda _: run_tool(TOPIC_COMMAND, [*where, "--describe"]), range(2))
    assert all("PartitionCount: 1" in output for output in described)


def test_a_tool_that_fails_says_so_and_the_next_one_runs(oracle_jars: Path, tmp_path: Path) -> None:
    log = tmp_path / f"{0:020d}.log"
    log.touch()
    for _ in range(2):
        refused = tool_run(DUMP_LOG_SEGMENTS, ["--no-such-option"])
        assert (refused.status, refused.output) == (1, "")
        assert "no-such-option" in refused.errors
        thrown = tool_run(DUMP_LOG_SEGMENTS, ["--files", tmp_path / "nothing.log"])
        assert thrown.status == 1
        assert thrown.errors.startswith('Exception in thread "main" java.lang.NumberFormatException')
        assert run_tool(DUMP_LOG_SEGMENTS, ["--files", log]) == f"Dumping {log}\nLog starting offset: 0\n"


def test_a_tool_that_takes_too_long_is_ended_and_the_next_one_runs(kafka_broker: ApacheKafkaBroker) -> None:
    where = ["--bootstrap-server", kafka_broker.address]
    run_tool(TOPIC_COMMAND, [*where, "--create", "--topic", "nothing-comes"])
    with pytest.raises(subprocess.TimeoutExpired):
        tool_run(CONSOLE_CONSUMER, [*where, "--topic", "nothing-comes"], timeout_seconds=1)
    assert "nothing-comes" in run_tool(TOPIC_COMMAND, [*where, "--list"])


def test_a_jvm_takes_the_next_tool_behind_an_admin_client_that_was_left_open_and_a_client_of_zookeeper(
    kafka_broker: ApacheKafkaBroker, zookeeper_server: ZooKeeperServer
) -> None:
    added = ("--alter", "--entity-type", "users", "--entity-name", "alice", "--add-config")
    with contextlib.closing(ToolServer(class_path())) as server:
        for tool, *arguments in 2 * (
            ("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", kafka_broker.address, "list"),
            (CONFIG_COMMAND, "--zookeeper", f"{zookeeper_server.address}/kafka", *added, "SCRAM-SHA-256=[password=x]"),
        ):
            status, _, errors = server.run(tool, arguments, None, 60.0)
            assert status == 0, errors
            assert server.is_usable(), tool
