"""Finds the positions that a consumer lacks: committed ones, those of timestamps, and those that a new leader knows."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.client.errors import LogTruncationError, NoOffsetError
from barnabas.client.positions import Position, PositionState
from barnabas.client.records import OffsetAndMetadata
from barnabas.client.retrying import is_retriable
from barnabas.client.settings import IsolationLevel, OffsetReset
from barnabas.wire.sentinels import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, NO_EPOCH
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.group_coordinator import GroupCoordinator
    from barnabas.client.offset_lookup import OffsetLookup
    from barnabas.client.positions import PartitionState, Positions
    from barnabas.client.settings import ConsumerSettings

_TIMESTAMPS: Final = {OffsetReset.EARLIEST: EARLIEST_TIMESTAMP, OffsetReset.LATEST: LATEST_TIMESTAMP}
_UNFINISHED: Final = (PositionState.UNKNOWN, PositionState.RESETTING, PositionState.VALIDATING)


class PositionFinder:
    """One round at a time in the background, repeated with pauses until every position is known."""

    def __init__(
        self,
        client: Client,
        positions: Positions,
        lookup: OffsetLookup,
        coordinator: GroupCoordinator | None,
        settings: ConsumerSettings,
        on_news: Callable[[], object],
    ) -> None:
        self._client = client
        self._positions = positions
        self._lookup = lookup
        self._coordinator = coordinator
        self._settings = settings
        self._on_news = on_news
        self._task: asyncio.Task[None] | None = None
        self._refused: dict[TopicPartition, int] = {}
        self.errors: list[Exception] = []
        """What the user has to decide; each once per partition and position."""

    def find(self) -> None:
        """Begins a round, if there is anything to find and none is on its way."""
        if self._task is None and any(state.state in _UNFINISHED for state in self._positions):
            self._task = self._client.host.loop.create_task(self._run(), name="consumer finds its positions")

    def out_of_range(self, partitions: dict[TopicPartition, int]) -> None:
        """These positions are in no log: takes them out of the dict, and resets or reports each."""
        refused: dict[PartitionState, str] = {}
        while partitions:
            partition, offset = partitions.popitem()
            state = self._positions.get(partition)
            if state is None or state.state is not PositionState.FETCHING or state.position.offset != offset:
                continue
            timestamp_ms = _TIMESTAMPS.get(self._settings.offset_reset)
            if timestamp_ms is not None:
                self._client.logger.warning("Offset %d of %s is out of range; it is reset", offset, partition)
                state.reset(timestamp_ms)
            else:
                refused[state] = f"offset {offset} is out of range"
                state.retry_at = math.inf
        self._refuse(refused)

    async def close(self) -> None:
        """Ends a round that is on its way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        backoff = self._client.backoff()
        try:
            while any(state.state in _UNFINISHED for state in self._positions):
                found = await self._round()
                if self.errors:
                    return
                if found:
                    backoff.reset()
                    self._on_news()
                else:
                    await self._client.timers.sleep(backoff.next_ms())
                self._positions.follow(self._client.cluster)
        except Exception as error:  # noqa: BLE001 - a coordinator that refuses: the user's to hear
            self.errors.append(error)
        finally:
            self._task = None
            self._on_news()

    async def _round(self) -> bool:
        """Looks once for everything that is missing; True if something was found."""
        by_state: dict[PositionState, list[PartitionState]] = {}
        for state in self._positions:
            by_state.setdefault(state.state, []).append(state)
        found = False
        if by_state.get(PositionState.UNKNOWN):
            found |= await self._find_committed(by_state[PositionState.UNKNOWN])
        if by_state.get(PositionState.RESETTING):
            found |= await self._find_offsets(by_state[PositionState.RESETTING])
        if by_state.get(PositionState.VALIDATING):
            found |= await self._validate(by_state[PositionState.VALIDATING])
        return found

    async def _find_committed(self, states: list[PartitionState]) -> bool:
        asked = {state.partition: state.generation for state in states}
        committed: Mapping[TopicPartition, OffsetAndMetadata] = {}
        if self._coordinator is not None:
            is_committed = self._settings.isolation is IsolationLevel.READ_COMMITTED
            committed = await self._coordinator.committed(asked, require_stable=is_committed)
        found = False
        refused: dict[PartitionState, str] = {}
        for state in states:
            if self._positions.get(state.partition) is not state or state.generation != asked[state.partition]:
                continue
            place = committed.get(state.partition)
            timestamp_ms = _TIMESTAMPS.get(self._settings.offset_reset)
            found = found or place is not None or timestamp_ms is not None
            if place is not None:
                state.seek(Position(place.offset, place.leader_epoch))
            elif timestamp_ms is not None:
                state.reset(timestamp_ms)
            else:
                refused[state] = "nothing is committed"
        self._refuse(refused)
        return found

    async def _find_offsets(self, states: list[PartitionState]) -> bool:
        asked = {state.partition: (state.generation, state.reset_timestamp_ms) for state in states}
        self._client.metadata.use(*{partition.topic for partition in asked})
        answers = await self._lookup.offsets({partition: time_ms for partition, (_, time_ms) in asked.items()})
        for state in states:
            place = answers.found.get(state.partition)
            if place is None or state.generation != asked[state.partition][0]:
                continue
            # Of a reset, no record was read: there is no epoch to hold against a later leader's log.
            state.seek(Position(place.offset, NO_EPOCH, self._client.cluster.leader_epoch(state.partition)))
        self._report(answers.failed)
        return bool(answers.found)

    async def _validate(self, states: list[PartitionState]) -> bool:
        asked = {state.partition: state.position for state in states}
        answers = await self._lookup.epoch_ends({partition: at.offset_epoch for partition, at in asked.items()})
        diverging: dict[TopicPartition, OffsetAndMetadata] = {}
        for state in states:
            end = answers.found.get(state.partition)
            at = asked[state.partition]
            if end is None or state.position != at or state.state is not PositionState.VALIDATING:
                continue
            if end.offset < 0 or end.leader_epoch < 0:
                # The leader remembers nothing so old (KIP-320): there is nothing to hold the position against.
                state.validated()
            elif end.offset < at.offset or (end.leader_epoch < at.offset_epoch and end.offset <= at.offset):
                diverging[state.partition] = OffsetAndMetadata(min(end.offset, at.offset), end.leader_epoch)
            else:
                state.validated()
        if diverging:
            self._truncated(diverging)
        self._report(answers.failed)
        return bool(answers.found)

    def _truncated(self, diverging: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Goes on where the logs part; without a reset policy, tells the user."""
        for partition, place in diverging.items():
            state = self._positions.get(partition)
            if state is None:
                continue
            self._client.logger.warning(
                "The log of %s was truncated: read up to %d, but its history differs from offset %d on",
                partition,
                state.position.offset,
                place.offset,
            )
            leader_epoch = state.position.leader_epoch
            state.truncated(Position(place.offset, place.leader_epoch, leader_epoch))
        if self._settings.offset_reset is OffsetReset.NONE:
            self.errors.append(LogTruncationError(diverging))

    def _refuse(self, reasons: Mapping[PartitionState, str]) -> None:
        """The user has to say where to go on; told once for each state of a partition."""
        new = {
            state.partition: reason
            for state, reason in reasons.items()
            if self._refused.get(state.partition) != state.generation
        }
        if new:
            self._refused |= {state.partition: state.generation for state in reasons}
            self.errors.append(NoOffsetError(new))

    def _report(self, failed: Mapping[TopicPartition, Exception]) -> None:
        for error in dict.fromkeys(error for error in failed.values() if not is_retriable(error)):
            self.errors.append(error)
