"""The records of `__remote_log_metadata`, against bytes that Apache Kafka 3.9.1's own classes have written."""

from __future__ import annotations

import pytest

from barnabas.kernel.ids import Uuid
from barnabas.tiered.metadata_records import decode_metadata, encode_metadata, metadata_partition
from barnabas.tiered.segment_metadata import (
    RemoteLogMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    RemotePartitionDeleteState,
    RemotePartitionDeletion,
    TopicIdPartition,
    partition_of,
)
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.topics import TopicPartition

PARTITION = TopicIdPartition(Uuid(bytes(range(16))), TopicPartition("t", 3))
ID = RemoteLogSegmentId(PARTITION, Uuid(b"x" * 16))
_PARTITION_BYTES = "000274000102030405060708090a0b0c0d0e0f0000000300"
KAFKAS: tuple[tuple[RemoteLogMetadata, str], ...] = (
    (
        RemoteLogSegmentMetadata(ID, 0, 9, 5, 1, 7, 100, {0: 0, 1: 5}),
        (
            f"010000{_PARTITION_BYTES[2:]}787878787878787878787878787878780000000000000000000000000000000009"
            "0000000100000000000000050000000000000007030000000000000000000000000000000001000000000000000500000000640000"
            "00"
        ),
    ),
    (
        RemoteLogSegmentUpdate(ID, 2, 8, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, b"\x01\x02"),
        f"010100{_PARTITION_BYTES[2:]}78787878787878787878787878787878000000000200000000000000080301020100",
    ),
    (
        RemotePartitionDeletion(PARTITION, 3, 9, RemotePartitionDeleteState.DELETE_PARTITION_STARTED),
        f"010200{_PARTITION_BYTES[2:]}0000000300000000000000090100",
    ),
)


@pytest.mark.parametrize(("metadata", "value"), KAFKAS)
def test_bytes_are_those_of_apache_kafka(metadata: RemoteLogMetadata, value: str) -> None:
    assert encode_metadata(metadata).hex() == value
    assert decode_metadata(bytes.fromhex(value)) == metadata
    assert partition_of(metadata) == PARTITION


@pytest.mark.parametrize(
    ("most", "least", "number", "expected"),
    [
        (0xBB0F1798A3773418, 0xBFC9945A02770B39, 380, 33),
        (0x7D984A5CE5B3F441, 0xBE1A4791B54B1905, 534, 9),
        (0x5A1715FFF3E147A1, 0x1EE88EE940AE7FDF, 495, 17),
        (0xB252EDFC154DE302, 0xAFCAC4E4EDC26F16, 279, 31),
        (0xA440E2651DB344E9, 0xC8E60506BDF81CB7, 718, 27),
        (0xB25830697914DD2E, 0x973295F14121C8E1, 811, 46),
        (0x61F44C359FC917B3, 0xC54C61ED9F024BA7, 535, 42),
        (0xB69539D95021AA94, 0xD7917883DDDDA85D, 234, 38),
    ],
)
def test_partitions_are_those_of_apache_kafka(most: int, least: int, number: int, expected: int) -> None:
    topic_id = Uuid(most.to_bytes(8, "big") + least.to_bytes(8, "big"))
    assert metadata_partition(TopicIdPartition(topic_id, TopicPartition("t", number)), 50) == expected


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x01",
        b"\x02\x00\x00",
        b"\x01\x03\x00",
        b"\x01\x00\x09",
        b"\x01\x00\x00\x00",
        b"\xff" * 12,
        bytes.fromhex(KAFKAS[0][1])[:-1],
        bytes.fromhex(KAFKAS[0][1]) + b"\x00",
        bytes.fromhex(KAFKAS[0][1])[:-2] + b"\x09\x00",  # a state that there is not
    ],
)
def test_what_is_no_record(value: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_metadata(value)
