"""The files of a whole log directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from barnabas.kernel.ids import Uuid
from barnabas.kernel.real_files import RealFiles
from barnabas.log.directories.directory_files import (
    CorruptDirectoryFileError,
    LogDirectoryLockedError,
    MetaProperties,
    lock_directory,
    read_meta_properties,
    read_partition_metadata,
    take_clean_shutdown,
    write_clean_shutdown,
    write_meta_properties,
    write_partition_metadata,
)
from barnabas.wire.sentinels import NO_EPOCH

FILES = RealFiles()
ID = Uuid(bytes(range(16)))


@pytest.mark.parametrize(
    "properties", [MetaProperties(7, "cluster", ID), MetaProperties(0, "c"), MetaProperties(None, None)]
)
def test_meta_properties_are_read_back(tmp_path: Path, properties: MetaProperties) -> None:
    assert read_meta_properties(FILES, str(tmp_path)) is None
    write_meta_properties(FILES, str(tmp_path), properties)
    assert read_meta_properties(FILES, str(tmp_path)) == properties


@pytest.mark.parametrize(
    "text", ["version=1\nnode.id=1\n", "broker.id=1\n", "version=0\nbroker.id=x\n", "version=0\ndirectory.id=x\n", "=1"]
)
def test_refuses_other_meta_properties(tmp_path: Path, text: str) -> None:
    (tmp_path / "meta.properties").write_text(text)
    with pytest.raises(CorruptDirectoryFileError, match=r"meta\.properties"):
        read_meta_properties(FILES, str(tmp_path))


def test_a_clean_shutdown_counts_once(tmp_path: Path) -> None:
    write_clean_shutdown(FILES, str(tmp_path), 25)
    assert json.loads((tmp_path / ".kafka_cleanshutdown").read_text()) == {"version": 0, "brokerEpoch": 25}
    assert take_clean_shutdown(FILES, str(tmp_path)) == 25
    assert take_clean_shutdown(FILES, str(tmp_path)) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version":0}', '{"brokerEpoch":true}', '{"brokerEpoch":"1"}'])
def test_a_clean_shutdown_without_epoch_is_clean_still(tmp_path: Path, text: str) -> None:
    (tmp_path / ".kafka_cleanshutdown").write_text(text)
    assert take_clean_shutdown(FILES, str(tmp_path)) == NO_EPOCH
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_directory_has_one_user(tmp_path: Path) -> None:
    descriptor = lock_directory(FILES, str(tmp_path))
    with pytest.raises(LogDirectoryLockedError, match="in use by another broker"):
        lock_directory(FILES, str(tmp_path))
    FILES.close(descriptor)
    FILES.close(lock_directory(FILES, str(tmp_path)))


def test_the_topic_id_is_read_back(tmp_path: Path) -> None:
    assert read_partition_metadata(FILES, str(tmp_path)) is None
    write_partition_metadata(FILES, str(tmp_path), ID)
    assert (tmp_path / "partition.metadata").read_text() == f"version: 0\ntopic_id: {ID}"
    assert read_partition_metadata(FILES, str(tmp_path)) == ID


@pytest.mark.parametrize("text", ["", "version: 1\ntopic_id: x", "version: 0", "version: 0\ntopic_id: " + "A" * 22])
def test_refuses_other_partition_metadata(tmp_path: Path, text: str) -> None:
    (tmp_path / "partition.metadata").write_text(text)
    with pytest.raises(CorruptDirectoryFileError, match=r"partition\.metadata"):
        read_partition_metadata(FILES, str(tmp_path))


def test_refuses_a_file_without_end(tmp_path: Path) -> None:
    (tmp_path / "partition.metadata").write_text("x" * 100_000)
    with pytest.raises(CorruptDirectoryFileError, match="more than 65536 bytes"):
        read_partition_metadata(FILES, str(tmp_path))
