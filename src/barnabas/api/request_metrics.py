"""What is counted of every request: `kafka.network:type=RequestMetrics`, under Kafka's names.

Durations are of the loop's clock, which stands still while a request is handled: what is answered at once took 0 ms,
and costs one addition. Those that are answered later are counted by their durations, and go into the histograms in one
go when one of these is read. There is no queue between network and handlers, so there are no queue times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol

from barnabas.kernel.metrics import Histogram, Meter, MetricName, MetricsRegistry, Snapshot
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode

GROUP = "kafka.network"
TYPE = "RequestMetrics"


_DURATIONS_MAX: Final = 64
"""Different ones that are counted before they go into the histograms."""


class Requester(Protocol):
    """Whose request it was, as far as is known of one that has waited."""

    @property
    def client_id(self) -> str | None: ...
    @property
    def api_version(self) -> int: ...


class RequestTimes(Histogram):
    """Milliseconds; requests are added in one go when it is read."""

    __slots__ = ("_read_at_once", "_requests")

    def __init__(self, metrics: MetricsRegistry, requests: RequestMetrics) -> None:
        super().__init__(metrics.now)
        self._requests = requests
        self._read_at_once = 0

    def snapshot(self) -> Snapshot:
        self._requests.add_later_ones()
        at_once = self._requests.answered_at_once
        self.update_many(0, at_once - self._read_at_once)
        self._read_at_once = at_once
        return super().snapshot()


class RequestMetrics:
    """The figures of one API, or of one kind of its requests (`FetchFollower`)."""

    __slots__ = (
        "_answered_later",
        "_errors",
        "_later",
        "_meters",
        "_metrics",
        "_successes",
        "answered_at_once",
        "failed",
        "local_time",
        "name",
        "remote_time",
        "total_time",
    )

    def __init__(self, metrics: MetricsRegistry, name: str) -> None:
        self._metrics = metrics
        self._errors: dict[int, Meter] = {}
        self._meters: dict[int, Meter] = {}
        self._later: dict[tuple[int, bool], int] = {}
        self._answered_later = 0
        """Of those that are not in `_later` any more."""
        self._successes = Meter(metrics.now)
        self.name = name
        self.answered_at_once = 0
        """Requests that were answered in the turn of the loop that brought them."""
        self.failed = 0
        """Requests that were answered with errors, however many each."""
        tags = (("request", name),)
        self.total_time = metrics.add(MetricName(GROUP, TYPE, "TotalTimeMs", tags), RequestTimes(metrics, self))
        """From the hand-over to the response."""
        self.remote_time = metrics.add(MetricName(GROUP, TYPE, "RemoteTimeMs", tags), RequestTimes(metrics, self))
        """Of it, waiting for something to happen elsewhere."""
        self.local_time = metrics.add(MetricName(GROUP, TYPE, "LocalTimeMs", tags), RequestTimes(metrics, self))
        """Of it, waiting for work of this broker."""

    def meter(self, version: int) -> Meter:
        """Counts the requests of a version."""
        meter = self._meters.get(version)
        if meter is None:
            tags = (("request", self.name), ("version", str(version)))
            meter = self._meters[version] = self._metrics.meter(MetricName(GROUP, TYPE, "RequestsPerSec", tags))
        return meter

    def answered_later(self, duration_ms: int, *, is_queued: bool, by: Requester | None = None) -> None:  # noqa: ARG002
        """Counts a request that was parked; `by` is for those who trace it."""
        later, key = self._later, (duration_ms, is_queued)
        count = later.get(key)
        if count is None:
            if len(later) >= _DURATIONS_MAX:
                self.add_later_ones()
            count = 0
        later[key] = count + 1

    def add_later_ones(self) -> None:
        """For the histograms: adds what was counted of parked requests."""
        for (duration_ms, is_queued), count in self._later.items():
            self.total_time.update_many(duration_ms, count)
            self.local_time.update_many(duration_ms if is_queued else 0, count)
            self.remote_time.update_many(0 if is_queued else duration_ms, count)
            self._answered_later += count
        self._later.clear()

    def successes(self) -> Meter:
        """Requests that were answered without an error. One is counted as answered before its errors are known, so the
        count waits rather than fall."""
        answered = self.answered_at_once + self._answered_later + sum(self._later.values())
        self._successes.count = max(self._successes.count, answered - self.failed)
        return self._successes

    def count_error(self, code: int, count: int = 1) -> None:
        """Counts an error that was answered, so often; nothing happens for NONE (see `failed`)."""
        if not code:
            return
        meter = self._errors.get(code)
        if meter is None:
            tags = (("request", self.name), ("error", ErrorCode.for_code(code).name))
            meter = self._errors[code] = self._metrics.meter(MetricName(GROUP, TYPE, "ErrorsPerSec", tags))
        meter.count += count


class RequestMetricsByName:
    """The figures of all APIs, made when an API is first asked for.

    Of each API Kafka counts what it answers without an error as ErrorsPerSec too, with `error=NONE`, and boards divide
    by the sum of all. Kafka counts NONE for each code of a response, here a response counts once: it costs nothing.
    """

    def __init__(
        self,
        metrics: MetricsRegistry,
        make: Callable[[MetricsRegistry, str], RequestMetrics] = RequestMetrics,
    ) -> None:
        self._metrics = metrics
        self._make = make
        self._by_name: dict[str, RequestMetrics] = {}
        metrics.add_source(self._successes)

    def of(self, name: str) -> RequestMetrics:
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = self._make(self._metrics, name)
        return found

    def _successes(self) -> Iterator[tuple[MetricName, Meter]]:
        for api_key in ApiKey:
            figures = self._by_name.get(api_key.api_name)
            successes = None if figures is None else figures.successes()
            if successes is not None and successes.count:
                tags = (("request", api_key.api_name), ("error", ErrorCode.NONE.name))
                yield MetricName(GROUP, TYPE, "ErrorsPerSec", tags), successes
