"""The names in a log directory, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.log.directories.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    DirectoryKind,
    PartitionDirectory,
    SegmentFileName,
    marked_directory_name,
    parse_partition_directory,
    parse_segment_file,
    partition_directory_name,
    segment_file_name,
)
from barnabas.wire.topics import TopicPartition

UNIQUE_ID = "0123456789abcdef0123456789abcdef"
topics = st.text("abzAZ019._-", min_size=1, max_size=200)
partitions = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1))
marked_kinds = st.sampled_from([DirectoryKind.DELETE, DirectoryKind.FUTURE, DirectoryKind.STRAY])


@given(partitions)
def test_a_partition_directory_is_read_back(partition: TopicPartition) -> None:
    assert parse_partition_directory(partition_directory_name(partition)) == PartitionDirectory(partition)


@given(partitions, marked_kinds)
def test_a_marked_directory_is_read_back(partition: TopicPartition, kind: DirectoryKind) -> None:
    name = marked_directory_name(partition, kind, UNIQUE_ID)
    assert parse_partition_directory(name) == PartitionDirectory(partition, kind)


def test_the_longest_topic_still_makes_a_directory_name() -> None:
    name = marked_directory_name(TopicPartition("t" * 249, 12), DirectoryKind.DELETE, UNIQUE_ID)
    assert len(name) == 255
    assert name.endswith(f"-12.{UNIQUE_ID}-delete")


@pytest.mark.parametrize("name", ["topic", "-1", "topic-", "topic-x", "topic-1_0", "topic-2147483648", "topic-٣", ""])
def test_other_directories_are_none_of_ours(name: str) -> None:
    assert parse_partition_directory(name) is None


@pytest.mark.parametrize(
    ("kind", "unique_id"), [(DirectoryKind.CURRENT, UNIQUE_ID), (DirectoryKind.DELETE, "../" + "0" * 29)]
)
def test_refuses_what_is_no_mark(kind: DirectoryKind, unique_id: str) -> None:
    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        marked_directory_name(TopicPartition("t", 0), kind, unique_id)


@given(
    st.integers(0, 2**63 - 1),
    st.sampled_from(
        [LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, PRODUCER_SNAPSHOT_SUFFIX]
    ),
    st.sampled_from(["", DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX]),
)
def test_a_segment_file_is_read_back(offset: int, suffix: str, state: str) -> None:
    name = segment_file_name(offset, suffix) + state
    assert parse_segment_file(name) == SegmentFileName(offset, suffix, state)


def test_names_are_those_of_kafka() -> None:
    assert segment_file_name(42, LOG_SUFFIX) == "00000000000000000042.log"
    assert partition_directory_name(TopicPartition("a-b", 3)) == "a-b-3"


@pytest.mark.parametrize(
    "name",
    [
        "leader-epoch-checkpoint",
        "42.log",
        "00000000000000000042",
        "99999999999999999999.log",
        "0000000000000000004x.log",
    ],
)
def test_other_files_belong_to_no_segment(name: str) -> None:
    assert parse_segment_file(name) is None
