"""The files of a segment under names with an ending: what the cleaner writes, and what takes the place of others."""

from __future__ import annotations

from barnabas.kernel.host import Files
from barnabas.log.segments.segment import Segment


def add_suffix(segment: Segment, suffix: str) -> None:
    """Has the segment know its files by names with the ending. The descriptors stay as they are."""
    segment.path += suffix
    for index in (segment.offset_index, segment.time_index, segment.transaction_index):
        index.path += suffix


def rename_files(files: Files, segment: Segment, before: str, after: str) -> None:
    """Gives the files another ending, the one with the batches last. Raises OSError."""
    for part in (segment.transaction_index, segment.time_index, segment.offset_index, segment):
        path = part.path.removesuffix(before) + after
        files.rename(part.path, path)
        part.path = path
