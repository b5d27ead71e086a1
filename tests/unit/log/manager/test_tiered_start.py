"""Where a log starts that is tiered, by the checkpoints and the segments that a start finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.real_files import RealFiles
from barnabas.log.directories.checkpoints import EpochEntry, write_epochs
from barnabas.log.directories.names import LEADER_EPOCH_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT
from barnabas.log.partition.log_config import LogConfig
from barnabas.wire.record_batch import assign_offset_and_epoch
from barnabas.wire.records import LOG_OVERHEAD_BYTES
from tests.unit.log.log_batches import batch
from tests.unit.log.log_broker import LogBroker, log_settings

TIERED = LogConfig(remote_storage_enable=True, segment_bytes=700)
SETTINGS = log_settings(remote_storage_system_enable=True)
WithBroker = Callable[..., Any]


async def write(broker: LogBroker) -> None:
    """Offsets 10 to 39, of epochs 0 and, from 30 on, 2; what came before is in remote storage, say."""
    log = broker.log()
    await log.truncate_fully_and_start_at(10)
    for start in range(10, 40, 5):
        data = bytearray(batch(start, [1000] * 5, b"value" * 15).data)
        assign_offset_and_epoch(data, 0, start, len(data) - LOG_OVERHEAD_BYTES, 2 if start >= 30 else 0)
        log.append_as_follower(data)
    await broker.written(log)


async def start_and_epochs(broker: LogBroker) -> tuple[int, int, tuple[EpochEntry, ...]]:
    log = broker.log()
    return log.log_start_offset, log.segments.first.base_offset, log.leader_epochs.entries


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "crash"])
@pytest.mark.parametrize(
    ("epochs", "start_offset", "found"),
    [
        ([(0, 4), (2, 30)], 4, [(0, 4), (2, 30)]),
        ([(0, 1), (2, 30)], 2, [(0, 2), (2, 30)]),
        ([(0, 10), (2, 30)], 10, [(0, 10), (2, 30)]),
        ([(0, 12), (2, 30)], 10, [(0, 10), (2, 30)]),
        ([(2, 30)], 10, [(0, 10), (2, 30)]),
        ([(3, 40)], 10, [(0, 10), (2, 30)]),
    ],
    ids=[
        "newer",
        "older",
        "of the first segment",
        "newer, in the first segment",
        "one lost",
        "all lost, and a new one",
    ],
)
def test_a_tiered_log_keeps_what_it_has(
    with_broker: WithBroker,
    tmp_path: Path,
    epochs: list[tuple[int, int]],
    start_offset: int,
    found: list[tuple[int, int]],
    *,
    is_clean: bool,
) -> None:
    """The checkpoint of its start says 2."""
    with_broker(write, config=TIERED, settings=SETTINGS)
    directory = tmp_path / "logs-0"
    (directory / LOG_START_OFFSET_CHECKPOINT).write_text("0\n1\nflights 0 2\n")
    entries = [EpochEntry(*each) for each in epochs]
    write_epochs(RealFiles(), str(directory / "flights-0" / LEADER_EPOCH_CHECKPOINT), entries)
    for _ in range(2):
        start, base, known = with_broker(start_and_epochs, config=TIERED, settings=SETTINGS, is_clean=is_clean)
        assert (start, base) == (start_offset, 10)
        assert list(known) == found
