"""What the child process does that copies a segment: it writes every object of it, the log last, and ends.

When it ends with status 0 all of them are there, and durable. Whatever else happens, the copy counts for nothing, since
nobody says COPY_SEGMENT_FINISHED: what it has left is deleted by the segment's id.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Final

from barnabas.kernel.host import Files
from barnabas.log.producers.batch_headers import marker_in
from barnabas.log.producers.producer_snapshot import (
    CorruptSnapshotError,
    ProducerSnapshotEntry,
    format_snapshot,
    parse_snapshot,
)
from barnabas.log.producers.producer_state import ProducerState
from barnabas.log.segments.batch_scan import scan_batches
from barnabas.tiered.storage import open_store, put_file, read_local
from barnabas.wire.record_batch import RecordBatch

ENTRY: Final = "barnabas.tiered.copying:copy_segment"


@dataclass(frozen=True, slots=True)
class CopyWork:
    """One segment, and where its objects go."""

    url: str
    options: str
    log_path: str
    log_bytes: int
    log_name: str
    others: tuple[tuple[str, str, bool], ...]
    """Path, name, and whether it must be there, of each index; one that need not is written empty, so that an object
    that is missing is one that was lost."""
    epochs_name: str
    epochs: str
    """The text of a leader epoch checkpoint."""
    snapshot_path: str
    """The snapshot of producers at the segment's end, which may be missing after a crash."""
    former_snapshots: tuple[tuple[str, int], ...]
    """Path and offset of the last ones before, the latest first; a crash may have taken or torn any."""
    replayed: tuple[tuple[str, int], ...]
    """Path and size of the segments from the oldest of these on, to the segment itself."""
    is_all_replayed: bool
    """These are all that there are locally: so no snapshot is needed."""
    snapshot_name: str
    expiration_ms: int
    transaction_timeout_max_ms: int
    now_ms: int

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> CopyWork:
        fields = json.loads(data)
        for name in ("others", "former_snapshots", "replayed"):
            fields[name] = tuple(tuple(each) for each in fields[name])
        return cls(**fields)


def copy_segment(files: Files, argument: bytes) -> int:
    """The entry of the child process."""
    perform_copy(files, CopyWork.decode(argument))
    return 0


def perform_copy(files: Files, work: CopyWork) -> None:
    """Writes the objects. Raises OSError, and whatever the storage raises."""
    store = open_store(files, work.url, work.options)
    for path, name, is_needed in work.others:
        if is_needed or files.exists(path):
            put_file(store, name, files, path)
        else:
            store.put(name, [])
    if _read_snapshot(files, work.snapshot_path) is not None:
        put_file(store, work.snapshot_name, files, work.snapshot_path)
    else:
        store.put(work.snapshot_name, [_made_snapshot(files, work)])
    store.put(work.epochs_name, [work.epochs.encode()])
    put_file(store, work.log_name, files, work.log_path, work.log_bytes)


def _read_snapshot(files: Files, path: str) -> list[ProducerSnapshotEntry] | None:
    """None where a crash has taken or torn it."""
    try:
        return parse_snapshot(read_local(files, path))
    except (FileNotFoundError, CorruptSnapshotError):
        return None


def _made_snapshot(files: Files, work: CopyWork) -> bytes:
    """The producers at the segment's end, from the last snapshot that there is. Raises CorruptSnapshotError where there
    is none, and not everything before is at hand: of a transaction that nobody knows nobody would know that it is
    open."""
    state = ProducerState(work.expiration_ms, work.transaction_timeout_max_ms)
    from_offset = 0
    for path, offset in work.former_snapshots:
        entries = _read_snapshot(files, path)
        if entries is not None:
            state.load(entries, offset, work.now_ms)
            from_offset = offset
            break
    else:
        if not work.is_all_replayed:
            raise CorruptSnapshotError(f"no snapshot of producers before {work.log_path} can be read")

    for path, size_bytes in work.replayed:
        descriptor = files.open(path, os.O_RDONLY)
        try:
            for _, batch in scan_batches(files, descriptor, 0, size_bytes):
                if isinstance(batch, RecordBatch) and batch.last_offset >= from_offset:
                    state.replay(batch.header, marker_in(batch))
        finally:
            files.close(descriptor)
    return format_snapshot(state.snapshot())
