"""Which segments become one."""

from __future__ import annotations

from barnabas.log.cleaner.plan import GROUP_SEGMENTS_MAX, SegmentFacts, group_segments

COUNT = 10_000


def test_very_many_small_segments_become_one_in_several_cleanings() -> None:
    """No turn of the loop replaces them all; each cleaning makes a hundredth of them."""
    segments = [SegmentFacts(number, 10, 0, number + 1, 0) for number in range(COUNT)]
    cleanings = 0
    while len(segments) > 1:
        cleanings += 1
        groups = group_segments(segments, size_bytes_max=1 << 30, index_bytes_max=1 << 20, offsets_max=(1 << 31) - 1)
        assert max(map(len, groups)) <= GROUP_SEGMENTS_MAX
        assert [each for group in groups for each in group] == segments
        segments = [SegmentFacts(group[0].base_offset, 10, 0, group[-1].end_offset, 0) for group in groups]
    assert cleanings == 2
