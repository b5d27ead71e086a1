"""`/`: first what is wrong, then how large and how busy the cluster is, and what happened lately."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.client.cluster_health import Problem, Severity
from barnabas.console.alerts import without_directories
from barnabas.console.charts import Line, line_chart
from barnabas.console.html import Content, Html, link, table, tag
from barnabas.console.pages.page import Page, Visit, mark, posting, stale_note
from barnabas.console.poller import CLUSTER
from barnabas.console.question import IDLE_FACTOR, SHARE
from barnabas.console.words import counted, moment, rate, span

if TYPE_CHECKING:
    from barnabas.client.cluster import Cluster

_NAMED_MAX = 5
_CHANGES_SHOWN = 15


def overview(visit: Visit) -> Page:
    """The page."""
    poller = visit.poller
    cluster = poller.cluster.value
    if cluster is None:
        return Page("Overview", ["" if poller.cluster.error else "Asking the brokers ...", _questions(visit)])
    lines = [Line("all topics", poller.writes.of(CLUSTER))]
    return Page(
        "Overview",
        [
            _health(visit, poller.problems()),
            stale_note(poller.brokers, visit),
            _figures(cluster, visit),
            line_chart("Records written", "records / s", lines),
            _changes(visit),
            _questions(visit),
        ],
    )


# Inside.


def _health(visit: Visit, problems: list[Problem]) -> Html:
    if not problems:
        untold = _untold(visit)
        if untold:
            said = f"Nothing wrong is seen, but not all is told: {'; '.join(untold)}."
            return tag("p", mark("warning", said), class_="headline warning")
        return tag("p", mark("good", "All is well."), class_="headline good")
    worst = "bad" if problems[0].severity is Severity.CRITICAL else "warning"
    items = [
        tag(
            "li",
            tag(
                "p",
                mark("bad" if each.severity is Severity.CRITICAL else "warning", each.severity.value),
                " ",
                each.what,
            ),
            tag("p", "What to do: ", each.advice, class_="faint"),
            _links(each),
            posting(visit.visitor, "Elect preferred leaders ...", "change", "elect")
            if each.kind == "leader_imbalance"
            else None,
            class_="bad" if each.severity is Severity.CRITICAL else "warning",
        )
        for each in problems
    ]
    return tag(
        "section",
        tag("p", mark(worst, counted(len(problems), "problem")), class_=f"headline {worst}"),
        tag("ul", items, class_="problems"),
    )


def _untold(visit: Visit) -> list[str]:
    """What brokers that answer do not tell the console's login."""
    said = []
    without = without_directories(visit.poller.brokers.value or {})
    if without:
        said.append(f"log directories of {counted(len(without), 'broker')}")
    groups = visit.poller.groups.value
    if groups is not None and groups.failed:
        said.append(f"groups of {counted(len(groups.failed), 'broker')}")
    if visit.poller.settings.error is not None:
        said.append(f"settings ({visit.poller.settings.error})")
    return said


def _links(problem: Problem) -> Html | None:
    links: list[Content] = []
    for each in problem.partitions[:_NAMED_MAX]:
        links += [link(str(each), "topics", each.topic, each.partition), " "]
    if len(problem.partitions) > _NAMED_MAX:
        links.append(f"and {len(problem.partitions) - _NAMED_MAX:,} more ")
    for node_id in problem.brokers[:_NAMED_MAX]:
        links += [link(f"broker {node_id}", "brokers", node_id), " "]
    return tag("p", links) if links else None


def _figures(cluster: Cluster, visit: Visit) -> Html:
    figures = visit.poller.figures(cluster)
    made = visit.poller.being_made(cluster)
    behind = figures.behind - sum(
        not visit.poller.missing(partition, cluster.topics[partition.topic].partitions[partition.partition])
        for partition in made
    )
    leaderless = figures.leaderless
    writes = visit.poller.writes.of(CLUSTER)
    found = visit.poller.groups.value
    lag = None
    of_some = ""
    groups: Content = None
    if found is not None and (found.groups or not found.failed):
        at_least = " or more" if found.failed else ""
        groups = link(f"{len(found.groups) + found.not_described:,}{at_least}", "groups")
        lag = sum(group.lag_of_all(found.ends) or 0 for group in found.groups.values())
        of_some = f" of {len(found.groups):,} groups" if found.not_described else ""
    controller = (
        link(f"broker {cluster.controller_id}", "controller") if cluster.controller_id >= 0 else mark("bad", "none")
    )
    tiles: list[tuple[str, Content, Content]] = [
        ("Brokers", link(f"{len(cluster.brokers):,}", "brokers"), None),
        ("Controller", controller, None),
        ("Topics", link(f"{len(cluster.topics):,}", "topics"), None),
        ("Partitions", f"{figures.partitions:,}", None),
        ("Under-replicated", mark("warning", f"{behind:,}") if behind else "0", _partitions(behind)),
        ("Without a leader", mark("bad", f"{leaderless:,}") if leaderless else "0", _partitions(leaderless)),
        ("Written", rate(writes[-1][1]) if writes else None, "records / s"),
        ("Groups", groups, None),
        ("Lag of groups", None if lag is None else f"{lag:,}", f"record{'' if lag == 1 else 's'}{of_some}"),
    ]
    return tag(
        "dl",
        [
            tag(
                "div",
                tag("dt", name),
                tag("dd", "-" if value is None else value, tag("small", f" {unit}") if unit else None),
            )
            for name, value, unit in tiles
        ],
        class_="tiles",
    )


def _partitions(count: int) -> str:
    return "partition" if count == 1 else "partitions"


def _changes(visit: Visit) -> Html:
    history = visit.poller.history
    rows: list[list[Content]] = [
        [moment(each.time_ms, visit.now_ms), mark("warning", each.what) if each.is_bad else each.what]
        for each in reversed(list(history.changes)[-_CHANGES_SHOWN:])
    ]
    began_ms = history.began_ms
    began = "" if began_ms is None else f"{moment(began_ms, visit.now_ms)} UTC"
    since = f" since {began}, when the console started to look" if began else ""
    return table("Lately", ["Time (UTC)", "What"], rows, f"Nothing has changed{since}.")


def _questions(visit: Visit) -> Html:
    rows: list[list[Content]] = []
    for question in visit.poller.questions:
        age_ms = question.age_ms(visit.now_ms)
        rows.append(
            [
                question.name,
                question.api,
                f"{question.every_seconds:g}",
                f"{question.took_seconds * 1_000:,.0f}" if age_ms is not None else None,
                None if age_ms is None else f"{span(age_ms)} ago",
                mark("warning", question.error) if question.error else "ok",
            ]
        )
    explained = (
        f"Once for all who look, whoever has a page open. While nobody does, {IDLE_FACTOR} times as seldom; and an "
        f"answer that took long is asked for again only after {SHARE} times as long, so that none of these takes "
        "more than 1% of a core of a broker."
    )
    return tag(
        "details",
        tag("summary", "What the console asks the brokers"),
        tag("p", explained),
        table("Questions", ["What", "Requests", "#Every s", "#Took ms", "Answered", "State"], rows),
        id="questions",
    )
