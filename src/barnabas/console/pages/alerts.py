"""`/alerts`, `/alerts/broker-down`: which conditions hold, for how long, and what to do about each."""

from __future__ import annotations

from barnabas.client.cluster_health import Severity
from barnabas.console.alerts import Alert, AlertState
from barnabas.console.html import Content, Html, link, table, tag
from barnabas.console.pages.page import Page, Visit, mark, missing
from barnabas.console.runbook import runbook
from barnabas.console.words import counted, moment, span


def alerts(visit: Visit) -> Page:
    """The page, or what to do about one."""
    if visit.segments:
        found = runbook(visit.segments[0]) if len(visit.segments) == 1 else None
        if found is None:
            return missing(f"There is no page about {'/'.join(visit.segments)}.")
        title, blocks = found
        return Page(title, [tag("p", link("All alerts", "alerts")), tag("section", blocks)], is_live=False)
    board = visit.poller.alerts.alerts(visit.now_ms)
    known = [each for each in board if each.state is not AlertState.UNKNOWN]
    unknown = [each for each in board if each.state is AlertState.UNKNOWN]
    return Page(
        "Alerts",
        [
            _headline(known, unknown),
            table(
                "Judged by what brokers tell",
                ["Alert", "State", "Severity", "When", "Since", "What to do"],
                [_row(each, visit) for each in known],
                "None yet.",
            ),
            table(
                "Not known here",
                ["Alert", "When", "Why not", "What to do"],
                [
                    [tag("span", each.rule.name, class_="whole"), each.rule.what, each.said, _page(each)]
                    for each in unknown
                ],
            ),
            tag(
                "p",
                "The rules are those of contrib/prometheus/alerts.yml, and LagGrows. The console judges from what it "
                "has seen since it was started, and tells nobody: have Prometheus do that.",
                class_="faint",
            ),
        ],
    )


# Inside.


def _headline(known: list[Alert], unknown: list[Alert]) -> Html:
    firing = [each for each in known if each.state is AlertState.FIRING]
    pending = sum(each.state is AlertState.PENDING for each in known)
    kind = "good"
    if firing:
        kind = "bad" if any(each.rule.severity is Severity.CRITICAL for each in firing) else "warning"
    said = counted(len(firing), "alert") if firing else "No alert"
    if pending:
        said += f", {pending} may become one" if firing else f"; {counted(pending, 'condition')} may become one"
    if kind == "good" and (pending or not known):
        kind = "warning"
    return tag("p", mark(kind, f"{said}. {len(unknown)} not known."), class_=f"headline {kind}")


def _row(each: Alert, visit: Visit) -> list[Content]:
    kinds = {AlertState.PENDING: "warning", AlertState.QUIET: "good"}
    kind = kinds.get(each.state) or ("bad" if each.rule.severity is Severity.CRITICAL else "warning")
    state: Content = tag("span", mark(kind, each.state.value), class_="whole")
    if each.state is AlertState.PENDING:
        state = [state, tag("div", tag("small", f"for {each.rule.for_seconds // 60} min"))]
    since: Content = None
    if each.since_ms is not None:
        since = f"{moment(each.since_ms, visit.now_ms)} UTC, {span(visit.now_ms - each.since_ms)} ago"
    details = tag("div", each.said) if each.said else None
    name = tag("span", each.rule.name, class_="whole")
    return [name, state, each.rule.severity.value, [each.rule.what, details], since, _page(each)]


def _page(each: Alert) -> Html:
    page = each.rule.page
    return tag("span", link(page, "alerts", page), class_="whole") if each.rule.page else link("groups", "groups")
