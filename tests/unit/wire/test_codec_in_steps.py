"""The decoders and encoders in steps do what the others do, and give way in between."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from barnabas.kernel.steps import at_once
from barnabas.wire import catalogue, codec, compiler_decode, compiler_encode
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.classes import dissolve
from barnabas.wire.messages import (
    FetchRequest,
    LeaderAndIsrRequest,
    MetadataRequest,
    ProduceRequest,
    UpdateMetadataRequest,
)
from barnabas.wire.primitives import ELEMENTS_MAX, EncodeError, ProtocolError
from tests.support.wire_messages import to_message
from tests.support.wire_values import Shape, make_tree


def outcome(function: Any) -> Any:
    try:
        return function()
    except (ProtocolError, EncodeError) as error:
        return str(error)


@pytest.mark.parametrize("name", catalogue.message_names())
def test_same_messages_and_same_errors(name: str) -> None:
    schema = catalogue.message(name)
    rng = random.Random(name)
    for version in schema.versions:
        decode, decode_in_steps = compiler_decode.decoder(name, version), compiler_decode.step_decoder(name, version)
        for shape in Shape:
            message = to_message(schema, make_tree(schema, version, shape))
            data = b"".join(codec.encode(message, version))
            in_steps = at_once(compiler_encode.step_encoder(name, version)(message, bytearray()))
            assert b"".join(in_steps) == data
            assert at_once(decode_in_steps(memoryview(data), 0, len(data))) == (message, len(data))
            for _ in range(8):
                broken = bytearray(data)
                for _ in range(rng.randint(1, 3)):
                    if broken:
                        broken[rng.randrange(len(broken))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
                del broken[rng.randint(0, len(broken)) :]
                frame = bytes(broken)
                expected = outcome(partial(decode, frame, 0, len(frame)))
                found = outcome(lambda: at_once(decode_in_steps(frame, 0, len(frame))))  # noqa: B023 - called in this turn
                # Positions in the texts count from elsewhere.
                assert (found == expected) if not isinstance(expected, str) else isinstance(found, str), frame


def steps(generator: Any) -> int:
    return sum(1 for _ in generator)


def test_steps_follow_the_elements() -> None:
    topics = [MetadataRequest.MetadataRequestTopic(name=f"t{number}") for number in range(10_000)]
    message = MetadataRequest(topics=topics)
    data = b"".join(codec.encode(message, 9))
    assert steps(compiler_decode.step_decoder("MetadataRequest", 9)(data, 0, len(data))) == 10_000 // 1024
    assert steps(compiler_encode.step_encoder("MetadataRequest", 9)(message, bytearray())) == 10_000 // 1024


def test_steps_of_numbers_and_of_tagged_fields() -> None:
    forgotten = FetchRequest.ForgottenTopic(topic="t", partitions=list(range(100_000)))
    data = b"".join(codec.encode(FetchRequest(forgotten_topics_data=[forgotten]), 12))
    assert steps(compiler_decode.step_decoder("FetchRequest", 12)(data, 0, len(data))) == 100_000 // 16_384
    tags = b"".join(bytes([tag & 0x7F | 0x80, tag >> 7 & 0x7F | 0x80, tag >> 14, 0]) for tag in range(1 << 14, 1 << 15))
    data = b"".join(codec.encode(FetchRequest(), 12))[:-1] + b"\x80\x80\x01" + tags
    decode = compiler_decode.step_decoder("FetchRequest", 12)
    assert steps(decode(data, 0, len(data))) == (1 << 14) // 1024
    assert at_once(decode(data, 0, len(data))) == (FetchRequest(), len(data))


@pytest.mark.parametrize("count", [ELEMENTS_MAX, ELEMENTS_MAX + 1])
def test_too_many_elements_are_refused_before_any_is_made(count: int) -> None:
    data = bytes([(count + 1) & 0x7F | 0x80, (count + 1) >> 7 & 0x7F | 0x80, (count + 1) >> 14]) + b"\x02a\x00" * count
    data += b"\x00\x00\x00\x00"
    decode = compiler_decode.step_decoder("MetadataRequest", 9)(data, 0, len(data))
    if count <= ELEMENTS_MAX:
        assert len(at_once(decode)[0].topics) == count
        return
    with pytest.raises(ProtocolError, match="topics it has more than 500,000 elements: make it in several requests"):
        next(decode)


def test_many_long_arrays_of_numbers_count_too() -> None:
    state = LeaderAndIsrRequest.LeaderAndIsrPartitionState(replicas=list(range(ELEMENTS_MAX * 8 + 8)))
    topic = LeaderAndIsrRequest.LeaderAndIsrTopicState(topic_name="t", partition_states=[state])
    data = b"".join(codec.encode(LeaderAndIsrRequest(topic_states=[topic]), 5))
    with pytest.raises(ProtocolError, match="make it in several requests"):
        at_once(compiler_decode.step_decoder("LeaderAndIsrRequest", 5)(data, 0, len(data)))


def test_dissolving_empties_the_arrays_in_steps() -> None:
    partitions = [ProduceRequest.PartitionProduceData(index=number) for number in range(20_000)]
    topics = [ProduceRequest.TopicProduceData(name=str(number)) for number in range(10)]
    large = topics[3]
    large.partition_data = partitions
    message = ProduceRequest(topic_data=topics)
    assert steps(dissolve(message)) == 20_000 // 4096
    assert message == ProduceRequest()
    assert large.partition_data == []


def test_dissolving_many_short_arrays_takes_as_many_steps_as_a_long_one() -> None:
    """As of a full UpdateMetadata: a thousand topics of a hundred partitions were one step, 240 ms of a loop."""
    topics = [
        ProduceRequest.TopicProduceData(
            name=str(number), partition_data=[ProduceRequest.PartitionProduceData(index=index) for index in range(100)]
        )
        for number in range(1_000)
    ]
    message = ProduceRequest(topic_data=topics)
    assert steps(dissolve(message)) >= 100_000 // 4_200
    assert message == ProduceRequest()


def test_a_request_in_steps_has_the_same_frame_and_may_get_its_correlation_id_later() -> None:
    topics = [
        UpdateMetadataRequest.UpdateMetadataTopicState(
            topic_name=f"t{topic}",
            topic_id=bytes(16),
            partition_states=[
                UpdateMetadataRequest.UpdateMetadataPartitionState(partition_index=number, replicas=[1, 2, 3])
                for number in range(300)
            ],
        )
        for topic in range(10)
    ]
    message = UpdateMetadataRequest(controller_id=1, topic_states=topics)
    at_first = at_once(codec.request_step_encoder(ApiKey.UPDATE_METADATA, 8, "me")(0, message))
    expected = codec.request_encoder(ApiKey.UPDATE_METADATA, 8, "me")(77, message)
    assert b"".join(codec.set_correlation_id(at_first, 77)) == b"".join(expected)
