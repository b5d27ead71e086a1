"""The readers of the usual shape, held against the codec."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.wire import codec
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.compiler_usual import reader_source, usual_reader
from barnabas.wire.messages import FetchRequest, FetchResponse, ListOffsetsRequest, ProduceRequest

INT16 = st.integers(-(1 << 15), (1 << 15) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
NAMES = st.one_of(st.text(max_size=40), st.sampled_from(["x" * 126, "x" * 127, "x" * 300]))
RECORDS = st.one_of(st.binary(max_size=200), st.sampled_from([b"x" * 126, b"x" * 127, b"x" * 128, b"x" * 20_000]))
NOTHING_FORGOTTEN = frozenset({"forgotten_topics_data"})


def body(request: Any, version: int) -> bytearray:
    return bytearray(b"".join(codec.encode(request, version)))


def produce_request(name: str, index: int, acks: int, timeout_ms: int, records: bytes | None) -> ProduceRequest:
    data = ProduceRequest.PartitionProduceData(index=index, records=records)
    topic = ProduceRequest.TopicProduceData(name=name, partition_data=[data])
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[topic])


@given(st.integers(0, 11), NAMES, INT32, INT16, INT32, RECORDS, st.integers(0, 9), st.binary(max_size=9))
def test_reads_a_usual_produce_request_wherever_it_is(
    version: int, name: str, index: int, acks: int, timeout_ms: int, records: bytes, ahead: int, behind: bytes
) -> None:
    data = body(produce_request(name, index, acks, timeout_ms, records), version)
    reader = usual_reader("ProduceRequest", version)
    assert reader.holes == ("acks", "timeout_ms", "name", "index", "records")
    buffer = bytes(ahead) + data + behind
    for view in (buffer, bytearray(buffer), memoryview(bytearray(buffer))):
        found = reader.read(view, ahead, ahead + len(data))
        if version >= 9 and len(name.encode()) > 126:
            assert found is None
            continue
        assert found is not None
        *values, length_at, start, end = found
        assert values == [acks, timeout_ms, name, index]
        assert bytes(view[start:end]) == records
        assert reader.read_records is not None
        assert reader.read_records(view, length_at, ahead + len(data)) == (start, end)


@given(
    st.integers(0, 11),
    NAMES,
    RECORDS,
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=3),
    st.integers(-4, 4),
)
def test_what_is_read_is_what_the_codec_reads(
    version: int, name: str, records: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    data = body(produce_request(name, 3, 1, 30_000, records), version)
    for place, value in changes:
        if place < len(data):
            data[place] = value
    data = data[:cut] if cut < 0 else data + bytes(cut)
    found = usual_reader("ProduceRequest", version).read(data, 0, len(data))
    if found is None:
        return
    decoded, end = codec.request_decoder(ApiKey.PRODUCE, version)(data, 0, len(data))
    assert end == len(data)
    acks, timeout_ms, topic, index, _, start, stop = found
    assert decoded == produce_request(topic, index, acks, timeout_ms, bytes(data[start:stop]))


@pytest.mark.parametrize("version", range(12))
@pytest.mark.parametrize(
    "unusual", ["two topics", "no partition", "null records", "transaction", "too long", "too short"]
)
def test_leaves_what_is_not_of_the_shape(version: int, unusual: str) -> None:
    request = produce_request("flights", 0, 1, 5, b"records" * 20)
    match unusual:
        case "two topics":
            request.topic_data *= 2
        case "no partition":
            request.topic_data[0].partition_data.clear()
        case "null records":
            request.topic_data[0].partition_data[0].records = None
        case "transaction" if version >= 3:
            request.transactional_id = "t"
    data = body(request, version)
    if unusual == "too long":
        data += b"\x00"
    elif unusual == "too short":
        del data[-1]
    reader = usual_reader("ProduceRequest", version)
    is_usual = unusual == "transaction" and version < 3
    assert (reader.read(data, 0, len(data)) is not None) is is_usual


@pytest.mark.parametrize("length", ["8000", "808080808000", "ffffffffff7f", "ffffffffffffff"])
def test_a_length_without_end_is_not_followed(length: str) -> None:
    reader = usual_reader("ProduceRequest", 9)
    assert reader.read_records is not None
    data = bytes.fromhex(length) + bytes(3)
    assert reader.read_records(data, 0, len(data)) is None


@given(
    st.integers(4, 16),
    INT64,
    INT32,
    INT32,
    st.binary(min_size=16, max_size=16),
    NAMES.filter(lambda name: len(name.encode()) < 127),
)
def test_reads_a_fetch_request_of_one_partition(
    version: int, offset: int, max_wait_ms: int, session: int, topic_id: bytes, name: str
) -> None:
    partition = FetchRequest.FetchPartition(partition=7, fetch_offset=offset, partition_max_bytes=9)
    topic = FetchRequest.FetchTopic(partitions=[partition])
    if version >= 13:
        topic.topic_id = topic_id
    else:
        topic.topic = name
    request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=[topic])
    if version >= 7:
        request.session_id = session
    data = body(request, version)
    reader = usual_reader("FetchRequest", version, NOTHING_FORGOTTEN)
    found = reader.read(data, 0, len(data))
    assert found is not None
    assert reader.read_records is None
    values = dict(zip(reader.holes, found, strict=True))
    assert (values["max_wait_ms"], values["fetch_offset"], values["partition"]) == (max_wait_ms, offset, 7)
    assert values.get("topic", values.get("topic_id")) == (topic_id if version >= 13 else name)
    assert values.get("session_id", session) == session


@pytest.mark.parametrize("version", range(7, 17))
def test_reads_a_fetch_request_that_names_no_partition(version: int) -> None:
    data = body(FetchRequest(max_wait_ms=500, min_bytes=1, session_id=5, session_epoch=6), version)
    reader = usual_reader("FetchRequest", version, NOTHING_FORGOTTEN | {"topics"})
    found = reader.read(data, 0, len(data))
    assert found is not None
    values = dict(zip(reader.holes, found, strict=True))
    assert (values["session_id"], values["session_epoch"]) == (5, 6)


def test_messages_without_a_usual_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="partition_indexes is an array of int32"):
        usual_reader("DescribeProducersRequest", 0)
    with pytest.raises(ValueError, match="not 99"):
        usual_reader("ProduceRequest", 99)
    with pytest.raises(KeyError):
        usual_reader("Nothing", 0)
    assert "unpack_from" in reader_source("ListOffsetsRequest", 7)
    ask = ListOffsetsRequest.ListOffsetsPartition(partition_index=4, timestamp=-1)
    data = body(ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[ask])]), 7)
    assert usual_reader("ListOffsetsRequest", 7).read(data, 0, len(data)) == (0, 0, "t", 4, -1, -1)


@pytest.mark.parametrize("version", [11, 17])
def test_an_array_that_is_to_be_empty_may_be_null_where_it_may(version: int) -> None:
    data = FetchResponse.PartitionData(records=b"records")
    response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(partitions=[data])])
    reader = usual_reader("FetchResponse", version, frozenset({"aborted_transactions"}))
    aborted = FetchResponse.AbortedTransaction(producer_id=1)
    for given_, is_usual in ((None, True), ([], True), ([aborted], False)):
        data.aborted_transactions = given_
        encoded = body(response, version)
        assert (reader.read(encoded, 0, len(encoded)) is not None) is is_usual
