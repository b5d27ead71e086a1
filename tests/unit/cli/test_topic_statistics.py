"""`barnabas topic stats` on a cluster in virtual time, and its file as the planner of reassignments takes it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.cli.connection import CommandError
from barnabas.cli.reassignment_planner import Placed
from barnabas.cli.reassignment_statistics import read_statistics, with_statistics
from barnabas.cli.reassignment_view import View
from barnabas.cli.topic_statistics import Statistics, document, measure, show
from barnabas.client.client import Client
from barnabas.client.producer import Producer
from barnabas.client.records import ProducerRecord
from barnabas.client.settings import ClientSettings
from barnabas.testing import SimulatedCluster
from barnabas.wire.topics import TopicPartition
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import fake_cluster, topic


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=1) as running:
        yield running


def measured(cluster: SimulatedCluster, measured_ms: int = 1_000, sample: int = 1_000, **selection: Any) -> Statistics:
    settings = ClientSettings(bootstrap_servers=tuple(cluster.bootstrap_servers.split(",")))

    async def work() -> Statistics:
        async with Client(cluster.host, settings, logging.getLogger("tests.topic-stats")) as client:
            return await measure(client, selection, measured_ms, sample)

    found: Statistics = cluster.run(work)
    return found


def produced(cluster: SimulatedCluster, *records: ProducerRecord) -> None:
    settings = ClientSettings(bootstrap_servers=tuple(cluster.bootstrap_servers.split(",")))

    async def work() -> None:
        client = Client(cluster.host, settings, logging.getLogger("tests.produce"))
        async with client, Producer(client) as producer:
            await asyncio.gather(*[await producer.send(record) for record in records])

    cluster.run(work)


def test_sizes_rates_and_keys_are_told_by_partition(
    cluster: SimulatedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.create_topic("flights", partitions=2)
    keys = [b"UA" if number % 4 else b"AA" for number in range(100)]
    produced(cluster, *[ProducerRecord("flights", b"value", key, (), 0) for key in keys])
    produced(cluster, ProducerRecord("flights", b"value", None, (), 1))
    found = measured(cluster)
    first, second = document(found)["partitions"]
    assert (first["topic"], first["partition"], first["start_offset"], first["end_offset"]) == ("flights", 0, 0, 100)
    assert first["size_bytes"] > second["size_bytes"] > 0
    assert (first["sampled_records"], first["distinct_keys"], first["keyless_records"]) == (100, 2, 0)
    assert first["top_keys"] == [
        {"records": 75, "share": 0.75, "key": "UA"},
        {"records": 25, "share": 0.25, "key": "AA"},
    ]
    assert (second["keyless_records"], second["top_keys"]) == (1, [])
    assert (first["bytes_per_second"], first["records_per_second"]) == (0.0, 0.0)
    show(found, as_json=False)
    assert "75%" in capsys.readouterr().out


def test_what_is_written_meanwhile_is_a_rate(cluster: SimulatedCluster) -> None:
    cluster.create_topic("flights")
    settings = ClientSettings(bootstrap_servers=tuple(cluster.bootstrap_servers.split(",")))

    async def work() -> Statistics:
        async with Client(cluster.host, settings, logging.getLogger("tests.topic-stats")) as client:
            measuring = asyncio.ensure_future(measure(client, {"flights": None}, 10_000, 0))
            await client.timers.sleep(2_000)
            async with Producer(client) as producer:
                for _ in range(50):
                    await producer.send(ProducerRecord("flights", b"x" * 1_000))
            return await measuring

    (one,) = cluster.run(work).partitions
    assert one.records_per_second == pytest.approx(5, rel=0.05)
    assert one.bytes_per_second == pytest.approx(5_000, rel=0.1)


def test_only_the_newest_records_are_looked_at_and_long_keys_by_their_beginning(cluster: SimulatedCluster) -> None:
    cluster.create_topic("flights")
    keys = [b"k" * 1_000 + b"%d" % (number % 2) for number in range(30)]
    produced(cluster, *[ProducerRecord("flights", b"value", key) for key in keys])
    (one,) = measured(cluster, 0, 10, flights=None).partitions
    assert (one.sample.records, len(one.sample.keys)) == (10, 2)
    assert one.sample.top() == [(b"k" * 128, 5), (b"k" * 128, 5)]
    assert (one.bytes_per_second, one.records_per_second) == (None, None)


def test_a_topic_that_is_not_there_is_told(cluster: SimulatedCluster) -> None:
    with pytest.raises(CommandError, match="nothing"):
        measured(cluster, 0, 10, nothing=None)


# As the planner takes it.

ID = bytes(range(16))
HERE = {TopicPartition("flights", number): Placed((1,), 10, 1.0) for number in range(2)}


def view() -> View:
    info = topic("flights", topic_id=ID)
    return View({"flights": info}, HERE, ())


def kept(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "stats.json"
    one = {
        "topic": "flights",
        "partition": 1,
        "topic_id": "AAECAwQFBgcICQoLDA0ODw",
        "size_bytes": 500,
        "bytes_per_second": 7.5,
    }
    path.write_text(json.dumps({"version": 1, "cluster_id": "c", "measured_ms": 1_000, "partitions": [one]} | changes))
    return path


def test_the_planner_takes_sizes_and_loads_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    placed = with_statistics(view(), read_statistics(str(kept(tmp_path))), "c").placed
    assert placed[TopicPartition("flights", 1)] == Placed((1,), 500, 7.5)
    assert placed[TopicPartition("flights", 0)] == Placed((1,), 10, 0.0)
    assert "1 partition" in capsys.readouterr().err


def test_statistics_of_another_cluster_or_of_a_former_topic_are_refused(tmp_path: Path) -> None:
    found = read_statistics(str(kept(tmp_path)))
    with pytest.raises(CommandError, match="are of cluster c, and this is d"):
        with_statistics(view(), found, "d")
    former = View({"flights": topic("flights", topic_id=bytes(15) + b"\x01")}, HERE, ())
    with pytest.raises(CommandError, match="of no partition"):
        with_statistics(former, found, "c")


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2}, {"partitions": 5}, {"partitions": [{}]}, {"measured_ms": 0},
        {"partitions": [{"topic": "t", "partition": 0, "topic_id": None, "size_bytes": -1, "bytes_per_second": 0}]},
        {"partitions": [{"topic": "t", "partition": 0, "topic_id": None, "size_bytes": 1, "bytes_per_second": 1e999}]},
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(CommandError, match=r"stats\.json"):
        read_statistics(str(kept(tmp_path, **changes)))
    (tmp_path / "garbage").write_bytes(b"[" * 100_000)
    with pytest.raises(CommandError, match="is not what"):
        read_statistics(str(tmp_path / "garbage"))


def test_statistics_and_measuring_exclude_each_other(
    barnabas: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = barnabas("reassign", "plan", "--from-stats", "nothing", "--measure", "1s")
    assert done.status == 2
    with fake_cluster(monkeypatch):
        done = barnabas("reassign", "plan", "--from-stats", "nothing")
    assert (done.status, "nothing cannot be read" in done.errors) == (4, True)
