"""`/controller`: what the controller does, its queue, and its latest state changes; of Barnabas only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barnabas.console.charts import Line, line_chart
from barnabas.console.html import Content, Html, fields, link, table, tag
from barnabas.console.pages.page import Page, Visit, mark, stale_note
from barnabas.console.words import counted, date_and_clock, ids, moment, span

if TYPE_CHECKING:
    from barnabas.wire.messages import DescribeControllerResponse

_THE_PARTITION = -1
_TRANSITIONS_SHOWN = 100
_ALARMING = frozenset({"OfflinePartitionsCount", "UncleanLeaderElectionsPerSec"})


def controller(visit: Visit) -> Page:
    """The page."""
    cluster = visit.poller.cluster.value
    if cluster is None:
        return Page("Controller", None)
    view = visit.poller.controller.value
    lacks = None
    if cluster.controller_id < 0:
        advice = "an election may be under way; check that the coordinator and the brokers are running"
        lacks = tag("p", f"The cluster has no controller now: {advice}.", class_="note bad", role="alert")
    note = stale_note(visit.poller.controller, visit)
    if view is None:
        return Page("Controller", [lacks, note])
    who: list[tuple[str, Content]] = [
        ("Controller", link(f"broker {view.node.node_id}", "brokers", view.node.node_id)),
        ("Address", f"{view.node.host}:{view.node.port}"),
    ]
    if view.found is None:
        says = "It is Apache Kafka or another broker, not Barnabas: the protocol says no more about its controller."
        return Page("Controller", [lacks, note, fields(who), tag("p", says, class_="note")])
    return Page("Controller", [lacks, note, _inside(visit, who, view.found)])


# Inside.


def _inside(visit: Visit, who: list[tuple[str, Content]], found: DescribeControllerResponse) -> list[Html]:
    waiting = counted(found.queued_events, "event")
    if found.queued_events:
        waiting += f", the oldest for {found.oldest_event_age_ms:,} ms"
    queued = [f"{each.queued_requests} to broker {each.broker_id}" for each in found.channels if each.queued_requests]
    elected = found.elected_at_ms
    transitions = list(visit.poller.transitions)[-_TRANSITIONS_SHOWN:][::-1]
    return [
        fields(
            [
                *who,
                ("Software", f"Barnabas {found.software_version}"),
                ("Epoch", found.controller_epoch),
                ("Since", f"{date_and_clock(elected)[:19]} UTC, {span(visit.now_ms - elected)} ago"),
                ("Doing", "nothing" if found.state == "IDLE" else found.state.lower().replace("_", " ")),
                ("Waiting", waiting),
                ("To be sent", ", ".join(queued) or "nothing"),
            ]
        ),
        line_chart("Events that wait", "events", [Line("queue", visit.poller.queue.of("events"))]),
        table(
            "State changes, the newest first",
            ["Time (UTC)", "Partition", "#Replica", "Change", "#Leader", "#Epoch", "In sync"],
            [_transition_row(each, visit.now_ms) for each in transitions],
            "None since it was elected.",
        ),
        table(
            "Gauges",
            ["Gauge", "#Value"],
            [
                [
                    each.name,
                    mark("bad", f"{each.value:,}") if each.value and each.name in _ALARMING else f"{each.value:,}",
                ]
                for each in found.counts
            ],
        ),
        table(
            "What it did since its broker started",
            ["What", "#Times", "#Mean ms", "#Longest ms"],
            [[each.name, f"{each.count:,}", f"{each.mean_ms:.1f}", f"{each.maximum_ms:,}"] for each in found.timings],
        ),
    ]


def _transition_row(each: Any, now_ms: int) -> list[Content]:
    after = each.after.lower()
    change = f"{each.before.lower()} \u2192 {after}"
    return [
        moment(each.time_ms, now_ms, to_the_ms=True),
        link(f"{each.topic}-{each.partition}", "topics", each.topic, each.partition),
        None if each.broker_id == _THE_PARTITION else each.broker_id,
        change if each.fault is None else mark("bad", f"failed: {change}: {each.fault}"),
        each.leader if each.leader >= 0 else None,
        each.leader_epoch if each.leader_epoch >= 0 else None,
        ids(each.isr),
    ]
