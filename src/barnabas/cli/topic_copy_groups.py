"""`barnabas topic copy --groups`: what consumer groups have committed for the source is committed for the target.

Offsets differ where the target began at another one, where the source has gaps (of compaction, of transactions' marks),
and where the copy is transactional. So the runs of records that were copied without a gap on either side are kept; an
offset within one is translated exactly, one between two becomes that behind the earlier one, where the target goes on.
As with MirrorMaker's checkpoints, a group is never moved back, and one that has members there is left alone.
"""

from __future__ import annotations

import bisect
import contextlib
import fnmatch
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from barnabas.cli.output import counted, printable, say
from barnabas.client.admin import Admin
from barnabas.client.records import OffsetAndMetadata, RecordMetadata
from barnabas.wire.errors import KafkaError
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client

RUNS_MAX: Final = 10_000
"""Of a partition; of more, the earlier half is thinned: what lies there is translated to some records earlier."""
RUNS_KEPT: Final = 100
"""Of a partition, in the file of `--state`."""
_OFFSETS_AT_ONCE: Final = 1_000
_LEFT_STATES: Final = ("Empty", "Dead")
_TOP_OF_GROUPS: Final = 10_000


class Run(NamedTuple):
    """Records that were copied without a gap: those of the source below `end` and from `begin` on, and where the first
    of them is in the target."""

    begin: int
    end: int
    target: int


class CopiedRuns:
    """The runs of one partition, in order."""

    def __init__(self, begin: int | None) -> None:
        """`begin` is where the first run of a copy began; None where others may have been copied before."""
        self._begin = begin
        self._runs: list[Run] = []

    def add(self, source: int, target: int) -> None:
        """A record was copied; records come in the order of the source."""
        runs = self._runs
        if runs and runs[-1].end == source and runs[-1].target + source - runs[-1].begin == target:
            runs[-1] = runs[-1]._replace(end=source + 1)
            return
        if len(runs) >= RUNS_MAX:
            half = len(runs) // 2
            runs[:half] = runs[:half:2]
        runs.append(Run(source, source + 1, target))

    def document(self) -> dict[str, Any]:
        """What a later run goes on from: the latest runs."""
        is_whole = len(self._runs) <= RUNS_KEPT
        return {"begin": self._begin if is_whole else None, "runs": [list(run) for run in self._runs[-RUNS_KEPT:]]}

    def read(self, document: Any) -> None:
        """Goes on from what a former run has left. Raises ValueError, TypeError, KeyError for what is no such."""
        begin, runs = document["begin"], [Run(*map(int, run)) for run in document["runs"]]
        if any(run.end <= run.begin or run.begin < 0 or run.target < 0 for run in runs) or any(
            after.begin < before.end or after.target < before.target for before, after in itertools.pairwise(runs)
        ):
            raise ValueError("runs that are not in order")
        self._begin, self._runs = None if begin is None else int(begin), runs[:RUNS_MAX]

    def translate(self, offset: int) -> int | None:
        """Where the target goes on for who has read the source up to here; None where that is not known."""
        runs = self._runs
        place = bisect.bisect_right(runs, offset, key=lambda run: run.begin) - 1
        if place >= 0:
            return runs[place].target + min(offset, runs[place].end) - runs[place].begin
        # Nothing that lies before the first record is to be read, where the copy has begun with it.
        return runs[0].target if runs and self._begin is not None and offset <= runs[0].begin else None


@dataclass(frozen=True, slots=True)
class MovedGroup:
    """What became of one group; `left` says why it was left alone, or None."""

    group: str
    offsets: Mapping[int, int]
    """By partition, what was committed for the target."""
    left: str | None = None

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        offsets = [{"partition": number, "offset": offset} for number, offset in sorted(self.offsets.items())]
        return {"group": self.group, "partitions": offsets, "left": self.left}


class CopiedGroups:
    """The groups of one copy."""

    def __init__(
        self,
        ends: tuple[Client, Client],
        topics: tuple[str, str],
        patterns: Sequence[str],
        begins: Mapping[TopicPartition, int | None],
    ) -> None:
        """Clients and topics of the source and of the target; `patterns` of names of groups, and as `CopiedRuns` has it
        where the copy of each partition has begun.
        """
        self._source, self._target = ends
        self._source_topic, self._target_topic = topics
        self._patterns = patterns
        self._runs = {partition: CopiedRuns(begin) for partition, begin in begins.items()}

    def heard(self, partition: TopicPartition, offset: int, written: RecordMetadata) -> None:
        """A record of the source was copied; where that is in the target may not be known."""
        if written.offset >= 0:
            self._runs[partition].add(offset, written.offset)

    def document(self) -> dict[str, Any]:
        """What a later run goes on from, by partition."""
        return {str(partition.partition): runs.document() for partition, runs in sorted(self._runs.items())}

    def read(self, document: Mapping[str, Any]) -> None:
        """Goes on from what a former run has left; what is no such counts as nothing."""
        for partition, runs in self._runs.items():
            with contextlib.suppress(KeyError, TypeError, ValueError):
                runs.read(document[str(partition.partition)])

    async def move(self) -> list[MovedGroup]:
        """Commits for the target what groups have committed for the source, as far as it was copied."""
        async with Admin(self._source) as there, Admin(self._target) as here:
            listed = [group.group_id for group in await there.list_groups() if self._wants(group.group_id)]
            moved = []
            for group_id in listed[:_TOP_OF_GROUPS]:
                found = await self._move(there, here, group_id)
                if found is not None:
                    moved.append(found)
        return moved

    def _wants(self, group_id: str) -> bool:
        return any(fnmatch.fnmatchcase(group_id, pattern) for pattern in self._patterns)

    async def _move(self, there: Admin, here: Admin, group_id: str) -> MovedGroup | None:
        """None for a group that has nothing to do with the source, or is where it should be."""
        committed = await there.list_group_offsets(group_id, list(self._runs))
        wanted: dict[TopicPartition, OffsetAndMetadata] = {}
        unknown = []
        for partition, offset in committed.items():
            if partition not in self._runs or offset.offset < 0:
                continue
            translated = self._runs[partition].translate(offset.offset)
            if translated is None:
                unknown.append(partition.partition)
                continue
            target = TopicPartition(self._target_topic, partition.partition)
            wanted[target] = OffsetAndMetadata(translated, metadata=offset.metadata)
        left = None
        if unknown:
            left = f"this run has copied nothing from where it is in partitions {', '.join(map(str, sorted(unknown)))}"
        if not wanted:
            return None if left is None else MovedGroup(group_id, {}, left)
        return await self._commit(here, group_id, wanted, left)

    async def _commit(
        self, here: Admin, group_id: str, wanted: Mapping[TopicPartition, OffsetAndMetadata], left: str | None
    ) -> MovedGroup | None:
        state = (await here.describe_group(group_id)).state
        if state not in _LEFT_STATES:
            return MovedGroup(group_id, {}, f"it has members at the target ({state})")
        present = await here.list_group_offsets(group_id, list(wanted))
        ahead = {
            each: offset
            for each, offset in wanted.items()
            if each not in present or present[each].offset < offset.offset
        }
        done: dict[int, int] = {}
        items = list(ahead.items())
        try:
            for start in range(0, len(items), _OFFSETS_AT_ONCE):
                some = dict(items[start : start + _OFFSETS_AT_ONCE])
                await here.alter_group_offsets(group_id, some)
                done |= {each.partition: offset.offset for each, offset in some.items()}
        except KafkaError as error:
            left = error.detail or f"{error.code.message} ({error.code.name})"
        return MovedGroup(group_id, done, left) if done or left else None


def tell(moved: Sequence[MovedGroup]) -> None:
    """Says for people what became of groups."""
    for group in moved:
        name = printable(group.group)
        if group.offsets:
            say(f"Group {name}: goes on in {counted(len(group.offsets), 'partition')} of the target.")
        if group.left is not None:
            say(f"Group {name}: not moved, or not whole: {group.left}.")
