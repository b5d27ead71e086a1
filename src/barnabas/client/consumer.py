"""Reads records: of partitions that the user assigns, or that a group gives to it.

A record counts as processed, and so as fit for an automatic commit, once the user has come back from processing it:
by another poll, by leaving the context without an error, or by a `close` that says so. An error, or any other `close`,
leaves what the last poll returned unprocessed. No rebalance takes a partition away between two polls. A commit by hand
is what the user says it is.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from barnabas.client.errors import ClientClosedError, ClientError, ClientTimeoutError, CommitFailedError
from barnabas.client.fetcher import Fetcher
from barnabas.client.offset_lookup import Answers, OffsetLookup
from barnabas.client.position_finder import PositionFinder
from barnabas.client.positions import PartitionState, Position, Positions, PositionState
from barnabas.client.records import ConsumerRecord, OffsetAndMetadata, OffsetAndTimestamp, RecordColumn
from barnabas.client.settings import ConsumerSettings
from barnabas.kernel.spoken import spoken_ms
from barnabas.link.errors import InFlightLimitError
from barnabas.wire.errors import KafkaError
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.sentinels import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, NO_EPOCH
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.group_coordinator import GroupCoordinator, Membership
    from barnabas.client.group_member import GroupMember
    from barnabas.kernel.timers import Timer


Taken = TypeVar("Taken")


class RebalanceListener(Protocol):
    """What a user may do when partitions come and go; called within `poll`, which returns when it is done."""

    async def on_assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
        """These are new."""
        ...

    async def on_revoked(self, partitions: tuple[TopicPartition, ...]) -> None:
        """These are given up now; what was read of them can still be committed."""
        ...

    async def on_lost(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Others may own these already."""
        ...


class Consumer:
    """A consumer; use it as a context, or `close` it. One user at a time polls it.

    With a group, `subscribe` and `poll`; or `assign` partitions oneself, with or without a group that keeps offsets.
    """

    def __init__(
        self,
        client: Client,
        settings: ConsumerSettings | None = None,
        *,
        on_committed: Callable[[Mapping[TopicPartition, OffsetAndMetadata]], object] | None = None,
    ) -> None:
        """`on_committed` is told each commit that succeeded, automatic ones too."""
        self.settings = settings or ConsumerSettings()
        self._client = client
        self._fetch_lane = client.connections.new_lane()
        self._join_lane = client.connections.new_lane()
        self._lane = client.connections.new_lane()
        self._positions = Positions()
        self._news = asyncio.Event()
        self._lookup = OffsetLookup(client, self._lane, self.settings.isolation)
        self._fetcher = Fetcher(client, self._fetch_lane, self.settings, self._positions, self._news.set)
        self._coordinator: GroupCoordinator | None = None
        self._member: GroupMember | None = None
        if self.settings.group_id is not None:
            from barnabas.client.group_coordinator import GroupCoordinator
            from barnabas.client.group_member import GroupMember

            self._coordinator = GroupCoordinator(client, self._lane, self.settings.group_id)
            self._member = GroupMember(client, self._join_lane, self._coordinator, self.settings, self, self._news.set)
        self._finder = PositionFinder(
            client, self._positions, self._lookup, self._coordinator, self.settings, self._news.set
        )
        self._on_committed = on_committed
        self._topics: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None
        self._listener: RebalanceListener | None = None
        self._is_assigned_by_user = False
        self._auto_commit_at = 0.0
        self._committing: asyncio.Task[None] | None = None
        self._commit_lock = asyncio.Lock()
        self._is_polling = False
        self._poll_timer: Timer | None = None
        self._is_telling = False
        self._is_closing = False
        self._closed = False
        self._close_lock = asyncio.Lock()
        self._stop_using_all: Callable[[], None] | None = None
        self._stop_listening = client.metadata.add_listener(self._metadata_changed)

    # What to read.

    def subscribe(self, topics: Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None) -> None:
        """Reads what the group gives it of these topics, or of those whose names match; replaces what was before.

        Raises ClientError without a group, without a topic, or after `assign`.
        """
        self._check_open()
        if self._member is None:
            raise ClientError("subscribing needs a group: set group_id, or assign partitions")
        if self._is_assigned_by_user:
            raise ClientError("partitions were assigned by hand; a consumer either subscribes or assigns")
        names = () if isinstance(topics, re.Pattern) else tuple(sorted(set(topics)))
        if not names and not isinstance(topics, re.Pattern):
            raise ClientError("subscribing needs a topic; to read nothing more, close the consumer")
        self._listener = listener
        if isinstance(topics, re.Pattern):
            self._pattern = topics
            if self._stop_using_all is None:
                self._stop_using_all = self._client.metadata.use_all()
            self._match_pattern()
        else:
            self._pattern = None
            self._topics = names
            self._use_all_no_more()
            self._client.metadata.use(*self._topics)
        self._member.rejoin()
        self._news.set()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions; those that were assigned before keep their positions."""
        self._check_open()
        if self._has_subscribed:
            raise ClientError("the consumer has subscribed; a consumer either subscribes or assigns")
        self._is_assigned_by_user = True
        self._set_assignment(tuple(partitions))

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        """What is read now."""
        return self._positions.partitions

    @property
    def is_stable(self) -> bool:
        """The group has given this member its assignment, and no rebalance is known to be under way."""
        return self._member is not None and self._member.is_stable

    @property
    def rebalances(self) -> int:
        """How many rebalances this member of a group has come through."""
        return 0 if self._member is None else self._member.rebalances

    def pause(self, *partitions: TopicPartition) -> None:
        """Returns no records of these until `resume`."""
        for partition in partitions:
            self._state(partition).is_paused = True
            self._fetcher.detach(partition)

    def resume(self, *partitions: TopicPartition) -> None:
        """Ends what `pause` began."""
        for partition in partitions:
            self._state(partition).is_paused = False
        self._news.set()

    # Reading.

    async def poll(self, timeout_ms: float, records_max: int | None = None) -> list[ConsumerRecord]:
        """Returns the next records, in order within each partition; none if none came within `timeout_ms`.

        The call says that what earlier polls returned is processed: automatic commits have it from now on. While a
        rebalance is due there are no records, and it takes as long as the listener takes. Raises NoOffsetError,
        LogTruncationError and KafkaError for what the user has to decide; polling goes on afterwards.
        """
        return await self._poll(timeout_ms, records_max, self._fetcher.take)

    async def poll_columns(self, timeout_ms: float, records_max: int | None = None) -> list[RecordColumn]:
        """As `poll`, for who needs keys and values only: the records come in columns, none of which is empty, for a
        fifth of the work. Records of one partition are in order, also from one column to the next.
        """
        return await self._poll(timeout_ms, records_max, self._fetcher.take_columns)

    def end_poll(self) -> None:
        """Has a poll that is under way return soon, with what is there; where there is none, nothing happens. A
        listener may call it, for who waits for partitions more than for records.
        """
        if self._is_polling and self._poll_timer is not None:
            self._poll_timer.cancel()
            self._news.set()

    async def _poll(
        self, timeout_ms: float, records_max: int | None, take: Callable[[int], list[Taken]]
    ) -> list[Taken]:
        self._check_open()
        if self._is_polling:
            raise ClientError("the consumer is already being polled")
        count = self.settings.poll_records_max if records_max is None else records_max
        self._is_polling = True
        if self._member is not None:
            self._member.turn.set()
        timer = self._poll_timer = self._client.timers.call_after(timeout_ms, self._news.set)
        try:
            for state in self._positions:
                state.came_back()
            self._commit_if_due()
            while True:
                self._news.clear()
                records = self._step(count, take)
                if records or not (timer.active or self._is_telling):
                    return records
                await self._news.wait()
                self._check_open()
        finally:
            self._is_polling = False
            if self._member is not None:
                self._member.turn.clear()
            timer.cancel()

    def _step(self, count: int, take: Callable[[int], list[Taken]]) -> list[Taken]:
        """Starts whatever is to be done in the background, and takes what is there."""
        if self._member is not None and self._has_subscribed:
            self._member.poll()
        self._client.metadata.use(*{partition.topic for partition in self._positions.partitions})
        self._positions.follow(self._client.cluster)
        self._finder.out_of_range(self._fetcher.out_of_range)
        self._finder.find()
        for errors in (self._finder.errors, self._fetcher.errors):
            if errors:
                raise errors.pop(0)
        is_kept_back = self._has_subscribed and self._member is not None and self._member.keeps_records_back
        records = [] if is_kept_back else take(count)
        self._fetcher.fetch()
        return records

    # Positions.

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int = NO_EPOCH) -> None:
        """The next record is the one at `offset`. With the `leader_epoch` of the record before it, this is checked."""
        if offset < 0:
            raise ValueError(f"offset {offset} is negative; use seek_to_beginning or seek_to_end")
        self._state(partition).seek(Position(offset, leader_epoch))
        self._news.set()

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Goes to the first record there is, of all assigned partitions where none is named."""
        self._seek_to(EARLIEST_TIMESTAMP, partitions)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Goes behind the last record there is, of all assigned partitions where none is named."""
        self._seek_to(LATEST_TIMESTAMP, partitions)

    async def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record. Waits until it is known; raises ClientTimeoutError, and what `poll` raises."""
        state = self._state(partition)
        limit_ms = self._client.settings.api_timeout_ms if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1_000):
                while state.state in (PositionState.UNKNOWN, PositionState.RESETTING):
                    self._news.clear()
                    self._finder.find()
                    if self._finder.errors:
                        raise self._finder.errors.pop(0)
                    await self._news.wait()
        except TimeoutError:
            raise ClientTimeoutError(
                f"the position of {partition} was not known within {spoken_ms(limit_ms)}"
            ) from None
        return state.position.offset

    def high_watermark(self, partition: TopicPartition) -> int:
        """The end of what can be read, as the last fetch told; -1 before."""
        return self._state(partition).high_watermark

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Returns the first record of each partition that is not older than its time; None if all are older."""
        found = await self._lookup.offsets_with_retry(timestamps_ms, timeout_ms)
        return {partition: place if place.offset >= 0 else None for partition, place in found.items()}

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offsets of the first records there are."""
        found = await self._lookup.offsets_with_retry(dict.fromkeys(partitions, EARLIEST_TIMESTAMP), timeout_ms)
        return {partition: place.offset for partition, place in found.items()}

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offsets behind the last records that can be read."""
        found = await self._lookup.offsets_with_retry(dict.fromkeys(partitions, LATEST_TIMESTAMP), timeout_ms)
        return {partition: place.offset for partition, place in found.items()}

    async def look_up(self, timestamps_ms: Mapping[TopicPartition, int], timeout_ms: float | None = None) -> Answers:
        """As `offsets_for_times`, with what is in the way of single partitions; -2 and -1 are beginnings and ends."""
        return await self._lookup.offsets_in_time(timestamps_ms, timeout_ms)

    # Offsets of the group.

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None, timeout_ms: float | None = None
    ) -> None:
        """Stores offsets for the group: those given, or how far each partition was read, also by the last poll.

        Commits follow each other in the order of the calls, and no automatic one undoes them.

        Raises CommitFailedError when the group has moved on, KafkaError (REBALANCE_IN_PROGRESS: poll, and what was
        taken away is gone; FENCED_INSTANCE_ID: close), ClientTimeoutError.
        """
        self._check_open()
        if self._coordinator is None:
            raise ClientError("committing needs a group: set group_id")
        offsets = self._read_positions() if offsets is None else dict(offsets)
        for partition, place in offsets.items():
            state = self._positions.get(partition)
            if state is not None:
                state.processed = Position(place.offset, place.leader_epoch)
        await self._commit(offsets, timeout_ms)

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets that the group has stored for these partitions; those without one are left out."""
        if self._coordinator is None:
            raise ClientError("committed offsets need a group: set group_id")
        return await self._coordinator.committed(tuple(partitions), timeout_ms)

    async def close(self, timeout_ms: float = 30_000, *, has_processed: bool = False) -> None:
        """Commits if commits are automatic, leaves the group, and ends. Any task may call it; polls end at once.

        What the last poll returned is committed only with `has_processed`: nobody else knows how far the user has come,
        who may have been cancelled, or have left the loop in its middle. Without it, those records are given again.
        Where it was cancelled, another call ends what it has left.
        """
        self._is_closing = True
        self._news.set()
        async with self._close_lock:
            if not self._closed:
                await self._close(timeout_ms, has_processed=has_processed)

    async def _close(self, timeout_ms: float, *, has_processed: bool) -> None:
        self._stop_listening()
        self._use_all_no_more()
        if self._member is not None:
            await self._member.stop_joining()
        await self._end_automatic_commit()
        if self.settings.auto_commit and self._coordinator is not None and timeout_ms > 0:
            await self._commit_quietly(self._read_positions if has_processed else self._processed, timeout_ms)
        if self._member is not None:
            await self._member.close(timeout_ms)
        await self._finder.close()
        await self._fetcher.close()
        for lane in (self._fetch_lane, self._join_lane, self._lane):
            await self._client.connections.close_lane(lane)
        self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Who is cancelled and keeps that to himself does not leave in order either.
        task = asyncio.current_task()
        await self.close(has_processed=kind is None and not (task is not None and task.cancelling()))

    # For the member of the group (`group_member.Assignee`).

    @property
    def topics(self) -> tuple[str, ...]:
        """What is subscribed to now."""
        return self._topics

    async def revoked(self, partitions: tuple[TopicPartition, ...]) -> None:
        """See `Assignee`."""
        if self.settings.auto_commit:
            gone = frozenset(partitions)
            await self._end_automatic_commit()
            await self._commit_quietly(
                lambda: {partition: place for partition, place in self._processed().items() if partition in gone},
                self._client.settings.request_timeout_ms,
            )
        if self._listener is not None:
            await self._tell(self._listener.on_revoked, partitions)
        self._drop(partitions)

    async def lost(self, partitions: tuple[TopicPartition, ...]) -> None:
        """See `Assignee`."""
        self._drop(partitions)
        if self._listener is not None:
            await self._tell(self._listener.on_lost, partitions)

    async def assigned(self, added: tuple[TopicPartition, ...], owned: tuple[TopicPartition, ...]) -> None:
        """See `Assignee`."""
        self._set_assignment(owned)
        if self._listener is not None:
            await self._tell(self._listener.on_assigned, added)

    # Inside.

    async def _tell(
        self,
        listener: Callable[[tuple[TopicPartition, ...]], Awaitable[None]],
        partitions: tuple[TopicPartition, ...],
    ) -> None:
        """Calls the user while the user polls: a commit before it may have outlasted the poll in which it began."""
        if self._member is not None:
            await self._member.users_turn()
        self._is_telling = True
        try:
            await listener(partitions)
        finally:
            self._is_telling = False
            self._news.set()

    @property
    def _has_subscribed(self) -> bool:
        return bool(self._topics) or self._pattern is not None

    def _use_all_no_more(self) -> None:
        if self._stop_using_all is not None:
            self._stop_using_all()
            self._stop_using_all = None

    def _check_open(self) -> None:
        if self._is_closing:
            raise ClientClosedError("the consumer is closed")

    def _state(self, partition: TopicPartition) -> PartitionState:
        state = self._positions.get(partition)
        if state is None:
            raise ClientError(f"{partition} is not assigned to this consumer now")
        return state

    def _seek_to(self, timestamp_ms: int, partitions: tuple[TopicPartition, ...]) -> None:
        for partition in partitions or self._positions.partitions:
            self._state(partition).reset(timestamp_ms)
        self._news.set()

    def _set_assignment(self, partitions: tuple[TopicPartition, ...]) -> None:
        kept = frozenset(partitions)
        self._fetcher.forget(tuple(partition for partition in self._positions.partitions if partition not in kept))
        self._positions.assign(partitions)
        self._client.metadata.use(*{partition.topic for partition in partitions})
        self._auto_commit_at = self._client.host.loop.time() + self.settings.auto_commit_interval_ms / 1_000
        self._news.set()

    def _drop(self, partitions: tuple[TopicPartition, ...]) -> None:
        self._fetcher.forget(partitions)
        gone = frozenset(partitions)
        self._positions.assign([partition for partition in self._positions.partitions if partition not in gone])

    def _metadata_changed(self) -> None:
        self._match_pattern()
        if self._member is not None:
            self._member.follow_metadata()
        self._positions.follow(self._client.cluster)
        self._news.set()

    def _match_pattern(self) -> None:
        if self._pattern is None or self._member is None:
            return
        pattern = self._pattern
        topics = tuple(
            sorted(
                name
                for name, info in self._client.cluster.topics.items()
                if info.partitions and not info.is_internal and pattern.fullmatch(name)
            )
        )
        if topics != self._topics:
            self._topics = topics
            self._member.rejoin()

    def _read_positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What polls have returned, the last one too."""
        return {state.partition: _committable(state.position) for state in self._positions if state.has_position}

    def _processed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the user has come back for."""
        return {
            state.partition: _committable(state.processed)
            for state in self._positions
            if state.has_position and state.processed is not None
        }

    async def _commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: float | None = None
    ) -> None:
        """Commits by hand, as the member that has read the records."""
        if not offsets:
            return
        membership = self._membership()
        await self._end_automatic_commit()
        await self._commit_in_turn(lambda: (offsets, membership), timeout_ms)

    def _membership(self) -> Membership:
        """The member to commit as; raises CommitFailedError where the consumer has subscribed and is no member."""
        from barnabas.client.group_coordinator import NO_GENERATION, Membership

        membership = Membership()
        if self._member is not None and not self._is_assigned_by_user:
            self._member.check_not_fenced()
            membership = self._member.membership
        if self._has_subscribed and membership.generation == NO_GENERATION:
            # Without a generation, a group that has become empty meanwhile would take it from anybody.
            raise CommitFailedError(
                f"the consumer is not a member of group {self.settings.group_id} now, so other members may already "
                "have what it has read; poll until it is"
            )
        return membership

    async def _commit_in_turn(
        self,
        what: Callable[[], tuple[Mapping[TopicPartition, OffsetAndMetadata], Membership]],
        timeout_ms: float | None = None,
    ) -> None:
        """Commits `what()`, which is asked when no other commit is under way.

        Invariant: commits of one consumer follow each other, and an automatic one knows what was committed before it,
        so that none undoes an earlier one.
        """
        if self._coordinator is None:
            return
        retry = self._client.retry(f"committing offsets of group {self.settings.group_id}", timeout_ms)
        try:
            async with asyncio.timeout(retry.left_ms / 1_000):
                await self._commit_lock.acquire()
        except TimeoutError:
            raise ClientTimeoutError("an earlier commit of this consumer is still under way") from None
        try:
            offsets, membership = what()
            if not offsets:
                return
            try:
                await self._coordinator.commit(offsets, membership, retry.left_ms)
            except (CommitFailedError, KafkaError) as error:
                if self._member is not None:
                    self._member.refused(error.code, membership)
                raise
        finally:
            self._commit_lock.release()
        if self._on_committed is not None:
            self._on_committed(offsets)

    async def _commit_quietly(
        self, offsets: Callable[[], Mapping[TopicPartition, OffsetAndMetadata]], timeout_ms: float
    ) -> None:
        """An automatic commit: what keeps it from succeeding is logged, and the records are read again by somebody."""

        from barnabas.client.group_coordinator import Membership

        def what() -> tuple[Mapping[TopicPartition, OffsetAndMetadata], Membership]:
            found = offsets()
            return found, self._membership() if found else Membership()

        try:
            await self._commit_in_turn(what, timeout_ms)
        except (KafkaError, ClientError, OSError, InFlightLimitError, ProtocolError) as error:
            self._client.logger.warning("An automatic commit of group %s failed: %s", self.settings.group_id, error)

    def _commit_if_due(self) -> None:
        """Begins the automatic commit of what earlier polls have returned, one at a time."""
        now = self._client.host.loop.time()
        if not self.settings.auto_commit or self._coordinator is None or now < self._auto_commit_at:
            return
        if self._processed() and (self._committing is None or self._committing.done()):
            self._auto_commit_at = now + self.settings.auto_commit_interval_ms / 1_000
            commit = self._commit_quietly(self._processed, self._client.settings.request_timeout_ms)
            self._committing = self._client.host.loop.create_task(commit, name="consumer commits")

    async def _end_automatic_commit(self) -> None:
        """Gives up one that is under way. What it has sent already is taken before what is sent next."""
        if self._committing is not None:
            self._committing.cancel()
            await asyncio.wait([self._committing])
            self._committing = None


def _committable(position: Position) -> OffsetAndMetadata:
    return OffsetAndMetadata(position.offset, position.offset_epoch)
