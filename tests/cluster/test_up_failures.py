"""What `barnabas up` does when one of its processes ends by itself, or cannot start: what is read, and what runs."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import FindCoordinatorRequest, JoinGroupRequest, OffsetFetchRequest, SyncGroupRequest
from tests.cluster.test_supervisor import processes_with
from tests.cluster.test_up import RECORDS, TOPIC, consume_by_confluent, produce
from tests.support.barnabas_up import READY_SECONDS, SOURCE, STOP_SECONDS, Up, is_running
from tests.support.failing_disks import FullDisk, NotPermittedError
from tests.support.waiting import wait_until
from tests.support.wire_calls import call, create_topic, leaders, metadata

PATIENCE_SECONDS = 60.0
SESSION = ("--override", "zookeeper.session.timeout.ms=4000")


def serves(port: int, brokers: int) -> bool:
    try:
        return len(metadata(port).brokers) == brokers
    except OSError:
        return False


def kill_broker(up: Up, number: int) -> None:
    os.kill(up.said["brokers"][number - 1]["process_id"], signal.SIGKILL)


def wait_for(up: Up, text: str) -> None:
    wait_until(lambda: text in up.errors(), f"{text!r} is said", PATIENCE_SECONDS, up.errors)


def test_a_broker_that_is_killed_is_started_again_and_what_it_had_is_there(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", 2, *SESSION)
    try:
        produce(up.bootstrap_servers)
        kill_broker(up, 2)
        wait_for(up, "broker-2 ended with status -9 (SIGKILL)\n")
        wait_for(up, f"Its log is {tmp_path}/data/broker-2/logs/server.log. Starting it again in 1 s")
        wait_for(up, "broker-2 runs again, process ")
        wait_until(lambda: all(serves(port, 2) for port in up.ports), "both are known", PATIENCE_SECONDS, up.errors)
        assert consume_by_confluent(up.bootstrap_servers, "one") == list(range(300))
        (again,) = re.findall(r"process (\d+)", up.errors())
        assert is_running(int(again))
    finally:
        assert up.stop() == 0
    assert not is_running(int(again))


def test_the_coordinator_is_started_again_too(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", 1, *SESSION)
    try:
        os.kill(up.said["coordinator"]["process_id"], signal.SIGKILL)
        wait_for(up, "coordinator runs again, process ")
        produce(up.bootstrap_servers)
    finally:
        assert up.stop() == 0


def test_a_second_up_on_the_same_directory_is_refused_and_leaves_the_first_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    up = Up(data, 1, *SESSION)
    try:
        properties, output = data / "broker-1" / "server.properties", data / "coordinator" / "output.log"
        written = properties.read_text()
        second = Up(data, 1, wait=False)
        assert second.process.wait(PATIENCE_SECONDS) == 1
        second.stop()
        assert f"barnabas up: {data} is in use by another barnabas up" in up.errors()
        assert properties.read_text() == written
        assert "in use" not in output.read_text()  # turns that took long may be told there
    finally:
        assert up.stop() == 0
    # A directory is free again when the one that used it has ended.
    assert Up(data, 1, *SESSION).stop() == 0


def test_an_up_that_was_killed_is_followed_by_another_when_its_processes_have_ended(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", 2, *SESSION)
    produce(up.bootstrap_servers)
    up.kill()
    again = Up(tmp_path / "data", 2, *SESSION)
    try:
        assert not any(map(is_running, up.process_ids))
        assert consume_by_confluent(again.bootstrap_servers, "one") == list(range(300))
    finally:
        assert again.stop() == 0
    assert "barnabas up: the cluster: processes of an earlier barnabas up" in again.errors()
    assert "in use" not in again.errors()


def test_what_a_process_said_before_its_end_is_told_once_and_stays_in_its_log(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", 1, *SESSION)
    try:
        output = tmp_path / "data" / "coordinator" / "output.log"
        with output.open("a") as log:
            log.write("something is wrong\n")
        os.kill(up.said["coordinator"]["process_id"], signal.SIGABRT)
        wait_for(up, "coordinator ended with status -6 (SIGABRT): ")
        wait_for(up, "something is wrong\n")
        wait_for(up, f"Its log is {output}. Starting it again in 1 s")
        wait_for(up, "coordinator runs again, process ")
        assert "something is wrong\n" in output.read_text()
        (again,) = re.findall(r"runs again, process (\d+)", up.errors())
        os.kill(int(again), signal.SIGABRT)
        wait_for(up, "Starting it again in 2 s")
        assert up.errors().count("something is wrong") == 1
    finally:
        assert up.stop() == 0


def test_a_stop_does_not_wait_for_what_is_being_started_again_and_leaves_nothing(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", 1, *SESSION)
    try:
        kill_broker(up, 1)
        wait_for(up, "Starting it again in 1 s")
        # It waits for its former session then.
        wait_until(lambda: len(processes_with(str(tmp_path / "data" / "broker-1"))) > 0, "it is being started")
    finally:
        assert up.stop() == 0
    assert processes_with(str(tmp_path)) == []
    assert "could not be started" not in up.errors()


def test_a_broker_that_dies_at_every_start_is_tried_after_longer_and_longer_pauses(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", 1, *SESSION)
    try:
        properties = tmp_path / "data" / "broker-1" / "data" / "meta.properties"
        good = properties.read_text()
        properties.write_text(good.replace("broker.id=1", "broker.id=8"))
        kill_broker(up, 1)
        wait_for(up, "Starting it again in 4 s")
        said = up.errors()
        assert said.count("broker-1 could not be started again: broker-1 ended with status 1: The log directories") == 2
        assert "belong to broker 8, but broker.id is 1" in said
        assert re.findall(r"again in (\d+) s", said) == ["1", "2", "4"]
        properties.write_text(good)
        wait_for(up, "broker-1 runs again")
        produce(up.bootstrap_servers)
    finally:
        assert up.stop() == 0
    assert "Traceback" not in up.errors()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[FullDisk]:
    try:
        disk = FullDisk(tmp_path / "disk")
    except NotPermittedError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    yield disk
    disk.close()


def test_a_full_disk_is_named_with_the_log_and_the_broker_comes_back_when_there_is_room(full_disk: FullDisk) -> None:
    up = Up(full_disk.directory, 1, *SESSION)
    try:
        produce(up.bootstrap_servers)
        full_disk.fail()
        producer = Producer({"bootstrap.servers": up.bootstrap_servers, "message.timeout.ms": 2_000, "log_level": 0})
        producer.produce(TOPIC, bytes(100_000))
        producer.flush(10)
        wait_for(up, "broker-1 ended with status")
        wait_for(up, "no space is left on the disk")
        assert f"Its log is {full_disk.directory}/broker-1/logs/server.log" in up.errors()
        full_disk.repair()
        wait_for(up, "broker-1 runs again")
        assert consume_by_confluent(up.bootstrap_servers, "one") == list(range(300))
    finally:
        assert up.stop() == 0
    assert "Traceback" not in up.errors()


@pytest.mark.parametrize("option", ["--port", "--coordinator-port", "--metrics-port"])
def test_a_port_in_use_is_named_with_what_to_do(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        up = Up(tmp_path / "data", 1, option, str(port), wait=False)
        assert up.process.wait(PATIENCE_SECONDS) == 1
        up.stop()
    said = up.errors()
    assert f"127.0.0.1:{port}: the port is in use by another program" in said
    assert option in said
    assert "Errno" not in said
    assert "Traceback" not in said


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    up = Up(tmp_path / "file", 1, wait=False)
    assert up.process.wait(PATIENCE_SECONDS) == 1
    up.stop()
    said = up.errors()
    assert f"{tmp_path}/file: a file of this name exists already" in said
    assert "--data" in said
    assert "Errno" not in said


def test_overrides_are_warned_of_when_nobody_knows_them_and_refused_when_they_are_not_the_users(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", 1, "--override", "log.retention.hourz=7", "--override", "log.preallocate=true")
    assert up.stop() == 0
    assert "Unknown config log.retention.hourz" in up.errors()
    assert "did you mean log.retention.hours?" in up.errors()
    assert "without effect: log.preallocate" in up.errors()
    refused = Up(tmp_path / "other", 1, "--override", "broker.id=7", wait=False)
    assert refused.process.wait(PATIENCE_SECONDS) == 2
    refused.stop()
    assert "broker.id cannot be overridden" in refused.errors()
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("brokers", [1, 3])
def test_the_first_group_finds_its_coordinator_at_once(tmp_path: Path, brokers: int) -> None:
    up = Up(tmp_path / "data", brokers)
    try:
        for port in up.ports:
            answer = call(port, ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="anybody", key_type=0))
            assert answer.error_code == 0
            (topic,) = metadata(port, ["__consumer_offsets"]).topics
            assert len(topic.partitions) == 50
            assert all(len(partition.replica_nodes) == brokers for partition in topic.partitions)
    finally:
        assert up.stop() == 0


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_new_group_is_refused_nothing_once_up_is_ready(tmp_path: Path, brokers: int) -> None:
    """Any error here makes clients wait and try again: each request is made once."""
    up = Up(tmp_path / "data", brokers)
    try:
        found = call(up.ports[-1], ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="readers", key_type=0))
        assert found.error_code == ErrorCode.NONE
        assert found.port in up.ports
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
        join = JoinGroupRequest(
            group_id="readers",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id="",
            protocol_type="consumer",
            protocols=[protocol],
        )
        named = call(found.port, ApiKey.JOIN_GROUP, 5, join)
        assert named.error_code == ErrorCode.MEMBER_ID_REQUIRED  # as always, and answered by the next one at once
        join.member_id = named.member_id
        joined = call(found.port, ApiKey.JOIN_GROUP, 5, join)
        assert joined.error_code == ErrorCode.NONE
        assert joined.leader == named.member_id
        assigned = SyncGroupRequest.SyncGroupRequestAssignment(member_id=named.member_id, assignment=b"all")
        sync = SyncGroupRequest(
            group_id="readers",
            generation_id=joined.generation_id,
            member_id=named.member_id,
            assignments=[assigned],
        )
        synced = call(found.port, ApiKey.SYNC_GROUP, 3, sync)
        assert (synced.error_code, bytes(synced.assignment)) == (ErrorCode.NONE, b"all")
        offsets = call(found.port, ApiKey.OFFSET_FETCH, 5, OffsetFetchRequest(group_id="readers", topics=None))
        assert offsets.error_code == ErrorCode.NONE
        create_topic(up.ports[0], "first", 1, brokers)
        # The controller has answered for itself; this broker may hear of the topic a moment later.
        wait_until(
            lambda: bool(metadata(up.ports[0], ["first"]).topics[0].partitions),
            "the topic is known",
            PATIENCE_SECONDS,
            up.errors,
        )
        (topic,) = metadata(up.ports[0], ["first"]).topics
        assert [partition.error_code for partition in topic.partitions] == [ErrorCode.NONE]
    finally:
        assert up.stop() == 0


def test_why_groups_cannot_form_is_told_as_it_is(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", 1, "--override", "offsets.topic.replication.factor=3")
    assert up.stop() == 0
    assert (
        "__consumer_offsets could not be made, so groups cannot form: offsets.topic.replication.factor" in up.errors()
    )
    assert "without a leader" not in up.errors()


def test_a_broker_whose_records_were_taken_away_is_remarked(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", 1, *SESSION)
    try:
        produce(up.bootstrap_servers)
    finally:
        assert up.stop() == 0
    (tmp_path / "data" / "broker-1" / "data").rename(tmp_path / "elsewhere")
    again = Up(tmp_path / "data", 1, *SESSION)
    assert again.stop() == 0
    assert "barnabas up: broker-1: The log directory is empty" in again.errors()
    assert "correct log.dirs" in again.errors()


def test_a_killed_supervisor_takes_its_processes_along(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", 2)
    up.kill()
    wait_until(
        lambda: not any(is_running(process_id) for process_id in up.process_ids), "all processes end", STOP_SECONDS
    )


def test_a_broker_that_ends_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", 3, "--no-restart")
    try:
        produce(up.bootstrap_servers)
        assert consume_by_confluent(up.bootstrap_servers, "one") == list(range(RECORDS))
        os.kill(up.said["brokers"][2]["process_id"], signal.SIGKILL)
        wait_until(lambda: "broker-3 ended with status -9" in up.errors(), "the end is reported")
        assert "It stays down (--no-restart). The others go on" in up.errors()
        others = up.ports[:2]
        wait_until(lambda: all(len(metadata(port).brokers) == 2 for port in others), "the others know")
        wait_until(lambda: set(leaders(others[0], TOPIC).values()) <= {1, 2}, "the others lead")
        servers = ",".join(f"127.0.0.1:{port}" for port in others)
        produce(servers)
        # The group goes on where it was.
        assert consume_by_confluent(servers, "one") == list(range(RECORDS))
    finally:
        assert up.stop() == 0


def broker_command(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "barnabas.cli", "broker", *arguments],
        capture_output=True,
        text=True,
        timeout=READY_SECONDS,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        check=False,
    )


def test_a_second_broker_with_the_same_id_is_refused_and_the_first_stays(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", 1, "--override", "zookeeper.session.timeout.ms=4000")
    try:
        file = tmp_path / "data" / "broker-1" / "server.properties"
        elsewhere = ["--override", f"log.dirs={tmp_path / 'other'}", "--override", "listeners=PLAINTEXT://127.0.0.1:0"]
        logs = ["--override", f"barnabas.logs.directory={tmp_path / 'other-logs'}"]
        done = broker_command([str(file), *elsewhere, *logs])
        assert done.returncode == 1
        assert "Another broker with the id 1 is alive" in done.stderr
        assert "waiting for that" in (tmp_path / "other-logs" / "server.log").read_text()
        assert len(metadata(up.ports[0]).brokers) == 1
        # Nor may another id take the directories over.
        refused = broker_command([str(file), "--override", "broker.id=2", *logs])
        assert refused.returncode == 1
        assert "in use by another broker" in refused.stderr
    finally:
        assert up.stop() == 0
    without = broker_command(
        [str(file), "--override", "zookeeper.connect=127.0.0.1:1", "--override", "listeners=SSL://:0"]
    )
    assert without.returncode == 1
    assert "listeners" in without.stderr
