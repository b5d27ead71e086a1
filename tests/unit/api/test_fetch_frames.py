"""`barnabas.api.fetch_frames`, held against the general codec."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.api.fetch_frames import ID_VERSIONS, NAME_VERSION, UsualRequest, form_of
from barnabas.serving.fetch_partition import FetchPartition, NamedPartition, PartitionRead
from barnabas.wire import codec, headers
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.compiler_frames import COUNT_MAX
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import FetchRequest, FetchResponse
from barnabas.wire.primitives import ProtocolError

_CLIENT_ID = "broker-2-fetcher-0"
_FOLLOWER = (2, 77)

Kind = tuple[int, tuple[int, int] | None]
"""Version, and the follower, if it is one."""
KINDS: list[Kind] = [(version, follower) for version in ID_VERSIONS for follower in (_FOLLOWER, None)]
KINDS.append((NAME_VERSION, None))

int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
uuids = st.binary(min_size=16, max_size=16)
kinds = st.sampled_from(KINDS)


def replica_of(follower: tuple[int, int] | None) -> FetchRequest.ReplicaState | None:
    if follower is None:
        return None
    return FetchRequest.ReplicaState(replica_id=follower[0], replica_epoch=follower[1])


def topic_fields(version: int, text: str = "flights") -> dict[str, Any]:
    return {"topic": text} if version == NAME_VERSION else {"topic_id": text.encode()[:16].ljust(16)}


@st.composite
def requests_of(draw: st.DrawFn, version: int, follower: tuple[int, int] | None) -> FetchRequest:
    is_named = version == NAME_VERSION
    partitions = st.builds(
        FetchRequest.FetchPartition,
        partition=int32s,
        current_leader_epoch=int32s,
        fetch_offset=int64s,
        last_fetched_epoch=st.just(-1) if is_named else int32s,
        log_start_offset=int64s,
        partition_max_bytes=int32s,
    )
    topics = st.builds(
        FetchRequest.FetchTopic,
        **({"topic": st.text(max_size=20)} if is_named else {"topic_id": uuids}),
        partitions=st.lists(partitions, max_size=4),
    )
    return draw(
        st.builds(
            FetchRequest,
            max_wait_ms=int32s,
            min_bytes=int32s,
            max_bytes=int32s,
            isolation_level=st.sampled_from((0, 1)),
            session_id=int32s,
            session_epoch=int32s,
            topics=st.lists(topics, max_size=3),
            replica_state=st.just(replica_of(follower)),
        )
    )


def framed(request: FetchRequest, version: int, client_id: str | None = _CLIENT_ID) -> bytearray:
    return bytearray(b"".join(codec.request_encoder(ApiKey.FETCH, version, client_id)(99, request)))


def read(frame: bytearray, kind: Kind, end: int | None = None) -> UsualRequest | None:
    """Reads it out of a buffer in which there are other bytes ahead and behind."""
    buffer = bytearray(b"\x01\x02\x03") + frame + b"\x01\x01\x01\x01\x0d\x00\x02"
    form = form_of(kind[0], _CLIENT_ID, kind[1])
    assert form is not None
    return form.read(buffer, 3 + headers.SIZE_BYTES, 3 + (len(frame) if end is None else end))


def said(request: FetchRequest, version: int) -> UsualRequest:
    named = [
        NamedPartition(
            (topic.topic if version == NAME_VERSION else topic.topic_id, partition.partition),
            fetch_offset=partition.fetch_offset,
            max_bytes=partition.partition_max_bytes,
            leader_epoch=partition.current_leader_epoch,
            last_fetched_epoch=partition.last_fetched_epoch,
            log_start_offset=partition.log_start_offset,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
    return UsualRequest(
        99,
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
        request.session_id,
        request.session_epoch,
        named,
    )


@given(kinds, st.data())
def test_reads_what_the_codec_wrote(kind: Kind, data: st.DataObject) -> None:
    request = data.draw(requests_of(*kind))
    assert read(framed(request, kind[0]), kind) == said(request, kind[0])


@given(kinds, st.data())
def test_reads_no_part_of_a_frame(kind: Kind, data: st.DataObject) -> None:
    frame = framed(data.draw(requests_of(*kind)), kind[0])
    end = data.draw(st.integers(headers.SIZE_BYTES + 8, len(frame) - 1))
    assert read(frame, kind, end) is None


@given(kinds, st.data())
def test_a_changed_frame_is_read_as_the_codec_reads_it_or_not_at_all(kind: Kind, data: st.DataObject) -> None:
    version, follower = kind
    frame = framed(data.draw(requests_of(*kind)), version)
    position = data.draw(st.integers(headers.SIZE_BYTES + 8, len(frame) - 1))
    frame[position] = data.draw(st.integers(0, 255))
    found = read(frame, kind)
    if found is None:
        return
    *_, client_id, body = headers.read_request_header(frame, headers.SIZE_BYTES, len(frame))
    try:
        decoded, end = codec.request_decoder(ApiKey.FETCH, version)(frame, body, len(frame))
    except ProtocolError:
        pytest.fail("the codec refuses what was read")
    assert (found, client_id, end) == (said(decoded, version), _CLIENT_ID, len(frame))
    assert (decoded.replica_state, decoded.replica_id) == (replica_of(follower), -1)
    assert (decoded.forgotten_topics_data, decoded.rack_id, decoded.cluster_id) == ([], "", None)


@pytest.mark.parametrize("kind", KINDS)
def test_leaves_other_requests_to_the_codec(kind: Kind) -> None:
    version, follower = kind
    is_named = version == NAME_VERSION
    named = topic_fields(version)
    fields: dict[str, Any] = {"replica_state": replica_of(follower)}
    usual = framed(FetchRequest(**fields), version)
    assert read(usual, kind) is not None
    others: list[dict[str, Any]] = [
        {"rack_id": "rack"},
        {"forgotten_topics_data": [FetchRequest.ForgottenTopic(**named, partitions=[0])]},
        {"replica_id": 3} if is_named else {"replica_state": FetchRequest.ReplicaState(replica_id=3, replica_epoch=77)},
        {"topics": [FetchRequest.FetchTopic(**named, partitions=[FetchRequest.FetchPartition()] * (COUNT_MAX + 1))]},
        {"topics": [FetchRequest.FetchTopic(**named)] * (COUNT_MAX + 1)},
    ]
    if not is_named:
        others += [{"cluster_id": "cluster"}, {"replica_state": replica_of((2, 78))}]
        others.append({"replica_state": replica_of(None if follower is not None else _FOLLOWER)})
    for other in others:
        assert read(framed(FetchRequest(**(fields | other)), version), kind) is None, other
    assert read(framed(FetchRequest(**fields), version, "another"), kind) is None
    for another in KINDS:
        if another[0] != version:
            assert read(usual, another) is None


@pytest.mark.parametrize(("version", "follower"), [(10, None), (12, None), (14, None), (18, None), (11, _FOLLOWER)])
def test_other_versions_have_no_form(version: int, follower: tuple[int, int] | None) -> None:
    assert form_of(version, _CLIENT_ID, follower) is None


def test_a_name_that_is_no_text_is_left_to_the_codec() -> None:
    request = FetchRequest(topics=[FetchRequest.FetchTopic(topic="flights")])
    frame = framed(request, NAME_VERSION)
    assert read(frame, (NAME_VERSION, None)) is not None
    for replacement in (b"\xfflights", b"flight\xc3"):
        assert read(frame.replace(b"flights", replacement), (NAME_VERSION, None)) is None
    assert read(frame.replace(b"\x00\x07flights", b"\xff\xff"), (NAME_VERSION, None)) is None


def test_leaves_the_directory_of_a_replica_to_the_codec() -> None:
    partition = FetchRequest.FetchPartition(replica_directory_id=b"d" * 16)
    request = FetchRequest(
        topics=[FetchRequest.FetchTopic(topic_id=b"t" * 16, partitions=[partition])],
        replica_state=replica_of(_FOLLOWER),
    )
    assert read(framed(request, 17), (17, _FOLLOWER)) is None


Found = list[tuple[str, int, int, int, int, bool, bytes]]
"""Topic, number, high watermark, last stable offset, log start offset, whether it tells of transactions, records."""
reads = st.lists(
    st.tuples(
        *(st.sampled_from(["one", "two"]), st.integers(0, 2**31 - 1), int64s, int64s, int64s, st.booleans()),
        st.one_of(st.binary(max_size=200), st.integers(1000, 40_000).map(bytes)),
    ),
    max_size=6,
)


def general_frame(session_id: int, found: Found, version: int) -> bytes:
    response = FetchResponse(session_id=session_id)
    last = None
    for topic, number, high_watermark, stable, start, tells_aborted, records in found:
        if last != topic:
            response.responses.append(
                FetchResponse.FetchableTopicResponse(**topic_fields(version, topic), partitions=[])
            )
            last = topic
        response.responses[-1].partitions.append(
            FetchResponse.PartitionData(
                partition_index=number,
                high_watermark=high_watermark,
                last_stable_offset=stable,
                log_start_offset=start,
                aborted_transactions=[] if tells_aborted else None,
                records=records,
            )
        )
    return b"".join(codec.response_encoder(ApiKey.FETCH, version)(5, response))


def usual_frame(session_id: int, found: Found, kind: Kind) -> bytes:
    chosen = [
        (
            FetchPartition(topic, topic.encode().ljust(16), number, fetch_offset=0, max_bytes=1),
            PartitionRead(ErrorCode.NONE, high_watermark, stable, start, aborted=[] if tells_aborted else None),
            ErrorCode.NONE,
        )
        for topic, number, high_watermark, stable, start, tells_aborted, _ in found
    ]
    form = form_of(kind[0], _CLIENT_ID, kind[1])
    assert form is not None
    return b"".join(form.response(5, session_id, chosen, [records for *_, records in found]))


@given(int32s, reads, kinds)
def test_a_response_has_the_bytes_of_the_codec(session_id: int, found: Found, kind: Kind) -> None:
    assert usual_frame(session_id, found, kind) == general_frame(session_id, found, kind[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 1024, 1025, 16382, 16383, 16384, 2**21])
def test_a_response_has_the_bytes_of_the_codec_at_the_bounds(size: int, kind: Kind) -> None:
    found = [("one", number, 1, 2, 3, False, bytes(size)) for number in range(3)]
    assert usual_frame(1, found, kind) == general_frame(1, found, kind[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_response_has_as_many_partitions_as_are_allowed(kind: Kind) -> None:
    for topics in (("one",), ("one", "two")):
        found = [(topics[number % len(topics)], number, 1, 2, 3, True, b"r") for number in range(COUNT_MAX)]
        assert usual_frame(1, found, kind) == general_frame(1, found, kind[0])
