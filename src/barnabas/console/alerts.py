"""The alerts of `contrib/prometheus/alerts.yml`, as far as brokers tell by the protocol, and one of groups.

A condition has to hold for as long as its rule says before it is an alert. What only the metrics of brokers have is
said to be unknown, never to be well.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from barnabas.client.cluster_health import Severity
from barnabas.console.words import counted, ids

if TYPE_CHECKING:
    from barnabas.client.cluster_health import Problem
    from barnabas.console.groups import GroupsAndEnds
    from barnabas.console.history import History, Samples
    from barnabas.console.question import Question

WINDOW_MS: Final = 600_000
"""Over how long elections, shrinks and lags are looked at."""
SHRINKS_MAX: Final = 30
"""In the window: 0.05 in a second."""
QUEUE_MAX: Final = 100
LAG_MIN: Final = 1_000
"""A lag that is less is no alert, though it grow."""
_NAMED_MAX: Final = 5
_METRICS = "only the metrics of the brokers tell"


@dataclass(frozen=True, slots=True)
class Rule:
    """What is an alert: `page` is its runbook, empty where it has none."""

    name: str
    severity: Severity
    for_seconds: int
    what: str
    page: str


RULES: Final = (
    Rule("BrokerDown", Severity.CRITICAL, 60, "a broker does not answer", "broker-down"),
    Rule("NoController", Severity.CRITICAL, 60, "the cluster has no controller", "no-controller"),
    Rule("OfflinePartitions", Severity.CRITICAL, 60, "partitions have no leader", "offline-partitions"),
    Rule("UnderMinIsr", Severity.CRITICAL, 60, "producers with acks=all are refused", "under-min-isr"),
    Rule("UnderReplicated", Severity.WARNING, 300, "replicas are not in sync", "under-replicated"),
    Rule("LogDirectoryOffline", Severity.CRITICAL, 0, "a disk has failed", "log-directory-offline"),
    Rule("UncleanElection", Severity.WARNING, 0, "a leader that was not in sync", "unclean-election"),
    Rule("SessionExpired", Severity.WARNING, 0, "a broker was cut off from the coordinator", "session-expired"),
    Rule("IsrFlapping", Severity.WARNING, 600, "replicas fall out of sync and come back", "isr-flapping"),
    Rule("FetchersFailed", Severity.WARNING, 60, "a broker has given up to follow partitions", "fetchers-failed"),
    Rule("ControllerBehind", Severity.WARNING, 300, "events wait for the controller", "controller-behind"),
    Rule("CleanerFailed", Severity.WARNING, 900, "logs are not compacted", "cleaner-failed"),
    Rule("LoopBusy", Severity.WARNING, 600, "a broker has nearly no idle time", "loop-busy"),
    Rule("LongTurns", Severity.WARNING, 600, "something holds the loop for more than 50 ms", "long-turns"),
    Rule("OpenFiles", Severity.WARNING, 300, "a broker is near its bound of open files", "open-files"),
    Rule("LagGrows", Severity.WARNING, 0, "a group falls further behind all the time", ""),
)


class AlertState(enum.Enum):
    """How it is with a rule; the value is the word for it."""

    FIRING = "alert"
    PENDING = "not yet"
    QUIET = "well"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Found:
    """What a condition says: it holds, it does not, or (None) nobody knows; `said` are its details or the reason."""

    holds: bool | None
    said: str = ""


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule, and how it is now. `since_ms` is when its condition began to hold, as the console saw it."""

    rule: Rule
    state: AlertState
    said: str
    since_ms: int | None


class Seen(Protocol):
    """What has been answered, as the poller has it."""

    @property
    def cluster(self) -> Question[Any]: ...
    @property
    def brokers(self) -> Question[Any]: ...
    @property
    def settings(self) -> Question[Any]: ...
    @property
    def controller(self) -> Question[Any]: ...
    @property
    def groups(self) -> Question[GroupsAndEnds]: ...
    @property
    def history(self) -> History: ...
    @property
    def lags(self) -> Samples: ...
    def problems(self) -> list[Problem]: ...


class AlertBoard:
    """Remembers since when conditions hold; `see` is to be called every few seconds, whoever looks."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self._found: Mapping[str, Found] = {}
        self._elections: deque[tuple[int, int]] = deque(maxlen=100)
        """When unclean elections were counted, and how many."""
        self._elections_known: tuple[int, int] | None = None
        """The controller, and its count."""

    def see(self, seen: Seen, now_ms: int) -> None:
        """Looks at what is known."""
        self._count_elections(seen, now_ms)
        found = _conditions(seen, now_ms)
        found["UncleanElection"] = self._unclean(seen, now_ms)
        self._found = found
        for rule in RULES:
            holds = found[rule.name].holds
            if holds:
                self._since.setdefault(rule.name, now_ms)
            elif holds is False:
                self._since.pop(rule.name, None)

    def alerts(self, now_ms: int) -> list[Alert]:
        """All rules: alerts first, what is not known last."""
        order = list(AlertState)
        alerts = [self._alert(rule, now_ms) for rule in RULES]
        return sorted(alerts, key=lambda each: (order.index(each.state), each.rule.severity is not Severity.CRITICAL))

    # Inside.

    def _alert(self, rule: Rule, now_ms: int) -> Alert:
        found = self._found.get(rule.name, Found(None, "the console has just begun to ask"))
        if found.holds is None:
            return Alert(rule, AlertState.UNKNOWN, found.said, None)
        since_ms = self._since.get(rule.name)
        if not found.holds or since_ms is None:
            return Alert(rule, AlertState.QUIET, found.said, None)
        is_long = now_ms - since_ms >= rule.for_seconds * 1_000
        return Alert(rule, AlertState.FIRING if is_long else AlertState.PENDING, found.said, since_ms)

    def _count_elections(self, seen: Seen, now_ms: int) -> None:
        view = seen.controller.value
        if view is None or view.found is None:
            return
        counts = {each.name: each.value for each in view.found.counts}
        count = counts.get("UncleanLeaderElectionsPerSec", 0)
        known, self._elections_known = self._elections_known, (view.node.node_id, count)
        if known is not None and known[0] == view.node.node_id and count > known[1]:
            self._elections.append((now_ms, count - known[1]))

    def _unclean(self, seen: Seen, now_ms: int) -> Found:
        view = seen.controller.value
        if seen.controller.is_stale(now_ms) or view is None:
            return _unanswered(seen.controller)
        if view.found is None:
            return Found(None, "only a controller that is Barnabas tells by the protocol")
        recent = sum(count for time_ms, count in self._elections if time_ms > now_ms - WINDOW_MS)
        return Found(recent > 0, f"{counted(recent, 'unclean election')} in the last 10 minutes" if recent else "")


# Inside.


def _conditions(seen: Seen, now_ms: int) -> dict[str, Found]:
    found = {rule.name: Found(None, _METRICS) for rule in RULES}
    if seen.cluster.is_stale(now_ms):
        unknown = _unanswered(seen.cluster)
        found |= dict.fromkeys(("NoController", "OfflinePartitions", "UnderMinIsr", "UnderReplicated"), unknown)
        found |= dict.fromkeys(("LogDirectoryOffline", "IsrFlapping", "ControllerBehind", "LagGrows"), unknown)
        is_down = seen.cluster.error is not None
        found["BrokerDown"] = Found(True, f"no broker answers: {seen.cluster.error}") if is_down else unknown
        return found
    by_kind: dict[str, list[str]] = {}
    for problem in seen.problems():
        by_kind.setdefault(problem.kind, []).append(problem.what)

    def of(*kinds: str) -> Found:
        said = [what for kind in kinds for what in by_kind.get(kind, ())]
        return Found(bool(said), "; ".join(said[:_NAMED_MAX]))

    gone = of("broker_gone", "broker_silent")
    is_told = not seen.brokers.is_stale(now_ms)
    found["BrokerDown"] = gone if gone.holds or is_told else _unanswered(seen.brokers)
    found["NoController"] = of("no_controller")
    found["OfflinePartitions"] = of("without_leader")
    found["UnderReplicated"] = of("under_replicated")
    found["UnderMinIsr"] = _unanswered(seen.settings) if seen.settings.is_stale(now_ms) else of("under_min_isr")
    found["LogDirectoryOffline"] = of("log_directory") if is_told else _unanswered(seen.brokers)
    untold = without_directories(seen.brokers.value or {})
    if untold and found["LogDirectoryOffline"].holds is False:
        found["LogDirectoryOffline"] = Found(None, f"not told by brokers {ids(untold)}")
    shrinks = seen.history.shrinks_since(now_ms - WINDOW_MS)
    said = f"{counted(shrinks, 'shrink')} of ISRs in the last 10 minutes, as far as the console saw them"
    found["IsrFlapping"] = Found(shrinks > SHRINKS_MAX, said if shrinks else "")
    found["ControllerBehind"] = _behind(seen, now_ms)
    found["LagGrows"] = _lag_grows(seen, now_ms)
    return found


def without_directories(views: Mapping[int, Any]) -> list[int]:
    """The brokers that answer, and do not tell of their log directories: that may be forbidden to us."""
    return [node_id for node_id, view in views.items() if view.software is not None and view.directories is None]


def _unanswered(question: Question[Any]) -> Found:
    return Found(None, f"no answer: {question.error}" if question.error else "no answer yet")


def _behind(seen: Seen, now_ms: int) -> Found:
    view = seen.controller.value
    if seen.controller.is_stale(now_ms) or view is None:
        return _unanswered(seen.controller)
    if view.found is None:
        return Found(None, "only a controller that is Barnabas tells by the protocol")
    waiting = view.found.queued_events
    return Found(waiting > QUEUE_MAX, f"{counted(waiting, 'event')} wait" if waiting > QUEUE_MAX else "")


def _lag_grows(seen: Seen, now_ms: int) -> Found:
    """Whether a group's lag was never less than before over the whole window, and has grown."""
    if seen.groups.is_stale(now_ms) or seen.groups.value is None:
        return _unanswered(seen.groups)
    growing: list[str] = []
    is_known = False
    for name in seen.groups.value.groups:
        points = seen.lags.of(name)
        if not points or points[0][0] > now_ms - WINDOW_MS:
            continue
        is_known = True
        lags = [lag for time_ms, lag in points if time_ms >= now_ms - WINDOW_MS]
        if len(lags) > 1 and lags[-1] >= LAG_MIN and lags[-1] > lags[0] and lags == sorted(lags):
            growing.append(f"{name}: {lags[0]:,.0f} to {lags[-1]:,.0f} records in 10 minutes")
    if seen.groups.value.failed and not growing:
        return Found(None, f"brokers {ids(list(seen.groups.value.failed))} do not tell of their groups")
    unseen = seen.groups.value.not_described
    unseen += sum(not seen.lags.has_place(name) for name in seen.groups.value.groups)
    if unseen and not growing:
        return Found(None, f"the console does not follow the lag of {counted(unseen, 'group')}")
    if not is_known and seen.groups.value.groups:
        return Found(None, "the console has not seen the lags of 10 minutes yet")
    more = f" and {len(growing) - _NAMED_MAX:,} more" if len(growing) > _NAMED_MAX else ""
    return Found(bool(growing), "; ".join(growing[:_NAMED_MAX]) + more)
