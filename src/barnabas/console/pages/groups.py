"""`/groups`, `/groups/readers`, `/groups?name=..`: who reads, how far, and how that lag was over time."""

from __future__ import annotations

from barnabas.console.charts import Line, line_chart
from barnabas.console.groups import GROUPS_LISTED_MAX, GROUPS_PER_BROKER_MAX, Group, GroupsAndEnds, ListedGroup
from barnabas.console.html import Content, Html, fields, link, table, tag
from barnabas.console.pages.page import (
    Page,
    Visit,
    failures_note,
    mark,
    missing,
    no_samples,
    paged,
    pager,
    search_field,
    stale_note,
)
from barnabas.console.words import counted, span

_STATES = {"Stable": "good", "Empty": "warning", "Dead": "bad"}
_DRAWN_MAX = 5
_UNNAMED = "(empty name)"
_NO_SEGMENTS = frozenset({"", ".", ".."})
"""Names of groups that browsers take out of a path."""


def groups(visit: Visit) -> Page:
    """The page, or that of one group."""
    found = visit.poller.groups.value
    note = stale_note(visit.poller.groups, visit)
    if found is None:
        return Page("Groups", note)
    name = visit.segments[0] if visit.segments else visit.query.get("name")
    if name is None:
        return _all(visit, found, note)
    if found.others:
        visit.poller.look_at_groups([name])
    group = found.groups.get(name)
    if group is None and name in found.others:
        return _listed(visit, found.others[name], note)
    if group is None:
        return missing(f"There is no group {name}, or its coordinator did not tell of it.")
    return _one(visit, group, found, note)


# Inside.


def _all(visit: Visit, found: GroupsAndEnds, note: Html | None) -> Page:
    wanted = visit.query.get("q", "").strip()
    names = [name for name in sorted({*found.groups, *found.others}) if wanted.lower() in name.lower()]
    bounds = paged(names, visit)
    shown = names[slice(*bounds)]
    if found.others:
        visit.poller.look_at_groups(shown)
    rows: list[list[Content]] = []
    for name in shown:
        if name in found.others:
            rows.append(_listed_row(found.others[name]))
            continue
        group = found.groups[name]
        lag = group.lag_of_all(found.ends)
        rows.append(
            [
                _link(name),
                _state(group),
                group.protocol_type,
                f"{len(group.members):,}",
                f"{len(group.committed):,}",
                None if lag is None else f"{lag:,}",
                link(group.coordinator_id, "brokers", group.coordinator_id),
            ]
        )
    latest = {name: points[-1][1] for name in names if (points := visit.poller.lags.of(name))}
    drawn = sorted(latest, key=lambda name: (-latest[name], name))[:_DRAWN_MAX]
    lines = [Line(name, visit.poller.lags.of(name)) for name in drawn]
    caption = "Lag" if len(names) <= _DRAWN_MAX else f"Lag, of the {_DRAWN_MAX} groups with the most"
    more: list[Html] = []
    if found.others:
        said = f"Brokers are asked for the offsets of {GROUPS_PER_BROKER_MAX} groups each, of those that you see first."
        more.append(tag("p", said, class_="note"))
    if found.not_listed:
        said = f"{counted(found.not_listed, 'group')} beyond {GROUPS_LISTED_MAX:,} of a broker not shown."
        more.append(tag("p", said, class_="note warning"))
    return Page(
        "Groups",
        [
            note,
            failures_note(found.failed),
            more,
            line_chart(caption, "records", lines),
            search_field(visit, "Name"),
            table(
                counted(len(names), "group"),
                ["Group", "State", "Protocol", "#Members", "#Partitions", "#Lag (records)", "#Coordinator"],
                rows,
                "No group.",
            ),
            pager(len(names), bounds, visit, "groups"),
        ],
    )


def _listed(visit: Visit, group: ListedGroup, note: Html | None) -> Page:
    """One that was not described, and is soon, since somebody looks at it."""
    _, state, protocol, *_, coordinator = _listed_row(group)
    soon = span(1_000 * visit.poller.groups.pause_seconds)
    return Page(
        f"Group {group.group_id or _UNNAMED}",
        [
            tag("p", link("All groups", "groups")),
            note,
            tag(
                "p",
                f"Its members and offsets are asked for: it may take {soon} until the page has them.",
                class_="note",
            ),
            fields([("State", state), ("Protocol", protocol), ("Coordinator", coordinator)]),
        ],
    )


def _listed_row(group: ListedGroup) -> list[Content]:
    return [
        _link(group.group_id),
        _state(group) if group.state else None,
        group.protocol_type,
        None,
        None,
        None,
        link(group.coordinator_id, "brokers", group.coordinator_id),
    ]


def _one(visit: Visit, group: Group, found: GroupsAndEnds, note: Html | None) -> Page:
    lag = group.lag_of_all(found.ends)
    owners = {partition: member for member in group.members for partition in member.assignment}
    partitions = sorted({*group.committed, *owners})
    bounds = paged(partitions, visit)
    rows: list[list[Content]] = []
    for partition in partitions[slice(*bounds)]:
        committed, end = group.committed.get(partition), found.ends.get(partition)
        behind = None if committed is None else group.lag(partition, found.ends)
        owner = owners.get(partition)
        rows.append(
            [
                link(partition.topic, "topics", partition.topic),
                link(partition.partition, "topics", partition.topic, partition.partition),
                None if committed is None else f"{committed:,}",
                None if end is None else f"{end:,}",
                None if behind is None else f"{behind:,}",
                None if owner is None else owner.client_id,
            ]
        )
    members: list[list[Content]] = [
        [
            member.member_id,
            member.client_id,
            member.client_host,
            member.group_instance_id,
            f"{len(member.assignment):,}",
        ]
        for member in group.members
    ]
    return Page(
        f"Group {group.group_id or _UNNAMED}",
        [
            tag("p", link("All groups", "groups")),
            note,
            fields(
                [
                    ("State", _state(group)),
                    ("Protocol", " ".join(filter(None, (group.protocol_type, group.protocol)))),
                    ("Members", f"{len(group.members):,}"),
                    ("Lag", None if lag is None else f"{lag:,} records"),
                    ("Coordinator", link(f"broker {group.coordinator_id}", "brokers", group.coordinator_id)),
                ]
            ),
            line_chart(
                "Lag",
                "records",
                [Line("lag", visit.poller.lags.of(group.group_id))],
                no_samples(visit.poller.lags, group.group_id),
            ),
            table(
                "Partitions",
                ["Topic", "#Partition", "#Committed", "#End offset", "#Lag (records)", "Read by"],
                rows,
                "It has committed nothing and is assigned nothing.",
            ),
            pager(len(partitions), bounds, visit, "groups", *visit.segments),
            table("Members", ["Member", "Client", "Host", "Instance", "#Partitions"], members, "No members."),
        ],
    )


def _link(name: str) -> Html:
    if name in _NO_SEGMENTS:
        return link(name or _UNNAMED, "groups", query={"name": name})
    return link(name, "groups", name)


def _state(group: Group | ListedGroup) -> Html:
    return mark(_STATES.get(group.state, "warning"), group.state)
