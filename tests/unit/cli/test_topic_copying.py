"""The work of `barnabas topic copy` on a cluster in virtual time: what goes wrong in the middle of a copy."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.cli import record_source, topic_copying
from barnabas.cli.edges import Edge
from barnabas.client.admin import ResourceType
from barnabas.client.client import Client
from barnabas.client.settings import ClientSettings
from barnabas.client.transactional_producer import TransactionalProducer
from barnabas.testing import SimulatedCluster
from barnabas.wire.topics import TopicPartition
from tests.support.simulated_copies import asked, begun, ended, plan, run, values_of, wait_for_copied


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=1) as running:
        yield running


def filled(cluster: SimulatedCluster, count: int = 20, config: dict[str, object] | None = None) -> list[bytes]:
    """A topic of one partition with so many records, and their values."""
    cluster.create_topic("s", config=config)
    values = [b"%d" % number for number in range(count)]
    cluster.produce("s", *values)
    return values


def test_ctrl_c_while_acknowledgements_are_awaited_copies_nothing_twice(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    values = filled(cluster)
    cluster.create_topic("t")
    wanted = plan(state_file=str(tmp_path / "state"))
    process = begun(cluster, wanted)
    wait_for_copied(cluster, 1)  # the broker has them, and the copy has not heard of it
    process.terminate()
    cluster.run_until(lambda: process.ended)
    assert len(values_of(cluster)) == len(values)
    run(cluster, wanted)
    assert values_of(cluster) == values


def test_a_source_that_is_made_again_ends_a_copy_that_follows(cluster: SimulatedCluster) -> None:
    values = filled(cluster)
    cluster.create_topic("t")
    process = begun(cluster, plan(follows=True))
    wait_for_copied(cluster, len(values))
    asked(cluster, lambda admin: admin.delete_topics(["s"]))
    cluster.run_for(5)
    cluster.create_topic("s")
    cluster.produce("s", *[b"new"] * 30)
    assert "topic s was deleted and made again" in ended(cluster, process)
    assert values_of(cluster) == values


def test_a_source_that_is_deleted_ends_a_copy_that_follows(cluster: SimulatedCluster) -> None:
    filled(cluster)
    cluster.create_topic("t")
    process = begun(cluster, plan(follows=True))
    cluster.run_for(5)
    asked(cluster, lambda admin: admin.delete_topics(["s"]))
    assert "topic s was deleted while it was copied" in ended(cluster, process)


@pytest.mark.parametrize("how", ["state", "transactional"])
def test_a_target_that_is_made_again_is_not_taken_for_the_former_one(
    cluster: SimulatedCluster, tmp_path: Path, how: str
) -> None:
    values = filled(cluster)
    cluster.create_topic("t")
    wanted = plan(state_file=str(tmp_path / "state")) if how == "state" else plan(transactional="copier")
    run(cluster, wanted)
    asked(cluster, lambda admin: admin.delete_topics(["t"]))
    cluster.run_for(5)
    cluster.create_topic("t")
    if how == "state":
        assert "made again" in ended(cluster, begun(cluster, wanted))
        wanted = plan(state_file=str(tmp_path / "other"))
    run(cluster, wanted)
    assert values_of(cluster) == values


def test_what_retention_takes_in_the_middle_is_told_and_left_out(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record_source, "_FETCH_BYTES_MAX", 1)
    cluster.create_topic("s")
    for number in range(30):
        cluster.produce("s", b"%d" % number)
    cluster.create_topic("t")
    process = begun(cluster, plan(rate=1.0, skips_deleted=True))
    wait_for_copied(cluster, 3)
    asked(cluster, lambda admin: admin.delete_records({TopicPartition("s", 0): 20}))
    cluster.run_until(lambda: process.ended)
    assert process.result() == ""
    found = [int(value or b"") for value in values_of(cluster)]
    assert found[-10:] == list(range(20, 30))
    assert found == sorted(set(found))
    assert f"Left out: offsets {found[-11] + 1} to 19 of s-0 were deleted" in capsys.readouterr().err


def test_a_log_that_has_become_shorter_is_not_copied_again(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(cluster)
    cluster.create_topic("t")
    looks: list[object] = []
    look = topic_copying.check_not_deleted

    def as_if_it_was_longer(*arguments: Any, **options: Any) -> None:
        if looks:
            look(*arguments, **options)
        else:
            arguments[0][TopicPartition("s", 0)] = 25
        looks.append(arguments)

    monkeypatch.setattr(topic_copying, "check_not_deleted", as_if_it_was_longer)
    process = begun(cluster, plan(follows=True, skips_deleted=True))
    assert "lost records" in ended(cluster, process)
    assert values_of(cluster) == []


def test_a_transactional_copy_from_the_end_goes_on_from_there_though_nothing_came(cluster: SimulatedCluster) -> None:
    filled(cluster)
    cluster.create_topic("t")
    wanted = plan(transactional="copier", first=Edge.LATEST)
    run(cluster, wanted)
    cluster.produce("s", b"a", b"b")
    run(cluster, wanted)
    assert values_of(cluster) == [b"a", b"b"]


def test_a_slow_rate_does_not_outlast_transactions(cluster: SimulatedCluster) -> None:
    values = filled(cluster, 4)
    cluster.create_topic("t")
    process = begun(cluster, plan(transactional="copier", rate=0.01))
    cluster.run_until(lambda: process.ended, 1_000)
    assert process.result() == ""
    assert values_of(cluster) == values


def test_how_far_it_is_is_kept_before_a_long_wait(cluster: SimulatedCluster, tmp_path: Path) -> None:
    filled(cluster, 4)
    cluster.create_topic("t")
    process = begun(cluster, plan(state_file=str(tmp_path / "state"), rate=0.01))
    cluster.run_for(50)
    assert '"offsets": {"0": 1}' in (tmp_path / "state").read_text()
    process.terminate()
    cluster.run_until(lambda: process.ended)


def test_a_copy_that_was_suspended_for_longer_than_a_transaction_says_so(cluster: SimulatedCluster) -> None:
    filled(cluster, 2_000)
    cluster.create_topic("t")
    process = begun(cluster, plan(transactional="copier", rate=100.0))
    cluster.run_for(5)
    process.pause()
    cluster.run_for(120)
    process.resume()
    assert "within 60 s" in ended(cluster, process)


def test_positions_of_partitions_where_nothing_comes_are_kept_too(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_copying, "_KEPT_AGAIN_SECONDS", 5.0)
    cluster.create_topic("s", partitions=2)
    cluster.create_topic("t", partitions=2)
    cluster.produce("s", b"a")
    process = begun(cluster, plan(transactional="copier", follows=True))
    cluster.run_for(4)
    found = asked(cluster, lambda admin: admin.list_group_offsets("copier"))
    assert {each.partition: offset.offset for each, offset in found.items()} == {0: 1, 1: 0}
    asked(cluster, lambda admin: admin.list_topics())
    before = offsets_written(cluster)
    cluster.run_for(11)
    assert before < offsets_written(cluster) <= before + 3 * 4
    process.terminate()
    cluster.run_until(lambda: process.ended)


def offsets_written(cluster: SimulatedCluster) -> int:
    """How many records and markers the topic of groups' offsets has."""
    partitions = [TopicPartition("__consumer_offsets", number) for number in range(4)]
    found = asked(cluster, lambda admin: admin.list_offsets(dict.fromkeys(partitions, -1)))
    return sum(place.offset for place in found.values())


def test_offsets_that_are_about_to_be_committed_are_waited_for(cluster: SimulatedCluster) -> None:
    values = filled(cluster)
    cluster.create_topic("t")
    wanted = plan(transactional="copier")
    run(cluster, wanted)
    at = TopicPartition("t", 0)
    kept = asked(cluster, lambda admin: admin.list_group_offsets("copier"))[at]
    asked(cluster, lambda admin: admin.alter_group_offsets("copier", {at: dataclasses.replace(kept, offset=0)}))

    async def commit_in_a_while() -> None:
        settings = ClientSettings(bootstrap_servers=tuple(cluster.bootstrap_servers.split(",")))
        async with (
            Client(cluster.host, settings, logging.getLogger("tests.other")) as client,
            TransactionalProducer(client, "other") as producer,
        ):
            await producer.begin()
            await producer.send_offsets("copier", {at: kept})
            await asyncio.sleep(5)
            await producer.commit()

    other = cluster.start(commit_in_a_while)
    cluster.run_for(2)
    run(cluster, wanted)
    assert other.ended
    assert values_of(cluster) == values


def test_says_that_nothing_goes_on_and_why(cluster: SimulatedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    filled(cluster, 2_000)
    cluster.create_topic("t")
    process = begun(cluster, plan(rate=100.0))
    cluster.run_for(5)
    cluster.kill(1)
    cluster.run_for(60)
    said = capsys.readouterr().err
    assert "no record was copied for" in said
    assert "broker1:9092" in said
    cluster.settle()
    cluster.run_until(lambda: process.ended)
    assert process.result() == ""
    assert len(values_of(cluster)) == 2_000


def test_an_error_is_told_though_nobody_reads_the_table(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(cluster)
    cluster.create_topic("t", config={"max.message.bytes": 20})

    def closed(_document: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(topic_copying, "print_json", closed)
    assert "record 0 of s-0: the record is larger than max.message.bytes" in ended(cluster, begun(cluster, plan()))


def test_a_record_that_the_target_refuses_is_named(cluster: SimulatedCluster) -> None:
    cluster.create_topic("s")
    cluster.produce("s", b"a" * 10, random.Random(1).randbytes(10_000))
    cluster.create_topic("t", config={"max.message.bytes": 1_000})
    assert "record 1 of s-0: " in ended(cluster, begun(cluster, plan(compression="gzip")))


def test_lists_of_throttled_replicas_are_not_copied(cluster: SimulatedCluster) -> None:
    throttled = "leader.replication.throttled.replicas"
    filled(cluster, config={throttled: "0:1", "retention.ms": -1})
    run(cluster, plan(creates=True, copies_configs=True))
    found = asked(cluster, lambda admin: admin.describe_configs(ResourceType.TOPIC, "t"))
    assert (found["retention.ms"].value, found[throttled].value) == ("-1", "")


def test_a_disk_that_is_full_is_named_with_the_state(
    cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(cluster)
    cluster.create_topic("t")
    monkeypatch.setattr(Path, "write_text", _full)
    said = ended(cluster, begun(cluster, plan(state_file=str(tmp_path / "state"))))
    assert said == f"{tmp_path / 'state'}: the state cannot be kept there: No space left on device"


def _full(*_arguments: object, **_options: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
