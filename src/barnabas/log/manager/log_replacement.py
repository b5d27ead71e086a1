"""A future log takes the place of the current one (KIP-113), so that a crash at any step loses nothing acknowledged.

1. The copy is made durable, and then, durably, a marker in it that points at the log directory of the current log.
2. What has come to the current log since is copied too.
3. In one turn of the loop, when both have the same records: the new directory gets the name of a current log and the
   old one that of a deleted log, and everybody finds the new log from then on.
4. Both names are made durable. Until that of the new one is, nothing that is appended counts as written; so a start
   that finds only some of this has everything acknowledged, whichever directory it takes (`interrupted_moves`).
5. The old log's offsets go out of its log directory's checkpoints, and the marker goes.

Where the new directory fails before its name is durable, the old one gets its name back: it has all that counts.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping

from barnabas.kernel.host import Files, OffloadKind
from barnabas.log.directories.directory_files import remove_replacement_marker, write_replacement_marker
from barnabas.log.directories.log_directory import LogDirectory
from barnabas.log.directories.names import partition_directory_name
from barnabas.log.partition.log_services import LogServices
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.wire.topics import TopicPartition


async def prepare_replacement(
    services: LogServices,
    current: PartitionLog,
    future: PartitionLog,
    write_checkpoints: Callable[[LogDirectory], Awaitable[None]],
) -> None:
    """Step 1. Raises KafkaError when the future log's disk fails."""
    await current.wait_arrived()  # its own marker is needed until then
    await future.make_ready()
    # From now on the log starts where its directory's checkpoint says.
    await write_checkpoints(future.log_directory)
    for log, mark in ((current, _unmark), (future, _mark)):
        try:
            await services.offload(
                *(OffloadKind.SYNC, mark, services.host.files, log.directory, current.log_directory.path),
                directory=log.log_directory,
            )
        except OSError as error:
            if not log.is_closed:  # else its directory has another name by now
                log.log_directory.fail(error)
    future.check_online()


def is_replaceable(current: PartitionLog, future: PartitionLog) -> bool:
    """Whether step 3 may be done in this turn.

    Invariants: the future log ends and starts where the current one does, and nothing was cut off and put in anew there
    since it was compared; what is durable of the current log is durable of the future one, which has nothing under way
    that knows its directory by name, as the current one has; and nobody waits for an append to the current log.
    """
    return (
        current.is_quiet
        and not current.written.is_queued
        and not current.background_work()
        and future.is_settled
        and not current.was_truncated
        and future.log_end_offset == current.log_end_offset
        and future.log_start_offset == current.log_start_offset
        and future.recovery_point >= current.recovery_point
        and current.topic_id in (None, future.topic_id)
    )


async def complete_replacement(
    services: LogServices,
    future: PartitionLog,
    old: LogDirectory,
    old_path: str,
    durable: asyncio.Future[None],
    forget_old: Callable[[], Awaitable[None]],
    logs: Mapping[TopicPartition, PartitionLog],
    kept: set[TopicPartition],
) -> None:
    """Steps 4 and 5; the old log's files go in `file.delete.delay.ms` after that. Whatever happens, `durable` is done
    when it ends. `forget_old` takes the old log's offsets out of the checkpoints. `kept` is told where the old log gets
    its name back, which nobody in `logs` may have by then."""
    files = services.host.files
    is_durable = False
    try:
        path = future.log_directory.path
        await services.offload(
            OffloadKind.SYNC, files.fsync_directory, path, directory=future.log_directory, order=path
        )
        is_durable = True
    except OSError as error:
        future.log_directory.fail(error)
    finally:
        if not durable.done():
            durable.set_result(None)
    if not is_durable:
        name = partition_directory_name(future.partition)
        is_deleted = future.directory != f"{future.log_directory.path}/{name}"
        if not (old.is_offline or is_deleted) and logs.get(future.partition, future) is future:
            kept.add(future.partition)
            await _give_back(services, old, old_path, f"{old.path}/{name}")
        return
    if old.is_offline:
        return  # the marker stays: that disk may be back at the next start
    try:
        await services.offload(OffloadKind.SYNC, files.fsync_directory, old.path, directory=old, order=old.path)
    except OSError as error:
        old.fail(error)
        return
    await forget_old()
    services.deletions.delete_directory(old_path, future.config.file_delete_delay_ms, old.fail)
    try:
        await services.offload(
            OffloadKind.SYNC, remove_replacement_marker, files, future.directory, directory=future.log_directory
        )
    except FileNotFoundError:
        pass  # the log was deleted meanwhile
    except OSError as error:
        future.log_directory.fail(error)


async def _give_back(services: LogServices, old: LogDirectory, path: str, former: str) -> None:
    """Has the old log's directory called as it was; this process does not open it again."""
    try:
        await services.offload(
            *(OffloadKind.SYNC, _rename, services.host.files, path, former), directory=old, order=old.path
        )
    except OSError as error:
        old.fail(error)
        return
    services.deletions.directory_moved(path, former)
    services.logger.warning("%s is kept: what was to take its place has failed. The next start finds it", former)


def _rename(files: Files, path: str, former: str) -> None:
    files.rename(path, former)
    files.fsync_directory(os.path.dirname(former))


def _mark(files: Files, directory: str, log_directory: str) -> None:
    write_replacement_marker(files, directory, log_directory)


def _unmark(files: Files, directory: str, _: str) -> None:
    """A marker that an earlier replacement has left would point at the log directory that this one goes to."""
    remove_replacement_marker(files, directory)
