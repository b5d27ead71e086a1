"""`/topics`, `/topics/flights`, `/topics/flights/0`: who leads, who is in sync, and how both were before."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from barnabas.console.charts import Line, lanes, line_chart
from barnabas.console.html import Content, Html, fields, link, table, tag
from barnabas.console.pages.page import (
    Page,
    Visit,
    int_of,
    mark,
    missing,
    no_samples,
    paged,
    pager,
    posting,
    search_field,
    stale_note,
)
from barnabas.console.words import counted, ids, moment, rate, size
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.cluster import Cluster, PartitionInfo, TopicInfo
    from barnabas.console.history import PartitionState

PARTITION_COLUMNS = ("#Partition", "#Leader", "#Epoch", "In sync", "Replicas", "#End offset", "#Size", "Records")
_CHANGES_SHOWN = 50


def topics(visit: Visit) -> Page:
    """The page, that of one topic, or that of one partition."""
    cluster = visit.poller.cluster.value
    if cluster is None:
        return Page("Topics", None)
    if not visit.segments:
        return _all(visit, cluster)
    name = visit.segments[0]
    topic = cluster.topics.get(name)
    if topic is None:
        return missing(f"There is no topic {name}; perhaps it was deleted.")
    if len(visit.segments) == 1:
        return _topic(visit, cluster, topic)
    partition = TopicPartition(name, int_of(visit.segments[1], -1))
    info = topic.partitions.get(partition.partition)
    if info is None:
        return missing(f"Topic {name} has no partition {visit.segments[1]}; it has 0 to {len(topic.partitions) - 1}.")
    return _partition(visit, partition, info)


def partition_row(
    visit: Visit, cluster: Cluster, partition: TopicPartition, *, with_topic: bool = False
) -> list[Content]:
    """A partition as `PARTITION_COLUMNS` has it, with its topic before where that is wanted."""
    info = cluster.topics[partition.topic].partitions[partition.partition]
    ends = visit.poller.groups.value.ends if visit.poller.groups.value is not None else {}
    end = ends.get(partition)
    size_bytes = visit.poller.size_bytes(partition, info.leader_id)
    row: list[Content] = [
        link(partition.partition, "topics", partition.topic, partition.partition),
        _leader(info),
        info.leader_epoch,
        _isr(visit, partition, info),
        ids(info.replicas),
        None if end is None else f"{end:,}",
        None if size_bytes is None else size(size_bytes),
        _records_link(partition),
    ]
    return [link(partition.topic, "topics", partition.topic), *row] if with_topic else row


# Inside.


def _all(visit: Visit, cluster: Cluster) -> Page:
    wanted = visit.query.get("q", "").strip()
    names = [name for name in sorted(cluster.topics) if wanted.lower() in name.lower()]
    bounds = paged(names, visit)
    rows: list[list[Content]] = []
    for name in names[slice(*bounds)]:
        topic = cluster.topics[name]
        infos = topic.partitions.values()
        behind = sum(
            bool(visit.poller.missing(TopicPartition(name, number), info)) for number, info in topic.partitions.items()
        )
        leaderless = sum(info.leader_id < 0 for info in infos)
        sizes = [
            found
            for number, info in topic.partitions.items()
            if (found := visit.poller.size_bytes(TopicPartition(name, number), info.leader_id)) is not None
        ]
        writes = visit.poller.writes.of(f"topic {name}")
        rows.append(
            [
                [link(name, "topics", name), tag("small", " internal") if topic.is_internal else None],
                f"{len(topic.partitions):,}",
                max((len(info.replicas) for info in infos), default=0),
                mark("warning", f"{behind:,}") if behind else "0",
                mark("bad", f"{leaderless:,}") if leaderless else "0",
                rate(writes[-1][1]) if writes else None,
                size(sum(sizes)) if sizes else None,
            ]
        )
    columns = [
        "Topic",
        "#Partitions",
        "#Replicas",
        "#Under-replicated",
        "#No leader",
        "#Records / s",
        "#Size of leaders",
    ]
    caption = counted(len(names), "topic") + (f" with {wanted} in the name" if wanted else "")
    return Page(
        "Topics",
        [
            search_field(visit, "Name"),
            table(caption, columns, rows, "None: `barnabas topic create` makes one."),
            pager(len(names), bounds, visit, "topics"),
        ],
    )


def _topic(visit: Visit, cluster: Cluster, topic: TopicInfo) -> Page:
    name = topic.name
    partitions = list(topic.partitions)
    bounds = paged(partitions, visit)
    rows = [partition_row(visit, cluster, TopicPartition(name, each)) for each in partitions[slice(*bounds)]]
    changes = [
        (state, before, partition)
        for partition in visit.poller.history.changed(name)
        for before, state in _steps(visit.poller.history.of(partition))
    ]
    changes.sort(key=lambda change: -change[0].since_ms)
    return Page(
        f"Topic {name}",
        [
            tag(
                "p",
                link("All topics", "topics"),
                " ",
                link("Its records", "messages", query={"topic": name}),
                " ",
                link("Its configs", "configs", "topics", name),
                " ",
                _write_link(visit, topic),
            ),
            posting(visit.visitor, "Elect preferred leaders ...", "change", "elect", topic=name),
            stale_note(visit.poller.groups, visit),
            line_chart(
                "Records written",
                "records / s",
                [Line(name, visit.poller.writes.of(f"topic {name}"))],
                no_samples(visit.poller.writes, f"topic {name}"),
            ),
            table(counted(len(partitions), "partition"), PARTITION_COLUMNS, rows),
            pager(len(partitions), bounds, visit, "topics", name),
            table(
                f"Changes of leader and ISR {_since(visit)}",
                ["Time (UTC)", "#Partition", "Leader", "#Epoch", "In sync"],
                [
                    [
                        moment(state.since_ms, visit.now_ms),
                        link(partition.partition, "topics", name, partition.partition),
                        _from_to(_id(before.leader_id), _id(state.leader_id)),
                        state.leader_epoch,
                        _from_to(ids(before.isr), ids(state.isr)),
                    ]
                    for state, before, partition in changes[:_CHANGES_SHOWN]
                ],
                "None.",
            ),
        ],
    )


def _partition(visit: Visit, partition: TopicPartition, info: PartitionInfo) -> Page:
    states = visit.poller.history.of(partition)
    found = visit.poller.groups.value
    end = None if found is None else found.ends.get(partition)
    size_bytes = visit.poller.size_bytes(partition, info.leader_id)
    steps = _steps(states)
    return Page(
        f"Partition {partition}",
        [
            tag("p", link(f"Topic {partition.topic}", "topics", partition.topic), " ", _records_link(partition)),
            posting(
                visit.visitor,
                "Elect the preferred leader ...",
                "change",
                "elect",
                topic=partition.topic,
                partition=partition.partition,
            )
            if info.replicas and info.leader_id != info.replicas[0]
            else None,
            fields(
                [
                    ("Leader", _leader(info)),
                    ("Leader epoch", info.leader_epoch),
                    ("In sync (ISR)", _isr(visit, partition, info)),
                    ("Replicas", ids(info.replicas)),
                    ("Offline replicas", ids(info.offline_replicas) or "none"),
                    ("End offset", None if end is None else f"{end:,}"),
                    ("Size at the leader", None if size_bytes is None else size(size_bytes)),
                ]
            ),
            lanes(states, visit.now_ms) if states else None,
            table(
                f"Changes {_since(visit)}",
                ["Time (UTC)", "Leader", "#Epoch", "In sync", "Replicas"],
                [
                    [
                        moment(state.since_ms, visit.now_ms),
                        _from_to(_id(before.leader_id), _id(state.leader_id)),
                        state.leader_epoch,
                        _from_to(ids(before.isr), ids(state.isr)),
                        _from_to(ids(before.replicas), ids(state.replicas)),
                    ]
                    for before, state in reversed(steps)
                ],
                "None.",
            ),
        ],
    )


def _since(visit: Visit) -> str:
    """From when on changes are known, and by whom."""
    history = visit.poller.history
    if history.began_ms is None:
        return "since the console started to look"
    began = moment(history.began_ms, visit.now_ms)
    if history.earlier is None:
        return f"since {began} UTC, when the console started to look"
    since = moment(history.earlier.since_ms, visit.now_ms)
    return f"since {since} UTC, those before {began} as broker {history.earlier.node_id} remembers them"


def _steps(states: list[PartitionState]) -> list[tuple[PartitionState, PartitionState]]:
    """Each state but the first, with the one before."""
    return list(itertools.pairwise(states))


def _leader(info: PartitionInfo) -> Content:
    if info.leader_id < 0:
        return mark("bad", "none")
    return link(info.leader_id, "brokers", info.leader_id)


def _isr(visit: Visit, partition: TopicPartition, info: PartitionInfo) -> Html | str:
    isr = ids(info.isr)
    return mark("warning", isr or "none") if visit.poller.missing(partition, info) else isr


def _id(node_id: int) -> str:
    return str(node_id) if node_id >= 0 else "none"


def _from_to(before: str, after: str) -> str:
    return after if before == after else f"{before or 'none'} \u2192 {after or 'none'}"


def _records_link(partition: TopicPartition) -> Html:
    return link("Records", "messages", query={"topic": partition.topic, "partition": partition.partition})


def _write_link(visit: Visit, topic: TopicInfo) -> list[Content]:
    if not visit.visitor.may_change or topic.is_internal:
        return []
    return [" ", link("Write a record", "write", query={"topic": topic.name})]
