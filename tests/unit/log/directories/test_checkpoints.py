"""Offset and leader epoch checkpoints: the text, what is refused, and replacing them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.kernel.real_files import RealFiles
from barnabas.log.directories.checkpoints import (
    CorruptCheckpointError,
    EpochEntry,
    format_epochs,
    format_offsets,
    parse_epochs,
    parse_offsets,
    read_epochs,
    read_offsets,
    write_epochs,
    write_offsets,
)
from barnabas.wire.topics import TopicPartition

offsets_of_partitions = st.dictionaries(
    st.builds(TopicPartition, st.text("abzAZ019._-", min_size=1, max_size=20), st.integers(0, 2**31 - 1)),
    st.integers(-(2**63), 2**63 - 1),
)
epoch_entries = st.lists(st.builds(EpochEntry, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)))


@given(offsets_of_partitions)
def test_offsets_are_read_back(offsets: dict[TopicPartition, int]) -> None:
    assert parse_offsets(format_offsets(offsets), "file") == offsets


@given(epoch_entries)
def test_epochs_are_read_back(entries: list[EpochEntry]) -> None:
    assert parse_epochs(format_epochs(entries), "file") == entries


@given(offsets_of_partitions.filter(bool), st.data())
def test_a_file_cut_anywhere_is_corrupt_or_complete(offsets: dict[TopicPartition, int], data: st.DataObject) -> None:
    # The last line may lose its end of line; digits of the last offset are then all there still.
    text = format_offsets(offsets)
    length = data.draw(st.integers(1, text.rindex(b" ")))
    with pytest.raises(CorruptCheckpointError):
        parse_offsets(text[:length], "file")


def test_the_text_is_that_of_kafka() -> None:
    assert format_offsets({TopicPartition("flights", 3): 42}) == b"0\n1\nflights 3 42\n"
    assert format_epochs([EpochEntry(0, 0), EpochEntry(2, 17)]) == b"0\n2\n0 0\n2 17\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\n", "version ''"),
        (b"1\n0\n", "only version 0"),
        (b"0\n", "how many entries"),
        (b"0\nx\n", "how many entries"),
        (b"0\n-1\n", "how many entries"),
        (b"0\n2\nt 0 1\n", "claims 2 entries and has 1"),
        (b"0\n1\nt 0\n", "line 3"),
        (b"0\n1\nt 0 1_0\n", "line 3"),
        (b"0\n1\nt 0 9223372036854775808\n", "line 3"),
        (b"\xff\n", "not text"),
    ],
)
def test_says_what_is_wrong_with_a_file(text: bytes, message: str) -> None:
    with pytest.raises(CorruptCheckpointError, match=message):
        parse_offsets(text, "file")


def test_an_empty_file_has_no_entries() -> None:
    """As Apache Kafka makes it, before it has anything to write."""
    assert parse_offsets(b"", "file") == {}


def test_writes_replace_the_file(tmp_path: Path) -> None:
    files = RealFiles()
    path = str(tmp_path / "checkpoint")
    assert read_offsets(files, path) == {}
    assert read_epochs(files, path) == []
    write_offsets(files, path, {TopicPartition("t", 0): 1, TopicPartition("t", 1): 2})
    write_offsets(files, path, {TopicPartition("t", 0): 5})
    assert read_offsets(files, path) == {TopicPartition("t", 0): 5}
    write_epochs(files, path, [EpochEntry(4, 10)])
    assert read_epochs(files, path) == [EpochEntry(4, 10)]
    assert files.list_directory(str(tmp_path)) == ["checkpoint"]
