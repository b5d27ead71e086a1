"""`barnabas topic copy --groups`, `topic export` and `topic import` while brokers fail, and are killed themselves.

A producer writes transactions, of which some are aborted; groups commit as they read. What is copied, exported or
imported is judged by what the source has in the end: each committed record, in order, exactly once where that is
promised; and no group goes on behind a record at the target that it has not read at the source.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from barnabas.cli.edges import Edge
from barnabas.cli.export_files import read_export
from barnabas.cli.topic_copying import Plan
from barnabas.cli.topic_exporting import ExportPlan, export
from barnabas.cli.topic_importing import import_topic
from barnabas.client.admin import Admin
from barnabas.client.client import Client
from barnabas.client.consumer import Consumer
from barnabas.client.errors import ClientError
from barnabas.client.records import ConsumerRecord, OffsetAndMetadata, ProducerRecord
from barnabas.client.settings import ClientSettings
from barnabas.client.transactional_producer import TransactionalProducer
from barnabas.testing import SimulatedCluster
from barnabas.testing.simulated_host import SimulatedProcess
from barnabas.wire.errors import KafkaError
from barnabas.wire.topics import TopicPartition
from tests.support.simulated_copies import copied, plan

PARTITIONS = 2
ROUNDS = 4
GROUPS = ("slow", "quick", "static")
LOGGER = logging.getLogger("tests.topic-copies")


def with_client(cluster: SimulatedCluster, call: Callable[[Client], Coroutine[Any, Any, Any]]) -> Any:
    async def work() -> Any:
        settings = ClientSettings(
            bootstrap_servers=tuple(cluster.bootstrap_servers.split(",")), request_timeout_ms=5_000
        )
        async with Client(cluster.host, settings, LOGGER) as client:
            return await call(client)

    return work


class Users:
    """Who writes the source, and the groups that read it; both go on whatever happens, until told to end."""

    def __init__(self, cluster: SimulatedCluster, seed: int) -> None:
        self._cluster = cluster
        self._draw = random.Random(seed)
        self.is_over = False
        self.processes: list[SimulatedProcess] = []
        self.committed: dict[tuple[str, int], int] = {}
        """What each group has asked to commit last; it may have been refused."""

    def end(self) -> None:
        """Ends all of them, on a cluster that is whole again."""
        self.is_over = True
        self._cluster.settle()
        self._cluster.run_until(lambda: all(each.ended for each in self.processes), 300)

    async def write(self) -> None:
        number = 0

        async def work(client: Client) -> None:
            nonlocal number
            async with TransactionalProducer(client, "writer") as producer:
                while not self.is_over:
                    await producer.begin()
                    for _ in range(self._draw.randrange(1, 30)):
                        number += 1
                        partition = number % PARTITIONS
                        await producer.send(ProducerRecord("s", b"%d" % number, partition=partition))
                    if self._draw.random() < 0.3:
                        await producer.abort()
                    else:
                        await producer.commit()
                    await asyncio.sleep(self._draw.random())

        while not self.is_over:
            try:
                await with_client(self._cluster, work)()
            except (ClientError, KafkaError, OSError):
                await asyncio.sleep(1)

    async def read(self, group: str) -> None:
        """Commits further and further ahead, as far as the source goes."""

        async def work(client: Client) -> None:
            async with Admin(client) as admin:
                while not self.is_over:
                    places = [TopicPartition("s", number) for number in range(PARTITIONS)]
                    ends = await admin.list_offsets(dict.fromkeys(places, -1))
                    wanted: dict[TopicPartition, OffsetAndMetadata] = {}
                    for place in places:
                        before = self.committed.get((group, place.partition), 0)
                        offset = self._draw.randrange(before, max(before, ends[place].offset) + 1)
                        if group == "slow":
                            offset = min(offset, before + 5)
                        wanted[place] = OffsetAndMetadata(offset, metadata=group)
                    await admin.alter_group_offsets(group, wanted)
                    self.committed |= {(group, place.partition): each.offset for place, each in wanted.items()}
                    await asyncio.sleep(2 * self._draw.random())

        while not self.is_over:
            try:
                await with_client(self._cluster, work)()
            except (ClientError, KafkaError, OSError):
                await asyncio.sleep(1)


class Struck:
    """A command that is begun again whenever it has ended, or was killed or interrupted."""

    def __init__(self, cluster: SimulatedCluster, draw: random.Random, begin: Callable[[], SimulatedProcess]) -> None:
        self._cluster = cluster
        self._draw = draw
        self._begin = begin
        self.ends: Counter[str] = Counter()
        self.said: list[str] = []

    def run_through(
        self, rounds: int, faults_seconds: float, after_a_kill: Callable[[], object] = lambda: None
    ) -> None:
        """Lets faults strike the brokers in rounds: in each a run begins and is ended, up to one that ends itself."""
        for number in range(rounds):
            process = self._begin()
            self._cluster.strike(self._draw.uniform(0.3, 1.0) * faults_seconds)
            if process.ended:
                self.said.append(str(process.result()))
                return
            if number % 2:
                process.terminate()
                self._cluster.run_until(lambda: process.ended, 300)  # noqa: B023
                self.ends["interrupted"] += 1
            else:
                process.crash()
                after_a_kill()
                self.ends["killed"] += 1

    def run_to_its_end(self) -> None:
        """Without faults any more."""
        self._cluster.settle()
        process = self._begin()
        self._cluster.run_until(lambda: process.ended, 600)
        assert process.result() in ("", None)


def by_partition(records: list[ConsumerRecord]) -> dict[int, list[ConsumerRecord]]:
    found: dict[int, list[ConsumerRecord]] = {number: [] for number in range(PARTITIONS)}
    for record in records:
        found[record.partition.partition].append(record)
    return found


def values(records: list[ConsumerRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def first_times(found: list[bytes | None]) -> list[bytes | None]:
    return list(dict.fromkeys(found))


@pytest.mark.parametrize(("seed", "how"), [(1, "state"), (2, "transactional")])
def test_a_copy_with_groups_loses_nothing_and_moves_nobody_too_far(
    tmp_path: Path, seed: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barnabas.cli.topic_copying._GROUPS_EVERY_SECONDS", 3.0)
    kept = {"state_file": str(tmp_path / "state")} if how == "state" else {"transactional": "copier"}
    with SimulatedCluster(seed, brokers=3) as cluster:
        users = begin_users(cluster, seed)
        wanted: Plan = plan(follows=True, groups=["s*", "quick"], **kept)
        copies = Struck(cluster, random.Random(seed), lambda: cluster.start(copied, cluster, wanted))
        copies.run_through(ROUNDS, 8.0)
        users.end()
        wanted = plan(groups=["s*", "quick"], **kept)
        copies.run_to_its_end()
        source, target = by_partition(cluster.records("s")), by_partition(cluster.records("t"))
        at_target = cluster.run(with_client(cluster, lambda client: offsets_of(client, "t")))
    assert copies.said == []
    assert len(at_target) == len(GROUPS) * PARTITIONS
    for number, records in source.items():
        assert len(records) > 50
        copy = values(target[number])
        assert copy == values(records) if how == "transactional" else first_times(copy) == values(records)
        for group in GROUPS:
            unread = {each.value for each in records if each.offset >= users.committed[group, number]}
            ahead = {each.value for each in target[number] if each.offset >= at_target[group, number]}
            assert ahead >= unread, "no record is passed over"


@pytest.mark.parametrize(("seed", "how"), [(1, "state"), (2, "transactional")])
def test_an_export_and_its_import_have_each_record(
    tmp_path: Path, seed: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barnabas.cli.export_files._BATCH_BYTES", 300)
    monkeypatch.setattr("barnabas.cli.export_files._SEGMENT_BYTES", 2_000)
    monkeypatch.setattr("barnabas.cli.topic_exporting._RECORDS_PER_POLL", 5)
    monkeypatch.setattr("barnabas.cli.topic_exporting.Consumer", SlowConsumer)
    kept = {"state_file": str(tmp_path / "state")} if how == "state" else {"transactional": "importer"}
    directory, draw = tmp_path / "export", random.Random(seed)
    with SimulatedCluster(seed, brokers=3) as cluster:
        users = begin_users(cluster, seed)
        cluster.run_for(8)
        users.end()
        wanted = ExportPlan(
            topic="s", numbers=None, directory=directory, first=Edge.EARLIEST, last=Edge.LATEST, reads_committed=True,
            compression="none",
        )  # fmt: skip
        exports = Struck(
            cluster, draw, lambda: cluster.start(with_client(cluster, lambda each: export(each, wanted, as_json=True)))
        )
        exports.run_through(ROUNDS, 5.0, after_a_kill=lambda: tear(directory, draw))
        if not exports.said:
            exports.run_to_its_end()
        found = read_export(directory)
        assert found is not None
        importing = plan("s", "t", rate=40.0, **kept)

        async def import_once(client: Client) -> None:
            await import_topic(client, directory, importing, keeps_offsets=False, offset_map=None, as_json=True)

        imports = Struck(cluster, draw, lambda: cluster.start(with_client(cluster, import_once)))
        imports.run_through(ROUNDS, 4.0)
        imports.run_to_its_end()
        source, target = by_partition(cluster.records("s")), by_partition(cluster.records("t"))
    assert found.is_complete
    assert exports.ends["killed"] > 0
    assert imports.ends["killed"] > 0
    for number, records in source.items():
        assert found.partitions[number].records == len(records) > 50
        copy = values(target[number])
        assert copy == values(records) if how == "transactional" else first_times(copy) == values(records)


def begin_users(cluster: SimulatedCluster, seed: int) -> Users:
    cluster.create_topic("s", partitions=PARTITIONS)
    cluster.create_topic("t", partitions=PARTITIONS + 1)
    users = Users(cluster, seed)
    users.processes.append(cluster.start(users.write, machine="writer"))
    users.processes += [cluster.start(users.read, group, machine="readers") for group in GROUPS]
    return users


def tear(directory: Path, draw: random.Random) -> None:
    """As a kill in the middle of a write leaves the last file of a partition."""
    for partition in directory.glob("s-*"):
        logs = sorted(partition.glob("*.log"))
        if logs:
            size = logs[-1].stat().st_size
            os.truncate(logs[-1], max(0, size - draw.randrange(100)))


class SlowConsumer(Consumer):
    """One that leaves others the time to strike."""

    async def poll(self, timeout_ms: float, records_max: int | None = None) -> list[ConsumerRecord]:
        await asyncio.sleep(0.4)
        return await super().poll(timeout_ms, records_max)


async def offsets_of(client: Client, topic: str) -> dict[tuple[str, int], int]:
    async with Admin(client) as admin:
        found = {}
        for group in GROUPS:
            for place, offset in (await admin.list_group_offsets(group)).items():
                if place.topic == topic:
                    found[group, place.partition] = offset.offset
        return found
