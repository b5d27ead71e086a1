"""A query of one SELECT, taken apart: what may change of it while Spark keeps the state of its groups, and what not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from barnabas.pipelines.aggregate_functions import aggregate_calls
from barnabas.pipelines.sql_steps import SqlError, groups, syntax_tree

if TYPE_CHECKING:
    from sqlglot import exp


@dataclass(frozen=True, slots=True)
class QueryParts:
    """Each part as text in sqlglot's own layout and dialect; `columns` by their name, or by themselves without one.

    `rest` is all that is neither a column nor a filter. `referenced` are the names of columns that are used anywhere.
    `aggregates` are the functions over groups, each once, in the order in which Spark keeps them; `made_of` has those
    of each column. `grouped` are the columns that groups or functions over them are made from, by a name of this query
    (GROUP BY of an alias, of a place, of ALL). `unnamed` are the columns to which Spark gives a name. `nests` says that
    a filter has a query inside, `nests_groups` that FROM has one that groups.
    """

    columns: Mapping[str, str]
    where: str
    having: str
    rest: str
    referenced: frozenset[str]
    aggregates: tuple[str, ...]
    made_of: Mapping[str, tuple[str, ...]]
    grouped: Mapping[str, str]
    having_aggregates: frozenset[str]
    has_star: bool
    is_distinct: bool
    nests: bool
    nests_groups: bool
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

    def grouping_fault(self, other: QueryParts, *, is_written: bool) -> str | None:
        """What keeps a query that groups from going on as another: its functions over groups are what is kept, of a
        step that is not written itself (`is_written`) those that are used behind it.
        """
        if self.aggregates != other.aggregates:
            gone = [each for each in self.aggregates if each not in other.aggregates]
            new = [each for each in other.aggregates if each not in self.aggregates]
            return (
                ", ".join([*(f"without {each}" for each in gone), *(f"with {each}" for each in new)]) or "other order"
            )
        if self.having_aggregates != other.having_aggregates:
            return "another function in HAVING"
        if self.grouped != other.grouped:
            both = {*self.grouped, *other.grouped}
            names = sorted(name for name in both if self.grouped.get(name) != other.grouped.get(name))
            return f"column {names[0]}, by which it groups"
        if self.is_distinct and self.columns != other.columns:
            return "other columns with DISTINCT"
        moved = [name for name, calls in self.made_of.items() if other.made_of.get(name) != calls]
        if moved and not is_written:
            return f"column {moved[0]}"
        if self.nests_groups and (fault := self.output_fault(other)) is not None:
            return fault
        return self._nested_fault(other)

    def input_fault(self, other: QueryParts, *, is_read_whole: bool, names: frozenset[str]) -> str | None:
        """What keeps the groups that come behind from going on: a column that they may have been made from. They take
        all columns where `is_read_whole`; else a new one is nothing to them, if its name is none of their own (`names`,
        in lower case).
        """
        if is_read_whole and [*self.columns.items()] != [*other.columns.items()]:
            return "other columns, and all of them are taken"
        hiding = [name for name in other.columns if name not in self.columns and name.lower() in names]
        if hiding:
            return f"column {hiding[0]} was added, a name that is grouped by"
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
    made_of = {_name(item): tuple(_text(call) for call in aggregate_calls(item)) for item in selected}
    referenced = frozenset(column.name.lower() for column in tree.find_all(exp.Column))
    aggregates = tuple(dict.fromkeys(call for calls in made_of.values() for call in calls))
    in_having = frozenset(_text(call) for call in aggregate_calls(having)) if having else frozenset()
    return QueryParts(
        columns={_name(item): _text(item) for item in selected},
        where=_text(where),
        having=_text(having),
        rest=_text(rest),
        referenced=referenced,
        aggregates=aggregates,
        made_of={name: calls for name, calls in made_of.items() if calls},
        grouped=_grouped(tree),
        having_aggregates=in_having.difference(aggregates),
        has_star=any(_takes_all(item) for item in selected),
        is_distinct=tree.args.get("distinct") is not None,
        unnamed=frozenset(_text(item) for item in selected if not item.alias_or_name),
        nests=any(part is not None and part.find(exp.Select) is not None for part in (where, having)),
        nests_groups=any(groups(query) for query in rest.find_all(exp.Select) if query is not rest),
    )


def _grouped(tree: exp.Select) -> dict[str, str]:
    """The columns of the query that GROUP BY or functions over groups name, by their names in lower case. Where a
    column of what is read has that name it is that one which is meant, which nobody can tell here.
    """
    from sqlglot import exp

    group = tree.args.get("group")
    own = {
        item.alias.lower(): item.this
        for item in tree.expressions
        if isinstance(item, exp.Alias) and next(aggregate_calls(item.this), None) is None
    }
    by = [] if group is None else [each for key in group.args for each in _listed(group.args[key])]
    places = [int(each.this) for each in by if isinstance(each, exp.Literal) and not each.is_string]
    found: dict[str, str] = {}
    for place in places:
        found[str(place)] = _text(tree.expressions[place - 1]) if 0 < place <= len(tree.expressions) else ""
    if group is not None and group.args.get("all"):
        plain = [item for item in tree.expressions if next(aggregate_calls(item), None) is None]
        found["all"] = ", ".join(_text(item.unalias()) for item in plain)
    waiting = [*by, *(call for item in tree.expressions for call in aggregate_calls(item))]
    while waiting:
        for column in waiting.pop().find_all(exp.Column):
            name = column.name.lower()
            if not column.table and name in own and name not in found:
                found[name] = _text(own[name])
                waiting.append(own[name])
    return found


def _listed(part: object) -> list[Any]:
    return part if isinstance(part, list) else []


def _name(item: exp.Expr) -> str:
    return item.alias_or_name or _text(item)


def _takes_all(item: exp.Expr) -> bool:
    """Whether it takes all columns, by itself or inside of a function; `count(*)` takes none."""
    from sqlglot import exp

    stars = item.find_all(exp.Star)
    return any(not isinstance(star.parent, exp.Count) for star in stars)


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


def _text(tree: exp.Expr | None) -> str:
    # Not in Spark's dialect: what that writes of different functions may be alike (PERCENTILE_CONT and _DISC).
    return "" if tree is None else str(tree.sql())
