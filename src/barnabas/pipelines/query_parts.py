"""A query of one SELECT, taken apart: what may change of it while Spark keeps the state of its groups, and what not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from barnabas.pipelines.sql_steps import SqlError, syntax_tree

if TYPE_CHECKING:
    from sqlglot import exp


@dataclass(frozen=True, slots=True)
class QueryParts:
    """Each part as text in sqlglot's own layout; `columns` by their name, or by themselves where they have none.

    `rest` is all that is neither a column nor a filter. `referenced` are the names of columns that are used anywhere.
    `aggregates` are the functions over groups, each once, in the order in which Spark keeps them. `unnamed` are the
    columns to which Spark gives a name, `nests` says that a filter has a query inside.
    """

    columns: Mapping[str, str]
    where: str
    having: str
    rest: str
    referenced: frozenset[str]
    aggregates: tuple[str, ...]
    having_aggregates: frozenset[str]
    has_star: bool
    is_distinct: bool
    nests: bool
    unnamed: frozenset[str]

    def column(self, name: str) -> str | None:
        """How a column is made; None where only Spark can tell."""
        return next((text for key, text in self.columns.items() if key.lower() == name.lower()), None)

    def differences(self, other: QueryParts) -> list[str]:
        """What differs, in words."""
        found = [f"column {name} was added" for name in other.columns if name not in self.columns]
        found += [f"column {name} was removed" for name in self.columns if name not in other.columns]
        found += [
            f"column {name}" for name in self.columns if other.columns.get(name, "") not in (self.columns[name], "")
        ]
        found += ["filter"] if (self.where, self.having) != (other.where, other.having) else []
        return found or ["order of columns"]

    def grouping_fault(self, other: QueryParts) -> str | None:
        """What keeps a query that groups from going on as another: its functions over groups are what is kept."""
        if self.aggregates != other.aggregates:
            gone = [each for each in self.aggregates if each not in other.aggregates]
            new = [each for each in other.aggregates if each not in self.aggregates]
            return (
                ", ".join([*(f"without {each}" for each in gone), *(f"with {each}" for each in new)]) or "other order"
            )
        if not other.having_aggregates <= set(self.aggregates):
            return "another function in HAVING"
        if self.is_distinct and self.columns != other.columns:
            return "other columns with DISTINCT"
        return self._nested_fault(other)

    def input_fault(self, other: QueryParts) -> str | None:
        """What keeps the groups that come behind from going on: a column that they may have been made from."""
        changed = [name for name, text in self.columns.items() if other.columns.get(name, text) != text]
        if changed:
            return f"column {changed[0]}"
        if self.unnamed != other.unnamed:
            return "a column without a name"
        return self._nested_fault(other)

    def output_fault(self, other: QueryParts) -> str | None:
        """What keeps the groups that come before from going on: that another choice of their columns is used, since
        Spark keeps nothing for those that are not.
        """
        if (self.has_star, self.referenced) != (other.has_star, other.referenced):
            differ = sorted(self.referenced ^ other.referenced)
            return f"uses other columns: {', '.join(differ) or '*'}"
        return self._nested_fault(other)

    def _nested_fault(self, other: QueryParts) -> str | None:
        if (self.where, self.having) != (other.where, other.having) and (self.nests or other.nests):
            return "a filter with a query inside"
        return None


def parts_of(sql: str) -> QueryParts | None:
    """The parts; None for what is not one SELECT, such as UNION."""
    from sqlglot import exp

    try:
        tree = syntax_tree(sql)
    except SqlError:
        return None
    if not isinstance(tree, exp.Select):
        return None
    where, having = tree.args.get("where"), tree.args.get("having")
    rest = tree.copy()
    for part in ("expressions", "where", "having"):
        rest.set(part, None)
    selected = tree.expressions
    calls = [_text(call) for item in selected for call in _aggregates_of(item)]
    referenced = frozenset(column.name.lower() for column in tree.find_all(exp.Column))
    return QueryParts(
        columns={item.alias_or_name or _text(item): _text(item) for item in selected},
        where=_text(where),
        having=_text(having),
        rest=_text(rest),
        referenced=referenced,
        aggregates=tuple(dict.fromkeys(calls)),
        having_aggregates=frozenset(_text(call) for call in _aggregates_of(having)) if having else frozenset(),
        has_star=any(isinstance(item, exp.Star) or item.is_star for item in selected),
        is_distinct=tree.args.get("distinct") is not None,
        unnamed=frozenset(_text(item) for item in selected if not item.alias_or_name),
        nests=any(part is not None and part.find(exp.Select) is not None for part in (where, having)),
    )


def tables_of(sql: str) -> tuple[tuple[str, ...], bool]:
    """The tables that a query names, in lower case, in order and as often as it does; whether it has WITH, whose tables
    may be read more often than that.
    """
    from sqlglot import exp

    try:
        tree = syntax_tree(sql)
    except SqlError:
        return (), True
    names = tuple(table.name.lower() for table in tree.find_all(exp.Table, bfs=False))
    return names, tree.find(exp.CTE) is not None


def renamed_query(sql: str, names: Mapping[str, str]) -> str:
    """The query with steps called by other names, in sqlglot's layout; as it is where it cannot be read."""
    from sqlglot import exp

    if not names:
        return sql
    try:
        tree = syntax_tree(sql).copy()
    except SqlError:
        return sql
    lower = {old.lower(): new for old, new in names.items()}
    hidden = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for node in tree.find_all(exp.Table, exp.Column):
        part = "this" if isinstance(node, exp.Table) else "table"
        identifier = node.args.get(part)
        if isinstance(identifier, exp.Identifier) and identifier.name.lower() in lower.keys() - hidden:
            node.set(part, exp.to_identifier(lower[identifier.name.lower()]))
    return str(tree.sql(dialect="spark"))


def _aggregates_of(item: exp.Expr) -> Iterator[Any]:
    from sqlglot import exp

    for call in item.find_all(exp.AggFunc, bfs=False):
        around = call.parent.parent if isinstance(call.parent, exp.Filter) else call.parent
        if not isinstance(around, exp.Window):
            yield call.parent if isinstance(call.parent, exp.Filter) else call


def _text(tree: exp.Expr | None) -> str:
    return "" if tree is None else str(tree.sql(dialect="spark"))
