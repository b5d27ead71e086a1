"""Joins of topics that Spark refuses without saying why, or that join what nobody means.

Each topic has the record's columns (`_key`, `_topic`, `_partition`, `_offset`, `_timestamp`). NATURAL JOIN compares all
of them, so that hardly a row has a partner; and a join in parentheses that compares one by USING leaves it there once,
under no name that a star could be told to leave out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barnabas.pipelines.definition import RECORD_COLUMNS

if TYPE_CHECKING:
    from sqlglot import exp


@dataclass(frozen=True, slots=True)
class JoinFault:
    """What is wrong with a join and what to write instead, and the offset in the query."""

    message: str
    offset: int


def first_join_fault(query: exp.Expr, sources: Collection[str]) -> JoinFault | None:
    """The first join of the text at fault; `sources` are the views of topics, in lower case."""
    from sqlglot.optimizer.scope import traverse_scope

    faults = [
        fault
        for scope in traverse_scope(query)
        # What a query names by WITH hides the topic of that name.
        for fault in _faults(scope.expression, frozenset(sources) - {name.lower() for name in scope.cte_sources})
    ]
    return min(faults, key=lambda fault: fault.offset, default=None)


def _faults(select: exp.Expr, sources: Collection[str]) -> Iterator[JoinFault]:
    from sqlglot import exp

    if not isinstance(select, exp.Select):
        return
    has_star = any(isinstance(item, exp.Star) for item in select.expressions)
    for join in select.find_all(exp.Join):
        if join.find_ancestor(exp.Select) is not select:
            continue
        topics = [table for table in _tables(join.parent, join) if table.name.lower() in sources]
        joined = [table for table in _tables(join, None) if table.name.lower() in sources]
        if not topics or not joined:
            continue
        left, right = topics[-1].alias_or_name, joined[0].alias_or_name
        offset = int(joined[0].this.meta.get("start", 0))
        if str(join.args.get("method") or "").upper() == "NATURAL":
            yield JoinFault(
                f"NATURAL JOIN of two topics compares {', '.join(RECORD_COLUMNS)} too, which no two records share:"
                f" name the columns to compare, {left} JOIN {right} USING (...)",
                offset,
            )
            continue
        compared = [column.name for column in join.args.get("using") or () if column.name.lower() in RECORD_COLUMNS]
        if compared and has_star and join.parent is not select:
            column = compared[0]
            yield JoinFault(
                f"a join in parentheses cannot compare {column} by USING where * is selected: remove the parentheses"
                f", or write ON {left}.{column} = {right}.{column}",
                offset,
            )


def _tables(node: exp.Expr | None, until: exp.Join | None) -> list[exp.Table]:
    """The tables that a join, or what is joined before `until`, reads itself."""
    from sqlglot import exp

    if node is None:
        return []
    if isinstance(node, exp.Join):
        roots = [node.this]
    else:
        joins = node.args.get("joins") or []
        first = node.args.get("from_") or node.args.get("from")
        roots = [first.this if first is not None else node]
        roots += [join.this for join in joins[: next(i for i, join in enumerate(joins) if join is until)]]
    found: list[exp.Table] = []
    while roots:
        root = roots.pop(0)
        if isinstance(root, exp.Table):
            found.append(root)
            if root is not node:
                roots += [join.this for join in root.args.get("joins") or []]
        elif isinstance(root, exp.Subquery) and not isinstance(root.this, exp.Query):
            roots.append(root.this)
            if root is not node:
                roots += [join.this for join in root.args.get("joins") or []]
    return found
