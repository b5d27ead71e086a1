"""`/pipelines`, `/pipelines/delays`: how fast each reads, how far it is, and what it could not use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from barnabas.console.charts import Line, line_chart
from barnabas.console.html import Content, Html, fields, link, table, tag
from barnabas.console.pages.page import Page, Visit, mark, missing, no_samples, paged, pager, search_field, stale_note
from barnabas.console.pipelines import (
    GROUP_PREFIX,
    LETTERS_SUFFIX,
    Letters,
    PipelineFile,
    QueryLine,
    letters_of,
    pipeline_of,
)
from barnabas.console.words import counted, date_and_clock, rate, span

if TYPE_CHECKING:
    from barnabas.client.cluster import Cluster
    from barnabas.console.groups import Group, GroupsAndEnds

_DRAWN_MAX = 5


def pipelines(visit: Visit) -> Page:
    """The page, or that of one pipeline."""
    cluster, found = visit.poller.cluster.value, visit.poller.groups.value
    if cluster is None or found is None:
        return Page("Pipelines", stale_note(visit.poller.groups, visit))
    if visit.segments:
        return _one(visit, cluster, found, visit.segments[0] if len(visit.segments) == 1 else "")
    return _all(visit, cluster, found)


# Inside: all of them.


def _all(visit: Visit, cluster: Cluster, found: GroupsAndEnds) -> Page:
    files = {each.name: each for each in _files(visit) if each.error is None}
    known = sorted({*files, *(name for each in found.groups if (name := pipeline_of(each)) is not None)})
    wanted = visit.query.get("q", "").strip().lower()
    names = [name for name in known if wanted in name.lower()]
    bounds = paged(names, visit)
    rows = [_row(visit, cluster, found, name, files.get(name)) for name in names[slice(*bounds)]]
    columns = ["Pipeline", "State", "#Reads (records / s)", "#Lag (records)", "#Dead letters", "Last batch"]
    reads = visit.poller.reads
    latest = {name: points[-1][1] for name in names if (points := reads.of(name))}
    drawn = sorted(latest, key=lambda name: (-latest[name], name))[:_DRAWN_MAX]
    strangers = [
        name
        for name in sorted(cluster.topics)
        if name.endswith(LETTERS_SUFFIX) and name.removesuffix(LETTERS_SUFFIX) not in known
    ]
    return Page(
        "Pipelines",
        [
            *_notes(visit),
            line_chart("Records read", "records / s", [Line(name, reads.of(name)) for name in drawn])
            if names
            else None,
            search_field(visit, "Name"),
            table(counted(len(names), "pipeline"), columns, rows, "None has a group in this cluster."),
            pager(len(names), bounds, visit, "pipelines"),
            table(
                "Other topics that are named as dead letters",
                ["Topic", "#Letters"],
                [
                    [
                        link(name, "topics", name),
                        _count(_letters(visit, cluster, found, name.removesuffix(LETTERS_SUFFIX))),
                    ]
                    for name in strangers
                ],
            )
            if strangers
            else None,
            tag("p", _UNKNOWN if not visit.poller.has_files else _PARTLY_UNKNOWN, class_="faint"),
        ],
    )


_UNKNOWN = (
    f"Pipelines are known by their groups, {GROUP_PREFIX}NAME. Whether one runs, its batches and what it left out are "
    "in its own files, which the console was not told of: `barnabas console --pipeline FILE`, on its machine."
)
_PARTLY_UNKNOWN = (
    f"Pipelines are known by their groups, {GROUP_PREFIX}NAME, and by the files that the console was started with "
    "(--pipeline). Of others it is not known whether they run."
)


def _row(visit: Visit, cluster: Cluster, found: GroupsAndEnds, name: str, file: PipelineFile | None) -> list[Content]:
    group = found.groups.get(f"{GROUP_PREFIX}{name}")
    reads = visit.poller.reads.of(name)
    lag = None if group is None else group.lag_of_all(found.ends)
    return [
        link(name, "pipelines", name),
        _state(file, reads),
        rate(reads[-1][1]) if reads else None,
        None if lag is None else f"{lag:,}",
        _count(_letters(visit, cluster, found, name)),
        None if file is None or not file.queries else _ago(visit, max(each.time_ms for each in file.queries)),
    ]


def _state(file: PipelineFile | None, reads: Sequence[tuple[int, float]]) -> Html:
    if file is not None:
        return mark(file.kind, file.state)
    if reads and reads[-1][1] > 0:
        return mark("good", "reads")
    return tag("span", "not known", class_="faint")


def _count(letters: Letters | None) -> Content:
    if letters is None:
        return "0"
    if letters.there is None:
        return "not known"
    return mark("warning", f"{letters.there:,}") if letters.there else "0"


# Inside: one.


def _one(visit: Visit, cluster: Cluster, found: GroupsAndEnds, name: str) -> Page:
    file = next((each for each in _files(visit) if each.name == name and each.error is None), None)
    group_id = f"{GROUP_PREFIX}{name}"
    group = found.groups.get(group_id) if pipeline_of(group_id) is not None else None
    if group is None and file is None:
        return missing(f"There is no pipeline {name}: no group {group_id}, and no file of it that the console knows.")
    letters = _letters(visit, cluster, found, name)
    reads = visit.poller.reads.of(name)
    lag = None if group is None else group.lag_of_all(found.ends)
    pairs: list[tuple[str, Content]] = [
        ("State", _state(file, reads)),
        ("Reads", f"{rate(reads[-1][1])} records / s" if reads else None),
        ("Lag", None if lag is None else counted(lag, "record")),
        ("Group", link(group_id, "groups", group_id) if group is not None else f"{group_id}: none yet"),
        ("Dead letters", _letters_told(letters, name)),
    ]
    if file is not None:
        pairs += [
            ("File", file.path),
            ("Process", file.process_id),
            ("Started", None if file.started_ms is None else f"{date_and_clock(file.started_ms)[:19]} UTC"),
            ("Last change", None if file.updated_ms is None else _ago(visit, file.updated_ms)),
        ]
    return Page(
        f"Pipeline {name}",
        [
            tag("p", link("All pipelines", "pipelines")),
            *_notes(visit),
            tag("p", file.reason, class_="note bad", role="alert") if file is not None and file.reason else None,
            fields(pairs),
            _graph(file) if file is not None else None,
            line_chart("Records read", "records / s", [Line(name, reads)], no_samples(visit.poller.reads, name)),
            line_chart(
                "Lag", "records", [Line(name, visit.poller.lags.of(group_id))], no_samples(visit.poller.lags, group_id)
            ),
            _topics(group, found) if group is not None else None,
            _queries(visit, file)
            if file is not None
            else tag(
                "p",
                "Its batches, and what it left out, are in its own files, which the console was not told of.",
                class_="faint",
            ),
        ],
    )


def _graph(file: PipelineFile) -> Html:
    # Its colours are for paper, whatever the theme.
    caption = f"What {file.name} does: topics, steps, results"
    paper = tag("div", Html(file.graph), class_="paper", tabindex=0, role="group", aria_label=caption)
    return tag("figure", tag("figcaption", caption), paper)


def _letters_told(letters: Letters | None, name: str) -> Content:
    if letters is None:
        return f"none: there is no topic {name}{LETTERS_SUFFIX}"
    ever = "" if letters.ever is None else f" of {letters.ever:,} ever"
    there = "not known" if letters.there is None else f"{letters.there:,}{ever}"
    shown: Content = mark("warning", there) if letters.there else there
    return [shown, " ", link("Look at them", "messages", query={"topic": letters.topic})]


def _topics(group: Group, found: GroupsAndEnds) -> Html:
    lags: dict[str, list[int | None]] = {}
    for partition in sorted(group.committed):
        lags.setdefault(partition.topic, []).append(group.lag(partition, found.ends))
    rows: list[list[Content]] = []
    for topic, each in lags.items():
        known = [lag for lag in each if lag is not None]
        rows.append([link(topic, "topics", topic), f"{len(each):,}", f"{sum(known):,}" if known else None])
    return table("Topics that it reads, as far as its group has committed", ["Topic", "#Partitions", "#Lag"], rows)


def _queries(visit: Visit, file: PipelineFile) -> Html:
    columns = ["View", "#Batch", "Done", "#Rows in", "#Rows out", "#Rows / s", "Watermark", "In no result"]
    rows = [_query_row(visit, each) for each in file.queries]
    return table("Queries: the last batch, and the sums over all", columns, rows, "No batch is done yet.")


def _query_row(visit: Visit, each: QueryLine) -> list[Content]:
    left_out: list[Content] = [
        tag("div", mark("warning", f"{count:,}"), f" {why}") for why, count in each.left_out.items()
    ]
    return [
        each.view,
        f"{each.batch_id:,}",
        _ago(visit, each.time_ms),
        f"{each.rows_in:,}",
        f"{each.rows_out:,}",
        rate(each.rows_per_second),
        None if each.watermark_ms is None else f"{date_and_clock(each.watermark_ms)[:19]} UTC",
        left_out or "none",
    ]


# Inside: both.


def _files(visit: Visit) -> Sequence[PipelineFile]:
    return visit.poller.pipelines.value or ()


def _letters(visit: Visit, cluster: Cluster, found: GroupsAndEnds, name: str) -> Letters | None:
    starts = visit.poller.letters.value
    return letters_of(name, cluster, found.ends, starts.starts if starts is not None else {})


def _notes(visit: Visit) -> list[Html | None]:
    notes = [stale_note(visit.poller.groups, visit), stale_note(visit.poller.letters, visit)]
    if visit.poller.has_files:
        notes.append(stale_note(visit.poller.pipelines, visit))
    for each in _files(visit):
        if each.error is not None:
            notes.append(tag("p", f"{each.path} cannot be read: {each.error}", class_="note warning", role="status"))
    return notes


def _ago(visit: Visit, time_ms: int) -> str:
    return f"{span(visit.now_ms - time_ms)} ago"
