"""How cleaned segments take the places of those that they were made of, as in Apache Kafka: `.cleaned` -> `.swap` ->
`.log`.

Invariants: whatever a loss of power undoes, the log has every record that the cleaner has kept. Until the `.swap` names
are durable nothing that is replaced is touched; from then on recovery completes the replacement, until it is durable
that all is gone that was replaced. No `.swap` can come back behind a truncation, which waits for the end of this: it
would put what was cut off into the place of what was written since.
"""

from __future__ import annotations

from barnabas.kernel.host import Files, OffloadKind
from barnabas.log.directories.deletions import remove
from barnabas.log.directories.names import CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX
from barnabas.log.partition.background_work import BackgroundWork
from barnabas.log.partition.local_log import LocalLog
from barnabas.log.partition.log_services import LogServices
from barnabas.log.partition.log_state import LogState
from barnabas.log.segments.named_segment import add_suffix, rename_files
from barnabas.log.segments.segment import Segment, SegmentConfig


class SegmentReplacement:
    """The part of a `PartitionLog` that takes over what the cleaner has written."""

    __slots__ = ("_local_log", "_services", "_state", "_work")

    def __init__(self, services: LogServices, state: LogState, work: BackgroundWork, local_log: LocalLog) -> None:
        self._services = services
        self._state = state
        self._work = work
        self._local_log = local_log

    async def replace(self, replaced: list[Segment], truncations: int) -> bool:
        """As `PartitionLog.replace_segments`."""
        state, files = self._state, self._services.host.files
        base_offset = replaced[0].base_offset
        cleaned = await self._work.offload_disk(
            _load_cleaned, files, state.directory, base_offset, state.segment_config, self._services.time_ms()
        )
        if not self._may_replace(replaced, truncations):
            cleaned.let_go()
            return False
        ended = state.replacement_ended = self._services.host.loop.create_future()
        try:
            return await self._put_in_place(cleaned, replaced, truncations)
        finally:
            state.replacement_ended = None
            ended.set_result(None)

    async def _put_in_place(self, cleaned: Segment, replaced: list[Segment], truncations: int) -> bool:
        state = self._state
        files = state.log_directory.loop_files
        cleaned.use_files(files)
        rename_files(files, cleaned, CLEANED_SUFFIX, SWAP_SUFFIX)
        await self._sync_names()
        if not self._may_replace(replaced, truncations):
            cleaned.let_go()
            if not state.is_closed:
                paths = [part.path for part in (cleaned, cleaned.offset_index, cleaned.time_index)]
                remove(files, [*paths, cleaned.transaction_index.path])
                await self._sync_names()
            return False
        # One turn of the loop: nobody finds a file by a name that is another's.
        self._local_log.give_up(replaced, has_successor=True)
        for segment in replaced:
            add_suffix(segment, DELETED_SUFFIX)
        cleaned.rest()
        state.segments.replace(replaced, cleaned)
        await self._sync_names()
        if state.is_closed or not state.segments.holds([cleaned]):
            return False
        rename_files(files, cleaned, SWAP_SUFFIX, "")
        await self._sync_names()
        return True

    async def _sync_names(self) -> None:
        directory = self._state.directory
        await self._services.offload(
            *(OffloadKind.SYNC, self._services.host.files.fsync_directory, directory),
            directory=self._state.log_directory,
            order=directory,
        )

    def _may_replace(self, replaced: list[Segment], truncations: int) -> bool:
        state = self._state
        return not (
            state.is_closed or state.is_truncating or state.coming_truncations or state.truncations != truncations
        ) and state.segments.holds(replaced)


def _load_cleaned(files: Files, directory: str, base_offset: int, config: SegmentConfig, created_ms: int) -> Segment:
    segment = Segment(files, directory, base_offset, config, created_ms=created_ms)
    add_suffix(segment, CLEANED_SUFFIX)
    segment.load()
    return segment
