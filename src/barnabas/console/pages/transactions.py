"""`/transactions`: transactional ids and what their transactions do, the open ones first."""

from __future__ import annotations

from barnabas.console.html import Content, Html, link, table, tag
from barnabas.console.pages.page import Page, Visit, failures_note, mark, paged, pager, search_field, stale_note
from barnabas.console.transactions import Transaction
from barnabas.console.words import counted, span

_PARTITIONS_NAMED = 5


def transactions(visit: Visit) -> Page:
    """The page."""
    found = visit.poller.transactions.value
    note = stale_note(visit.poller.transactions, visit)
    if found is None:
        return Page("Transactions", note)
    wanted = visit.query.get("q", "").strip().lower()
    listed = [each for each in found.listed if wanted in each.transactional_id.lower()]
    bounds = paged(listed, visit)
    opened = sum(each.is_open for each in listed)
    rows: list[list[Content]] = [
        [
            each.transactional_id,
            _state(each, visit.now_ms),
            None if each.started_ms is None else span(visit.now_ms - each.started_ms),
            None if each.timeout_ms is None else span(each.timeout_ms),
            _partitions(each),
            each.producer_id,
            link(each.coordinator_id, "brokers", each.coordinator_id),
        ]
        for each in listed[slice(*bounds)]
    ]
    return Page(
        "Transactions",
        [
            note,
            failures_note(found.failed),
            tag("p", f"{found.not_kept:,} more of those at rest are not shown.", class_="note warning")
            if found.not_kept
            else None,
            search_field(visit, "Transactional id"),
            table(
                f"{counted(len(listed), 'transactional id')}, {opened:,} with an open transaction",
                ["Transactional id", "State", "#Open for", "#Time-out", "Partitions", "#Producer id", "#Coordinator"],
                rows,
                "No producer with a transactional id is known.",
            ),
            pager(len(listed), bounds, visit, "transactions"),
        ],
    )


# Inside.


def _state(each: Transaction, now_ms: int) -> Html:
    if not each.is_open:
        return mark("good", each.state)
    is_late = each.started_ms is not None and each.timeout_ms is not None and now_ms - each.started_ms > each.timeout_ms
    return mark("bad" if is_late else "warning", f"{each.state}, past its time-out" if is_late else each.state)


def _partitions(each: Transaction) -> Content:
    if not each.partitions:
        return None
    parts: list[str | int | None] = []
    for partition in each.partitions[:_PARTITIONS_NAMED]:
        parts += [link(str(partition), "topics", partition.topic, partition.partition), " "]
    if len(each.partitions) > _PARTITIONS_NAMED:
        parts.append(f"and {len(each.partitions) - _PARTITIONS_NAMED:,} more")
    return parts
