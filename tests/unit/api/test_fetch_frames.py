"""`barnabas.api.fetch_frames`, held against the general codec."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.api.fetch_frames import COUNT_MAX, VERSIONS, FollowerRequest, RequestForm, response_frame
from barnabas.replication.fetch_reads import PartitionRead
from barnabas.replication.fetch_sessions import FetchPartition, NamedPartition
from barnabas.wire import codec, headers
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import FetchRequest, FetchResponse
from barnabas.wire.primitives import ProtocolError

_CLIENT_ID = "broker-2-fetcher-0"
_EPOCH = 77

int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
uuids = st.binary(min_size=16, max_size=16)
versions = st.sampled_from(list(VERSIONS))
partitions = st.builds(
    FetchRequest.FetchPartition,
    partition=int32s,
    current_leader_epoch=int32s,
    fetch_offset=int64s,
    last_fetched_epoch=int32s,
    log_start_offset=int64s,
    partition_max_bytes=int32s,
)
topics = st.builds(FetchRequest.FetchTopic, topic_id=uuids, partitions=st.lists(partitions, max_size=4))
requests = st.builds(
    FetchRequest,
    max_wait_ms=int32s,
    min_bytes=int32s,
    max_bytes=int32s,
    isolation_level=st.integers(-128, 127),
    session_id=int32s,
    session_epoch=int32s,
    topics=st.lists(topics, max_size=3),
    replica_state=st.just(FetchRequest.ReplicaState(replica_id=2, replica_epoch=_EPOCH)),
)


def framed(request: FetchRequest, version: int, client_id: str | None = _CLIENT_ID) -> bytearray:
    return bytearray(b"".join(codec.request_encoder(ApiKey.FETCH, version, client_id)(99, request)))


def read(frame: bytearray, version: int, end: int | None = None) -> FollowerRequest | None:
    """Reads it out of a buffer in which there are other bytes ahead and behind."""
    buffer = bytearray(b"\x01\x02\x03") + frame + b"\x01\x01\x01\x01\x0d\x00\x02"
    form = RequestForm(version, _CLIENT_ID, 2, _EPOCH)
    return form.read(buffer, 3 + headers.SIZE_BYTES, 3 + (len(frame) if end is None else end))


def said(request: FetchRequest) -> FollowerRequest:
    named = [
        NamedPartition(
            (topic.topic_id, partition.partition),
            fetch_offset=partition.fetch_offset,
            max_bytes=partition.partition_max_bytes,
            leader_epoch=partition.current_leader_epoch,
            last_fetched_epoch=partition.last_fetched_epoch,
            log_start_offset=partition.log_start_offset,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
    return FollowerRequest(
        99,
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.session_id,
        request.session_epoch,
        named,
    )


@given(requests, versions)
def test_reads_what_the_codec_wrote(request: FetchRequest, version: int) -> None:
    assert read(framed(request, version), version) == said(request)


@given(requests, versions, st.data())
def test_reads_no_part_of_a_frame(request: FetchRequest, version: int, data: st.DataObject) -> None:
    frame = framed(request, version)
    end = data.draw(st.integers(headers.SIZE_BYTES + 8, len(frame) - 1))
    assert read(frame, version, end) is None


@given(requests, versions, st.data())
def test_a_changed_frame_is_read_as_the_codec_reads_it_or_not_at_all(
    request: FetchRequest, version: int, data: st.DataObject
) -> None:
    frame = framed(request, version)
    position = data.draw(st.integers(headers.SIZE_BYTES + 8, len(frame) - 1))
    frame[position] = data.draw(st.integers(0, 255))
    found = read(frame, version)
    if found is None:
        return
    *_, client_id, body = headers.read_request_header(frame, headers.SIZE_BYTES, len(frame))
    try:
        decoded, end = codec.request_decoder(ApiKey.FETCH, version)(frame, body, len(frame))
    except ProtocolError:
        pytest.fail("the codec refuses what was read")
    assert (found, client_id, end) == (said(decoded), _CLIENT_ID, len(frame))
    assert decoded.replica_state == FetchRequest.ReplicaState(replica_id=2, replica_epoch=_EPOCH)
    assert (decoded.forgotten_topics_data, decoded.rack_id, decoded.cluster_id) == ([], "", None)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "other",
    [
        {"cluster_id": "cluster"},
        {"rack_id": "rack"},
        {"forgotten_topics_data": [FetchRequest.ForgottenTopic(topic_id=b"t" * 16, partitions=[0])]},
        {"replica_state": FetchRequest.ReplicaState(replica_id=3, replica_epoch=_EPOCH)},
        {"replica_state": FetchRequest.ReplicaState(replica_id=2, replica_epoch=_EPOCH + 1)},
        {"replica_state": FetchRequest.ReplicaState()},
        {"topics": [FetchRequest.FetchTopic(topic_id=b"t" * 16, partitions=[FetchRequest.FetchPartition()] * 127)]},
        {"topics": [FetchRequest.FetchTopic(topic_id=b"t" * 16)] * 127},
    ],
    ids=lambda other: next(iter(other)),
)
def test_leaves_other_requests_to_the_codec(version: int, other: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"replica_state": FetchRequest.ReplicaState(replica_id=2, replica_epoch=_EPOCH)}
    usual = framed(FetchRequest(**fields), version)
    assert read(usual, version) is not None
    assert read(framed(FetchRequest(**(fields | other)), version), version) is None
    assert read(framed(FetchRequest(**fields), version, "another"), version) is None
    assert read(usual, version - 1 if version > VERSIONS[0] else version + 1) is None


def test_leaves_the_directory_of_a_replica_to_the_codec() -> None:
    partition = FetchRequest.FetchPartition(replica_directory_id=b"d" * 16)
    request = FetchRequest(
        topics=[FetchRequest.FetchTopic(topic_id=b"t" * 16, partitions=[partition])],
        replica_state=FetchRequest.ReplicaState(replica_id=2, replica_epoch=_EPOCH),
    )
    assert read(framed(request, 17), 17) is None


reads = st.lists(
    st.tuples(
        *(st.sampled_from(["one", "two"]), st.integers(0, 2**31 - 1), int64s, int64s, int64s),
        st.one_of(st.binary(max_size=200), st.integers(1000, 40_000).map(bytes)),
    ),
    max_size=6,
)


def general_frame(session_id: int, found: list[tuple[str, int, int, int, int, bytes]], version: int) -> bytes:
    response = FetchResponse(session_id=session_id)
    for topic, number, high_watermark, stable, start, records in found:
        if not response.responses or response.responses[-1].topic != topic:
            response.responses.append(
                FetchResponse.FetchableTopicResponse(topic=topic, topic_id=topic.encode().ljust(16), partitions=[])
            )
        response.responses[-1].partitions.append(
            FetchResponse.PartitionData(
                partition_index=number,
                high_watermark=high_watermark,
                last_stable_offset=stable,
                log_start_offset=start,
                aborted_transactions=None,
                records=records,
            )
        )
    return b"".join(codec.response_encoder(ApiKey.FETCH, version)(5, response))


def short_frame(session_id: int, found: list[tuple[str, int, int, int, int, bytes]]) -> bytes:
    chosen = [
        (
            FetchPartition(topic, topic.encode().ljust(16), number, fetch_offset=0, max_bytes=1),
            PartitionRead(ErrorCode.NONE, high_watermark, stable, start),
            ErrorCode.NONE,
        )
        for topic, number, high_watermark, stable, start, _ in found
    ]
    return b"".join(response_frame(5, session_id, chosen, [records for *_, records in found]))


@given(int32s, reads, versions)
def test_a_response_has_the_bytes_of_the_codec(
    session_id: int, found: list[tuple[str, int, int, int, int, bytes]], version: int
) -> None:
    assert short_frame(session_id, found) == general_frame(session_id, found, version)


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 1024, 1025, 16382, 16383, 16384, 2**21])
def test_a_response_has_the_bytes_of_the_codec_at_the_bounds(size: int) -> None:
    found = [("one", number, 1, 2, 3, bytes(size)) for number in range(3)]
    assert short_frame(1, found) == general_frame(1, found, 17)


def test_a_response_has_as_many_partitions_as_are_allowed() -> None:
    found = [("one", number, 1, 2, 3, b"r") for number in range(COUNT_MAX)]
    assert short_frame(1, found) == general_frame(1, found, 17)
    found = [(("one", "two")[number % 2], number, 1, 2, 3, b"r") for number in range(COUNT_MAX)]
    assert short_frame(1, found) == general_frame(1, found, 17)
