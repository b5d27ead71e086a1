"""The data directory: recovery, durable appends, snapshots, and what may be removed.

Besides the logs and snapshots there is the file `lock`, which keeps a second coordinator out. Methods whose docstring
says "off the loop" run in the host's workers, one at a time.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from barnabas.coordination.embedded import log, snapshot
from barnabas.coordination.embedded.log import CorruptDataError, LogContents, LogWriter
from barnabas.coordination.embedded.sessions import StoredSession
from barnabas.coordination.embedded.snapshot import SnapshotImage, load_snapshot
from barnabas.coordination.embedded.transactions import replay
from barnabas.coordination.embedded.tree import ZnodeTree
from barnabas.coordination.errors import CoordinationError, KeeperError
from barnabas.coordination.jute import Reader
from barnabas.coordination.protocol import OpCode
from barnabas.kernel.host import Files, Host, OffloadKind

LOCK_NAME = "lock"
_READ_BYTES = 1 << 20
_SALT_BYTES = 8


class DataDirectoryLockedError(CoordinationError):
    """Another process uses the data directory."""


@dataclass(slots=True)
class Recovered:
    """The state that the data directory holds."""

    tree: ZnodeTree
    sessions: dict[int, StoredSession]
    highest_session_id: int
    replayed: int  # transactions since the snapshot


class Storage:
    """One data directory, in use by this process from `recover` to `close`."""

    def __init__(self, host: Host, directory: str, logger: logging.Logger, *, snapshots_retained: int) -> None:
        self._host = host
        self._files: Files = host.files
        self._directory = directory
        self._logger = logger
        self._snapshots_retained = snapshots_retained
        self._writer = LogWriter(host.files, directory)
        self._lock_descriptor: int | None = None
        # A batch that begins after this zxid begins a new file.
        self._roll_after_zxid: int | None = 0

    async def recover(self) -> Recovered:
        """Locks the directory and reads it; creates it when it is not there.

        Raises `DataDirectoryLockedError`, `CorruptDataError` or `OSError`.
        """
        # Of the same kind and order as `append` and `close`, so that neither begins before another has ended.
        return await self._host.offload(OffloadKind.SYNC, self._recover, order=self._directory)

    def continue_after(self, zxid: int) -> None:
        """The log goes on, in a new file, behind this transaction."""
        self._roll_after_zxid = zxid

    def append(self, records: list[bytes], first_zxid: int) -> asyncio.Future[None]:
        """Makes a batch of records durable; the future is done when it is. The next must not be started before."""
        salt = None
        if self._roll_after_zxid is not None and first_zxid > self._roll_after_zxid:
            self._roll_after_zxid = None
            salt = self._host.entropy(_SALT_BYTES)
        return self._host.offload(
            OffloadKind.SYNC, self._writer.append, records, first_zxid, salt, order=self._directory
        )

    @property
    def log_bytes(self) -> int:
        """Size of the log file in use."""
        return self._writer.file_bytes

    async def write_snapshot(self, image: SnapshotImage, durable: asyncio.Future[bool]) -> int:
        """Writes a snapshot while the loop goes on, and removes what is no longer needed; returns its size in bytes.

        The log must go on in a new file after the image's last transaction (`continue_after`). The snapshot counts only
        once `durable` says that this transaction is on the disk; a result of False gives it up, and 0 is returned.
        """
        temporary = f"{self._directory}/{snapshot.TEMPORARY_NAME}"
        order = (self._directory, "snapshot")
        try:
            return await self._write_snapshot(image, durable, temporary, order)
        except OSError:
            # On a full disk the log needs the room.
            await self._host.offload(OffloadKind.DISK, self._discard, temporary, order=order)
            raise

    async def _write_snapshot(
        self, image: SnapshotImage, durable: asyncio.Future[bool], temporary: str, order: tuple[str, str]
    ) -> int:
        descriptor = await self._host.offload(OffloadKind.DISK, self._begin_snapshot, temporary, order=order)
        written = 0
        try:
            for part in image.slices():
                await self._host.offload(OffloadKind.DISK, _write_all, self._files, descriptor, part, order=order)
                written += len(part)
            await self._host.offload(OffloadKind.SYNC, self._files.fsync, descriptor, order=order)
        finally:
            await self._host.offload(OffloadKind.DISK, self._files.close, descriptor, order=order)
        if not await durable:
            return 0
        target = f"{self._directory}/{snapshot.file_name(image.zxid)}"
        await self._host.offload(OffloadKind.SYNC, self._publish, temporary, target, order=order)
        await self._host.offload(OffloadKind.DISK, self._purge, order=order)
        return written

    async def close(self) -> None:
        await self._host.offload(OffloadKind.SYNC, self._close, order=self._directory)

    def size_bytes(self, prefix: str) -> int:
        """Bytes in files whose name begins so."""
        total = 0
        for name in self._files.list_directory(self._directory):
            if name.startswith(prefix):
                try:
                    total += self._files.status(f"{self._directory}/{name}").size_bytes
                except FileNotFoundError:
                    continue
        return total

    def _close(self) -> None:
        self._writer.close()
        if self._lock_descriptor is not None:
            self._files.close(self._lock_descriptor)
            self._lock_descriptor = None

    def _recover(self) -> Recovered:
        """Off the loop."""
        files = self._files
        self._make_directory()
        self._lock()
        names = files.list_directory(self._directory)
        if snapshot.TEMPORARY_NAME in names:
            files.unlink(f"{self._directory}/{snapshot.TEMPORARY_NAME}")
        recovered = self._load_newest_snapshot(names)
        self._replay(recovered, _zxids(names, log.FILE_PREFIX))
        files.fsync_directory(self._directory)
        return recovered

    def _make_directory(self) -> None:
        """Makes the directory, durably: each entry on the way to it that a crash could have left unsynced."""
        self._files.make_directories(self._directory)
        path = self._directory
        while (parent := os.path.dirname(path) or ".") != path and path != ".":
            try:
                self._files.fsync_directory(parent)
            except PermissionError:
                break  # a directory that we may not open is none that we have made
            path = parent

    def _lock(self) -> None:
        descriptor = self._files.open(f"{self._directory}/{LOCK_NAME}", os.O_RDWR | os.O_CREAT)
        if not self._files.lock(descriptor):
            self._files.close(descriptor)
            raise DataDirectoryLockedError(
                f"{self._directory} is in use by another coordinator; stop that one, or give this one a directory of"
                " its own"
            )
        self._lock_descriptor = descriptor

    def _load_newest_snapshot(self, names: list[str]) -> Recovered:
        failure: CorruptDataError | None = None
        for zxid in reversed(_zxids(names, snapshot.FILE_PREFIX)):
            path = f"{self._directory}/{snapshot.file_name(zxid)}"
            try:
                tree, sessions, highest_session_id = load_snapshot(path, _read_file(self._files, path))
            except CorruptDataError as error:
                self._logger.warning("%s; trying an older snapshot and the logs since", error)
                failure = error
                continue
            return Recovered(tree, {each.id: each for each in sessions}, highest_session_id, 0)
        if failure is not None and 1 not in _zxids(names, log.FILE_PREFIX):
            raise CorruptDataError(f"{failure}; no older snapshot is left: restore the data directory from a copy")
        return Recovered(ZnodeTree(), {}, 0, 0)

    def _replay(self, recovered: Recovered, starts: list[int]) -> None:
        zxid = recovered.tree.zxid
        # Files that end before the snapshot are of no interest; a file ends where the next begins.
        needed = [
            start for number, start in enumerate(starts) if number + 1 == len(starts) or starts[number + 1] > zxid + 1
        ]
        for number, start in enumerate(needed):
            path = f"{self._directory}/{log.file_name(start)}"
            contents = log.read_log(path, _read_file(self._files, path))
            last = number + 1 == len(needed)
            if not last and (contents is None or contents.torn):
                raise CorruptDataError(
                    f"{path}: ends in damaged bytes although another log file follows it; restore the data directory"
                    " from a copy"
                )
            if contents is not None:
                self._replay_file(recovered, contents)
            if last:
                self._mend_last(path, contents)

    def _replay_file(self, recovered: Recovered, contents: LogContents) -> None:
        tree = recovered.tree
        try:
            for record in contents.records():
                if record.zxid <= tree.zxid:
                    continue
                if record.zxid != tree.zxid + 1:
                    raise CorruptDataError(
                        f"{contents.path}: transaction {record.zxid:#x} comes after {tree.zxid:#x}; a log file or"
                        " snapshot is missing: restore the data directory from a copy"
                    )
                replay(tree, record.op_code, record.body, record.zxid, record.time_ms, record.session_id)
                recovered.replayed += 1
                if record.op_code == OpCode.CREATE_SESSION:
                    _replay_session(recovered, record)
                elif record.op_code == OpCode.CLOSE_SESSION:
                    recovered.sessions.pop(record.session_id, None)
        except KeeperError as error:
            raise CorruptDataError(
                f"{contents.path}: the transaction after {tree.zxid:#x} does not fit the state before it ({error});"
                " restore the data directory from a copy"
            ) from error

    def _mend_last(self, path: str, contents: LogContents | None) -> None:
        """Cuts off a torn tail, and makes durable what the page cache alone may hold after a crash of the process:
        reads are about to show it.
        """
        files = self._files
        if contents is None or not contents.batches:
            files.unlink(path)
            return
        descriptor = files.open(path, os.O_RDWR)
        try:
            if contents.torn:
                lost_bytes = len(contents.data) - contents.good_bytes
                self._logger.warning(
                    "%s: cut off %d bytes at %d, a write that did not complete and was never acknowledged",
                    path,
                    lost_bytes,
                    contents.good_bytes,
                )
                files.truncate(descriptor, contents.good_bytes)
            # If the sync of the last batch failed before, its pages may be clean in the cache although they are not on
            # the disk, and a sync alone would do nothing: they are written again.
            offset, batch = contents.last_batch()
            while batch:
                written = files.pwrite(descriptor, batch, offset)
                offset, batch = offset + written, batch[written:]
            files.fsync(descriptor)
        finally:
            files.close(descriptor)

    def _begin_snapshot(self, temporary: str) -> int:
        """Off the loop."""
        return self._files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def _discard(self, temporary: str) -> None:
        """Off the loop."""
        if self._files.exists(temporary):
            self._files.unlink(temporary)

    def _publish(self, temporary: str, target: str) -> None:
        """Off the loop."""
        self._files.rename(temporary, target)
        self._files.fsync_directory(self._directory)

    def _purge(self) -> None:
        """Removes, off the loop, snapshots beyond the newest ones, and logs that the oldest of those does not need."""
        names = self._files.list_directory(self._directory)
        snapshots = _zxids(names, snapshot.FILE_PREFIX)
        kept = snapshots[-self._snapshots_retained :]
        for zxid in snapshots[: -self._snapshots_retained]:
            self._files.unlink(f"{self._directory}/{snapshot.file_name(zxid)}")
        if len(snapshots) < self._snapshots_retained:
            return
        starts = _zxids(names, log.FILE_PREFIX)
        for start, following in pairwise(starts):
            if following <= kept[0] + 1:
                self._files.unlink(f"{self._directory}/{log.file_name(start)}")


def _replay_session(recovered: Recovered, record: log.Record) -> None:
    reader = Reader(record.body)
    timeout_ms = reader.integer()
    recovered.sessions[record.session_id] = StoredSession(record.session_id, timeout_ms, reader.buffer() or b"")
    recovered.highest_session_id = max(recovered.highest_session_id, record.session_id)


def _zxids(names: list[str], prefix: str) -> list[int]:
    """The zxids in the names of one kind of file, in order."""
    found = [log.zxid_of_name(name, prefix) for name in names]
    return sorted(zxid for zxid in found if zxid is not None)


def _read_file(files: Files, path: str) -> bytes:
    descriptor = files.open(path, os.O_RDONLY)
    try:
        return b"".join(_parts(files, descriptor))
    finally:
        files.close(descriptor)


def _parts(files: Files, descriptor: int) -> Iterator[bytes]:
    while part := files.read(descriptor, _READ_BYTES):
        yield part


def _write_all(files: Files, descriptor: int, data: bytes) -> None:
    """Off the loop."""
    view = memoryview(data)
    while view:
        view = view[files.write(descriptor, view) :]
