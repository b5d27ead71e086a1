"""What a fetcher has to do before it can fetch a partition: cut the log off where it parts from the leader's, or find
out where to go on when the leader has nothing at our offset."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.follower.fetcher_partitions import FetchedPartition, FetcherPartitions, FetchPhase
from barnabas.follower.follower_requests import (
    LeaderOffset,
    epoch_ends,
    epoch_request,
    leader_offsets,
    offsets_request,
)
from barnabas.follower.truncation import Truncation, truncation
from barnabas.kernel.turns import yield_to_loop
from barnabas.log.partition.leader_epochs import EpochEnd
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.sentinels import EARLIEST_LOCAL_TIMESTAMP, EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, NO_EPOCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.follower.fetcher_context import FetcherContext
    from barnabas.follower.ports import AuxiliaryState, LeaderConnection, RemoteStates
    from barnabas.log.partition.partition_log import PartitionLog
    from barnabas.wire.topics import TopicPartition

BEGUN_PER_TURN: Final = 200
"""So many are cut off in a turn at most; most have nothing that is to go, which takes some 30 us each."""
_REMOTE_PATIENCE_SECONDS: Final = 0.2
"""Nothing is fetched for as long; what takes longer is looked for when the partition is looked at again."""
_REMOTE_AT_ONCE_MAX: Final = 32
"""Partitions of a fetcher that ask remote storage at a time."""


class OffsetReconciler:
    """Settles the partitions of one fetcher. A partition that is taken out, or gets a new epoch, while something is
    awaited is left alone."""

    def __init__(
        self,
        context: FetcherContext,
        partitions: FetcherPartitions,
        connection: LeaderConnection,
        *,
        delay: Callable[[FetchedPartition], None],
        fail: Callable[[FetchedPartition, str], None],
    ) -> None:
        """`delay` leaves a partition alone for a while; `fail` takes it out, for good as far as this fetcher goes."""
        self._context = context
        self._partitions = partitions
        self._connection = connection
        self._delay = delay
        self._fail = fail
        self._states: dict[FetchedPartition, tuple[tuple[int, int], asyncio.Task[AuxiliaryState | None]]] = {}
        """What remote storage is asked for: leader epoch and last offset, and the answer to come."""

    def close(self) -> None:
        """Waits for remote storage no more."""
        for _, task in self._states.values():
            task.cancel()
        self._states.clear()

    async def settle(self) -> None:
        """Settles all that is to be settled now, as far as the leader's answers allow.

        Raises ConnectionError and TimeoutError when the leader does not answer; those that need its answer stay
        unsettled then.
        """
        unsettled = self._partitions.unsettled()
        truncating = [fetched for fetched in unsettled if fetched.phase is FetchPhase.TRUNCATING]
        asking: dict[TopicPartition, tuple[FetchedPartition, int]] = {}
        ready: list[FetchedPartition] = []
        for fetched in truncating:
            epoch = self._epoch_to_ask_for(fetched)
            if epoch is None:
                ready.append(fetched)
            else:
                asking[fetched.topic_partition] = (fetched, epoch)
        await self._truncate_all(ready)
        if asking:
            await self._ask_for_epochs(asking)
        resetting = [fetched for fetched in unsettled if fetched.phase is FetchPhase.RESETTING]
        if resetting:
            await self._reset(resetting)
        building = [fetched for fetched in unsettled if fetched.phase is FetchPhase.BUILDING]
        if building:
            await self._build(building)

    def _epoch_to_ask_for(self, fetched: FetchedPartition) -> int | None:
        """The epoch that our log ends with, where the leader must be asked about it first."""
        log = fetched.partition.log
        if (
            fetched.leader_end is not None
            or fetched.early_records is not None
            or self._context.protocol.truncates_on_fetch
            or log is None
        ):
            return None
        return log.latest_epoch

    # Truncation.

    async def _truncate_all(self, wanted: Sequence[FetchedPartition]) -> None:
        """Some are begun in each turn, and none waits for another: what they ask of a disk is done together."""
        begun: list[asyncio.Task[None]] = []
        try:
            for start in range(0, len(wanted), BEGUN_PER_TURN):
                if start:
                    await yield_to_loop()
                some = wanted[start : start + BEGUN_PER_TURN]
                begun += [self._context.loop.create_task(self._truncate(fetched)) for fetched in some]
        except asyncio.CancelledError:
            for task in begun:
                task.cancel()
            raise
        await asyncio.gather(*begun)

    async def _truncate(self, fetched: FetchedPartition) -> None:
        """Cuts off what the leader's answer says, or down to the high watermark where there was none to ask for."""
        log = self._log_of(fetched)
        if log is None:
            return
        if fetched.early_records is not None:
            await self._begin_anew(fetched, log, *fetched.early_records)
            return
        if fetched.leader_end is None:
            await self._cut(fetched, log, Truncation(fetched.fetch_offset, is_complete=True))
            return
        found = truncation(
            fetched.leader_end,
            log_end_offset=log.append_end_offset,
            fallback_offset=min(fetched.fetch_offset, log.high_watermark),
            local_end=log.end_offset_for_epoch,
        )
        await self._cut(fetched, log, found)

    async def _begin_anew(self, fetched: FetchedPartition, log: PartitionLog, offset: int, records: bytes) -> None:
        """Begins an empty log at an earlier offset. The records come from the request that found it out: fetched again,
        their offset would be below the leader's start."""
        try:
            await log.truncate_fully_and_start_at(offset, is_still_due=partial(self._partitions.holds, fetched))
            if not self._partitions.holds(fetched):
                return
            log.append_as_follower(records, fetched.leader_epoch)
        except (KafkaError, RecordsError) as error:
            self._fail(fetched, f"beginning the log at {offset} failed: {error}")
            return
        self._context.wake_ups.add(fetched.partition)
        self._go_on(fetched, log)

    async def _ask_for_epochs(self, asking: dict[TopicPartition, tuple[FetchedPartition, int]]) -> None:
        protocol = self._context.protocol
        response = await self._connection.send(
            epoch_request(asking, self._context.broker_id),
            protocol.offset_for_leader_epoch_version,
            self._context.settings.request_timeout_ms,
        )
        ends = epoch_ends(response)
        answered: list[FetchedPartition] = []
        for topic_partition, (fetched, _) in asking.items():
            if not self._partitions.holds(fetched):
                continue
            answer = ends.get(topic_partition)
            error = ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else answer.error
            if answer is None or error is not ErrorCode.NONE:
                self._refused(fetched, error, "where a leader epoch ends")
            else:
                fetched.leader_end = answer.end
                answered.append(fetched)
        await self._truncate_all(answered)

    async def _cut(self, fetched: FetchedPartition, log: PartitionLog, found: Truncation) -> None:
        if found.offset < log.high_watermark:
            self._context.logger.warning(
                "Truncating %s to offset %d below high watermark %d",
                *(fetched.topic_partition, found.offset, log.high_watermark),
            )
        if found.offset < log.append_end_offset:
            self._context.logger.info(
                "Truncating %s from %d to offset %d, because of leader epoch %d and its end %s in the leader's log",
                *(fetched.topic_partition, log.append_end_offset, found.offset, fetched.last_fetched_epoch),
                _shown(fetched.leader_end),
            )
        try:
            await log.truncate_to(found.offset, is_still_due=partial(self._partitions.holds, fetched))
        except KafkaError as error:
            self._fail(fetched, f"truncating failed: {error}")
            return
        if not self._partitions.holds(fetched):
            return
        self._context.wake_ups.add(fetched.partition)
        if found.is_complete or self._context.protocol.truncates_on_fetch:
            self._go_on(fetched, log)
        else:
            fetched.leader_end = None  # asked again, about the epoch that the log ends with now

    # Offsets out of range.

    async def _reset(self, resetting: Sequence[FetchedPartition]) -> None:
        """Goes on at the leader's log end where ours is beyond it, else at our own end or at the leader's start.

        A log that is beyond the leader's has records that an unclean election has given up. One that ends before the
        leader's log starts has nothing that the leader still has, and begins anew (KIP-107).
        """
        ends = await self._offsets(resetting, LATEST_TIMESTAMP)
        starts = await self._offsets([fetched for fetched in resetting if fetched in ends], EARLIEST_TIMESTAMP)
        await asyncio.gather(*(self._reset_to(fetched, start, ends[fetched]) for fetched, start in starts.items()))

    async def _reset_to(self, fetched: FetchedPartition, start: int, end: int) -> None:
        log = self._log_of(fetched)
        if log is None:
            return
        ours = log.append_end_offset
        is_held = partial(self._partitions.holds, fetched)
        try:
            if end < ours:
                self._warn_reset(fetched, ours, end, "the leader's log ends there")
                await log.truncate_to(end, is_still_due=is_held)
            elif start > ours:
                self._warn_reset(fetched, ours, start, "the leader's log starts there")
                await log.truncate_fully_and_start_at(start, is_still_due=is_held)
        except KafkaError as error:
            self._fail(fetched, f"truncating failed: {error}")
            return
        if self._partitions.holds(fetched):
            self._context.wake_ups.add(fetched.partition)
            self._go_on(fetched, log)

    # Remote storage.

    async def _build(self, building: Sequence[FetchedPartition]) -> None:
        """Goes on where the leader's local log begins, and knows what has to be known of the records before that, which
        are in remote storage: the history of leader epochs, and the producers."""
        starts = await self._listed(building, EARLIEST_LOCAL_TIMESTAMP)
        log_starts = await self._offsets([fetched for fetched in building if fetched in starts], EARLIEST_TIMESTAMP)
        asking: dict[TopicPartition, tuple[FetchedPartition, int]] = {}
        epochs = {fetched: starts[fetched].leader_epoch for fetched in log_starts}
        for fetched, epoch in epochs.items():
            if epoch > 0:
                asking[fetched.topic_partition] = (fetched, epoch - 1)
        if asking:
            # The record before the local log may be of an earlier epoch than its first.
            response = await self._connection.send(
                epoch_request(asking, self._context.broker_id),
                self._context.protocol.offset_for_leader_epoch_version,
                self._context.settings.request_timeout_ms,
            )
            for topic_partition, answer in epoch_ends(response).items():
                asked = asking.get(topic_partition)
                if asked is not None and answer.error is ErrorCode.NONE:
                    fetched = asked[0]
                    if answer.end.end_offset >= starts[fetched].offset:
                        epochs[fetched] = answer.end.epoch
        self._forget_gone()
        asked_now = [
            self._ask_remote(fetched, epochs[fetched], starts[fetched].offset - 1)
            for fetched, log_start_offset in log_starts.items()
            if log_start_offset < starts[fetched].offset
        ]
        waiting = [task for task in asked_now if task is not None]
        if waiting:
            await asyncio.wait(waiting, timeout=_REMOTE_PATIENCE_SECONDS)
        for fetched, log_start_offset in log_starts.items():
            await self._build_behind(fetched, starts[fetched].offset - 1, epochs[fetched], log_start_offset)

    def _ask_remote(
        self, fetched: FetchedPartition, leader_epoch: int, last_offset: int
    ) -> asyncio.Task[AuxiliaryState | None] | None:
        """Has remote storage asked, once for each place. Invariant: nobody waits long for it here: the other partitions
        of this fetcher are to go on, whatever it does."""
        log, remote, wanted = self._log_of(fetched), self._context.remote, (leader_epoch, last_offset)
        known = self._states.get(fetched)
        if known is not None and known[0] == wanted:
            return known[1]
        if known is not None:
            known[1].cancel()
            del self._states[fetched]
        if log is None or remote is None or len(self._states) >= _REMOTE_AT_ONCE_MAX:
            return None
        task = self._context.loop.create_task(_asked(remote, log, *wanted), name=f"build-{fetched.topic_partition}")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # there may be nobody to hear of it
        self._states[fetched] = wanted, task
        return task

    def _forget_gone(self) -> None:
        for fetched in [each for each in self._states if not self._partitions.holds(each)]:
            self._states.pop(fetched)[1].cancel()

    async def _build_behind(
        self, fetched: FetchedPartition, last_offset: int, leader_epoch: int, log_start_offset: int
    ) -> None:
        log, remote = self._log_of(fetched), self._context.remote
        if log is None:
            return
        if remote is None:
            self._fail(fetched, "its leader has it in remote storage, which this broker does not have")
            return
        if log_start_offset > last_offset:
            # Nothing is in remote storage any more.
            self._go_on(fetched, log)
            return
        _, task = self._states.get(fetched, (None, None))
        if task is None or not task.done():
            self._delay(fetched)
            return
        del self._states[fetched]
        try:
            found = task.result()
        except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
            self._put_off(fetched, str(error) or repr(error))
            return
        if found is None:
            self._put_off(fetched, f"offset {last_offset} of leader epoch {leader_epoch} is in no remote segment")
            return
        is_held = partial(self._partitions.holds, fetched)
        try:
            await log.begin_behind_remote(found.end_offset, log_start_offset, found.epochs, found.producers, is_held)
        except KafkaError as error:
            self._fail(fetched, f"beginning the log at {found.end_offset} failed: {error}")
            return
        if self._partitions.holds(fetched):
            self._context.logger.info(
                "Partition %s goes on at offset %d, behind what is in remote storage",
                *(fetched.topic_partition, found.end_offset),
            )
            self._context.wake_ups.add(fetched.partition)
            self._go_on(fetched, log)

    def _put_off(self, fetched: FetchedPartition, reason: str) -> None:
        if self._partitions.holds(fetched):
            self._context.logger.warning(
                "Partition %s cannot go on behind what is in remote storage yet: %s", fetched.topic_partition, reason
            )
            self._delay(fetched)

    # Asking for offsets.

    async def _offsets(self, wanted: Sequence[FetchedPartition], timestamp: int) -> dict[FetchedPartition, int]:
        return {fetched: answer.offset for fetched, answer in (await self._listed(wanted, timestamp)).items()}

    async def _listed(self, wanted: Sequence[FetchedPartition], timestamp: int) -> dict[FetchedPartition, LeaderOffset]:
        if not wanted:
            return {}
        response = await self._connection.send(
            offsets_request(wanted, timestamp, self._context.broker_id),
            self._context.protocol.list_offsets_version,
            self._context.settings.request_timeout_ms,
        )
        answers = leader_offsets(response)
        found: dict[FetchedPartition, LeaderOffset] = {}
        for fetched in wanted:
            if not self._partitions.holds(fetched):
                continue
            answer = answers.get(fetched.topic_partition)
            error = ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else answer.error
            if answer is None or error is not ErrorCode.NONE:
                self._refused(fetched, error, "the bounds of its log")
            else:
                found[fetched] = answer
        return found

    # Both.

    def _log_of(self, fetched: FetchedPartition) -> PartitionLog | None:
        log = fetched.partition.log
        if log is None or not self._partitions.holds(fetched):
            return None
        return log

    def _go_on(self, fetched: FetchedPartition, log: PartitionLog) -> None:
        epoch = log.latest_epoch
        self._partitions.settled(fetched, log.append_end_offset, NO_EPOCH if epoch is None else epoch)

    def _refused(self, fetched: FetchedPartition, error: ErrorCode, question: str) -> None:
        if error is ErrorCode.FENCED_LEADER_EPOCH:
            self._fail(fetched, "the leader is in a newer epoch, of which the controller will tell")
            return
        self._context.logger.info(
            "The leader of %s did not say %s: %s; asking again later", fetched.topic_partition, question, error.name
        )
        self._delay(fetched)

    def _warn_reset(self, fetched: FetchedPartition, ours: int, offset: int, reason: str) -> None:
        self._context.logger.warning(
            "Reset fetch offset for partition %s from %d to %d: %s", fetched.topic_partition, ours, offset, reason
        )


async def _asked(remote: RemoteStates, log: PartitionLog, leader_epoch: int, last_offset: int) -> AuxiliaryState | None:
    return await remote.auxiliary_state(log, leader_epoch, last_offset)


def _shown(end: EpochEnd | None) -> str:
    if end is None or end.epoch == NO_EPOCH:
        return "unknown"
    return f"{end.end_offset} (epoch {end.epoch})"
