"""Who may produce what, and how fast: the same for requests that come alone, together, and of several partitions; and
what was said of it holds until it changes.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from barnabas.cluster.image import MetadataImage
from barnabas.log.partition.log_config import LogConfig
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ProduceResponse
from tests.unit.api.calling import Caller
from tests.unit.api.data_broker import DataBroker, batch, produce_request
from tests.unit.api.test_produce import Run, scenario, turns, two_partitions

SHAPES = ("alone", "together", "of two partitions")
ANONYMOUS = "User:ANONYMOUS"


def send(caller: Caller, shape: str, acks: int = 1) -> int:
    """Sends requests for flights; returns how many."""
    answered = acks != 0
    if shape == "of two partitions":
        caller.send(two_partitions("flights", batch(b"x" * 30), batch(b"x" * 30), acks=acks), 9, answered=answered)
        return 1
    count = 1 if shape == "alone" else 20
    with caller.kept_back() as kept:
        for _ in range(count):
            caller.send(produce_request("flights", batch(b"x" * 30), acks=acks), 9, answered=answered)
    caller.send_bytes(bytes(kept))
    return count


async def answers(caller: Caller, shape: str, acks: int = 1) -> list[ProduceResponse]:
    found: list[ProduceResponse] = await caller.responses(send(caller, shape, acks))
    return found


def codes(responses: list[ProduceResponse]) -> set[int]:
    return {
        partition.error_code
        for response in responses
        for topic in response.responses
        for partition in topic.partition_responses
    }


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_right_that_is_taken_away_holds_from_the_next_request_on(
    run: Run, tmp_path: Path, shape: str, acks: int
) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        broker.lead("flights", 1)
        caller = broker.connect()
        for _ in range(2):
            assert codes(await answers(caller, shape, acks)) == {ErrorCode.NONE}
        end_offset = partition.log_end_offset
        broker.access.deny(ANONYMOUS, "flights")
        assert codes(await answers(caller, shape, acks)) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        assert partition.log_end_offset == end_offset
        broker.access.allow(ANONYMOUS, "flights")
        assert codes(await answers(caller, shape, acks)) == {ErrorCode.NONE}
        assert partition.log_end_offset > end_offset

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("shape", SHAPES)
def test_requests_that_may_not_be_made_end_the_connection_with_acks_0(run: Run, tmp_path: Path, shape: str) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        broker.lead("flights", 1)
        caller = broker.connect()
        send(caller, shape, 0)
        await turns()
        await broker.written()
        end_offset = partition.log_end_offset
        broker.access.deny(ANONYMOUS, "flights")
        send(caller, shape, 0)
        await turns()
        assert caller.transport.closed
        assert partition.log_end_offset == end_offset

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_principal_has_its_own_rights_though_its_requests_begin_like_another_ones(
    run: Run, tmp_path: Path, shape: str
) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        broker.lead("flights", 1)
        broker.access.deny("User:eve", "flights")
        alice, eve = broker.connect("same"), broker.connect("same")
        eve.connection.principal = "User:eve"
        for _ in range(2):
            assert codes(await answers(alice, shape)) == {ErrorCode.NONE}
            assert codes(await answers(eve, shape)) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        # Who authenticates anew may be another.
        eve.connection.principal = "User:adam"
        assert codes(await answers(eve, shape)) == {ErrorCode.NONE}

    scenario(run, tmp_path, body)


def test_what_was_collected_is_of_the_principal_that_sent_it(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        partition = broker.lead("flights")
        broker.access.deny("User:eve", "flights")
        caller, other = broker.connect(), broker.connect()
        for each in (caller, other):
            await answers(each, "alone")
        send(other, "alone")  # so that the others do not come alone
        for _ in range(3):
            send(caller, "alone")
        assert caller.connection.collected == 3
        caller.connection.principal = "User:eve"
        assert caller.connection.collected == 0
        send(caller, "alone")
        responses = await caller.responses(4)
        assert codes(responses[:3]) == {ErrorCode.NONE}
        assert codes(responses[3:]) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        assert partition.log_end_offset == 6

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("acks", [1, -1, 0])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_record_is_counted_against_the_quota_and_every_answer_tells_the_delay(
    run: Run, tmp_path: Path, shape: str, acks: int
) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        broker.lead("flights", 1)
        caller, other = broker.connect("limited"), broker.connect("free")
        for each in (caller, other):
            assert {response.throttle_time_ms for response in await answers(each, shape)} == {0}
        broker.access.limit("limited", 70)
        count = send(caller, shape, acks)
        if acks:
            assert {response.throttle_time_ms for response in await caller.responses(count)} == {70}
        else:
            await turns()
            await broker.written()
        batches = 2 if shape == "of two partitions" else count
        assert broker.access.counted_bytes == batches * len(batch(b"x" * 30))
        assert {response.throttle_time_ms for response in await answers(other, shape)} == {0}
        broker.access.deny(ANONYMOUS, "flights")
        if acks:
            assert {response.throttle_time_ms for response in await answers(caller, shape)} == {70}
        broker.access.allow(ANONYMOUS, "flights")
        broker.access.limit("limited", 5)
        assert {response.throttle_time_ms for response in await answers(caller, shape)} == {5}

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("shape", SHAPES)
def test_answers_with_an_error_tell_the_delay_too(run: Run, tmp_path: Path, shape: str) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights", isr=(1, 2), replicas=(1, 2))
        broker.lead("flights", 1, isr=(1, 2), replicas=(1, 2))
        caller = broker.connect("limited")
        broker.access.limit("limited", 70)
        assert {response.throttle_time_ms for response in await answers(caller, shape)} == {70}
        count = send(caller, shape, -1)
        await turns()
        for number in (0, 1):
            broker.lead("flights", number, leader=2, leader_epoch=1, isr=(1, 2), replicas=(1, 2))
        responses = await caller.responses(count)
        assert codes(responses) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
        assert {response.throttle_time_ms for response in responses} == {70}

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("shape", SHAPES)
def test_who_has_waited_for_replicas_is_not_read_for_the_delay(run: Run, tmp_path: Path, shape: str) -> None:
    async def body(broker: DataBroker) -> None:
        for number in (0, 1):
            broker.lead("flights", number, isr=(1, 2), replicas=(1, 2))
        caller = broker.connect("limited")
        await answers(caller, shape)
        broker.access.limit("limited", 70)
        count = send(caller, shape, -1)
        await turns()
        assert not caller.connection.is_throttled
        for number in (0, 1):
            broker.lead("flights", number, leader=2, leader_epoch=1, isr=(1, 2), replicas=(1, 2))
        await caller.responses(count)
        assert caller.connection.is_throttled

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("acks", [1, -1])
def test_the_bytes_of_requests_that_came_together_count_once_where_one_of_them_is_refused(
    run: Run, tmp_path: Path, acks: int
) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller = broker.connect("limited")
        await answers(caller, "together")
        broker.access.limit("limited", 70)
        spoiled = bytearray(batch(b"x" * 30))
        spoiled[-1] ^= 1
        sent = [batch(b"x" * 30)] * 4 + [bytes(spoiled)] + [batch(b"x" * 30)] * 4
        with caller.kept_back() as kept:
            for each in sent:
                caller.send(produce_request("flights", each, acks=acks), 9)
        caller.send_bytes(bytes(kept))
        assert codes(await caller.responses(len(sent))) == {ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE}
        assert broker.access.counted_bytes == sum(map(len, sent))

    scenario(run, tmp_path, body)


def test_producers_that_are_silent_keep_no_metadata(run: Run, tmp_path: Path) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        for number in range(20):
            caller = broker.connect(client_id=f"client {number}")
            await caller.call(produce_request("flights", batch(b"x")), 9)
            assert caller.connection.fast_path is not None
            broker.lead("trains", number)
        gc.collect()
        kept = [each for each in gc.get_objects() if type(each) is MetadataImage and each.partition_count("trains")]
        assert len(kept) <= 2

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("shape", ["one", *SHAPES, "long"])
def test_bytes_in_are_those_that_producers_have_sent(run: Run, tmp_path: Path, shape: str) -> None:
    """Not those that the log has of them, after it has compressed them; as in Kafka."""

    async def body(broker: DataBroker) -> None:
        config = LogConfig(compression_type="lz4")
        broker.lead("flights", config=config)
        broker.lead("flights", 1)
        caller = broker.connect()
        records = batch(b"x" * 30)
        if shape in {"one", "long"}:
            records = batch(*([b"x" * 100] * (8_000 if shape == "long" else 20)))
            answered = await caller.call(produce_request("flights", records), 9)
        else:
            answered = (await answers(caller, shape))[0]
        assert codes([answered]) == {ErrorCode.NONE}
        count = {"together": 20, "of two partitions": 2}.get(shape, 1)
        assert broker.topic_metrics.of("flights").bytes_in.count == count * len(records)

    scenario(run, tmp_path, body)
