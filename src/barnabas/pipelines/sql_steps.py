"""The SQL of a step, read by sqlglot in Spark's dialect: one query, of which views, giving which columns.

This finds mistakes before a JVM is started; Spark, which reads the same text again, has the last word. sqlglot is the
more lenient of the two, and where it is not (`window` as the first expression after GROUP BY) it is helped here.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.pipelines.aggregate_functions import aggregate_calls
from barnabas.pipelines.record_columns import RewrittenSql, without_record_columns
from barnabas.pipelines.topic_joins import first_join_fault
from barnabas.pipelines.yaml_positions import nearest

if TYPE_CHECKING:
    from sqlglot import Token, exp

SQL_CHARACTERS_MAX: Final = 100_000
_QUERY_BEGINNINGS: Final = ("SELECT", "WITH", "FROM", "VALUES")
_QUOTES: Final = {"'": "'", '"': '"', "`": "`", "/*": "*/", "--": "\n"}

logging.getLogger("sqlglot").addHandler(logging.NullHandler())


class SqlError(ValueError):
    """What is wrong with a query, and the offset in its text."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class ViewName:
    """A view that a query names, and the offset in its text."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class StepQuery:
    """What a query says of itself.

    `reads` has each view once, in the order of the text. `columns` are the names of the result, None where only Spark
    can tell them (`*`, and expressions without AS). `aggregates` says that rows are put together: GROUP BY, DISTINCT,
    or a function such as `count`.
    """

    reads: tuple[ViewName, ...]
    columns: tuple[str, ...] | None
    aggregates: bool


def parse_query(sql: str) -> StepQuery:
    """Reads a query. Raises SqlError for what is not exactly one query over views."""
    if len(sql) > SQL_CHARACTERS_MAX:
        raise SqlError(f"the SQL has more than {SQL_CHARACTERS_MAX} characters: split it into several steps", 0)
    tokens = _tokens(sql)
    _refuse_other_statements(tokens)
    query = _parsed(sql, tokens)
    return StepQuery(_views(query), _columns(query), groups(query))


def refuse_joins_of_topics(sql: str, sources: Collection[str]) -> None:
    """Raises SqlError for a join that the record's columns of topics make impossible. `parse_query` takes the query;
    `sources` are the views of topics.
    """
    fault = first_join_fault(_parsed(sql, _tokens(sql)), frozenset(name.lower() for name in sources))
    if fault is not None:
        raise SqlError(fault.message, fault.offset)


def is_same_query(before: str, now: str) -> bool:
    """Whether two queries differ in layout, comments and letter case of keywords and functions at most.

    It is their syntax trees that are compared. A text that this version of sqlglot does not take is the same as itself.
    """
    if before == now:
        return True
    try:
        return bool(_parsed(before, _tokens(before)) == _parsed(now, _tokens(now)))
    except SqlError:
        return False


def syntax_tree(sql: str) -> exp.Expr:
    """The syntax tree of a query that `parse_query` takes. Raises SqlError."""
    return _parsed(sql, _tokens(sql))


def query_for_spark(sql: str, sources: Collection[str]) -> RewrittenSql:
    """What Spark is given for a query that `parse_query` takes; `sources` are the views of topics."""
    tokens = _tokens(sql)
    return without_record_columns(_parsed(sql, tokens), sql, tokens, frozenset(name.lower() for name in sources))


def _tokens(sql: str) -> list[Token]:
    from sqlglot import TokenType
    from sqlglot.dialects.spark import Spark
    from sqlglot.errors import TokenError

    try:
        tokens = Spark().tokenize(sql)
    except TokenError:
        opening, offset = _unclosed(sql)
        raise SqlError(f"{opening} is not closed: add {_QUOTES.get(opening, opening)}", offset) from None
    # To sqlglot the word is that of a WINDOW clause, although Spark has a function of this name.
    for token, following in itertools.pairwise(tokens):
        if token.token_type is TokenType.WINDOW and following.token_type is TokenType.L_PAREN:
            token.token_type = TokenType.VAR
    return tokens


def _unclosed(sql: str) -> tuple[str, int]:
    """The quote or comment that does not end, and where it begins."""
    offset = 0
    while offset < len(sql):
        opening = next((quote for quote in _QUOTES if sql.startswith(quote, offset)), None)
        if opening is None:
            offset += 1
            continue
        closing = _QUOTES[opening]
        at = offset + len(opening)
        while at < len(sql) and not sql.startswith(closing, at):
            at += 2 if sql[at] == "\\" and opening in {"'", '"'} else 1
        if at >= len(sql) and opening != "--":
            return opening, offset
        offset = at + len(closing)
    return "something", max(len(sql) - 1, 0)


def _refuse_other_statements(tokens: Sequence[Token]) -> None:
    from sqlglot import TokenType

    if not tokens or tokens[0].token_type is TokenType.SEMICOLON:
        raise SqlError("there is no SQL here: write a query, SELECT ... FROM ...", 0)
    first = next((token for token in tokens if token.token_type is not TokenType.L_PAREN), tokens[0])
    if first.text.upper() not in _QUERY_BEGINNINGS:
        hint = nearest(first.text, _QUERY_BEGINNINGS) or "; what is to be written belongs under sinks"
        raise SqlError(f'the SQL begins with "{first.text}", but a step is one query (SELECT){hint}', first.start)
    for token, following in itertools.pairwise(tokens):
        if token.token_type is TokenType.SEMICOLON and following.token_type is not TokenType.SEMICOLON:
            raise SqlError("a second statement begins here: make each query its own step", following.start)


def _parsed(sql: str, tokens: list[Token]) -> exp.Expr:
    from sqlglot import exp
    from sqlglot.dialects.spark import Spark
    from sqlglot.errors import ParseError

    try:
        statements = [statement for statement in Spark().parser().parse(tokens, sql) if statement is not None]
    except ParseError as error:
        raise _readable(sql, tokens, error) from None
    except RecursionError:
        raise SqlError("the SQL is nested too deep: split it into several steps", 0) from None
    query = statements[0]
    other = query.find(exp.DDL, exp.DML, exp.Command)
    if other is not None or not isinstance(query, exp.Query | exp.Values) or query.args.get("into") is not None:
        what = "SELECT INTO" if query.args.get("into") is not None else (query if other is None else other).key.upper()
        raise SqlError(f"this is {what}, but a step is one query; what is to be written belongs under sinks", 0)
    return query


def _readable(sql: str, tokens: Sequence[Token], error: Exception) -> SqlError:
    """sqlglot's complaint without its marks for a terminal, at the token that it stopped at."""
    complaint = error.errors[0] if getattr(error, "errors", None) else {}  # type: ignore[attr-defined]
    highlight = str(complaint.get("highlight") or "")
    offset = _offset(sql, int(complaint.get("line") or 1), int(complaint.get("col") or 1))
    token = next((token for token in tokens if token.start <= offset <= token.end), None)
    description = str(complaint.get("description") or "").split("\n")[0].rstrip(".")
    if description.startswith("Expecting "):
        problem = f'"{description.removeprefix("Expecting ")}" is expected'
    elif description.startswith("Required keyword"):
        problem = "something is missing"
    else:
        problem = "the SQL cannot be parsed from here on"
    near = token.text if token is not None else highlight
    return SqlError(f'SQL error near "{near[:40]}": {problem}; correct the query here or just before', offset)


def _offset(sql: str, line: int, column: int) -> int:
    """The offset of a place as sqlglot tells it: the line, and the column of a token's last character, from 1."""
    lines = sql.split("\n")
    return min(sum(len(text) + 1 for text in lines[: line - 1]) + max(column - 1, 0), max(len(sql) - 1, 0))


def _views(query: exp.Expr) -> tuple[ViewName, ...]:
    """The views behind all FROMs and JOINs; what WITH defines is none of them."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError
    from sqlglot.optimizer.scope import traverse_scope

    try:
        tables = [
            source
            for scope in traverse_scope(query)
            for source in scope.sources.values()
            if isinstance(source, exp.Table)
        ]
    except SqlglotError as error:
        message = str(error).split("\n", maxsplit=1)[0]
        raise SqlError(f"the query's names cannot be told apart ({message}): give each table its own name", 0) from None
    found: dict[str, ViewName] = {}
    for table in tables:
        if not isinstance(table.this, exp.Identifier):
            continue  # a function that gives rows, such as range(10)
        offset = int(table.this.meta.get("start", 0))
        if len(table.parts) > 1:
            name = ".".join(part.name for part in table.parts)
            raise SqlError(f'the query reads "{name}", but it can read the sources and steps of this file only', offset)
        found.setdefault(table.name.lower(), ViewName(table.name, offset))
    return tuple(sorted(found.values(), key=lambda view: view.offset))


def _columns(query: exp.Expr) -> tuple[str, ...] | None:
    from sqlglot import exp

    if not isinstance(query, exp.Query) or query.is_star:
        return None
    selected = query.selects
    if not selected or not all(isinstance(item, exp.Alias | exp.Column) for item in selected):
        return None
    return tuple(item.alias_or_name for item in selected)


def groups(query: exp.Expr) -> bool:
    """Whether a query puts rows together: GROUP BY, DISTINCT, or a function over groups."""
    from sqlglot import exp

    for select in query.find_all(exp.Select):
        if select.args.get("distinct") is not None or select.args.get("group") is not None:
            return True
    return next(aggregate_calls(query), None) is not None
