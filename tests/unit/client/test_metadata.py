"""`barnabas.client.metadata`: whom it asks, and what those hear who wait."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from barnabas.client.client import Client
from barnabas.client.cluster import STEP_PARTITIONS, BrokerNode
from barnabas.client.connections import METADATA_LANE
from barnabas.client.errors import ClientClosedError, ClientTimeoutError
from barnabas.client.offset_lookup import OffsetLookup
from barnabas.client.settings import ClientSettings
from barnabas.kernel.host import Host
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ListOffsetsResponse, MetadataResponse
from barnabas.wire.topics import TopicPartition
from tests.unit.client.scripted_client import cluster_of, simulated, turns


class ScriptedBroker:
    """Answers, fails, or (None) never answers; the last of `answers` for ever."""

    def __init__(self, peer: str, answers: list[Any]) -> None:
        self.peer = peer
        self.is_connected = False
        self.backs_off_ms = 0.0
        self._answers = answers

    async def ready(self, _timeout_ms: float) -> None:
        return

    def version_of(self, _api_key: int, _lowest: int, highest: int) -> int:
        return highest

    async def send(self, *_: Any) -> Any:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is None:
            await asyncio.get_running_loop().create_future()
        if isinstance(answer, Exception):
            raise answer
        return answer


class ScriptedConnections:
    """Brokers by address; `answers` has what each says, and the others are gone."""

    def __init__(self, answers: dict[str, list[Any]]) -> None:
        self._answers = answers
        self._brokers: dict[str, ScriptedBroker] = {}
        self.node_ids: set[int] = set()

    def to_node(self, lane: int, node: BrokerNode) -> ScriptedBroker:
        return self.to_address(lane, node.host, node.port)

    def to_address(self, _lane: int, host: str, port: int) -> ScriptedBroker:
        peer = f"{host}:{port}"
        answers = self._answers.get(peer, [ConnectionError(f"{peer} is gone")])
        return self._brokers.setdefault(peer, ScriptedBroker(peer, answers))

    async def close(self) -> None:
        return


def client_of(host: Host, answers: dict[str, list[Any]]) -> Client:
    client = Client(host, ClientSettings(bootstrap_servers=("bootstrap:1",)), logging.getLogger("metadata"))
    client.connections = client.metadata._connections = ScriptedConnections(answers)  # type: ignore[assignment]
    return client


def answer_with(*topics: str) -> MetadataResponse:
    """Of one broker, which leads the partition of each topic."""
    partition = MetadataResponse.MetadataResponsePartition(partition_index=0, leader_id=1, leader_epoch=0)
    return MetadataResponse(
        brokers=[MetadataResponse.MetadataResponseBroker(node_id=1, host="broker-1", port=9092)],
        topics=[MetadataResponse.MetadataResponseTopic(name=topic, partitions=[partition]) for topic in topics],
    )


def test_who_waits_for_a_refresh_that_is_on_its_way_hears_of_the_end() -> None:
    async def main(host: Host) -> None:
        client = client_of(host, {"bootstrap:1": [ConnectionError("not yet"), None]})
        client.metadata.start()
        on_its_way = asyncio.create_task(client.metadata.update())
        await client.timers.sleep(1_000)
        next_one = asyncio.create_task(client.metadata.update())
        await turns()
        await client.close()
        for waiting in (on_its_way, next_one):
            with pytest.raises(ClientClosedError):
                await waiting

    simulated(main)


def test_bootstrap_servers_are_asked_however_many_known_brokers_are_gone() -> None:
    async def main(host: Host) -> None:
        broker = MetadataResponse.MetadataResponseBroker(node_id=7, host="new", port=9092)
        client = client_of(host, {"bootstrap:1": [MetadataResponse(brokers=[broker], topics=[])]})
        gone = tuple(BrokerNode(number, f"broker-{number}", 9092) for number in range(50))
        client.metadata.cluster = cluster_of({}, gone)
        client.metadata.start()
        await client.metadata.update()
        assert list(client.cluster.brokers) == [7]
        await client.close()

    simulated(main)


def test_a_broker_that_says_nothing_is_not_waited_for_and_then_asked_last() -> None:
    async def main(host: Host) -> None:
        brokers = [
            MetadataResponse.MetadataResponseBroker(node_id=number, host=f"broker-{number}", port=9092)
            for number in (1, 2)
        ]
        answer = MetadataResponse(brokers=brokers, topics=[])
        client = client_of(host, {"broker-1:9092": [None], "broker-2:9092": [answer], "bootstrap:1": [answer]})
        client.metadata.start()
        await client.metadata.update()
        began = host.loop.time()
        waits = []
        for _ in range(20):
            await client.metadata.update()
            waits.append(host.loop.time() - began)
            began = host.loop.time()
        # A refresh follows another after a pause of 100 ms.
        assert sum(wait > 0.5 for wait in waits) == 1
        assert max(waits) < 1.3
        await client.close()

    simulated(main)


def test_a_leader_that_is_told_of_while_a_large_answer_is_taken_in_is_not_forgotten() -> None:
    def answer() -> MetadataResponse:
        broker = MetadataResponse.MetadataResponseBroker
        partition = MetadataResponse.MetadataResponsePartition
        topic = MetadataResponse.MetadataResponseTopic
        return MetadataResponse(
            brokers=[broker(node_id=number, host=f"broker-{number}", port=9092) for number in (1, 2)],
            topics=[
                topic(
                    name="large",
                    topic_id=bytes(16),
                    partitions=[
                        partition(partition_index=number, leader_id=1, leader_epoch=3)
                        for number in range(3 * STEP_PARTITIONS)
                    ],
                )
            ],
        )

    async def main(host: Host) -> None:
        answers = {f"{name}:9092": [answer()] for name in ("broker-1", "broker-2")}
        client = client_of(host, {"bootstrap:1": [answer()], **answers})
        metadata = client.metadata
        await client.start(10_000)
        told, other = TopicPartition("large", 5), TopicPartition("large", 6)
        updating = asyncio.create_task(metadata.update())
        while metadata._learned is None:
            await asyncio.sleep(0)
        metadata.learn_leader(told, 2, 4)
        await updating
        assert metadata.cluster.leader(told) == (BrokerNode(2, "broker-2", 9092), 4)
        assert metadata.cluster.leader(other) == (BrokerNode(1, "broker-1", 9092), 3)
        await client.close()

    simulated(main)


def test_a_topic_that_is_used_for_the_first_time_is_asked_for_without_a_pause() -> None:
    async def main(host: Host) -> None:
        client = client_of(host, {"bootstrap:1": [answer_with()], "broker-1:9092": [answer_with(), answer_with()]})
        await client.start(10_000)
        began = host.loop.time()
        client.metadata.use("new")
        await client.metadata.update()
        assert host.loop.time() - began < 0.01
        client.metadata.use("new")
        await client.metadata.update()
        assert host.loop.time() - began >= client.settings.retry_backoff_ms / 1_000
        await client.close()

    simulated(main)


def test_refreshes_with_many_topics_keep_their_pauses() -> None:
    async def main(host: Host) -> None:
        client = client_of(host, {"bootstrap:1": [answer_with()], "broker-1:9092": [answer_with()]})
        await client.start(10_000)
        client.metadata.use(*(f"topic-{number}" for number in range(200)))
        await client.metadata.update()
        began = host.loop.time()
        client.metadata.use("one more")
        await client.metadata.update()
        assert host.loop.time() - began >= 0.09
        await client.close()

    simulated(main)


def test_offsets_of_a_topic_that_nobody_has_asked_for_are_found_without_a_pause() -> None:
    async def main(host: Host) -> None:
        first, second = answer_with(), answer_with("new")
        client = client_of(host, {"bootstrap:1": [first], "broker-1:9092": [second]})
        await client.start(10_000)
        began = host.loop.time()

        async def ask(*_: Any) -> Any:
            partition = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, offset=5)
            topic = ListOffsetsResponse.ListOffsetsTopicResponse(name="new", partitions=[partition])
            return ListOffsetsResponse(topics=[topic])

        client.ask = ask  # type: ignore[assignment, method-assign]
        found = await OffsetLookup(client, METADATA_LANE).offsets_with_retry({TopicPartition("new", 0): -1})
        assert found[TopicPartition("new", 0)].offset == 5
        assert host.loop.time() - began < 0.01
        await client.close()

    simulated(main)


def test_what_stays_in_the_way_of_one_partition_is_told_beside_the_offsets_of_others() -> None:
    async def main(host: Host) -> None:
        client = client_of(host, {"bootstrap:1": [answer_with()], "broker-1:9092": [answer_with("new")]})
        await client.start(10_000)
        partition = TopicPartition("new", 0)
        codes = [ErrorCode.NONE]

        async def ask(*_: Any) -> Any:
            code = codes.pop(0) if len(codes) > 1 else codes[0]
            answer = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, offset=5, error_code=code)
            return ListOffsetsResponse(
                topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name="new", partitions=[answer])]
            )

        client.ask = ask  # type: ignore[assignment, method-assign]
        lookup = OffsetLookup(client, METADATA_LANE)
        assert (await lookup.offsets_in_time({partition: -1})).found[partition].offset == 5
        client.metadata.request_update = lambda *_: None  # type: ignore[method-assign]
        codes[:] = [ErrorCode.LEADER_NOT_AVAILABLE]
        began = host.loop.time()
        answers = await lookup.offsets_in_time({partition: -1}, 2_000)
        assert answers.found == {}
        assert isinstance(answers.failed[partition], ClientTimeoutError)
        assert 2 <= host.loop.time() - began < 2.1
        codes[:] = [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NONE]
        answers = await lookup.offsets_in_time({partition: -1}, 10_000)
        assert answers.failed == {}
        assert answers.found[partition].offset == 5
        codes[:] = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        began = host.loop.time()
        answers = await lookup.offsets_in_time({partition: -1}, 2_000)
        assert "ListOffsets of new-0" in str(answers.failed[partition])
        with pytest.raises(KafkaError, match="ListOffsets of new-0"):
            await lookup.offsets_with_retry({partition: -1}, 2_000)
        assert host.loop.time() - began < 0.01
        await client.close()

    simulated(main)
