"""What happens to a broker, by a seed; told of one that has only the general path, it must be the same."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from barnabas.api.fetch_fast_path import FetchFastPath
from barnabas.kernel.host import Host
from barnabas.kernel.metrics import Histogram, Meter
from barnabas.testing.simulation import Simulation
from barnabas.wire.errors import KafkaError
from barnabas.wire.topics import TopicPartition
from tests.unit.api.data_broker import DataBroker, batch, data_broker, produce_request
from tests.unit.api.fetch_readers import LONG_MS, PARTITIONS, Client, Follower

_FOLLOWERS = (2, 3)
_STEPS = 300
_SETTLED_SECONDS = 0.2
"""Of virtual time: whatever is on its way has come then."""
_REPLICAS = (1, 2, 3)


class Taken:
    """Counts what the fast path takes, or keeps it from taking anything."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_fast: bool) -> None:
        self.count = 0
        take = FetchFastPath.take

        def counted(path: FetchFastPath, *arguments: Any) -> bool:
            taken = is_fast and take(path, *arguments)
            self.count += taken
            return taken

        monkeypatch.setattr(FetchFastPath, "take", counted)


class Story:
    """What happens to a broker, all of it by one seed and by what it answers."""

    def __init__(self, broker: DataBroker, seed: int, *, is_steady: bool, is_throttled: bool) -> None:
        self.broker = broker
        self.chance = random.Random(seed)
        self.is_steady = is_steady
        self.is_throttled = is_throttled
        self.isr = _REPLICAS[:1] if is_throttled else _REPLICAS  # who is in sync is not held back
        self.followers = [Follower(broker, follower_id, self.chance, is_steady=is_steady) for follower_id in _FOLLOWERS]
        self.clients = [Client(broker, version, self.chance) for version in (11, 15, 17)]
        self.producers = {acks: broker.connect(f"producer-{acks}") for acks in (1, -1)}
        self.told: list[object] = []
        """All that is seen of it, step by step."""

    async def happen(self) -> None:
        for topic, number in PARTITIONS[:-1]:
            self.broker.lead(topic, number, isr=self.isr, replicas=_REPLICAS)
        await asyncio.sleep(_SETTLED_SECONDS)
        for _ in range(_STEPS):
            self._step()
            await asyncio.sleep(_SETTLED_SECONDS)
            readers: list[Follower | Client] = [*self.followers, *self.clients]
            for reader in readers:
                reader.take()
                self.told.append(list(reader.frames))
                reader.frames.clear()
            for producer in self.producers.values():
                self.told.append(bytes(producer.transport.written))
                producer.transport.written.clear()
            self.told.append(self._state())

    def _step(self) -> None:
        chance = self.chance
        topic, number = PARTITIONS[0] if self.is_steady and chance.random() < 0.8 else chance.choice(PARTITIONS)
        what = chance.random()
        if self.is_throttled and chance.random() < 0.1:
            self.broker.leader_quota.throttle(topic, chance.choice(([], ["*"], ["0:1", "1:2"])), 1)
            self.broker.leader_quota.limit(chance.choice((10, 200, 10**9)))
        if what < 0.3:
            self._produce(topic, number)
        elif what < 0.5:
            client = chance.choice(self.clients)
            if not client.waiting or chance.random() < 0.1:
                client.fetch()
        elif what < 0.95:  # one alone: of those that come in one poll, the fast path takes its own first
            follower = chance.choice(self.followers)
            if not follower.is_parked or chance.random() < 0.05:
                follower.fetch()
        elif what < 0.98:
            partition = self.broker.replicas.find_partition(TopicPartition(topic, number))
            epoch = partition.leader_epoch + 1 if partition is not None else 0
            leader = chance.choice((1, 1, 1, 2))
            self.broker.lead(topic, number, leader=leader, leader_epoch=epoch, isr=self.isr, replicas=_REPLICAS)
        else:
            try:
                self.broker.replicas.get_partition(TopicPartition(topic, number)).delete_records(-1)
            except KafkaError as error:
                self.told.append(error.code)

    def _produce(self, topic: str, number: int) -> None:
        values = [bytes(self.chance.choice((10, 2_000))) for _ in range(self.chance.choice((1, 1, 3)))]
        acks = self.chance.choice((1, -1))
        self.producers[acks].send(produce_request(topic, batch(*values), number, acks, LONG_MS), 9)

    def _state(self) -> list[object]:
        replicas = self.broker.replicas
        return [
            [
                (
                    name,
                    partition.leader_epoch,
                    log.high_watermark,
                    log.log_end_offset,
                    log.log_start_offset,
                    log.last_stable_offset,
                )
                for name, partition in replicas.partitions.items()
                if (log := partition.log) is not None
            ],
            [
                (
                    each.broker_id,
                    each.broker_epoch,
                    each.log_end_offset,
                    each.log_start_offset,
                    each.fetch_leader_end_offset,
                    each.clock is None,
                )
                for partition in replicas.partitions.values()
                for each in partition.followers
            ],
            [
                (
                    session.session_id,
                    session.epoch,
                    session.follower_id,
                    len(session),
                    len(session.parked),
                    [
                        (
                            item.topic_partition,
                            item.fetch_offset,
                            item.max_bytes,
                            item.leader_epoch,
                            item.last_fetched_epoch,
                            item.log_start_offset,
                            item.sent_high_watermark,
                            item.sent_log_start_offset,
                        )
                        for item in session.candidates
                    ],
                )
                for session in self.broker.sessions.sessions.values()
            ],
            (replicas.fetch_purgatory.delayed, replicas.produce_purgatory.delayed),
        ]

    def counted(self) -> dict[object, int]:
        """What was counted of requests, replication and topics."""
        return {
            name: metric.count if isinstance(metric, Meter) else metric.snapshot().count
            for name, metric in self.broker.calls.metrics
            if name.group in ("kafka.network", "kafka.server") and isinstance(metric, Meter | Histogram)
        }


def tell(seed: int, *, is_steady: bool = False, is_throttled: bool = False) -> list[object]:
    """What is seen of a broker to which the story of the seed happens."""

    async def main(host: Host) -> list[object]:
        async with data_broker(host, "/logs") as broker:
            story = Story(broker, seed, is_steady=is_steady, is_throttled=is_throttled)
            await story.happen()
            story.told.append(story.counted())
            return story.told

    with Simulation(seed) as simulation:
        told: list[object] = simulation.run_on(simulation.machine("broker"), main, limit_seconds=600)
    return told
