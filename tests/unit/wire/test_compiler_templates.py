"""The templates of frames and the readers of repeated ones, held against the codec."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.wire import codec, headers
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.compiler_templates import repeated_reader, request_template, response_template
from barnabas.wire.messages import FetchRequest, FetchResponse, ProduceResponse
from barnabas.wire.primitives import EncodeError

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
NAMES = st.one_of(st.text(max_size=40), st.sampled_from(["x" * 126, "x" * 127, "x" * 300]))
VERSIONS = st.sampled_from((4, 7, 11, 12, 13, 15, 17))
"""Those of Fetch in which something begins."""
HOLES = ("fetch_offset", "partition")

PRODUCED = ("base_offset", "log_append_time_ms", "log_start_offset", "throttle_time_ms")


@given(st.integers(0, 11), NAMES, INT32, INT32, st.tuples(INT64, INT64, INT64, INT32))
def test_the_usual_produce_response_is_what_the_encoder_writes(
    version: int, name: str, index: int, correlation_id: int, numbers: tuple[int, int, int, int]
) -> None:
    partition = ProduceResponse.PartitionProduceResponse(index=index)
    topic = ProduceResponse.TopicProduceResponse(name=name, partition_responses=[partition])
    response = ProduceResponse(responses=[topic])
    template = response_template(ApiKey.PRODUCE, version, response, PRODUCED)
    for values in (numbers, (*numbers[::-1][1:], 3)):
        frame = template(correlation_id, *values)
        partition.base_offset, partition.log_append_time_ms, partition.log_start_offset = values[:3]
        response.throttle_time_ms = values[3]
        assert b"".join(codec.response_encoder(ApiKey.PRODUCE, version)(correlation_id, response)) == frame


@given(st.integers(7, 16), INT32, INT32, st.lists(st.tuples(INT64, INT64), max_size=3))
def test_a_template_has_whatever_the_response_has(
    version: int, correlation_id: int, session_id: int, aborted: list[tuple[int, int]]
) -> None:
    data = FetchResponse.PartitionData(
        partition_index=3,
        high_watermark=9,
        aborted_transactions=[
            FetchResponse.AbortedTransaction(producer_id=producer, first_offset=first) for producer, first in aborted
        ]
        or None,
        records=b"records",
    )
    response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(partitions=[data])])
    template = response_template(ApiKey.FETCH, version, response, ("session_id", "high_watermark"))
    response.session_id, data.high_watermark = session_id, 77
    expected = b"".join(codec.response_encoder(ApiKey.FETCH, version)(correlation_id, response))
    assert template(correlation_id, session_id, 77) == expected


def test_what_cannot_be_a_hole_is_refused() -> None:
    partition = FetchResponse.PartitionData(records=b"")
    response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(partitions=[partition])])
    for hole, fault in (
        ("error_code", "several places"),
        ("records", "no fixed width"),
        ("topic_id", "no fixed width"),
        ("responses", "no fixed width"),
        ("nothing", "no field nothing"),
    ):
        with pytest.raises(ValueError, match=fault):
            response_template(ApiKey.FETCH, 16, response, (hole,))
    wrong: Any = ProduceResponse(responses=[ProduceResponse.TopicProduceResponse(name=None)])  # type: ignore[arg-type]
    with pytest.raises(EncodeError, match="name: may not be None"):
        response_template(ApiKey.PRODUCE, 9, wrong, ())


def fetch_request(version: int, offset: int, number: int) -> FetchRequest:
    named: Any = {"topic_id": b"t" * 16} if version >= 13 else {"topic": "flights"}
    partition = FetchRequest.FetchPartition(partition=number, fetch_offset=offset)
    return FetchRequest(topics=[FetchRequest.FetchTopic(**named, partitions=[partition])])


def framed(request: FetchRequest, version: int, client_id: str | None = "client") -> bytes:
    return b"".join(codec.request_encoder(ApiKey.FETCH, version, client_id)(99, request))


@given(VERSIONS, st.sampled_from([None, "", "client", "x" * 300]), st.integers(-1, 4), INT32, INT64, INT32)
def test_a_request_is_what_the_encoder_writes_tagged_fields_and_all(
    version: int, client_id: str | None, replica_id: int, number: int, offset: int, session_epoch: int
) -> None:
    def request(offset: int, number: int, session_epoch: int) -> FetchRequest:
        made = fetch_request(version, offset, number)
        if version >= 15 and replica_id >= 0:
            made.replica_state = FetchRequest.ReplicaState(replica_id=replica_id, replica_epoch=300)
        made.session_epoch = session_epoch
        return made

    template = request_template(ApiKey.FETCH, version, client_id, request(0, 0, -1), (*HOLES, "session_epoch"))
    expected = framed(request(offset, number, session_epoch if version >= 7 else -1), version, client_id)
    assert template(99, offset, number, session_epoch) == expected


@given(VERSIONS, INT64, INT32, st.integers(0, 400), st.integers(0, 255))
def test_a_repeated_request_is_known_by_all_but_its_holes(
    version: int, offset: int, number: int, position: int, value: int
) -> None:
    def request(offset: int, number: int) -> bytes:
        return framed(fetch_request(version, offset, number), version)[headers.SIZE_BYTES :]

    size_bytes, repeated = repeated_reader(ApiKey.FETCH, version, "client", request(0, 0), HOLES)
    frame = bytearray(request(offset, number))
    assert size_bytes == len(frame)
    assert repeated(b"12" + frame, 2) == (99, number, offset)
    frame[position % len(frame)] = value
    found = repeated(frame, 0)
    for correlation_id, read_number, read_offset in () if found is None else (found,):
        again = bytearray(request(read_offset, read_number))
        again[4:8] = correlation_id.to_bytes(4, signed=True)
        assert again == frame
    assert found is not None or not _hole_at(version, position % len(frame))


def _hole_at(version: int, position: int) -> str:
    """The hole that has this byte, or nothing."""
    known = [framed(fetch_request(version, 0, 0), version)[headers.SIZE_BYTES :]]
    known += [framed(fetch_request(version, *log), version)[headers.SIZE_BYTES :] for log in ((-1, 0), (0, -1))]
    return next(
        (name for name, frame in zip(HOLES, known[1:], strict=True) if frame[position] != known[0][position]), ""
    )


def test_a_frame_without_the_holes_or_with_several_is_not_repeated() -> None:
    one = fetch_request(17, 0, 0)
    for request, hole, fault in (
        (FetchRequest(), "fetch_offset", "fetch_offset is not in this"),
        (one, "replica_id", "replica_id is not in this"),
        (FetchRequest(topics=one.topics * 2), "fetch_offset", "several places"),
    ):
        frame = framed(request, 17)[headers.SIZE_BYTES :]
        with pytest.raises(ValueError, match=fault):
            repeated_reader(ApiKey.FETCH, 17, "client", frame, (hole,))
