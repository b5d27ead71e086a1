"""The writers of usual responses with records, held against the codec."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.wire import codec
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.compiler_frame_responses import JOINED_BYTES_MAX, ResponseShape, response_writer
from barnabas.wire.messages import FetchResponse

GIVEN = ("partition_index", "high_watermark", "aborted_transactions", "records")
BY_NAME = ResponseShape("responses", "session_id", "topic", GIVEN)
BY_ID = ResponseShape("responses", "session_id", "topic_id", GIVEN)
sizes = st.sampled_from((0, 1, 126, 127, JOINED_BYTES_MAX, JOINED_BYTES_MAX + 1, 20_000))
elements: Any = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 2**40), st.sampled_from((None, [])), sizes),
    max_size=6,
)


@given(st.sampled_from((7, 11, 13, 17)), st.integers(0, 9), elements)
def test_writes_what_the_codec_writes(
    version: int, session_id: int, found: list[tuple[int, int, int, list[object] | None, int]]
) -> None:
    shape = BY_ID if version >= 13 else BY_NAME
    expected = FetchResponse(session_id=session_id)
    given_elements = []
    last = None
    for key, number, high_watermark, aborted, size_bytes in found:
        topic: Any = bytes([key]) * 16 if version >= 13 else f"topic-{key}"
        if key != last:
            last = key
            expected.responses.append(FetchResponse.FetchableTopicResponse(**{shape.key: topic}, partitions=[]))
        data = FetchResponse.PartitionData(partition_index=number, high_watermark=high_watermark)
        data.aborted_transactions = None if aborted is None else []
        data.records = bytes(size_bytes)
        expected.responses[-1].partitions.append(data)
        given_elements.append((topic, number, high_watermark, aborted, bytes(size_bytes)))
    writer = response_writer(shape, ApiKey.FETCH, version)
    frame = b"".join(codec.response_encoder(ApiKey.FETCH, version)(9, expected))
    written = writer.write(9, session_id, given_elements)
    assert b"".join(written) == frame
    assert writer.start(len(frame) - writer.start_bytes, 9, session_id) == frame[: writer.start_bytes]
    assert all(len(part) for part in written)
    if len(found) == 1:
        rest = writer.write_rest(*given_elements[0])
        assert b"".join(rest) == frame[writer.start_bytes :]
        assert all(len(part) for part in rest)


@pytest.mark.parametrize(
    ("shape", "version", "message"),
    [
        (BY_ID, 11, "have topic, not topic_id"),
        (BY_NAME, 12, "topic is of a type"),
        (BY_NAME._replace(head="error_code"), 11, "error_code not ahead"),
        (BY_NAME._replace(element=GIVEN[:2]), 11, "records are not last"),
    ],
)
def test_refuses_what_has_no_such_shape(shape: ResponseShape, version: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        response_writer(shape, ApiKey.FETCH, version)
