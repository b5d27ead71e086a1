"""`/reassignments`: the partitions that are being moved, and how far that is."""

from __future__ import annotations

from barnabas.console.html import Content, Html, link, table, tag
from barnabas.console.pages.page import Page, Visit, paged, pager, posting, stale_note
from barnabas.console.words import counted, ids, size


def reassignments(visit: Visit) -> Page:
    """The page."""
    cluster = visit.poller.cluster.value
    found = visit.poller.reassignments.value
    note = stale_note(visit.poller.reassignments, visit)
    if cluster is None or found is None:
        return Page("Reassignments", note)
    may_change = visit.visitor.may_change
    partitions = sorted(found)
    bounds = paged(partitions, visit)
    rows: list[list[Content]] = []
    for partition in partitions[slice(*bounds)]:
        moving = found[partition]
        sizes = {each: visit.poller.size_bytes(partition, each) for each in moving.replicas}
        of_one = max((each for each in sizes.values() if each is not None), default=0)
        total = of_one * len(moving.adding_replicas)
        copied = sum(min(of_one, sizes[each] or 0) for each in moving.adding_replicas)
        rows.append(
            [
                link(str(partition), "topics", partition.topic, partition.partition),
                ids([each for each in moving.replicas if each not in moving.adding_replicas]),
                ids(moving.adding_replicas),
                ids(moving.removing_replicas),
                _progress(copied, total) if moving.adding_replicas else "nothing to copy",
                *(
                    [
                        posting(
                            visit.visitor,
                            "Cancel",
                            "change",
                            "cancel",
                            topic=partition.topic,
                            partition=partition.partition,
                        )
                    ]
                    if may_change
                    else []
                ),
            ]
        )
    return Page(
        "Reassignments",
        [
            note,
            stale_note(visit.poller.brokers, visit) if found else None,
            table(
                f"{counted(len(partitions), 'partition')} being moved",
                ["Partition", "On", "To", "From", "Copied", *(["Cancel"] if may_change else [])],
                rows,
                "Nothing is being moved. `barnabas reassign` plans and begins a move.",
            ),
            pager(len(partitions), bounds, visit, "reassignments"),
            posting(visit.visitor, "Cancel all of them", "change", "cancel") if partitions else None,
            None
            if may_change
            else tag("p", "Cancel one with `barnabas reassign cancel`: this console only reads.", class_="faint"),
        ],
    )


# Inside.


def _progress(copied: int, total: int) -> Html | str:
    if not total:
        return "sizes are not known yet"
    label = f"{size(copied)} of {size(total)}"
    percent = copied * 100 // total
    return tag("span", tag("progress", value=percent, max=100, aria_label=label), f" {percent}%, {label}")
