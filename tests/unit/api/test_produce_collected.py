"""Produce requests that come in one tick and are appended together: `barnabas.api.produce_fast_path`."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.real_host import real_host
from barnabas.log.partition.log_config import LogConfig
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ListOffsetsRequest, ProduceResponse
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.topics import TopicPartition
from tests.unit.api.calling import CONTROL, Caller
from tests.unit.api.data_broker import DataBroker, batch, data_broker, produce_request, produced
from tests.unit.api.test_produce import FailingFiles, follow, scenario, turns, two_partitions

Run = Callable[[Coroutine[Any, Any, Any]], Any]
TOPICS = ("flights", "trains", "strict")


def values_of(broker: DataBroker, topic: str) -> dict[int, bytes | None]:
    """What the log of a topic's first partition has."""
    log = broker.replicas.get_partition(TopicPartition(topic, 0)).log
    assert log is not None
    found: dict[int, bytes | None] = {}
    for segment in log.segments:
        for data in segment.batches():
            found |= {record.offset: record.value for record in data.records()}
    return found


class Client:
    """Sends requests without waiting, and knows what it should be answered."""

    def __init__(self, caller: Caller, name: str, chance: random.Random, *, is_steady: bool) -> None:
        """A steady one sends mostly what is like the request before: then many are appended by columns."""
        self.caller = caller
        self._is_steady = is_steady
        self._name = name
        self._chance = chance
        self._number = 0
        self._expected: list[tuple[str, bytes, ErrorCode]] = []
        self.unanswered: list[tuple[str, bytes]] = []

    def send(self) -> None:
        chance = self._chance
        self._number += 1
        differs = not self._is_steady or chance.random() < 0.05
        topic = chance.choice((*TOPICS[:2], *TOPICS)) if differs else TOPICS[0]
        value = f"{self._name}-{self._number}".encode().ljust(
            chance.choice((20, 20, 20, 5000)) if differs else 20, b"."
        )
        records = bytearray(batch(value))
        acks = chance.choice((1, 1, -1, 0)) if differs else 1
        code = ErrorCode.NOT_ENOUGH_REPLICAS if topic == "strict" and acks == -1 else ErrorCode.NONE
        if acks and chance.random() < (0.01 if self._is_steady else 0.1):
            records[-1] ^= 1
            code = code or ErrorCode.CORRUPT_MESSAGE
        if chance.random() < (0.01 if self._is_steady else 0.1) and topic == "flights":
            request = two_partitions(topic, bytes(records), batch(b"beside"), acks=acks)
        else:
            request = produce_request(topic, bytes(records), acks=acks)
        self.caller.send(request, chance.choice((3, 8, 9, 11)) if differs else 9, answered=acks != 0)
        if acks:
            self._expected.append((topic, value, code))
        else:
            self.unanswered.append((topic, value))

    async def check(self, broker: DataBroker) -> None:
        """The answers have come in the order of the requests, and say where the records are."""
        last = dict.fromkeys(TOPICS, -1)
        responses = await self.caller.responses(len(self._expected))
        await turns()  # for those at the end that have no answer
        for response, (topic, value, code) in zip(responses, self._expected, strict=True):
            answer = response.responses[0].partition_responses[0]
            assert (response.responses[0].name, answer.error_code) == (topic, code)
            if code:
                assert answer.base_offset == -1
                continue
            assert answer.base_offset > last[topic]
            last[topic] = answer.base_offset
            assert values_of(broker, topic)[answer.base_offset] == value
        for topic, value in self.unanswered:
            assert list(values_of(broker, topic).values()).count(value) == 1
        self._expected.clear()
        self.unanswered.clear()


@pytest.mark.parametrize("is_steady", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_answers_of_each_connection_are_in_order_and_true(run: Run, tmp_path: Path, seed: int, is_steady: bool) -> None:
    chance = random.Random(seed)

    async def body(broker: DataBroker) -> None:
        for topic in TOPICS:
            strict = LogConfig(min_insync_replicas=2, flush_messages=3) if topic == "strict" else None
            broker.lead(topic, replicas=(1, 2) if strict else (1,), config=strict)
        broker.lead("flights", 1)
        clients = [Client(broker.connect(), f"client-{number}", chance, is_steady=is_steady) for number in range(4)]
        for _ in range(5):
            for _ in range(chance.randint(1, 40)):
                chance.choice(clients).send()
            for client in clients:
                await client.check(broker)
                assert client.caller.connection.collected == 0

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("version", [9, 11])
def test_what_is_behind_a_request_that_ends_the_connection_is_not_handled(
    run: Run, tmp_path: Path, version: int
) -> None:
    """As in Apache Kafka, and as where both are decoded by the codec."""

    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        broker.lead("ships")
        caller = broker.connect()
        for topic in ("ships", "flights"):
            await caller.call(produce_request(topic, batch(b"first")), 9)
        caller.send(produce_request("ships", batch(b"second"), acks=0), 9, answered=False)
        await turns()
        broker.access.deny("User:ANONYMOUS", "ships")
        with caller.kept_back() as sent:
            caller.send(produce_request("ships", batch(b"denied"), acks=0), 9, answered=False)
            caller.send(produce_request("flights", batch(b"behind")), version)
        broker.connect().send(produce_request("flights", batch(b"of another"), acks=0), 9, answered=False)
        caller.send_bytes(bytes(sent))
        await turns()
        assert caller.transport.closed
        assert b"behind" not in values_of(broker, "flights").values()

    scenario(run, tmp_path, body)


def test_many_small_records_in_many_requests_are_appended_in_several_turns(run: Run, tmp_path: Path) -> None:
    # Each takes up to 0.18 ms. A connection sends fewer than its buffer holds, so that the tick alone decides.
    records_each, connections, requests_each = 340, 40, 12
    turn_requests_max = 300

    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        request = produce_request("flights", batch(*[b"tiny"] * records_each))
        callers = [broker.connect() for _ in range(connections)]
        for caller in callers:
            assert not produced(await caller.call(request, 9)).error_code
        log = broker.replicas.get_partition(TopicPartition("flights", 0)).log
        assert log is not None
        ends = [log.append_end_offset]
        for caller in callers:
            for _ in range(requests_each):
                caller.send(request, 9)
        while ends[-1] < connections * (requests_each + 1) * records_each:
            await asyncio.sleep(0)
            ends.append(log.append_end_offset)
        assert max(end - before for before, end in itertools.pairwise(ends)) <= turn_requests_max * records_each
        for caller in callers:
            assert all(not produced(found).error_code for found in await caller.responses(requests_each))

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("seed", range(8))
def test_a_request_that_comes_alone_is_answered_like_one_among_others(run: Run, tmp_path: Path, seed: int) -> None:
    """The same requests for topics of their own: each alone, and each collected behind one of another connection."""
    chance = random.Random(seed)

    async def body(broker: DataBroker) -> None:
        for way in ("alone", "among"):
            broker.lead(f"{way}-plain")
            broker.lead(f"{way}-synced", config=LogConfig(flush_messages=3))
            broker.lead(f"{way}-strict", replicas=(1, 2), config=LogConfig(min_insync_replicas=2))
        alone, among, beside = broker.connect(), broker.connect(), broker.connect()
        broker.lead("beside")
        await beside.call(produce_request("beside", batch(b"first")), 9)
        for number in range(80):
            topic = chance.choice(("plain", "plain", "synced", "strict"))
            records = bytearray(batch(b"%d" % number * chance.choice((1, 1, 1, 900))))
            if chance.random() < 0.1:
                records[-1] ^= 1
            acks, version = chance.choice((1, 1, -1)), chance.choice((3, 7, 9, 11))
            first = await alone.call(produce_request(f"alone-{topic}", bytes(records), acks=acks), version)
            beside.send(produce_request("beside", batch(b"x")), 9)
            second = await among.call(produce_request(f"among-{topic}", bytes(records), acks=acks), version)
            await beside.responses(1)
            assert produced(first) == produced(second)
        for topic in ("plain", "synced", "strict"):
            assert values_of(broker, f"alone-{topic}") == values_of(broker, f"among-{topic}")
            counts = [broker.topic_metrics.of(f"{way}-{topic}") for way in ("alone", "among")]
            assert len({each.produce_requests.count for each in counts}) == 1
            assert len({each.bytes_in.count for each in counts}) == 1
            assert len({each.messages_in.count for each in counts}) == 1

    scenario(run, tmp_path, body)


def test_a_request_that_comes_alone_is_written_and_answered_before_the_tick_is_over(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        caller = broker.connect()
        await caller.call(produce_request("flights", batch(b"first")), 9)
        caller.send(produce_request("flights", batch(b"second")), 9)
        assert partition.log is not None
        assert len(partition.log.segments.active.pending) == 0
        assert [produced(response).base_offset for response in caller.received()] == [1]

    scenario(run, tmp_path, body, "loop")


def test_one_write_for_all_of_a_tick(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        callers = [broker.connect() for _ in range(30)]
        for caller in callers:
            await caller.call(produce_request("flights", batch(b"first")), 9)
        for caller in callers:
            caller.send(produce_request("flights", batch(b"x")), 9)
        assert [caller.connection.collected for caller in callers] == [1] * 30
        assert partition.log_end_offset == 30
        offsets = [produced((await caller.responses(1))[0]).base_offset for caller in callers]
        assert offsets == list(range(30, 60))
        assert broker.topic_metrics.of("flights").produce_requests.count == 60
        assert broker.topic_metrics.of("flights").messages_in.count == 60

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize(
    ("client_ids", "is_together"), [(("a",), False), (("a", "b"), True)], ids=["of one kind", "of two kinds"]
)
def test_what_nothing_else_joins_is_written_and_answered_before_the_tick_is_over(
    run: Run, tmp_path: Path, client_ids: Sequence[str], is_together: bool, acks: int
) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        callers = [broker.connect(client_id) for client_id in client_ids for _ in range(5)]
        for caller in callers:
            await caller.call(produce_request("flights", batch(b"first"), acks=acks), 9)
        for caller in callers:
            caller.send(produce_request("flights", batch(b"x"), acks=acks), 9)
        log = partition.log
        assert log is not None
        found: list[tuple[bool, set[bool]]] = []

        def look() -> None:
            pending_bytes = len(log.segments.active.pending)
            found.append((pending_bytes > 0, {bool(caller.transport.written) for caller in callers}))

        broker.log_manager.write_queue.before_writing(lambda: broker.calls.tick.before_send(look))
        first = len(callers)
        offsets = [produced((await caller.responses(1))[0]).base_offset for caller in callers]
        assert offsets == list(range(first, 2 * first))
        # After the appends, and before the write queue runs.
        assert found == [(is_together, {not is_together})]

    scenario(run, tmp_path, body, "loop")


@pytest.mark.parametrize("acks", [1, -1, 0])
@pytest.mark.parametrize("flush_messages", [1 << 62, 5], ids=["unsynced", "synced"])
def test_records_of_one_size_are_answered_like_others(run: Run, tmp_path: Path, acks: int, flush_messages: int) -> None:
    """The same requests for two topics: in one all records have one size, in the other one is larger."""

    async def body(broker: DataBroker) -> None:
        answers, counts = [], []
        for topic, last_bytes in (("one-size", 20), ("mixed", 21)):
            broker.lead(topic, config=LogConfig(flush_messages=flush_messages))
            callers = [broker.connect() for _ in range(12)]
            for caller in callers:
                await caller.call(produce_request(topic, batch(b"first")), 9)
                caller.send(produce_request(topic, batch(b"x"), acks=acks), 9, answered=acks != 0)
            await turns()
            await broker.written()
            await turns()
            for caller in callers:
                caller.received()
            sent = [b"%20d" % number for number in range(30)] + [b"l" * last_bytes]
            for number, value in enumerate(sent):
                callers[number % 12 % 10].send(produce_request(topic, batch(value), acks=acks), 9, answered=acks != 0)
            if acks:
                wanted = [len([number for number in range(31) if number % 12 % 10 == mine]) for mine in range(12)]
                answers.append(
                    [
                        [produced(response).base_offset for response in await caller.responses(count)]
                        for caller, count in zip(callers, wanted, strict=True)
                    ]
                )
            await turns()
            await broker.written()
            stored = values_of(broker, topic)
            assert [stored[offset] for offset in range(24, 24 + len(sent))] == sent
            assert all(caller.connection.collected == 0 for caller in callers)
            metrics = broker.topic_metrics.of(topic)
            counts.append((metrics.produce_requests.count, metrics.messages_in.count, metrics.bytes_in.count))
        assert not answers or answers[0] == answers[1]
        assert counts[0][:2] == counts[1][:2] == (24 + 31, 24 + 31)
        assert counts[1][2] == counts[0][2] + 1

    scenario(run, tmp_path, body)


def test_what_follows_on_the_connection_sees_what_was_collected(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller, other = broker.connect(), broker.connect()
        await caller.call(produce_request("flights", batch(b"first")), 9)
        asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name="flights", partitions=[asked])])
        caller.send(produce_request("flights", batch(b"second")), 9)
        caller.send(request, 7)
        caller.send(produce_request("flights", batch(b"third")), 9)
        first, listed, second = await caller.responses(3)
        assert (produced(first).base_offset, produced(second).base_offset) == (1, 2)
        assert listed.topics[0].partitions[0].offset == 2
        assert (await other.call(request, 7)).topics[0].partitions[0].offset == 3

    # By a queue it may be answered before what came before it is written (0025).
    scenario(run, tmp_path, body, "loop")


def test_half_a_frame_waits_for_its_rest(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller = broker.connect()
        await caller.call(produce_request("flights", batch(b"first")), 9)
        with caller.kept_back() as sent:
            for number in range(4):
                caller.send(produce_request("flights", batch(b"%d" % number)), 9)
        for cut in (1, 3, len(sent) // 2 + 7, 1, len(sent)):
            caller.send_bytes(bytes(sent[:cut]))
            del sent[:cut]
            await turns(2)
        answers = [produced(response).base_offset for response in await caller.responses(4)]
        assert answers == [1, 2, 3, 4]
        assert [values_of(broker, "flights")[offset] for offset in answers] == [b"0", b"1", b"2", b"3"]

    scenario(run, tmp_path, body)


def test_a_control_request_does_not_wait_for_what_was_collected(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        caller, other, control = broker.connect(), broker.connect(), broker.calls.connect(CONTROL)
        await caller.call(produce_request("flights", batch(b"first")), 9)
        other.send(produce_request("flights", batch(b"beside")), 9)
        await other.responses(1)
        asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name="flights", partitions=[asked])])
        caller.send(produce_request("flights", batch(b"second")), 9)
        control.send(request, 7)
        assert (partition.log_end_offset, caller.connection.collected) == (2, 1)
        (listed,) = await control.responses(1)
        assert listed.topics[0].partitions[0].offset == 2
        assert produced((await caller.responses(1))[0]).base_offset == 2

    scenario(run, tmp_path, body)


def test_a_connection_that_drains_still_answers_what_it_has_collected(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller = broker.connect()
        await caller.call(produce_request("flights", batch(b"first")), 9)
        caller.send(produce_request("flights", batch(b"second")), 9)
        caller.send(produce_request("flights", batch(b"third")), 9)
        caller.connection.drain()
        assert not caller.transport.closed
        assert [produced(response).base_offset for response in await caller.responses(2)] == [1, 2]
        await turns()
        assert caller.transport.closed

    scenario(run, tmp_path, body)


def test_the_leader_that_is_deposed_meanwhile_appends_nothing(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights", isr=(1, 2), replicas=(1, 2))
        caller, other = broker.connect(), broker.connect()
        await caller.call(produce_request("flights", batch(b"first")), 11)
        for sender in (other, caller, caller):
            sender.send(produce_request("flights", batch(b"x")), 11)
        broker.lead("flights", leader=2, leader_epoch=1, isr=(1, 2), replicas=(1, 2))
        for response in [*await caller.responses(2), *await other.responses(1)]:
            assert produced(response).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert produced(response).current_leader == ProduceResponse.LeaderIdAndEpoch(leader_id=2, leader_epoch=1)
            assert response.node_endpoints[0].host == "host-2"
        assert partition.log_end_offset == 1

    scenario(run, tmp_path, body)


def test_acks_all_of_one_tick_are_answered_as_the_followers_come(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", isr=(1, 2), replicas=(1, 2))
        callers = [broker.connect() for _ in range(3)]
        follower = broker.connect()
        for caller in callers:
            caller.send(produce_request("flights", batch(b"x"), acks=-1), 9)
            caller.send(produce_request("flights", batch(b"y"), acks=-1), 9)
        while not broker.replicas.produce_purgatory.delayed:
            await asyncio.sleep(0)
        assert [caller.received() for caller in callers] == [[], [], []]
        await follow(follower, "flights", 3)
        assert [len(caller.received()) for caller in callers] == [2, 1, 0]
        await follow(follower, "flights", 6)
        assert [len(caller.received()) for caller in callers] == [0, 1, 2]

    scenario(run, tmp_path, body)


def test_acks_all_of_records_that_came_together_wait_together(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", isr=(1, 2), replicas=(1, 2))
        callers = [broker.connect() for _ in range(10)]
        follower = broker.connect()
        for caller in callers:
            caller.send(produce_request("flights", batch(b"x"), acks=-1), 9)
        while not broker.replicas.produce_purgatory.delayed:
            await asyncio.sleep(0)
        await follow(follower, "flights", 10)
        assert [len(await caller.responses(1)) for caller in callers] == [1] * 10
        for number, caller in enumerate(callers):
            caller.send(produce_request("flights", batch(b"%d" % number), acks=-1), 9)
        await turns()
        await broker.written()
        assert broker.replicas.produce_purgatory.delayed == 1
        await follow(follower, "flights", 14)
        found = [caller.received() for caller in callers]
        assert [len(responses) for responses in found] == [1] * 4 + [0] * 6
        await follow(follower, "flights", 20)
        for number, caller in enumerate(callers):
            (response,) = found[number] or await caller.responses(1)
            assert produced(response).base_offset == 10 + number

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("client_ids", [["a"], ["a", "b"]], ids=["written at once", "written together"])
@pytest.mark.parametrize(
    ("sizes", "acks"),
    [(range(10, 20), 1), (range(3000, 3010), 1), ([10] * 10, 1), ([10] * 10, -1)],
    ids=["small", "large", "many", "many, acks all"],
)
def test_a_write_that_fails_is_told_to_all_of_the_tick(
    run: Run, tmp_path: Path, sizes: Sequence[int], acks: int, client_ids: Sequence[str]
) -> None:
    async def main() -> None:
        async with real_host("test", asyncio.get_running_loop()) as host:
            files = FailingFiles(host.files)
            failing = dataclasses.replace(host, files=files)
            async with data_broker(failing, str(tmp_path / "good"), str(tmp_path / "bad")) as broker:
                broker.lead("flights")
                callers = [broker.connect(client_ids[number % len(client_ids)]) for number in range(10)]
                for caller in callers:
                    await caller.call(produce_request("flights", batch(b"first"), acks=acks), 9)
                files.broken = True
                for caller, size in zip(callers, sizes, strict=True):
                    caller.send(produce_request("flights", batch(b"x" * size), acks=acks), 9)
                for caller in callers:
                    (response,) = await caller.responses(1)
                    assert produced(response).error_code == ErrorCode.KAFKA_STORAGE_ERROR
                files.broken = False

    run(main())


def test_a_write_that_fails_is_told_to_each_of_those_behind_one_that_was_refused(run: Run, tmp_path: Path) -> None:
    """Requests of one path, with those of another one for the same partition, so that the tick writes for both."""
    spoiled = bytearray(batch(b"x"))
    spoiled[-1] ^= 1

    async def main() -> None:
        async with real_host("test", asyncio.get_running_loop()) as host:
            files = FailingFiles(host.files)
            failing = dataclasses.replace(host, files=files)
            async with data_broker(failing, str(tmp_path / "good"), str(tmp_path / "bad")) as broker:
                broker.lead("flights")
                one, other = broker.connect("one"), broker.connect("other")
                for caller in (one, other):
                    await caller.call(produce_request("flights", batch(b"first")), 9)
                files.broken = True
                with one.kept_back() as kept:
                    for records in (bytes(spoiled), batch(b"x"), batch(b"y")):
                        one.send(produce_request("flights", records), 9)
                one.send_bytes(bytes(kept))
                other.send(produce_request("flights", batch(b"z")), 9)
                codes = [produced(response).error_code for response in await one.responses(3)]
                assert codes == [ErrorCode.CORRUPT_MESSAGE, *[ErrorCode.KAFKA_STORAGE_ERROR] * 2]
                (response,) = await other.responses(1)
                assert produced(response).error_code == ErrorCode.KAFKA_STORAGE_ERROR
                files.broken = False

    run(main())


def test_an_error_with_acks_0_ends_only_its_connection(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        good, bad = broker.connect(), broker.connect()
        for caller in (good, bad):
            caller.send(produce_request("flights", batch(b"first"), acks=0), 9, answered=False)
        await turns()
        broken = bytearray(batch(b"x"))
        broken[-1] ^= 1
        bad.send(produce_request("flights", bytes(broken), acks=0), 9, answered=False)
        good.send(produce_request("flights", batch(b"second"), acks=0), 9, answered=False)
        await turns()
        assert (bad.transport.closed, good.transport.closed) == (True, False)
        assert "CORRUPT_MESSAGE" in broker.calls.lines.lines[-1]
        assert partition.log_end_offset == 3

    scenario(run, tmp_path, body)


@pytest.mark.parametrize(
    ("codec", "size_bytes", "is_collected"),
    [("gzip", 100, False), ("zstd", 100, False), ("lz4", 900_000, False), ("lz4", 200, True), ("snappy", 60_000, True)],
)
def test_what_a_few_bytes_may_become_is_bounded_where_they_are_collected(
    run: Run, tmp_path: Path, codec: str, size_bytes: int, is_collected: bool
) -> None:
    """A collection has a thousand requests and is appended in one turn: of one, 100 KB may be decompressed."""
    builder = RecordBatchBuilder(compression=Compression(CompressionType[codec.upper()]))
    builder.append(0, None, bytes(size_bytes))
    records = bytes(builder.build())
    assert len(records) <= 4096

    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        caller, other = broker.connect(), broker.connect()
        for connected in (caller, other):
            await connected.call(produce_request("flights", batch(b"first")), 9)
        other.send(produce_request("flights", batch(b"second")), 9)  # so that the next does not come alone
        caller.send(produce_request("flights", records), 9)
        assert caller.connection.collected == is_collected
        assert produced((await caller.responses(1))[0]).error_code == ErrorCode.NONE
        assert partition.log_end_offset == 4

    scenario(run, tmp_path, body)


def test_no_more_is_collected_than_a_bound_allows(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        callers = [broker.connect(f"client-{number}") for number in range(40)]
        for caller in callers:
            await caller.call(produce_request("flights", batch(b"first")), 9)
        records = batch(b"x" * 3500)
        waiting_max = 0
        for _ in range(35):
            for caller in callers:
                caller.send(produce_request("flights", records), 9)
            waiting_max = max(waiting_max, sum(caller.connection.collected for caller in callers))
        assert 1000 < waiting_max <= 4 * 1024 * 1024 // 3500
        assert partition.log is not None
        assert partition.log.append_end_offset > 40
        for caller in callers:
            assert len(await caller.responses(35)) == 35
        assert partition.log_end_offset == 40 + 40 * 35

    scenario(run, tmp_path, body)


def test_many_requests_of_one_kind_are_appended_before_the_tick_ends(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        callers = [broker.connect() for _ in range(8)]
        for caller in callers:
            await caller.call(produce_request("flights", batch(b"first")), 9)
        for _ in range(150):
            for caller in callers:
                caller.send(produce_request("flights", batch(b"x")), 9)
        assert partition.log is not None
        assert partition.log.append_end_offset == 8 + 1024
        assert [len(await caller.responses(150)) for caller in callers] == [150] * 8

    scenario(run, tmp_path, body)
