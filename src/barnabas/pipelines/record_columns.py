"""A star stands for the columns of a source's schema, not for those of the record, which have to be asked for by name.

`SELECT flights.* FROM flights` would otherwise write `_key`, `_topic`, `_partition`, `_offset` and `_timestamp` into
every sink. Spark has a way to say so, `flights.* EXCEPT (flights._key, ...)`, and that is what it is given.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.pipelines.definition import RECORD_COLUMNS

if TYPE_CHECKING:
    from sqlglot import Token, exp

_PARTIAL_JOINS: Final = frozenset({"SEMI", "ANTI"})


@dataclass(frozen=True, slots=True)
class Insertion:
    """Text that was put in before the character at `offset` of the query as it was written."""

    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class RewrittenSql:
    """A query with insertions, none of which has a line break, in the order of their offsets."""

    text: str
    insertions: tuple[Insertion, ...] = ()

    def written_offset(self, offset: int) -> int:
        """The offset in the query as it was written, for one in `text`; of inserted text where it was put."""
        added = 0
        for insertion in self.insertions:
            if offset < insertion.offset + added:
                break
            if offset < insertion.offset + added + len(insertion.text):
                return insertion.offset
            added += len(insertion.text)
        return offset - added

    def offset_of(self, line: int, column: int) -> int:
        """The offset in `text` of a line, from 1, and a column, from 0."""
        lines = self.text.split("\n")
        before = lines[: min(max(line, 1), len(lines)) - 1]
        return sum(len(each) + 1 for each in before) + max(column, 0)


def without_record_columns(
    query: exp.Expr, sql: str, tokens: Sequence[Token], sources: Collection[str]
) -> RewrittenSql:
    """The query that `sql` is, its stars without the columns of RECORD_COLUMNS of the views in `sources`.

    `sources` are in lower case. `count(*)` is left as it is.
    """
    from sqlglot import exp
    from sqlglot.optimizer.scope import traverse_scope

    insertions: list[Insertion] = []
    for scope in traverse_scope(query):
        select = scope.expression
        if not isinstance(select, exp.Select):
            continue
        hidden = _record_columns(select, scope.selected_sources, sources)
        if hidden:
            of_all = _of_all(select, hidden)
            for star in _stars(select):
                insertion = _insertion(star, hidden, of_all, sql, tokens)
                if insertion is not None:
                    insertions.append(insertion)
    insertions.sort(key=lambda insertion: insertion.offset)
    parts, end = [], 0
    for insertion in insertions:
        parts += [sql[end : insertion.offset], insertion.text]
        end = insertion.offset
    return RewrittenSql("".join([*parts, sql[end:]]), tuple(insertions))


def _record_columns(
    select: exp.Select, selected: Mapping[str, tuple[object, object]], sources: Collection[str]
) -> dict[str, list[str]]:
    """The columns to leave out, in SQL, by the name that each source has in this query."""
    from sqlglot import exp

    partial = {
        join.this.alias_or_name.lower()
        for join in select.args.get("joins") or ()
        if str(join.args.get("kind") or "").upper() in _PARTIAL_JOINS
    }
    return {
        alias.lower(): [f"`{alias}`.`{column}`" for column in RECORD_COLUMNS]
        for alias, (_, source) in selected.items()
        if isinstance(source, exp.Table)
        and source.name.lower() in sources
        and not source.args.get("pivots")
        and alias.lower() not in partial
    }


def _of_all(select: exp.Select, hidden: Mapping[str, list[str]]) -> list[str]:
    """The columns that a star without a name is to leave out. Of those that USING compares, one is there for both
    sides, under the name of the side whose rows all stay; of a full join, under none.
    """
    left = dict(hidden)
    joins = select.args.get("joins") or ()
    for number, join in enumerate(joins):
        merged = {column.name.lower() for column in join.args.get("using") or ()}
        joined = join.this.alias_or_name.lower()
        before = left.keys() - {later.this.alias_or_name.lower() for later in joins[number:]}
        side = str(join.args.get("side") or "").upper()
        gone = {"RIGHT": before, "FULL": before | {joined}}.get(side, {joined})
        found = [column for alias in gone & left.keys() for column in left[alias] if _name(column) in merged]
        for alias in gone & left.keys():
            left[alias] = [column for column in left[alias] if column not in found]
        if side == "FULL" and found:
            left[f"USING of join {number}"] = sorted({f"`{_name(column)}`" for column in found})
    return list(itertools.chain.from_iterable(left.values()))


def _name(column: str) -> str:
    """The name of a column in SQL, in lower case."""
    return column.rsplit("`", 2)[1].lower()


def _stars(select: exp.Select) -> list[exp.Star]:
    """The stars of this SELECT itself, not of the queries within it, that stand for columns."""
    from sqlglot import exp

    return [
        star
        for item in select.expressions
        for star in item.find_all(exp.Star)
        if star.find_ancestor(exp.Select) is select and not isinstance(star.parent, exp.Count)
    ]


def _insertion(
    star: exp.Star, hidden: Mapping[str, list[str]], of_all: list[str], sql: str, tokens: Sequence[Token]
) -> Insertion | None:
    from sqlglot import TokenType, exp

    of_one = star.parent.table.lower() if isinstance(star.parent, exp.Column) else None
    columns = of_all if of_one is None else hidden.get(of_one, [])
    if not columns:
        return None
    at = star.meta.get("end")
    if at is None or sql[int(at)] != "*":
        # `FROM flights` alone is short for SELECT *.
        select = star.find_ancestor(exp.Select)
        start = min(table.this.meta.get("start", 0) for table in select.find_all(exp.Table)) if select else 0
        before = [token for token in tokens if token.token_type is TokenType.FROM and token.start < start]
        return Insertion(before[-1].start, f"SELECT * EXCEPT ({', '.join(columns)}) ") if before else None
    excepted = star.args.get("except_") or []
    if not excepted:
        return Insertion(int(at) + 1, f" EXCEPT ({', '.join(columns)})")
    named = {column.name.lower() for column in excepted}
    left = [column for column in columns if _name(column) not in named]
    # Behind the parenthesis that opens the list that is there.
    opening = next(token for token in tokens if token.start > int(at) and token.token_type is TokenType.L_PAREN)
    return Insertion(opening.end + 1, f"{', '.join(left)}, ") if left else None
