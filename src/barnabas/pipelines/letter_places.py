"""Which records may have a letter already, by where they stand: for one source, and all queries that read it.

Each query writes letters of what it leaves out itself, since queries may be apart when a schema, or what a registry
knows, changes: what one has left out another may find to fit, or the other way round. So that a record has one letter
all the same, the first that comes writes it, and the others ask here: of a part that this run has written there is
nothing to do; of one that some query has read before, nobody can tell without looking into the topic of the letters.

INVARIANT: a record of which a letter was written lies in a part that `since_ms` knows. That a part is known wrongly
costs a look, never a letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

Parts = Mapping[int, tuple[int, int]]
"""Of each partition the first offset of a part, and the one behind its last; no part is empty."""

PARTS_MAX: Final = 64
"""How many parts are told apart by their time; the oldest are taken together."""
DONE_MAX: Final = 1_000
"""How many stretches of a partition are known to be done; the lowest are forgotten, and looked up."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """Letters of this part may be in the topic, none of them older."""

    since_ms: int
    parts: Parts

    def touches(self, parts: Parts) -> bool:
        return any(
            number in self.parts and start < self.parts[number][1] and self.parts[number][0] < end
            for number, (start, end) in parts.items()
        )

    def with_later(self, other: _Begun) -> _Begun:
        parts = dict(self.parts)
        for number, (start, end) in other.parts.items():
            mine = parts.get(number, (start, end))
            parts[number] = (min(start, mine[0]), max(end, mine[1]))
        return _Begun(min(self.since_ms, other.since_ms), parts)


class LetterPlaces:
    """What is known of the letters of one source; for one thread at a time."""

    def __init__(self, read_before: Parts | None = None, since_ms: int = 0) -> None:
        """`read_before` is what runs before this one have begun to read, of any query, and `since_ms` the time (of
        the wall, in milliseconds since 1970) before which they have written no letter.
        """
        self._begun = [_Begun(since_ms, dict(read_before))] if read_before else []
        self._done: dict[int, list[tuple[int, int]]] = {}

    def rest(self, parts: Parts) -> Parts:
        """Without what begins or ends a part and has its letters by this run."""
        found: dict[int, tuple[int, int]] = {}
        for number, (start, end) in parts.items():
            done = self._done.get(number, [])
            for first, beyond in done:
                if first <= start < beyond:
                    start = beyond
            for first, beyond in reversed(done):
                if first < end <= beyond:
                    end = first
            if start < end:
                found[number] = (start, end)
        return found

    def since_ms(self, parts: Parts) -> int | None:
        """Since when records of these parts may have letters; None where none has one."""
        return min((each.since_ms for each in self._begun if each.touches(parts)), default=None)

    def begin(self, parts: Parts, now_ms: int) -> None:
        """Letters of the parts are about to be written."""
        self._begun.append(_Begun(now_ms, dict(parts)))
        if len(self._begun) > PARTS_MAX:
            self._begun[:2] = [self._begun[0].with_later(self._begun[1])]

    def done(self, parts: Parts) -> None:
        """The letters of the parts are in the topic, by what fits in this run."""
        for number, part in parts.items():
            merged: list[tuple[int, int]] = []
            for start, end in sorted([*self._done.get(number, []), part]):
                if merged and start <= merged[-1][1]:
                    merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
                else:
                    merged.append((start, end))
            self._done[number] = merged[-DONE_MAX:]
