"""What a recovery makes of the gaps in a compacted log, and of the holes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.log.directories.names import CLEANER_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from barnabas.log.partition.log_config import LogConfig
from tests.unit.log.log_batches import batch
from tests.unit.log.log_broker import LogBroker, log_settings

CONFIG = LogConfig(cleanup_policy=("compact",), segment_bytes=700)
WithBroker = Callable[..., Any]
GAPS = (0, 40, 90, 95, 2000, 5000)
"""Where batches of five records begin, of which each gets a segment."""


def follow(*starts: int) -> Callable[[LogBroker], Any]:
    async def main(broker: LogBroker) -> list[tuple[int, int]]:
        log = broker.log()
        for start in starts:
            log.append_as_follower(batch(start, [1000] * 5, b"value" * 15).data)
        await broker.written(log)
        return await segments(broker)

    return main


async def segments(broker: LogBroker) -> list[tuple[int, int]]:
    return [(segment.base_offset, segment.next_offset) for segment in broker.log().segments]


def test_a_follower_leaves_no_gap_between_segments(with_broker: WithBroker) -> None:
    far = GAPS[-1] + (1 << 31) + 5
    found = with_broker(follow(*GAPS, far), config=CONFIG)
    assert found == [(0, 5), (5, 45), (45, 95), (95, 100), (100, 2005), (2005, 5005), (far, far + 5)], (
        "only what is more than an index can hold"
    )


def test_the_gaps_of_a_follower_survive_a_crash(with_broker: WithBroker) -> None:
    written = with_broker(follow(*GAPS), config=CONFIG, is_clean=False)
    assert with_broker(segments, config=CONFIG, is_clean=False) == written


def checkpoint(directory: Path, name: str, offset: int | None) -> None:
    lines = ["0", "0"] if offset is None else ["0", "1", f"flights 0 {offset}"]
    (directory / name).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("recovery_point", "cleaner_offset", "end_offset"),
    [(0, None, 5), (12, None, 15), (0, 10, 15), (20, None, 25), (None, None, 25)],
    ids=["all-is-new", "synced-before", "compacted", "synced-behind", "brought-here"],
)
def test_a_hole_ends_a_compacted_log_where_nobody_has_compacted(
    with_broker: WithBroker, tmp_path: Path, recovery_point: int | None, cleaner_offset: int | None, end_offset: int
) -> None:
    """Segments 5 to 9 and 15 to 19 are gone, as a loss of power takes what was not synced."""
    with_broker(follow(0, 5, 10, 15, 20), config=CONFIG, is_clean=False)
    directory = tmp_path / "logs-0"
    for gone in (5, 15):
        (directory / "flights-0" / f"{gone:020d}.log").unlink()
    checkpoint(directory, RECOVERY_POINT_CHECKPOINT, recovery_point)
    checkpoint(directory, CLEANER_CHECKPOINT, cleaner_offset)
    assert with_broker(segments, config=CONFIG, is_clean=False)[-1][1] == end_offset


@pytest.mark.parametrize(
    ("cleaner_offset", "expected"),
    [(20, [(0, 5), (10, 15), (20, 25)]), (10, [(20, 25)]), (None, [(20, 25)])],
    ids=["compacted", "compacted-in-part", "never"],
)
def test_a_tiered_log_that_was_compacted_before_keeps_what_is_before_its_gaps(
    with_broker: WithBroker, tmp_path: Path, cleaner_offset: int | None, expected: list[tuple[int, int]]
) -> None:
    """Nothing of it is in remote storage yet. Another gap below the recovery point is one of local retention."""
    with_broker(follow(0, 5, 10, 15, 20), config=CONFIG, is_clean=False)
    directory = tmp_path / "logs-0"
    for gone in (5, 15):
        (directory / "flights-0" / f"{gone:020d}.log").unlink()
    checkpoint(directory, RECOVERY_POINT_CHECKPOINT, 25)
    checkpoint(directory, CLEANER_CHECKPOINT, cleaner_offset)
    tiered = LogConfig(remote_storage_enable=True, segment_bytes=700)
    settings = log_settings(remote_storage_system_enable=True)
    assert with_broker(segments, config=tiered, settings=settings, is_clean=False) == expected
