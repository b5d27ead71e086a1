"""Fetches that wait for bytes (`fetch.min.bytes`, `fetch.max.wait.ms`).

A parked fetch watches its partitions, and looks only at those that report a change. It is answered once per tick at
most, after all appends of the tick: so one response takes them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from barnabas.kernel.metrics import Meter, MetricName, MetricsRegistry
from barnabas.kernel.purgatory import DelayedOperation, Purgatory
from barnabas.kernel.steps import Steps
from barnabas.kernel.tick import Tick
from barnabas.serving.fetch_partition import FetchPartition
from barnabas.serving.fetch_reads import READ_PER_STEP, FetchParameters, FetchReader, Reads
from barnabas.serving.fetch_sessions import FetchScope
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.leader.partition import Partition
    from barnabas.wire.primitives import Buffer

OnDone = Callable[[Reads], object]
OnFailure = Callable[[Exception], object]


class ReadyFetch(Protocol):
    """A parked fetch that has enough."""

    def force_complete(self) -> bool:
        """Answers it, unless it was answered meanwhile."""
        ...


class WaitingFollower(Protocol):
    """A parked fetch of a follower."""

    def answer_now(self) -> None:
        """Has it answered with what there is, if it is parked still."""
        ...


_HIGH_WATERMARK_SECONDS: Final = 0.01
"""How long a follower that is read from may not know of a high watermark, once it could."""
_TALLIED_PER_STEP: Final = 8192
_FETCHER_TYPES: Final = ("consumer", "follower")


class SharedResponse(Protocol):
    """A response that differs by request and session only."""

    def frame(self, correlation_id: int, session_id: int) -> list[Buffer]: ...


class SharedRead(NamedTuple):
    """What was read of a log for one follower, and is given to all that fetch the same in the same turn."""

    state: tuple[object, ...]
    """Of the log, and what was asked for: whoever finds the same would read the same."""
    size_bytes: int
    """Of the records."""
    response: SharedResponse


class DelayedFetches:
    """The fetches of a broker."""

    def __init__(
        self,
        reader: FetchReader,
        purgatory: Purgatory[Any],
        tick: Tick,
        metrics: MetricsRegistry,
        loop: asyncio.AbstractEventLoop,
        *,
        tells_high_watermarks: bool = False,
    ) -> None:
        """`purgatory` is for time-outs and gauges only: changes come from the partitions. `tells_high_watermarks` is
        for followers that are read from.
        """
        self._tells_high_watermarks = tells_high_watermarks
        self._untold: dict[WaitingFollower, FetchPartition] = {}
        self.reader = reader
        self.purgatory = purgatory
        self.shared_read: SharedRead | None = None
        """What was read last in this tick, for the other fetches of it."""
        self._tick = tick
        self._loop = loop
        self._ready: dict[ReadyFetch, None] = {}
        self._expires: dict[str, Meter] = {
            kind: metrics.meter(
                MetricName("kafka.server", "DelayedFetchMetrics", "ExpiresPerSec", (("fetcherType", kind),))
            )
            for kind in _FETCHER_TYPES
        }

    def fetch(self, parameters: FetchParameters, scope: FetchScope, *, updates_followers: bool = True) -> Reads | None:
        """What there is, if that is to be answered at once; None if it is too little, and `park` may be called.

        Without `updates_followers` it is known already what the follower has.
        """
        goes_on = scope.goes_on
        reads = self.reader.read(parameters, scope, updates_followers=updates_followers)
        if parameters.max_wait_ms <= 0 or _is_enough(parameters, scope, *_tally(reads)):
            return reads
        return reads if goes_on and _has_news(reads) else None

    def fetch_in_steps(self, parameters: FetchParameters, scope: FetchScope) -> Steps[Reads | None]:
        """As `fetch`, of very many partitions; None if it is too little, and `wait` may be awaited."""
        goes_on = scope.goes_on
        reads = yield from self.reader.read_in_steps(parameters, scope, updates_followers=True)
        if parameters.max_wait_ms <= 0:
            return reads
        unknown = errors = size_bytes = 0
        for start in range(0, len(reads), _TALLIED_PER_STEP):
            some = _tally(reads[start : start + _TALLIED_PER_STEP])
            unknown, errors, size_bytes = unknown + some[0], errors + some[1], size_bytes + some[2]
            if goes_on and _has_news(reads[start : start + _TALLIED_PER_STEP]):
                return reads
            yield
        return reads if _is_enough(parameters, scope, unknown, errors, size_bytes) else None

    async def wait(
        self,
        parameters: FetchParameters,
        scope: FetchScope,
        in_steps: Callable[[Steps[None]], Awaitable[None]],
        when_lost: Callable[[Callable[[], object]], object],
    ) -> None:
        """Returns when there may be enough in very many partitions, after `max_wait_ms` at the latest.

        `in_steps` does the steps of long work; `when_lost` takes what is to be called if nobody waits for the answer
        any more.
        """
        waiting = _LargeWait(self.reader, parameters, scope, self._loop.create_future())
        when_lost(waiting.answer_now)
        timer = self._loop.call_later(parameters.max_wait_ms / 1000, waiting.expire)
        try:
            await in_steps(waiting.watch())
            await waiting.ended
            if waiting.is_expired:
                self.expired(parameters)
        finally:
            timer.cancel()
            waiting.close()

    def park(
        self, parameters: FetchParameters, scope: FetchScope, on_done: OnDone, on_failure: OnFailure
    ) -> DelayedFetch:
        """Calls `on_done` with what there is once it is enough, after `max_wait_ms` at the latest; `on_failure` where
        that cannot be found out."""
        fetch = DelayedFetch(self, parameters, scope, on_done, on_failure)
        fetch.watch()
        self.purgatory.try_complete_else_watch(fetch, (fetch,))
        return fetch

    def ready(self, fetch: ReadyFetch) -> None:
        """For parked fetches: it has enough, and is completed before this tick sends."""
        if not self._ready:
            self._tick.before_send(self._complete_ready)
        self._ready[fetch] = None

    def high_watermark_may_move(self, fetch: WaitingFollower, fetched: FetchPartition) -> None:
        """For a follower's parked fetch: a partition has changed, and there are no records to give.

        Where consumers read from followers, such a fetch is answered when a high watermark moves, or they would see
        what is committed only after the next records, or after `replica.fetch.wait.max.ms` (KIP-392). Not at once: in
        a busy partition the next records bring it along, and every answer of its own would double the requests.
        """
        if self._tells_high_watermarks and fetched.has_unsent_high_watermark:
            if not self._untold:
                self._loop.call_later(_HIGH_WATERMARK_SECONDS, self._tell_high_watermarks)
            self._untold[fetch] = fetched

    def forget(self, fetch: DelayedFetch) -> None:
        """For parked fetches: nobody waits for it any more."""
        self._untold.pop(fetch, None)
        self._ready.pop(fetch, None)

    def _tell_high_watermarks(self) -> None:
        untold, self._untold = self._untold, {}
        for fetch, fetched in untold.items():
            if fetched.has_unsent_high_watermark:
                fetch.answer_now()

    def share(self, read: SharedRead) -> None:
        """Keeps what was read for other fetches of this tick, and no longer: a log that is truncated may end at the
        same offset again, with other records.
        """
        if self.shared_read is None:
            self._tick.before_send(self._forget_shared_read)
        self.shared_read = read

    def expired(self, parameters: FetchParameters) -> None:
        """For parked fetches: counts one whose time was over."""
        self._expires["follower" if parameters.is_from_follower else "consumer"].count += 1

    def _complete_ready(self) -> None:
        ready, self._ready = self._ready, {}
        for fetch in ready:
            try:
                fetch.force_complete()
            except Exception as error:  # noqa: BLE001 - logged there, and must not keep the others waiting
                self.purgatory.report_failed(fetch, error)

    def _forget_shared_read(self) -> None:
        self.shared_read = None


def _tally(reads: Reads) -> tuple[int, int, int]:
    """Partitions that are unknown, those to be told of at once (errors, and what is to be had elsewhere), and bytes."""
    unknown = errors = size_bytes = 0
    for _, read in reads:
        unknown += read.is_unknown
        errors += (
            (read.code != ErrorCode.NONE and not read.is_unknown)
            or read.diverging is not None
            or read.preferred_replica >= 0
            or (read.plan is None and read.remote is not None)
        )
        size_bytes += read.size_bytes
    return unknown, errors, size_bytes


def _has_news(reads: Reads) -> bool:
    """There is something to say that was not said: an error is told again and again."""
    return any(read.code is ErrorCode.NONE and item.is_news(read) for item, read in reads)


def _is_enough(parameters: FetchParameters, scope: FetchScope, unknown: int, errors: int, size_bytes: int) -> bool:
    return size_bytes >= parameters.min_bytes or errors > 0 or not scope.has_others(unknown)


class DelayedFetch(DelayedOperation):
    """A fetch that waits. It is watched by itself: by its session, or by the partitions that it names."""

    def __init__(
        self,
        fetches: DelayedFetches,
        parameters: FetchParameters,
        scope: FetchScope,
        on_done: OnDone,
        on_failure: OnFailure,
    ) -> None:
        super().__init__(parameters.max_wait_ms)
        self._fetches = fetches
        self._parameters = parameters
        self._scope = scope
        self._on_done = on_done
        self._on_failure = on_failure
        self._available: dict[FetchPartition, int] = {}
        self._available_total = 0
        self._watcher: _ScopeWatcher | None = None

    def watch(self) -> None:
        """Begins to hear of changes; takes note of what there is already."""
        self._scope.park(self)
        if self._scope.session is None:
            self._watcher = _ScopeWatcher(self)
        for item in self._scope.items():
            partition = self._fetches.reader.find_partition(self._parameters, item)
            if partition is None:
                continue  # it has been said to be unknown, and does not end the wait for the others
            if self._watcher is not None:
                self._watcher.watch(item, partition)
            self.partition_changed(item)

    def partition_changed(self, fetched: FetchPartition) -> None:
        """One of its partitions may have more, or less."""
        if self.completed:
            return
        available = self._fetches.reader.available(self._parameters, fetched)
        if available is None:
            self._fetches.ready(self)
            return
        self._available_total += available - self._available.get(fetched, 0)
        self._available[fetched] = available
        if self._available_total >= self._parameters.min_bytes:
            self._fetches.ready(self)
        elif self._parameters.is_from_follower:
            self._fetches.high_watermark_may_move(self, fetched)

    def answer_now(self) -> None:
        """There is nobody left who would tell of changes, or the follower is wanted for something else."""
        self._fetches.ready(self)

    def try_complete(self) -> bool:
        """Nothing has changed since it was found to have too little, in this turn of the loop."""
        return False

    def give_up(self) -> None:
        """Nobody waits for it any more: it is not answered. A client may ask to wait for weeks."""
        if not self.completed and self.purgatory is not None:
            self.purgatory.cancel_for_key(self)
            self._watch_no_more()
            self._fetches.forget(self)

    def on_complete(self) -> None:
        self._watch_no_more()
        try:
            reads = self._fetches.reader.read(self._parameters, self._scope, updates_followers=False)
        except Exception as error:  # noqa: BLE001 - told to who waits, and logged there
            self._on_failure(error)
            return
        self._on_done(reads)

    def _watch_no_more(self) -> None:
        self._scope.unpark(self)
        if self._watcher is not None:
            self._watcher.close()

    def on_expiration(self) -> None:
        self._fetches.expired(self._parameters)


class _ScopeWatcher:
    """Watches the partitions of a fetch without session."""

    __slots__ = ("_fetch", "_watched")

    def __init__(self, fetch: DelayedFetch) -> None:
        self._fetch = fetch
        self._watched: dict[Partition, FetchPartition] = {}

    def watch(self, item: FetchPartition, partition: Partition) -> None:
        self._watched[partition] = item
        partition.watchers[self] = None

    def partition_changed(self, partition: Partition) -> None:
        self._fetch.partition_changed(self._watched[partition])

    def close(self) -> None:
        for partition in self._watched:
            partition.watchers.pop(self, None)


class _LargeWait:
    """A fetch of very many partitions that waits for one of them; it begins to hear of them in steps."""

    def __init__(
        self, reader: FetchReader, parameters: FetchParameters, scope: FetchScope, ended: asyncio.Future[None]
    ) -> None:
        self.ended = ended
        """Done when there may be enough, or the time is over."""
        self.is_expired = False
        self._reader = reader
        self._parameters = parameters
        self._scope = scope
        self._available: dict[FetchPartition, int] = {}
        self._available_total = 0
        self._watched: dict[Partition, FetchPartition] = {}

    def watch(self) -> Steps[None]:
        """Begins to hear of changes; takes note of what there is already."""
        session = self._scope.session
        self._scope.park(self)
        items = self._scope.items()
        for start in range(0, len(items), READ_PER_STEP):
            for item in items[start : start + READ_PER_STEP]:
                partition = self._reader.find_partition(self._parameters, item)
                if partition is None:
                    if not item.was_unknown:  # it was deleted meanwhile
                        self._end()
                    continue
                if session is None:
                    self._watched[partition] = item
                    partition.watchers[self] = None
                self._look(item)
            if self.ended.done():
                return
            yield

    def partition_changed(self, changed: Partition | FetchPartition) -> None:
        """A partition reports, or the session says which of its partitions has."""
        self._look(changed if isinstance(changed, FetchPartition) else self._watched[changed])

    def answer_now(self) -> None:
        """There is nobody left who would tell of changes, or the follower is wanted for something else."""
        self._end()

    def expire(self) -> None:
        """The time is over."""
        self.is_expired = not self.ended.done()
        self._end()

    def close(self) -> None:
        """Hears of nothing any more."""
        self._scope.unpark(self)
        for partition in self._watched:
            partition.watchers.pop(self, None)

    def _look(self, item: FetchPartition) -> None:
        available = self._reader.available(self._parameters, item)
        if available is None:
            self._end()
            return
        self._available_total += available - self._available.get(item, 0)
        self._available[item] = available
        if self._available_total >= self._parameters.min_bytes:
            self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
