"""`barnabas.follower.repeated_fetch_request`, held against the codec."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.follower.follower_requests import fetch_request
from barnabas.follower.follower_session import FollowerSession, Position
from barnabas.follower.repeated_fetch_request import FetchedAgain, RepeatedFetchRequest
from barnabas.follower.settings import ReplicaSettings
from barnabas.kernel.ids import Uuid
from barnabas.wire import codec
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.fetch_session import Composition
from barnabas.wire.messages import FetchRequest, FetchResponse
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.topics import TopicPartition

TOPIC_ID = Uuid(b"0123456789abcdef")
PARTITION = TopicPartition("flights", 3)
SESSION = 77
CLIENT_ID = "broker-2-fetcher-0"
VERSIONS = st.sampled_from((15, 16, 17))
INT32 = st.integers(0, 2**31 - 1)
INT64 = st.integers(-1, 2**63 - 1)


def request_at(version: int, epoch: int, position: Position) -> FetchRequest:
    """As a fetcher composes it."""
    session = FollowerSession()
    session.session_id, session.epoch = SESSION, epoch
    request, sent_version = fetch_request(
        Composition([(PARTITION, position)], []),
        session,
        ReplicaSettings(),
        version=version,
        max_wait_ms=500,
        broker_id=2,
        broker_epoch=42,
    )
    assert sent_version == version
    return request


def repeated_in(version: int, leader_epoch: int = 5) -> RepeatedFetchRequest:
    request = request_at(version, 1, Position(TOPIC_ID, leader_epoch, 0, -1, 0))
    return RepeatedFetchRequest(request, version, CLIENT_ID, PARTITION, 42)


@given(VERSIONS, INT32, INT32, INT32, st.tuples(INT64, st.integers(-1, 2**31 - 1), INT64))
def test_writes_what_the_codec_writes(
    version: int, leader_epoch: int, epoch: int, correlation_id: int, log: tuple[int, int, int]
) -> None:
    position = Position(TOPIC_ID, leader_epoch, *log)
    repeated = repeated_in(version, leader_epoch)
    expected = codec.request_encoder(ApiKey.FETCH, version, CLIENT_ID)(
        correlation_id, request_at(version, epoch, position)
    )
    for _ in range(2):
        frame = repeated.encoding(epoch, position)(correlation_id)
        assert b"".join(frame) == b"".join(expected)


DATA: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "partition_index": st.sampled_from((3, 3, 3, 4)),
        "error_code": st.sampled_from((0, 0, 0, 6)),
        "high_watermark": INT64,
        "last_stable_offset": INT64,
        "log_start_offset": INT64,
        "aborted_transactions": st.sampled_from((None, None, [])),
        "records": st.sampled_from((b"", b"r", bytes(62), bytes(63), bytes(126), bytes(127), bytes(20_000), None)),
    },
    optional={"diverging_epoch": st.just(FetchResponse.EpochEndOffset(epoch=1, end_offset=4))},
)


@st.composite
def responses(draw: st.DrawFn) -> FetchResponse:
    topics = [
        FetchResponse.FetchableTopicResponse(
            topic_id=TOPIC_ID if draw(st.integers(0, 9)) else Uuid(bytes(16)),
            partitions=[
                FetchResponse.PartitionData(**draw(DATA)) for _ in range(draw(st.sampled_from((1, 1, 1, 1, 0, 2))))
            ],
        )
        for _ in range(draw(st.sampled_from((1, 1, 1, 1, 0, 2))))
    ]
    return FetchResponse(
        session_id=draw(st.sampled_from((SESSION, SESSION, SESSION, 78))),
        error_code=draw(st.sampled_from((0, 0, 0, 70))),
        throttle_time_ms=draw(st.sampled_from((0, 0, 0, 5))),
        responses=topics,
    )


def check_read(version: int, frame: bytes) -> bool:
    """What is read of a frame, its size first, is what the codec reads; True where the codec was not needed."""
    try:
        expected, _ = codec.response_decoder(ApiKey.FETCH, version)(frame, 4, len(frame))
    except ProtocolError:
        with pytest.raises(ProtocolError):
            repeated_in(version).decode(bytearray(frame), 4, len(frame))
        return False
    found = repeated_in(version).decode(bytearray(frame), 4, len(frame))
    if not isinstance(found, FetchedAgain):
        assert found == expected
        return False
    ((data,),) = (topic.partitions for topic in expected.responses)
    assert (expected.error_code, expected.session_id, expected.responses[0].topic_id) == (0, SESSION, TOPIC_ID)
    read: dict[str, Any] = found._asdict()
    for name, value in read.items():
        assert getattr(data, name) == value or name == "diverging_epoch"
    assert data.partition_index == PARTITION.partition
    default = FetchResponse.PartitionData().diverging_epoch
    assert data.diverging_epoch == default
    return True


@given(VERSIONS, responses())
def test_reads_what_the_codec_reads(version: int, response: FetchResponse) -> None:
    frame = b"".join(codec.response_encoder(ApiKey.FETCH, version)(9, response))
    check_read(version, frame)


@given(VERSIONS, st.sampled_from((0, 1, 126, 127, 20_000)), st.data())
def test_reads_what_the_codec_reads_of_tampered_frames(version: int, size: int, data: st.DataObject) -> None:
    usual = FetchResponse.PartitionData(
        partition_index=3, high_watermark=7, last_stable_offset=7, log_start_offset=0, records=bytes(size)
    )
    usual.aborted_transactions = None
    topic = FetchResponse.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[usual])
    response = FetchResponse(session_id=SESSION, responses=[topic])
    frame = bytearray(b"".join(codec.response_encoder(ApiKey.FETCH, version)(9, response)))
    assert check_read(version, bytes(frame))
    ends = st.one_of(st.integers(4, min(len(frame), 90)), st.integers(max(4, len(frame) - 8), len(frame)))
    for at in data.draw(st.lists(ends, max_size=3)):
        if at < len(frame):
            frame[at] = data.draw(st.integers(0, 255))
    check_read(version, bytes(frame[: data.draw(ends)]))
    check_read(version, bytes(frame))


def test_is_of_requests_that_name_a_partition_and_forget_none() -> None:
    request = request_at(17, 1, Position(TOPIC_ID, 5, 0, -1, 0))
    with pytest.raises(ValueError, match="not of this form"):
        RepeatedFetchRequest(request, 12, CLIENT_ID, PARTITION, 42)
    request.forgotten_topics_data = [FetchRequest.ForgottenTopic(topic_id=TOPIC_ID, partitions=[1])]
    with pytest.raises(ValueError, match="not of this form"):
        RepeatedFetchRequest(request, 17, CLIENT_ID, PARTITION, 42)
