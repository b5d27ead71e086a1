"""The functions that connections and stores call: frames with headers, and messages with their version ahead."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from barnabas.wire import codec
from barnabas.wire.messages import (
    ApiVersionsResponse,
    ConsumerProtocolSubscription,
    ControlledShutdownRequest,
    FetchResponse,
    GroupMetadataKey,
    HeartbeatRequest,
    HeartbeatResponse,
    OffsetCommitKey,
    OffsetCommitValue,
)
from barnabas.wire.primitives import Buffer, EncodeError, ProtocolError

HEARTBEAT, CONTROLLED_SHUTDOWN, API_VERSIONS, FETCH = 12, 7, 18, 1


def joined(buffers: Sequence[Buffer]) -> bytes:
    return b"".join(buffers)


@pytest.mark.parametrize(
    ("version", "client_id", "frame"),
    [
        (0, "c", "00000016 000c 0000 00000009 0001 63 0001 67 00000003 0002 6d31"),
        (0, None, "00000015 000c 0000 00000009 ffff 0001 67 00000003 0002 6d31"),
        (4, "c", "00000017 000c 0004 00000009 0001 63 00 02 67 00000003 03 6d31 00 00"),
    ],
)
def test_a_request_frame_is_size_header_and_body(version: int, client_id: str | None, frame: str) -> None:
    message = HeartbeatRequest(group_id="g", generation_id=3, member_id="m1")
    encoded = joined(codec.request_encoder(HEARTBEAT, version, client_id)(9, message))
    assert encoded.hex() == frame.replace(" ", "")


def test_the_first_version_of_controlled_shutdown_has_no_client_id_in_its_header() -> None:
    encoded = joined(codec.request_encoder(CONTROLLED_SHUTDOWN, 0, "c")(9, ControlledShutdownRequest(broker_id=5)))
    assert encoded.hex() == "0000000c" + "0007" + "0000" + "00000009" + "00000005"


@pytest.mark.parametrize(
    ("version", "frame"),
    [
        (0, "00000006 00000009 001b"),
        (1, "0000000a 00000009 00000000 001b"),
        (4, "0000000c 00000009 00 00000000 001b 00"),
    ],
)
def test_a_response_frame_is_size_header_and_body(version: int, frame: str) -> None:
    data = joined(codec.response_encoder(HEARTBEAT, version)(9, HeartbeatResponse(error_code=27)))
    assert data.hex() == frame.replace(" ", "")
    decoded, position = codec.response_decoder(HEARTBEAT, version)(data, 4, len(data))
    assert (decoded, position) == (HeartbeatResponse(error_code=27), len(data))


def test_responses_of_api_versions_never_have_tagged_fields_in_the_header() -> None:
    data = joined(codec.response_encoder(API_VERSIONS, 3)(9, ApiVersionsResponse()))
    assert data.hex() == "0000000c" + "00000009" + "0000" + "01" + "00000000" + "00"
    assert codec.response_decoder(API_VERSIONS, 3)(data, 4, len(data)) == (ApiVersionsResponse(), len(data))


def test_tagged_fields_in_the_header_of_a_response_are_skipped() -> None:
    data = bytes.fromhex("00000009 01 05 02 ffff 00000000 001b 00")
    assert codec.response_decoder(HEARTBEAT, 4)(data, 0, len(data)) == (HeartbeatResponse(error_code=27), len(data))


def test_the_size_counts_records_that_are_not_copied() -> None:
    records = bytes(10_000)
    partition = FetchResponse.PartitionData(records=records)
    message = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition] * 2)])
    buffers = codec.response_encoder(FETCH, 12)(9, message)
    assert sum(buffer is records for buffer in buffers) == 2
    data = joined(buffers)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert codec.response_decoder(FETCH, 12)(data, 4, len(data)) == (message, len(data))


def test_encoded_frames_do_not_share_their_start() -> None:
    encode = codec.response_encoder(HEARTBEAT, 4)
    one, other = encode(1, HeartbeatResponse()), encode(2, HeartbeatResponse())
    assert (joined(one)[4:8], joined(other)[4:8]) == (b"\0\0\0\x01", b"\0\0\0\x02")


def test_a_request_body_is_decoded_behind_its_header() -> None:
    message = HeartbeatRequest(group_id="g")
    data = joined(codec.encode(message, 4))
    assert codec.request_decoder(HEARTBEAT, 4)(b"\xff" * 7 + data, 7, 7 + len(data)) == (message, 7 + len(data))


def test_keys_and_versions_that_do_not_exist() -> None:
    for make in (codec.request_decoder, codec.response_decoder, codec.response_encoder):
        with pytest.raises(KeyError):
            make(99, 0)
        with pytest.raises(ValueError, match="has versions 0-4, not 5"):
            make(HEARTBEAT, 5)
    with pytest.raises(KeyError):
        codec.request_encoder(99, 0, None)


def test_a_correlation_id_that_is_no_int32_cannot_be_written() -> None:
    with pytest.raises(EncodeError, match="correlation id 2147483648"):
        codec.response_encoder(HEARTBEAT, 0)(2**31, HeartbeatResponse())
    with pytest.raises(EncodeError, match="correlation id 2147483648"):
        codec.request_encoder(HEARTBEAT, 0, None)(2**31, HeartbeatRequest())


# With the version ahead.


def test_a_record_of_an_internal_topic_has_its_version_ahead() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=3)
    data = codec.encode_prefixed(key, 1)
    assert data.hex() == "0001" + "000167" + "000174" + "00000003"
    assert codec.decode_prefixed(OffsetCommitKey, data) == (1, key)


def test_a_value_in_a_flexible_version() -> None:
    value = OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=7)
    data = codec.encode_prefixed(value, 4)
    assert data.hex() == "0004" + "0000000000000005" + "00000002" + "026d" + "0000000000000007" + "00"
    assert codec.decode_prefixed(OffsetCommitValue, data) == (4, value)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("", "OffsetCommitKey: the bytes end within the version"),
        ("00", "OffsetCommitKey: the bytes end within the version"),
        ("0002 000167", "OffsetCommitKey has versions 0-1, not 2"),
        ("ffff 000167", "OffsetCommitKey has versions 0-1, not -1"),
        ("0001 000167", "OffsetCommitKey version 1: the bytes end too early"),
        ("0001 000167 000174 00000003 00", "OffsetCommitKey version 1: 1 bytes are left over"),
    ],
)
def test_broken_records_are_refused(data: str, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        codec.decode_prefixed(OffsetCommitKey, bytes.fromhex(data))


def test_a_newer_subscription_is_read_as_our_highest_version() -> None:
    subscription = ConsumerProtocolSubscription(topics=["t"], rack_id="r")
    newer = b"\x00\x07" + codec.encode_prefixed(subscription, 3)[2:] + b"something new"
    assert codec.decode_prefixed(ConsumerProtocolSubscription, newer) == (7, subscription)
    with pytest.raises(ProtocolError, match="13 bytes are left over"):
        codec.decode_prefixed(ConsumerProtocolSubscription, b"\x00\x03" + newer[2:])
    with pytest.raises(ProtocolError, match="has versions 0-3, not -1"):
        codec.decode_prefixed(ConsumerProtocolSubscription, b"\xff\xff" + newer[2:])


def test_a_version_that_does_not_exist_cannot_be_encoded_or_decoded() -> None:
    with pytest.raises(EncodeError, match="GroupMetadataKey has versions 2, not 1"):
        codec.encode(GroupMetadataKey(group="g"), 1)
    with pytest.raises(EncodeError, match="GroupMetadataKey has versions 2, not 70000"):
        codec.encode_prefixed(GroupMetadataKey(group="g"), 70_000)
    with pytest.raises(ProtocolError, match="GroupMetadataKey has versions 2, not 1"):
        codec.decode(GroupMetadataKey, 1, b"\x00\x00")


@pytest.mark.parametrize("make", [bytes, bytearray, lambda data: memoryview(bytearray(data))])
def test_any_buffer_can_be_decoded(make: type[bytes]) -> None:
    key = GroupMetadataKey(group="g")
    assert codec.decode(GroupMetadataKey, 2, make(b"\x00\x01g")) == key
    assert codec.decode_prefixed(GroupMetadataKey, make(b"\x00\x02\x00\x01g")) == (2, key)


def test_left_over_bytes_are_refused() -> None:
    with pytest.raises(ProtocolError, match="GroupMetadataKey version 2: 2 bytes are left over"):
        codec.decode(GroupMetadataKey, 2, b"\x00\x01gxx")
