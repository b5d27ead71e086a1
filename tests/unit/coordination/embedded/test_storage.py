"""Recovery: whatever the last write left behind is cut off, whatever was durable is there or is missed loudly."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.coordination.embedded import log, snapshot
from barnabas.coordination.embedded.access import OPEN
from barnabas.coordination.embedded.log import CorruptDataError, LogWriter, pack_record, read_log
from barnabas.coordination.embedded.sessions import StoredSession
from barnabas.coordination.embedded.snapshot import SnapshotImage, load_snapshot
from barnabas.coordination.embedded.storage import DataDirectoryLockedError, Recovered, Storage
from barnabas.coordination.embedded.tree import ZnodeTree
from barnabas.coordination.jute import pack_buffer, pack_int, pack_string
from barnabas.coordination.protocol import OpCode
from barnabas.kernel.real_files import RealFiles
from barnabas.kernel.real_host import real_host

SALT = b"saltsalt"
BATCHES = 4
LOGGER = logging.getLogger("test.coordinator")


def creation(path: str, data: bytes = b"data") -> bytes:
    return pack_string(path) + pack_buffer(data) + OPEN + pack_int(0)


def records_of(batch: int) -> list[bytes]:
    """Two transactions: the znodes with the numbers of their zxids."""
    first = 2 * batch + 1
    return [pack_record(zxid, 5, 7, OpCode.CREATE, creation(f"/n{zxid}")) for zxid in (first, first + 1)]


def write_log(directory: Path, batches: int = BATCHES) -> Path:
    writer = LogWriter(RealFiles(), str(directory))
    for batch in range(batches):
        writer.append(records_of(batch), 2 * batch + 1, SALT if batch == 0 else None)
    writer.close()
    return directory / log.file_name(1)


def recover(directory: Path, snapshots_retained: int = 3) -> Recovered:
    async def run() -> Recovered:
        async with real_host("test", asyncio.get_running_loop()) as host:
            storage = Storage(host, str(directory), LOGGER, snapshots_retained=snapshots_retained)
            try:
                return await storage.recover()
            finally:
                await storage.close()

    return asyncio.run(run())


def batch_ends(data: bytes) -> list[int]:
    contents = read_log("log", data)
    assert contents is not None
    return [log.FILE_HEADER_BYTES, *(end for _, end, _ in contents.batches)]


def test_a_log_cut_at_any_byte_recovers_its_whole_batches(tmp_path: Path) -> None:
    data = write_log(tmp_path).read_bytes()
    ends = batch_ends(data)
    for size in range(len(data) + 1):
        contents = read_log("log", data[:size])
        if size < log.FILE_HEADER_BYTES:
            assert contents is None
            continue
        assert contents is not None
        whole = sum(end <= size for end in ends) - 1
        assert len(contents.batches) == whole
        assert contents.torn == (size not in ends)
        assert [record.zxid for record in contents.records()] == list(range(1, 2 * whole + 1))


def test_any_changed_byte_is_found(tmp_path: Path) -> None:
    data = write_log(tmp_path).read_bytes()
    ends = batch_ends(data)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x41
        if position < ends[-2]:
            with pytest.raises(CorruptDataError):
                read_log("log", bytes(changed))
        else:
            # In the last batch it cannot be told from a write that did not complete.
            contents = read_log("log", bytes(changed))
            assert contents is not None
            assert contents.torn
            assert len(contents.batches) == BATCHES - 1


def test_data_of_a_client_cannot_pass_for_a_batch(tmp_path: Path) -> None:
    forged = write_log(tmp_path).read_bytes()[log.FILE_HEADER_BYTES :]
    other = tmp_path / "other"
    other.mkdir()
    writer = LogWriter(RealFiles(), str(other))
    writer.append([pack_record(1, 5, 7, OpCode.CREATE, creation("/forged", forged))], 1, b"another!")
    writer.close()
    data = (other / log.file_name(1)).read_bytes()
    contents = read_log("log", data[:-1])
    assert contents is not None
    assert contents.batches == ()


@pytest.mark.parametrize("lost", [1, 7, 30])
def test_a_torn_tail_is_cut_off_with_a_word(tmp_path: Path, lost: int, caplog: pytest.LogCaptureFixture) -> None:
    path = write_log(tmp_path)
    data = path.read_bytes()
    os.truncate(path, len(data) - lost)
    recovered = recover(tmp_path)
    assert recovered.tree.zxid == 2 * BATCHES - 2
    assert "never acknowledged" in caplog.text
    assert path.stat().st_size == batch_ends(data)[-2]
    assert recover(tmp_path).tree.zxid == 2 * BATCHES - 2


def test_the_last_batch_is_written_again_as_its_sync_may_have_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_log(tmp_path)
    before = path.read_bytes()
    calls: list[tuple[str, int, int]] = []

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        calls.append(("pwrite", offset, len(data)))
        return os.pwrite(descriptor, data[:10], offset)

    def fsync(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == path.stat().st_ino:
            calls.append(("fsync", 0, 0))

    monkeypatch.setattr(RealFiles, "pwrite", staticmethod(pwrite))
    monkeypatch.setattr(RealFiles, "fsync", staticmethod(fsync))
    recover(tmp_path)
    *_, start, end = batch_ends(before)
    assert calls[0] == ("pwrite", start, end - start)
    assert [name for name, _, _ in calls] == ["pwrite"] * -(-(end - start) // 10) + ["fsync"]
    assert path.read_bytes() == before


def test_a_snapshot_that_fails_leaves_no_file_that_fills_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with real_host("test", asyncio.get_running_loop()) as host:
            storage = Storage(host, str(tmp_path), LOGGER, snapshots_retained=2)
            recovered = await storage.recover()

            def full(_descriptor: int, _data: object) -> int:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            monkeypatch.setattr(RealFiles, "write", staticmethod(full))
            durable: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            with pytest.raises(OSError, match="No space"):
                await storage.write_snapshot(SnapshotImage(recovered.tree, [], 0), durable)
            await storage.close()

    asyncio.run(run())
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_damaged_middle_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = write_log(tmp_path)
    data = bytearray(path.read_bytes())
    data[batch_ends(bytes(data))[1] + 40] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptDataError, match=r"Restore the data directory|cut the file to"):
        recover(tmp_path)


def test_a_missing_log_file_is_refused(tmp_path: Path) -> None:
    writer = LogWriter(RealFiles(), str(tmp_path))
    writer.append(records_of(1), 3, SALT)
    writer.close()
    with pytest.raises(CorruptDataError, match="missing"):
        recover(tmp_path)


def test_damage_at_the_end_of_an_older_file_is_refused(tmp_path: Path) -> None:
    path = write_log(tmp_path, 1)
    writer = LogWriter(RealFiles(), str(tmp_path))
    writer.append(records_of(1), 3, SALT)
    writer.close()
    assert recover(tmp_path).tree.zxid == 4
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(CorruptDataError, match="another log file follows"):
        recover(tmp_path)


@pytest.mark.parametrize("contents", [b"", b"BNB", b"\0" * 33, b"\xff" * 33])
def test_a_file_that_died_in_its_header_is_removed(tmp_path: Path, contents: bytes) -> None:
    write_log(tmp_path, 1)
    torn = tmp_path / log.file_name(3)
    torn.write_bytes(contents)
    assert recover(tmp_path).tree.zxid == 2
    assert not torn.exists()


def test_transactions_that_do_not_fit_the_tree_are_refused(tmp_path: Path) -> None:
    writer = LogWriter(RealFiles(), str(tmp_path))
    writer.append([pack_record(1, 5, 7, OpCode.CREATE, creation("/none/x"))], 1, SALT)
    writer.close()
    with pytest.raises(CorruptDataError, match="does not fit"):
        recover(tmp_path)


def test_a_log_of_another_version_says_so(tmp_path: Path) -> None:
    import zlib

    path = write_log(tmp_path, 1)
    data = bytearray(path.read_bytes())
    data[8:12] = (99).to_bytes(4, "big")
    data[28:32] = zlib.crc32(data[:28]).to_bytes(4, "big")
    path.write_bytes(data)
    with pytest.raises(CorruptDataError, match="version 99"):
        recover(tmp_path)


def grown_tree() -> ZnodeTree:
    tree = ZnodeTree()
    for number in range(3000):
        tree.zxid += 1
        acl = OPEN if number % 3 else pack_int(1) + pack_int(number % 7) + pack_string("world") + pack_string("anyone")
        parent = f"/n{(number - 1) // 2}" if number % 2 and number > 2 else ""
        data = None if number % 5 == 0 else b"x" * (number % 9)
        tree.create(f"{parent}/n{number}", data, acl, tree.zxid, number) if not parent or parent in tree.nodes else None
    tree.create("/e", b"", OPEN, tree.zxid, 5, owner=99)
    tree.create("/box", b"", OPEN, tree.zxid, 5, container=True)
    tree.create("/brief", b"", OPEN, tree.zxid, 5, ttl_ms=777)
    tree.changes.clear()
    return tree


def test_a_snapshot_holds_everything() -> None:
    tree = grown_tree()
    sessions = [StoredSession(99, 4000, bytes(range(16)))]
    loaded, loaded_sessions, highest = load_snapshot("snapshot", b"".join(SnapshotImage(tree, sessions, 1234).slices()))
    assert loaded.nodes == tree.nodes
    assert (loaded.zxid, loaded.data_bytes) == (tree.zxid, tree.data_bytes)
    assert (loaded.ephemerals, loaded.containers, loaded.ttls_ms) == (tree.ephemerals, tree.containers, tree.ttls_ms)
    assert (loaded_sessions, highest) == (sessions, 1234)


def test_a_snapshot_is_of_the_moment_it_was_begun() -> None:
    tree = grown_tree()
    before = dict(tree.nodes)
    slices: Iterator[bytes] = SnapshotImage(tree, [], 0).slices()
    parts = [next(slices)]
    for path in list(tree.nodes)[5:500]:
        tree.set_data(path, b"later", tree.zxid + 1, 1)
    tree.create("/later", b"", OPEN, tree.zxid + 1, 1)
    tree.delete("/box", tree.zxid + 1)
    loaded, _, _ = load_snapshot("snapshot", b"".join([*parts, *slices]))
    assert {path: node[:3] for path, node in loaded.nodes.items()} == {path: node[:3] for path, node in before.items()}


def test_any_changed_or_missing_byte_of_a_snapshot_is_found() -> None:
    tree = ZnodeTree()
    tree.zxid = 1
    tree.create("/a", b"data", OPEN, 1, 1)
    data = b"".join(SnapshotImage(tree, [StoredSession(1, 2, bytes(16))], 0).slices())
    for size in range(len(data)):
        with pytest.raises(CorruptDataError):
            load_snapshot("snapshot", data[:size])
    for position in range(28, len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x10
        with pytest.raises(CorruptDataError):
            load_snapshot("snapshot", bytes(changed))


def test_a_damaged_snapshot_is_passed_over_for_an_older_state(tmp_path: Path) -> None:
    write_log(tmp_path)
    (tmp_path / snapshot.file_name(6)).write_bytes(b"damaged")
    assert recover(tmp_path).tree.zxid == 2 * BATCHES


def test_a_damaged_snapshot_without_logs_is_refused(tmp_path: Path) -> None:
    (tmp_path / snapshot.file_name(6)).write_bytes(b"damaged")
    with pytest.raises(CorruptDataError, match="restore the data directory"):
        recover(tmp_path)


def test_snapshots_let_old_logs_go(tmp_path: Path) -> None:
    async def run() -> None:
        async with real_host("test", asyncio.get_running_loop()) as host:
            storage = Storage(host, str(tmp_path), LOGGER, snapshots_retained=2)
            recovered = await storage.recover()
            tree = recovered.tree
            for batch in range(5):
                storage.continue_after(tree.zxid)
                for zxid in (2 * batch + 1, 2 * batch + 2):
                    tree.zxid = zxid
                    tree.create(f"/n{zxid}", b"data", OPEN, zxid, 5)
                await storage.append(records_of(batch), 2 * batch + 1)
                durable: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
                durable.set_result(True)
                await storage.write_snapshot(SnapshotImage(tree, [], 0), durable)
            await storage.close()

    asyncio.run(run())
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["lock", log.file_name(9), snapshot.file_name(8), snapshot.file_name(10)]
    assert recover(tmp_path, 2).tree.zxid == 10
    (tmp_path / snapshot.file_name(10)).unlink()
    assert recover(tmp_path, 2).tree.zxid == 10


def test_the_directory_has_one_owner(tmp_path: Path) -> None:
    async def run() -> None:
        async with real_host("test", asyncio.get_running_loop()) as host:
            first = Storage(host, str(tmp_path), LOGGER, snapshots_retained=2)
            await first.recover()
            second = Storage(host, str(tmp_path), LOGGER, snapshots_retained=2)
            with pytest.raises(DataDirectoryLockedError, match="in use by another coordinator"):
                await second.recover()
            await second.close()
            await first.close()
            await second.recover()
            await second.close()

    asyncio.run(run())
