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
from barnabas.client.errors import ClientTimeoutError, CommitFailedError
from barnabas.client.records import OffsetAndMetadata, RecordMetadata
from barnabas.wire.errors import KafkaError
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client

RUNS_MAX: Final = 10_000
"""Of a partition; of more, the earlier half is thinned: what lies there is translated to some records earlier."""
RUNS_OF_ALL: Final = 200_000
"""Of all partitions together, some 32 MB: of many partitions each has fewer, but `_RUNS_LEAST`."""
_RUNS_LEAST: Final = 20
RUNS_KEPT: Final = 100
"""Of a partition, in the file of `--state`."""
_OFFSETS_AT_ONCE: Final = 1_000
_LEFT_STATES: Final = ("Empty", "Dead")
_GROUPS_MAX: Final = 10_000
_START: Final = -2
_STARTS_MS: Final = 10_000.0
_SILENT_MAX: Final = 3
"""About so many groups brokers may not answer in time; then no other is asked about."""


class Run(NamedTuple):
    """Records that were copied without a gap: those of the source below `end` and from `begin` on, and where the first
    of them is in the target."""

    begin: int
    end: int
    target: int


class CopiedRuns:
    """The runs of one partition, in order."""

    def __init__(self, begin: int | None, runs_max: int = RUNS_MAX) -> None:
        """`begin` is where the first run of a copy began; None where others may have been copied before."""
        self._begin = begin
        self._runs_max = runs_max
        self._runs: list[Run] = []

    def add(self, source: int, target: int) -> None:
        """A record was copied; records come in the order of the source."""
        runs = self._runs
        if runs and runs[-1].end == source and runs[-1].target + source - runs[-1].begin == target:
            runs[-1] = runs[-1]._replace(end=source + 1)
            return
        if len(runs) >= self._runs_max:
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
        is_whole = len(runs) <= self._runs_max
        self._begin, self._runs = int(begin) if is_whole and begin is not None else None, runs[-self._runs_max :]

    def translate(self, offset: int) -> int | None:
        """Where the target goes on for who has read the source up to here; None where that is not known."""
        runs = self._runs
        place = bisect.bisect_right(runs, offset, key=lambda run: run.begin) - 1
        if place >= 0:
            return runs[place].target + min(offset, runs[place].end) - runs[place].begin
        # Nothing that lies before the first record is to be read, where the copy has begun with it.
        return runs[0].target if runs and self._begin is not None else None


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
        runs_max = max(_RUNS_LEAST, min(RUNS_MAX, RUNS_OF_ALL // max(1, len(begins))))
        self._runs = {partition: CopiedRuns(begin, runs_max) for partition, begin in begins.items()}
        self._begins: Mapping[TopicPartition, int] = {}
        """Of the target, where its log begins."""
        self.unknown: Sequence[str] = ()
        """The patterns that no group was called by the last time."""

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
        """Commits for the target what groups have committed for the source, as far as it was copied.

        A group that is refused is left alone, as is one about which brokers do not answer. Raises what clients raise
        where nobody says which groups there are.
        """
        async with Admin(self._source) as there, Admin(self._target) as here:
            listed = [group.group_id for group in await there.list_groups()]
            called = {pattern: _called(listed, pattern) for pattern in self._patterns}
            self.unknown = [pattern for pattern, names in called.items() if not names]
            wanted = sorted(set(itertools.chain.from_iterable(called.values())))
            self._begins = await self._find_begins(here) if wanted else {}
            moved: list[MovedGroup] = []
            silent = 0
            for number, group_id in enumerate(wanted):
                if number >= _GROUPS_MAX:
                    moved.append(MovedGroup(group_id, {}, f"at most {_GROUPS_MAX:,} groups go along"))
                elif silent >= _SILENT_MAX:
                    moved.append(MovedGroup(group_id, {}, f"brokers did not answer about {silent} others"))
                else:
                    try:
                        found = await self._move(there, here, group_id)
                    except KafkaError as error:
                        found = MovedGroup(group_id, {}, _refusal(error))
                    except ClientTimeoutError as error:
                        silent += 1
                        found = MovedGroup(group_id, {}, str(error))
                    moved += [] if found is None else [found]
        return moved

    async def _find_begins(self, here: Admin) -> dict[TopicPartition, int]:
        """Where the target's partitions begin now; nothing where brokers do not say so: then nobody is held back."""
        partitions = [TopicPartition(self._target_topic, each.partition) for each in self._runs]
        try:
            found = await here.list_offsets(dict.fromkeys(partitions, _START), _STARTS_MS)
        except (KafkaError, ClientTimeoutError):
            return {}
        return {partition: place.offset for partition, place in found.items()}

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
            # Whose place retention has taken would begin at the end, as `auto.offset.reset` is by default.
            place = max(translated, self._begins.get(target, 0))
            wanted[target] = OffsetAndMetadata(place, metadata=offset.metadata)
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
            return MovedGroup(group_id, {}, _has_members(state))
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
            left = _refusal(error)
        except CommitFailedError as error:  # they came meanwhile, or are of the consumer protocol, which is not told
            left = _has_members("UNKNOWN" if error.code is None else error.code.name)
        return MovedGroup(group_id, done, left) if done or left else None


def _called(names: Sequence[str], pattern: str) -> Sequence[str]:
    """Those that a pattern means: it may be a name that has brackets in it."""
    return [pattern] if pattern in names else fnmatch.filter(names, pattern)


def _has_members(said: str) -> str:
    return f"it has members at the target ({said})"


def _refusal(error: KafkaError) -> str:
    return f"{error.detail or error.code.message} ({error.code.name})"


def tell(moved: Sequence[MovedGroup]) -> None:
    """Says for people what became of groups."""
    for group in moved:
        name = printable(group.group)
        if group.offsets:
            say(f"Group {name}: goes on in {counted(len(group.offsets), 'partition')} of the target.")
        if group.left is not None:
            say(f"Group {name}: not moved, or not whole: {group.left}.")
