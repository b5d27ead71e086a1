"""The segments of one log, in the order of their offsets; the last one, the active, takes the appends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from barnabas.log.segments.segment import Segment


class LogSegments:
    """A sorted list that always has an active segment once it is filled."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        """Takes at least one segment, in order. Raises ValueError otherwise."""
        self._segments = list(segments)
        self._base_offsets = [segment.base_offset for segment in self._segments]
        if not self._segments or any(
            later <= earlier for earlier, later in zip(self._base_offsets, self._base_offsets[1:], strict=False)
        ):
            raise ValueError(f"a log has at least one segment, and each begins once: {self._base_offsets}")
        self.active = self._segments[-1]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        """As they are now: the list may change meanwhile."""
        return iter(tuple(self._segments))

    @property
    def first(self) -> Segment:
        return self._segments[0]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    def add(self, segment: Segment) -> None:
        """Makes a later segment the active one. Raises ValueError for one that is not later."""
        if segment.base_offset <= self.active.base_offset:
            raise ValueError(f"segment {segment.base_offset} cannot follow {self.active.base_offset}")
        self._segments.append(segment)
        self._base_offsets.append(segment.base_offset)
        self.active = segment

    def replace_all(self, segment: Segment) -> None:
        """Leaves this segment alone."""
        self._segments = [segment]
        self._base_offsets = [segment.base_offset]
        self.active = segment

    def holds(self, segments: list[Segment]) -> bool:
        """Whether these are in the list, side by side, and none of them is the active one."""
        number = bisect_right(self._base_offsets, segments[0].base_offset) - 1
        return number >= 0 and self._segments[number:-1][: len(segments)] == segments

    def replace(self, replaced: list[Segment], segment: Segment) -> None:
        """Puts one in the place of several that it `holds`, with the base offset of the first."""
        number = bisect_right(self._base_offsets, segment.base_offset) - 1
        self._segments[number : number + len(replaced)] = [segment]
        self._base_offsets[number : number + len(replaced)] = [segment.base_offset]

    def remove_first(self, count: int) -> list[Segment]:
        """Takes out the oldest. Raises ValueError where none would be left."""
        if count >= len(self._segments):
            raise ValueError("the active segment stays")
        removed, self._segments = self._segments[:count], self._segments[count:]
        del self._base_offsets[:count]
        return removed

    def remove_from(self, offset: int) -> list[Segment]:
        """Takes out those that begin at `offset` or later, except the first of all."""
        count = max(1, bisect_right(self._base_offsets, offset - 1))
        removed = self._segments[count:]
        del self._segments[count:], self._base_offsets[count:]
        self.active = self._segments[-1]
        return removed

    def floor(self, offset: int) -> Segment:
        """The last segment that begins at `offset` or before; the first where none does."""
        active = self.active
        if offset >= active.base_offset:
            return active
        return self._segments[max(0, bisect_right(self._base_offsets, offset) - 1)]

    def from_offset(self, offset: int) -> list[Segment]:
        """The segments from `floor(offset)` on."""
        return self._segments[max(0, bisect_right(self._base_offsets, offset) - 1) :]

    def after(self, segment: Segment) -> Segment | None:
        """The one that follows; None for the active one."""
        number = bisect_right(self._base_offsets, segment.base_offset)
        return self._segments[number] if number < len(self._segments) else None
