"""`barnabas.coordinators.group.records`; that Apache Kafka reads them is in tests/interop."""

from __future__ import annotations

import pytest

from barnabas.coordinators.consumer_group.records import ConsumerGroupKey, RecordKind
from barnabas.coordinators.group.records import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    ValueVersions,
    group_key,
    offset_key,
    offset_value,
    read_group_value,
    read_key,
    read_offset_value,
    utf16_length,
)
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.topics import TopicPartition

COMMITTED = CommittedOffset(7, 3, "é", 1_700_000_000_000)


def test_keys_say_what_they_are_of() -> None:
    assert read_key(offset_key("g", TopicPartition("t", 2))) == OffsetKey("g", TopicPartition("t", 2))
    assert read_key(group_key("é")) == GroupKey("é")
    assert group_key("g") == b"\0\2\0\1g"
    assert read_key(b"\0\3\0\1g") == ConsumerGroupKey(RecordKind.GROUP, "g")
    assert read_key(b"\0\x09\0\1g") is None


@pytest.mark.parametrize("key", [b"", b"\0", b"\0\1", b"\0\2\0\5g", b"\0\2\0\1gg"])
def test_refuses_keys_that_are_none(key: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_key(key)


@pytest.mark.parametrize(("version", "leader_epoch"), [(2, -1), (3, 3)])
def test_offsets_come_back(version: int, leader_epoch: int) -> None:
    value = offset_value(COMMITTED, version)
    assert value[:2] == version.to_bytes(2, "big")
    assert read_offset_value(value) == COMMITTED._replace(leader_epoch=leader_epoch)


def test_an_expiration_takes_the_version_that_has_room_for_it() -> None:
    expiring = COMMITTED._replace(expire_timestamp_ms=1_800_000_000_000)
    value = offset_value(expiring, 3)
    assert value[:2] == b"\0\1"
    assert read_offset_value(value) == expiring._replace(leader_epoch=-1)


def test_refuses_values_of_unknown_versions() -> None:
    for read in (read_offset_value, read_group_value):
        with pytest.raises(ProtocolError):
            read(b"\0\x09")


@pytest.mark.parametrize(
    ("version", "offset", "group"),
    [("0.10.0", 1, 0), ("0.10.1", 1, 1), ("2.0", 1, 1), ("2.1-IV0", 2, 2), ("2.1", 3, 2), ("2.3", 3, 3), ("3.9", 3, 3)],
)
def test_values_are_written_for_the_oldest_broker(version: str, offset: int, group: int) -> None:
    assert ValueVersions.of(version) == ValueVersions(offset=offset, group=group)


def test_texts_are_as_long_as_in_java() -> None:
    assert [utf16_length(text) for text in ("", "abc", "é", "😀", "\ud83d")] == [0, 3, 1, 2, 1]
