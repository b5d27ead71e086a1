"""What a crash in the middle of a deletion or of a compaction has left in a partition directory; as Kafka treats it.

- `.deleted`: given up; goes.
- `.cleaned`: what the cleaner was writing; worthless, goes.
- `.swap`: whole segments that replace others. They take their places, and what they replace goes; but not while a
  `.cleaned` file of the same replacement is there, which was then not complete (KAFKA-6264). An index without its log
  goes: nobody can say whether that has taken its place already, where the index is built again, or never did.
"""

from __future__ import annotations

import logging
import os

from barnabas.kernel.host import Files
from barnabas.log.directories.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    SegmentFileName,
    parse_segment_file,
)
from barnabas.log.segments.batch_scan import scan_batches

_TEMPORARY_SUFFIX = ".tmp"


def remove_leftovers(files: Files, directory: str, logger: logging.Logger) -> list[str]:
    """Brings the directory in order; returns the names that are there then. Belongs off the loop. Raises OSError."""
    names = files.list_directory(directory)
    if all(name.rpartition(".")[2] not in _ENDINGS for name in names):
        return names
    swaps: dict[str, SegmentFileName] = {}
    least_cleaned: int | None = None
    for name in names:
        parsed = parse_segment_file(name)
        if parsed is not None and parsed.state_suffix == SWAP_SUFFIX:
            swaps[name] = parsed
        elif name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, _TEMPORARY_SUFFIX)):
            if parsed is not None and parsed.state_suffix == CLEANED_SUFFIX:
                least_cleaned = parsed.offset if least_cleaned is None else min(least_cleaned, parsed.offset)
            logger.info("Deleting %s/%s, which a crash has left", directory, name)
            files.unlink(f"{directory}/{name}")
    if least_cleaned is not None:
        for name, parsed in list(swaps.items()):
            if parsed.offset >= least_cleaned:
                logger.info("Deleting %s/%s, of a replacement that was not complete", directory, name)
                files.unlink(f"{directory}/{name}")
                del swaps[name]
    bases = {parsed.offset for parsed in swaps.values() if parsed.suffix == LOG_SUFFIX}
    for name, parsed in list(swaps.items()):
        if parsed.offset not in bases:
            logger.info("Deleting %s/%s, whose log file is not there", directory, name)
            files.unlink(f"{directory}/{name}")
            del swaps[name]
    if swaps:
        _complete(files, directory, swaps, logger)
    files.fsync_directory(directory)
    return files.list_directory(directory)


_ENDINGS = frozenset(suffix[1:] for suffix in (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, _TEMPORARY_SUFFIX))


def _complete(files: Files, directory: str, swaps: dict[str, SegmentFileName], logger: logging.Logger) -> None:
    """Puts the replacements into their places, in an order that a further crash does not harm: what they replace goes
    first, and until the last of them has its name the range is computed again in the same way.
    """
    logs = [(name, parsed) for name, parsed in swaps.items() if parsed.suffix == LOG_SUFFIX]
    if logs:
        start = min(parsed.offset for _, parsed in logs)
        end = max(_next_offset(files, f"{directory}/{name}", parsed.offset) for name, parsed in logs)
        for name in files.list_directory(directory):
            found = parse_segment_file(name)
            if (
                found is not None
                and not found.state_suffix
                and found.suffix != PRODUCER_SNAPSHOT_SUFFIX
                and start <= found.offset < end
            ):
                logger.info("Deleting %s/%s, which was replaced", directory, name)
                files.unlink(f"{directory}/{name}")
        files.fsync_directory(directory)  # else some of them may be back when the replacement has its name
    # The log file last: while it has its old name, the others are put into their places again.
    for name in sorted(swaps, key=lambda each: swaps[each].suffix == LOG_SUFFIX):
        logger.info("Putting %s/%s into its place", directory, name)
        files.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP_SUFFIX)}")


def _next_offset(files: Files, path: str, base_offset: int) -> int:
    descriptor = files.open(path, os.O_RDONLY)
    try:
        end = base_offset
        for _, batch in scan_batches(files, descriptor, 0, files.size(descriptor)):
            end = batch.last_offset + 1
        return end
    finally:
        files.close(descriptor)
