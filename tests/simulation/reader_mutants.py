"""Faults put into our own client, one at a time: the simulation of readers has to find each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from barnabas.client.batches import PartitionQueue
from barnabas.client.consumer import Consumer
from barnabas.client.fetcher import Fetcher
from barnabas.client.group_member import GroupMember
from barnabas.client.positions import PartitionState
from barnabas.wire.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class ReaderMutant:
    """A fault."""

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]
    likely_seed: int = 1
    """Which has found it before, and is tried first: one run instead of many, as long as it does."""


def commit_what_was_just_given(patch: pytest.MonkeyPatch) -> None:
    """A rebalance goes on whenever a poll has begun, also beside or after it, and commits whatever was returned.

    Three faults together; `tests/unit/client/test_mutants` has each of them alone.
    """
    revoked = Consumer.revoked

    async def users_turn(self: GroupMember) -> None:
        await self.turn.wait()

    async def revoke(self: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
        vars(self)["_processed"] = self._read_positions
        try:
            await revoked(self, partitions)
        finally:
            del vars(self)["_processed"]

    patch.setattr(GroupMember, "keeps_records_back", property(lambda _self: False))
    patch.setattr(GroupMember, "users_turn", users_turn)
    patch.setattr(Consumer, "revoked", revoke)


def commit_what_failed(patch: pytest.MonkeyPatch) -> None:
    """Leaving the context by an error is leaving it."""

    async def leave(self: Consumer, *_error: object) -> None:
        await self.close(has_processed=True)

    patch.setattr(Consumer, "__aexit__", leave)


def commit_what_was_interrupted(patch: pytest.MonkeyPatch) -> None:
    """Closing says that everything is processed, whoever calls it and whatever the worker was at."""
    close = Consumer.close

    async def close_in_order(self: Consumer, timeout_ms: float = 30_000, *, has_processed: bool = True) -> None:
        await close(self, timeout_ms, has_processed=has_processed)

    patch.setattr(Consumer, "close", close_in_order)


def take_what_was_on_its_way(patch: pytest.MonkeyPatch) -> None:
    """An answer to a fetch is taken whatever has become of the position since."""

    def take_response(self: Fetcher, node: Any, _asked: Any, response: Any, topic_names: dict[bytes, str]) -> None:
        for topic in response.responses:
            name = topic.topic or topic_names.get(bytes(topic.topic_id), "")
            for answer in topic.partitions:
                state = self._positions.get(TopicPartition(name, answer.partition_index))
                if state is not None:
                    self._take_partition(node, state, answer)

    patch.setattr(Fetcher, "_take_response", take_response)


def give_what_was_buffered(patch: pytest.MonkeyPatch) -> None:
    """Seeking voids nothing that was fetched before."""
    seek = PartitionState.seek

    def seek_quietly(self: PartitionState, position: Any) -> None:
        generation = self.generation
        seek(self, position)
        self.generation = generation

    patch.setattr(PartitionState, "seek", seek_quietly)


def commit_beside_each_other(patch: pytest.MonkeyPatch) -> None:
    """An automatic commit goes on, and is repeated, while one by hand is made."""

    async def commit(self: Consumer, offsets: Any, timeout_ms: float | None = None) -> None:
        membership = self._membership()
        await self._commit_in_turn(lambda: (offsets, membership), timeout_ms)

    async def commit_in_turn(self: Consumer, what: Any, timeout_ms: float | None = None) -> None:
        offsets, membership = what()
        if self._coordinator is not None and offsets:
            await self._coordinator.commit(offsets, membership, timeout_ms)

    patch.setattr(Consumer, "_commit", commit)
    patch.setattr(Consumer, "_commit_in_turn", commit_in_turn)


def give_what_is_paused(patch: pytest.MonkeyPatch) -> None:
    """Records that were fetched before a pause are given nevertheless."""
    take = Fetcher.take

    def take_all(self: Fetcher, count: int) -> Any:
        paused = [state for state in self._positions if state.is_paused]
        for state in paused:
            state.is_paused = False
        try:
            return take(self, count)
        finally:
            for state in paused:
                state.is_paused = True

    patch.setattr(Fetcher, "take", take_all)


def overtake_what_is_sent_again(patch: pytest.MonkeyPatch) -> None:
    """Without idempotence, too, five batches of a partition are on their way."""
    begin = PartitionQueue.__init__

    def begin_with_many(self: PartitionQueue, partition: Any, settings: Any) -> None:
        begin(self, partition, settings)
        self._in_flight_max = settings.in_flight_max

    patch.setattr(PartitionQueue, "__init__", begin_with_many)


READER_MUTANTS = (
    ReaderMutant("a rebalance commits what was just given", commit_what_was_just_given),
    ReaderMutant("leaving by an error commits what failed", commit_what_failed, likely_seed=7),
    ReaderMutant("closing commits what was interrupted", commit_what_was_interrupted),
    ReaderMutant("an answer on its way outlives a seek", take_what_was_on_its_way),
    ReaderMutant("buffered records outlive a seek", give_what_was_buffered),
    ReaderMutant("an automatic commit undoes one by hand", commit_beside_each_other, likely_seed=8),
    ReaderMutant("a batch overtakes another that is sent again", overtake_what_is_sent_again),
    ReaderMutant("a pause holds back nothing that was fetched", give_what_is_paused),
)
