"""`/brokers`, `/brokers/1`: who is there, what each leads, what its logs take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.client.broker_views import Software
from barnabas.console.html import Content, Html, fields, link, table, tag
from barnabas.console.pages.page import Page, Visit, int_of, mark, missing, paged, pager, posting, stale_note
from barnabas.console.pages.topics import PARTITION_COLUMNS, partition_row
from barnabas.console.words import size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from barnabas.client.cluster import Cluster
    from barnabas.console.figures import Figures
    from barnabas.console.poller import BrokerView
    from barnabas.wire.topics import TopicPartition

_SOFTWARE = {Software.BARNABAS: "Barnabas", Software.OTHER: "Apache Kafka or other"}


def brokers(visit: Visit) -> Page:
    """The page, or that of one broker."""
    cluster = visit.poller.cluster.value
    if cluster is None:
        return Page("Brokers", None)
    if visit.segments:
        return _one(visit, cluster, int_of(visit.segments[0], -1))
    figures = visit.poller.figures(cluster)
    views = visit.poller.brokers.value or {}
    known = sorted({*cluster.brokers} | {*figures.replicas})
    made = visit.poller.being_made(cluster)
    rows = [_row(cluster, views.get(node_id), node_id, figures, made) for node_id in known]
    directories = [
        row for node_id in sorted(views) if node_id in cluster.brokers for row in _directories(views[node_id])
    ]
    columns = ["#Broker", "Address", "Rack", "State", "#Leads", "#Replicas", "#Behind", "#Logs", "Software"]
    return Page(
        "Brokers",
        [
            stale_note(visit.poller.brokers, visit),
            table("In the cluster, or with replicas in it", columns, rows),
            posting(visit.visitor, "Elect preferred leaders ...", "change", "elect"),
            table("Log directories", _DIRECTORY_COLUMNS, directories, "No broker has told of its log directories."),
        ],
    )


# Inside.

_DIRECTORY_COLUMNS = ("#Broker", "Log directory", "#Logs", "#Size", "#Free", "#Of", "State")


def _state(cluster: Cluster, view: BrokerView | None, node_id: int) -> Html:
    if node_id not in cluster.brokers:
        return mark("bad", "gone")
    if view is not None and view.software is None:
        return mark("warning", "does not answer")
    return mark("good", "controller" if node_id == cluster.controller_id else "alive")


def _row(
    cluster: Cluster,
    view: BrokerView | None,
    node_id: int,
    figures: Figures,
    made: Mapping[TopicPartition, Sequence[int]],
) -> list[Content]:
    node = cluster.brokers.get(node_id)
    behind = figures.behind_on.get(node_id, 0) - sum(node_id in each for each in made.values())
    sizes = None if view is None or view.directories is None else sum(each.size_bytes for each in view.directories)
    return [
        link(node_id, "brokers", node_id),
        None if node is None else f"{node.host}:{node.port}",
        None if node is None else node.rack,
        _state(cluster, view, node_id),
        f"{figures.leads.get(node_id, 0):,}",
        f"{len(figures.replicas.get(node_id, ())):,}",
        mark("warning", f"{behind:,}") if behind else "0",
        None if sizes is None or node is None else size(sizes),
        None if view is None or view.software is None else _SOFTWARE[view.software],
    ]


def _directories(view: BrokerView) -> list[list[Content]]:
    return [
        [
            link(view.node.node_id, "brokers", view.node.node_id),
            each.path,
            f"{len(each.logs):,}",
            size(each.size_bytes),
            None if each.usable_bytes is None else size(each.usable_bytes),
            None if each.total_bytes is None else size(each.total_bytes),
            mark("good", "ok") if each.error is None else mark("bad", each.error),
        ]
        for each in view.directories or ()
    ]


def _one(visit: Visit, cluster: Cluster, node_id: int) -> Page:
    figures = visit.poller.figures(cluster)
    partitions = figures.replicas.get(node_id, ())
    if node_id not in cluster.brokers and not partitions:
        return missing(f"There is no broker {visit.segments[0]}, and none with replicas has that id.")
    view = (visit.poller.brokers.value or {}).get(node_id)
    _, address, rack, state, leads, replicas, behind, logs, software = _row(
        cluster, view, node_id, figures, visit.poller.being_made(cluster)
    )
    bounds = paged(partitions, visit)
    shown = [partition_row(visit, cluster, each, with_topic=True) for each in partitions[slice(*bounds)]]
    return Page(
        f"Broker {node_id}",
        [
            tag("p", link("All brokers", "brokers"), " ", link("Its configs", "configs", "brokers", node_id))
            if node_id in cluster.brokers
            else tag("p", link("All brokers", "brokers")),
            fields(
                [
                    ("State", state),
                    ("Address", address),
                    ("Rack", rack),
                    ("Software", software),
                    ("Leads", leads),
                    ("Replicas", replicas),
                    ("Behind", behind),
                    ("Logs", logs),
                ]
            ),
            stale_note(visit.poller.brokers, visit),
            table(
                "Log directories",
                _DIRECTORY_COLUMNS,
                _directories(view) if view is not None and node_id in cluster.brokers else [],
                "The broker does not tell.",
            ),
            table("Its partitions", ["Topic", *PARTITION_COLUMNS], shown),
            pager(len(partitions), bounds, visit, "brokers", node_id),
        ],
    )
