"""Fetches that wait for bytes (`fetch.min.bytes`, `fetch.max.wait.ms`).

A parked fetch watches its partitions, and looks only at those that report a change. It is answered once per tick at
most, after all appends of the tick: so one response takes them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from barnabas.kernel.metrics import Meter, MetricName, MetricsRegistry
from barnabas.kernel.purgatory import DelayedOperation, Purgatory
from barnabas.link.tick import Tick
from barnabas.replication.fetch_reads import FetchParameters, FetchReader, Reads
from barnabas.replication.fetch_sessions import FetchPartition, FetchScope
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.replication.partition import Partition

OnDone = Callable[[Reads], object]
_FETCHER_TYPES: Final = ("consumer", "follower")


class Fetches:
    """The fetches of a broker."""

    def __init__(self, reader: FetchReader, purgatory: Purgatory[Any], tick: Tick, metrics: MetricsRegistry) -> None:
        """`purgatory` is for time-outs and gauges only: changes come from the partitions."""
        self.reader = reader
        self._purgatory = purgatory
        self._tick = tick
        self._ready: dict[DelayedFetch, None] = {}
        self._expires: dict[str, Meter] = {
            kind: metrics.meter(
                MetricName("kafka.server", "DelayedFetchMetrics", "ExpiresPerSec", (("fetcherType", kind),))
            )
            for kind in _FETCHER_TYPES
        }

    def fetch(self, parameters: FetchParameters, scope: FetchScope) -> Reads | None:
        """What there is, if that is to be answered at once; None if it is too little, and `park` may be called."""
        reads = self.reader.read(parameters, scope, updates_followers=True)
        unknown = errors = size_bytes = 0
        for _, read in reads:
            unknown += read.is_unknown
            errors += (read.code != ErrorCode.NONE and not read.is_unknown) or read.diverging is not None
            size_bytes += read.size_bytes
        if parameters.max_wait_ms <= 0 or size_bytes >= parameters.min_bytes or errors or not scope.has_others(unknown):
            return reads
        return None

    def park(self, parameters: FetchParameters, scope: FetchScope, on_done: OnDone) -> DelayedFetch:
        """Calls `on_done` with what there is once it is enough, after `max_wait_ms` at the latest."""
        fetch = DelayedFetch(self, parameters, scope, on_done)
        fetch.watch()
        self._purgatory.try_complete_else_watch(fetch, (fetch,))
        return fetch

    def ready(self, fetch: DelayedFetch) -> None:
        """For parked fetches: it has enough, and is completed before this tick sends."""
        if not self._ready:
            self._tick.before_send(self._complete_ready)
        self._ready[fetch] = None

    def expired(self, parameters: FetchParameters) -> None:
        """For parked fetches: counts one whose time was over."""
        self._expires["follower" if parameters.is_from_follower else "consumer"].count += 1

    def _complete_ready(self) -> None:
        ready, self._ready = self._ready, {}
        for fetch in ready:
            fetch.force_complete()


class DelayedFetch(DelayedOperation):
    """A fetch that waits. It is watched by itself: by its session, or by the partitions that it names."""

    def __init__(self, fetches: Fetches, parameters: FetchParameters, scope: FetchScope, on_done: OnDone) -> None:
        super().__init__(parameters.max_wait_ms)
        self._fetches = fetches
        self._parameters = parameters
        self._scope = scope
        self._on_done = on_done
        self._available: dict[FetchPartition, int] = {}
        self._available_total = 0
        self._watcher: _ScopeWatcher | None = None

    def watch(self) -> None:
        """Begins to hear of changes; takes note of what there is already."""
        session = self._scope.session
        if session is not None:
            session.parked[self] = None
        else:
            self._watcher = _ScopeWatcher(self)
        for item in self._scope.items():
            partition = self._fetches.reader.find_partition(item)
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

    def on_complete(self) -> None:
        self._watch_no_more()
        self._on_done(self._fetches.reader.read(self._parameters, self._scope, updates_followers=False))

    def _watch_no_more(self) -> None:
        if self._scope.session is not None:
            self._scope.session.parked.pop(self, None)
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
