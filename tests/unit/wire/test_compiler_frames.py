"""The readers of usual frames with any number of elements, held against the codec in all versions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.wire import codec, headers
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.compiler_frames import (
    CORRELATION_ID,
    COUNT_MAX,
    FrameShape,
    Made,
    frame_reader,
    frame_reader_source,
)
from barnabas.wire.messages import FetchRequest, ListOffsetsRequest, MetadataRequest, ProduceRequest

VERSIONS = (4, 7, 11, 12, 13, 15, 17)
"""Those in which something begins."""
versions = st.sampled_from(VERSIONS)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
partitions = st.builds(
    FetchRequest.FetchPartition, partition=int32s, fetch_offset=int64s, partition_max_bytes=st.integers(0, 9)
)
topics = st.lists(
    st.builds(
        FetchRequest.FetchTopic,
        topic=st.text(max_size=40),
        topic_id=st.binary(min_size=16, max_size=16),
        partitions=st.lists(partitions, max_size=3),
    ),
    max_size=3,
)


def shape(version: int, **changes: Any) -> FrameShape:
    topic = "topic_id" if version >= 13 else "topic"
    return FrameShape(
        "FetchRequest",
        "topics",
        frozenset({"replica_id"}),
        (("isolation_level", (0, 1)),),
        Made(lambda *parts: parts, ((topic, "partition"), "fetch_offset", "last_fetched_epoch")),
        Made(lambda *parts: parts, (CORRELATION_ID, "max_wait_ms", "session_epoch", "topics")),
    )._replace(**changes)


def fit(request: FetchRequest, version: int) -> FetchRequest:
    """Without what the version lacks."""
    for topic in request.topics:
        if version >= 13:
            topic.topic = ""
        else:
            topic.topic_id = bytes(16)
    return request


def framed(request: FetchRequest, version: int, client_id: str | None = "client") -> bytes:
    return b"".join(codec.request_encoder(ApiKey.FETCH, version, client_id)(99, request))


def read(frame: bytes, version: int, client_id: str | None = "client") -> Any:
    reader = frame_reader(shape(version), version, client_id, FetchRequest())
    buffer = b"\x05" + frame + b"\x00\x01\x00\x00\x00\x00\x00\x00"
    found = [
        reader(view, 1 + headers.SIZE_BYTES, 1 + len(frame))
        for view in (bytearray(buffer), memoryview(bytearray(buffer)))
    ]
    assert found[0] == found[1]
    return found[0]


def said(request: FetchRequest, version: int) -> Any:
    elements = [
        ((topic.topic_id if version >= 13 else topic.topic, partition.partition), partition.fetch_offset, -1)
        for topic in request.topics
        for partition in topic.partitions
    ]
    return 99, request.max_wait_ms, request.session_epoch, elements


@given(versions, int32s, topics, st.sampled_from(["client", "", None, "x" * 300]))
def test_reads_what_the_codec_wrote(
    version: int, max_wait_ms: int, named: list[FetchRequest.FetchTopic], client_id: str | None
) -> None:
    request = fit(FetchRequest(max_wait_ms=max_wait_ms, topics=named), version)
    assert read(framed(request, version, client_id), version, client_id) == said(request, version)


@given(versions, topics, st.lists(st.tuples(st.integers(4, 200), st.integers(0, 255)), max_size=3), st.integers(-4, 4))
def test_a_changed_frame_is_read_as_the_codec_reads_it_or_not_at_all(
    version: int, named: list[FetchRequest.FetchTopic], changes: list[tuple[int, int]], cut: int
) -> None:
    frame = bytearray(framed(fit(FetchRequest(topics=named), version), version))
    for position, value in changes:
        if 8 + headers.SIZE_BYTES <= position < len(frame):
            frame[position] = value
    data = bytes(frame[:cut] if cut < 0 else frame + bytes(cut))
    found = read(data, version)
    if found is None:
        return
    *_, body = headers.read_request_header(data, headers.SIZE_BYTES, len(data))
    decoded, end = codec.request_decoder(ApiKey.FETCH, version)(data, body, len(data))
    assert end == len(data)
    assert [element[:2] for element in found[3]] == [element[:2] for element in said(decoded, version)[3]]
    assert (decoded.replica_id, decoded.forgotten_topics_data, decoded.isolation_level in {0, 1}) == (-1, [], True)


@pytest.mark.parametrize("version", VERSIONS)
def test_leaves_what_is_not_of_the_shape(version: int) -> None:
    names: Any = {"topic_id": b"t" * 16} if version >= 13 else {"topic": "flights"}
    most = [FetchRequest.FetchPartition()] * COUNT_MAX
    assert read(framed(FetchRequest(topics=[FetchRequest.FetchTopic(**names, partitions=most)]), version), version)
    others: list[dict[str, Any]] = [
        {"topics": [FetchRequest.FetchTopic(**names, partitions=[*most, most[0]])]},
        {"topics": [FetchRequest.FetchTopic(**names)] * (COUNT_MAX + 1)},
        {"isolation_level": 2},
    ]
    others += [{"replica_id": 1}] if version < 15 else [{"replica_state": FetchRequest.ReplicaState(replica_id=1)}]
    if version >= 7:
        others.append({"forgotten_topics_data": [FetchRequest.ForgottenTopic(**names, partitions=[1])]})
    for other in others:
        assert read(framed(FetchRequest(**other), version), version) is None, other


@pytest.mark.parametrize("version", VERSIONS)
def test_a_hostile_frame_costs_no_more_than_its_bytes(version: int) -> None:
    # What a frame announces and does not have follows it in the buffer: the frames of later requests.
    names: Any = {"topic_id": b"t" * 16} if version >= 13 else {"topic": "flights"}
    topic = FetchRequest.FetchTopic(**names, partitions=[FetchRequest.FetchPartition()] * COUNT_MAX)
    frame = framed(FetchRequest(topics=[topic] * COUNT_MAX), version)
    made: list[Any] = []
    one = framed(FetchRequest(topics=[FetchRequest.FetchTopic(**names, partitions=topic.partitions[:1])]), version)
    none = framed(FetchRequest(topics=[FetchRequest.FetchTopic(**names)]), version)
    counted = shape(version, element=Made(lambda *parts: made.append(parts), ("fetch_offset",)))
    reader = frame_reader(counted, version, "client", FetchRequest())
    for size_bytes in (len(none), 200, 1_000, 20_000):
        made.clear()
        assert reader(bytearray(frame), headers.SIZE_BYTES, size_bytes) is None
        assert len(made) <= size_bytes // (len(one) - len(none))


@pytest.mark.parametrize(
    ("wrong", "version", "sample", "message"),
    [
        (shape(17), 18, FetchRequest(), "no frames of version 18"),
        (shape(17), 17, FetchRequest(topics=[FetchRequest.FetchTopic()]), "has elements"),
        (shape(17, array="forgotten_topics_data"), 17, FetchRequest(), "ahead of forgotten_topics_data"),
        (shape(17, array="nothing"), 17, FetchRequest(), "nothing"),
        (shape(17, element=Made(tuple, ("rack_id",))), 17, FetchRequest(), "rack_id is not read"),
        (shape(9, name="MetadataRequest"), 9, MetadataRequest(), "topic is not read"),
        (shape(9, name="ProduceRequest", array="topic_data"), 9, ProduceRequest(), "transactional_id is ahead"),
    ],
)
def test_refuses_what_has_no_such_shape(wrong: FrameShape, version: int, sample: Any, message: str) -> None:
    with pytest.raises((ValueError, AttributeError), match=message):
        frame_reader(wrong, version, "client", sample)


def test_the_code_can_be_looked_at() -> None:
    other = FrameShape(
        *("ListOffsetsRequest", "topics", frozenset({"replica_id"}), ()),
        Made(lambda *parts: parts, ("name", "partition_index", "timestamp")),
        Made(lambda *parts: parts, (CORRELATION_ID, "topics")),
    )
    assert "make_element(name_1, partition_index_1, timestamp_1)" in frame_reader_source(other, 5)
    partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=3, timestamp=-1)
    request = ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name="flights", partitions=[partition])])
    frame = b"".join(codec.request_encoder(ApiKey.LIST_OFFSETS, 7, "c")(5, request))
    reader = frame_reader(other, 7, "c", ListOffsetsRequest())
    assert reader(frame, headers.SIZE_BYTES, len(frame)) == (5, [("flights", 3, -1)])
