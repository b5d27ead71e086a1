"""What a test of a pipeline expected, beside what was written: rows that are missing, unexpected, or that differ.

Values are compared by the type of their column, as Spark's schema has it as JSON: "2013-01-01 05:00" and
"2013-01-01T05:00:00.000000Z" are one TIMESTAMP, 1.5 and "1.50" are one DECIMAL. A DOUBLE is compared by twelve digits.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from barnabas.pipelines.cases import ExpectedRow

DIFFERENCES_MAX: Final = 20
"""How many differences of one sink are told; the rest is counted."""
_ROW_CHARACTERS_MAX: Final = 300
_PAIRS_MAX: Final = 1_000_000
_INTEGERS: Final = frozenset({"byte", "short", "integer", "long"})
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """One row that is not as it should be; `line` is that of the row expected, 0 where there is none.

    `kind` is "missing", "unexpected" or "differs"; then `columns` has (column, expected, found) of those that differ.
    """

    kind: str
    line: int
    row: Mapping[str, object]
    columns: tuple[tuple[str, object, object], ...] = ()

    def __str__(self) -> str:
        at = f" (line {self.line})" if self.line else ""
        if self.kind == "differs":
            each = (f"{name} is {shown(found)}, not {shown(wanted)}" for name, wanted, found in self.columns)
            return f"differs{at}: {'; '.join(each)}; in {shown(self.row)}"
        return f"{self.kind}{at}: {shown(self.row)}"


def comparable(value: object, kind: object) -> Hashable:
    """A value, expected or found, so that two which are equal for the column's type are equal for Python.

    `kind` is the type as the JSON of Spark's schema has it. What is not of the type stays what it is, and differs.
    """
    if value is None:
        return None
    name = str(kind)
    try:
        if isinstance(kind, Mapping):
            return _nested(value, kind)
        if name in {"float", "double"} and isinstance(value, int | float | decimal.Decimal | str):
            return ("number", None) if isinstance(value, bool) else ("number", _double(value))
        if name.startswith("decimal") and isinstance(value, int | float | decimal.Decimal | str):
            return ("text", str(value)) if isinstance(value, bool) else ("number", decimal.Decimal(str(value)))
        if name in _INTEGERS and isinstance(value, int | decimal.Decimal) and not isinstance(value, bool):
            return ("number", int(value)) if value == int(value) else ("number", str(value))
        if name == "date":
            return ("date", (value if isinstance(value, dt.date) else dt.date.fromisoformat(str(value))).isoformat())
        if name in {"timestamp", "timestamp_ntz"}:
            return ("time", _moment(value))
        if name == "binary":
            return ("bytes", bytes(value) if isinstance(value, bytes | bytearray) else base64.b64decode(str(value)))
    except (ValueError, TypeError, ArithmeticError):
        pass
    return (type(value).__name__, str(value))


def typed(value: object, kind: object) -> object:
    """A value found, as Python has its type: a DECIMAL as Decimal, times as datetime in UTC, and so on, nested too."""
    if value is None:
        return None
    if isinstance(kind, Mapping):
        if kind["type"] == "struct" and isinstance(value, Mapping):
            fields = {each["name"]: each["type"] for each in kind["fields"]}
            return {name: typed(value.get(name), each) for name, each in fields.items()}
        if kind["type"] == "array" and isinstance(value, Sequence):
            return [typed(each, kind["elementType"]) for each in value]
        if kind["type"] == "map":
            pairs: Any = value.items() if isinstance(value, Mapping) else value
            return {name: typed(each, kind["valueType"]) for name, each in pairs}
        return value
    name = str(kind)
    if name in {"float", "double"}:
        return float(str(value))
    if name.startswith("decimal"):
        return decimal.Decimal(str(value))
    if name == "date":
        return value if isinstance(value, dt.date) else dt.date.fromisoformat(str(value))
    if name in {"timestamp", "timestamp_ntz"}:
        moment = value if isinstance(value, dt.datetime) else dt.datetime.fromisoformat(str(value))
        return moment.astimezone(dt.UTC) if name == "timestamp" else moment
    if name == "binary":
        return value if isinstance(value, bytes) else base64.b64decode(str(value))
    return int(str(value)) if name in _INTEGERS else value


def differences(
    expected: Sequence[ExpectedRow],
    found: Sequence[Mapping[str, object]],
    types: Mapping[str, object],
    key: Sequence[str] = (),
) -> list[Difference]:
    """How the rows found are not the rows expected, in whatever order both are; a row counts as often as it is there.

    `types` has the type of each column. A row that is not there as expected is told with the row of the same `key`
    columns, or else with the one most like it.
    """
    wanted = [{name: comparable(row.columns[name], types.get(name)) for name in row.columns} for row in expected]
    there = [{name: comparable(value, types.get(name)) for name, value in row.items()} for row in found]
    missing, unexpected = _unmatched(wanted, there)
    partners = _partners({row: wanted[row] for row in missing}, {row: there[row] for row in unexpected}, key)
    told: list[Difference] = []
    for row in missing:
        columns = expected[row].columns
        partner = partners.get(row)
        if partner is None:
            told.append(Difference("missing", expected[row].line, columns))
            continue
        unlike = tuple(
            (name, columns[name], found[partner].get(name))
            for name in columns
            if wanted[row][name] != there[partner].get(name)
        )
        told.append(Difference("differs", expected[row].line, found[partner], unlike))
    taken = set(partners.values())
    told += [Difference("unexpected", 0, found[row]) for row in unexpected if row not in taken]
    return told


def letter_differences(expected: Sequence[ExpectedRow], found: Sequence[Mapping[str, object]]) -> list[Difference]:
    """The same of dead letters: all columns are compared as they are, of `reason` a part of the text is enough."""

    def fits(row: ExpectedRow, letter: Mapping[str, object]) -> bool:
        return all(
            str(value) in str(letter[name]) if name == "reason" else value == letter[name]
            for name, value in row.columns.items()
        )

    pairs = _matching([[n for n, letter in enumerate(found) if fits(row, letter)] for row in expected])
    missing = [Difference("missing", row.line, row.columns) for n, row in enumerate(expected) if n not in pairs]
    taken = set(pairs.values())
    return missing + [Difference("unexpected", 0, letter) for n, letter in enumerate(found) if n not in taken]


def shown(value: object) -> str:
    """A value for people, of a bounded length: as JSON, with times and decimals as text."""
    text = json.dumps(value, ensure_ascii=False, default=_text_of)
    return text if len(text) <= _ROW_CHARACTERS_MAX else text[:_ROW_CHARACTERS_MAX] + " ..."


def jsonable(value: Any) -> Any:
    """The same value of what JSON has only."""
    return json.loads(json.dumps(value, default=_text_of))


def _text_of(value: object) -> object:
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return float(value) if decimal.Decimal(repr(float(value))) == value else str(value)
    return str(value)


def _nested(value: object, kind: Mapping[str, Any]) -> Hashable:
    what = kind.get("type")
    if what == "struct" and isinstance(value, Mapping):
        fields = {str(each["name"]): each["type"] for each in kind["fields"]}
        given = {str(name): comparable(value[name], fields.get(str(name))) for name in value}
        return ("struct", tuple(sorted({**dict.fromkeys(fields), **given}.items(), key=lambda item: item[0])))
    if what == "array" and isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return ("array", tuple(comparable(each, kind["elementType"]) for each in value))
    if what == "map":
        # pyarrow has a map as a list of pairs.
        pairs: Any = list(value.items()) if isinstance(value, Mapping) else value
        if isinstance(pairs, list):
            made = [(str(name), comparable(each, kind["valueType"])) for name, each in pairs]
            return ("map", tuple(sorted(made, key=lambda pair: pair[0])))
    return (type(value).__name__, str(value))


def _double(value: float | str | decimal.Decimal) -> str:
    number = float(value)
    return "nan" if math.isnan(number) else f"{number + 0.0:.12g}"


def _moment(value: object) -> str:
    moment = value if isinstance(value, dt.datetime) else dt.datetime.fromisoformat(str(value))
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
    return moment.astimezone(dt.UTC).isoformat(timespec="microseconds")


def _unmatched(
    wanted: Sequence[Mapping[str, Hashable]], there: Sequence[Mapping[str, Hashable]]
) -> tuple[list[int], list[int]]:
    """The rows of both that have no partner."""
    if len({frozenset(row) for row in wanted}) <= 1:
        # All name the same columns: rows that are equal in them are of one kind, and only their numbers count.
        names = tuple(wanted[0]) if wanted else ()
        left = Counter(_projected(row, names) for row in wanted)
        unexpected = []
        for number, row in enumerate(there):
            if left[_projected(row, names)] > 0:
                left[_projected(row, names)] -= 1
            else:
                unexpected.append(number)
        missing = []
        for number in reversed(range(len(wanted))):
            if left[_projected(wanted[number], names)] > 0:
                left[_projected(wanted[number], names)] -= 1
                missing.append(number)
        return missing[::-1], unexpected
    pairs = _matching(_candidates(wanted, there))
    taken = set(pairs.values())
    return [n for n in range(len(wanted)) if n not in pairs], [n for n in range(len(there)) if n not in taken]


def _candidates(
    wanted: Sequence[Mapping[str, Hashable]], there: Sequence[Mapping[str, Hashable]]
) -> list[Sequence[int]]:
    """Of each row, the rows that have all of its columns as it has them."""
    by_names: dict[tuple[str, ...], dict[tuple[Hashable, ...], list[int]]] = {}
    found: list[Sequence[int]] = []
    for row in wanted:
        names = tuple(sorted(row))
        places = by_names.get(names)
        if places is None:
            places = by_names[names] = {}
            for number, other in enumerate(there):
                places.setdefault(_projected(other, names), []).append(number)
        found.append(places.get(_projected(row, names), ()))
    return found


def _projected(row: Mapping[str, Hashable], names: Sequence[str]) -> tuple[Hashable, ...]:
    return tuple(row.get(name, ("no such column", "")) for name in names)


def _matching(candidates: Sequence[Sequence[int]]) -> dict[int, int]:
    """As many pairs as there can be of a row and one of its candidates, none of which is in two (augmenting paths)."""
    owner: dict[int, int] = {}
    for start in range(len(candidates)):
        seen: set[int] = set()
        # Each entry: a row, and what is left of its candidates; the path is the stack.
        path = [(start, iter(candidates[start]))]
        taken: list[int] = []
        while path:
            left = path[-1][1]
            chosen = next((number for number in left if number not in seen), None)
            if chosen is None:
                path.pop()
                if taken:
                    taken.pop()
                continue
            seen.add(chosen)
            taken.append(chosen)
            if chosen not in owner:
                for (each, _), number in zip(path, taken, strict=True):
                    owner[number] = each
                break
            path.append((owner[chosen], iter(candidates[owner[chosen]])))
    return {row: number for number, row in owner.items()}


def _partners(
    missing: Mapping[int, Mapping[str, Hashable]], others: Mapping[int, Mapping[str, Hashable]], key: Sequence[str]
) -> dict[int, int]:
    """For missing rows the other row that is meant: of the same key; of a row that does not tell its key, the one that
    is most like it, and like it in half of the columns. Of very many rows only the first are compared so.
    """
    of_key: dict[tuple[Hashable, ...], list[int]] = {}
    for number in reversed(list(others)):
        of_key.setdefault(_projected(others[number], key), []).append(number)
    left, pairs_left = dict(others), _PAIRS_MAX
    partners: dict[int, int] = {}
    for number, row in missing.items():
        if key and all(name in row for name in key):
            same = of_key.get(_projected(row, key), [])
            while same and same[-1] not in left:
                same.pop()
            partner = same.pop() if same else None
        else:
            pairs_left -= len(row) * len(left)
            partner = _most_like(row, left) if pairs_left >= 0 else None
        if partner is not None:
            partners[number] = partner
            del left[partner]
    return partners


def _most_like(row: Mapping[str, Hashable], others: Mapping[int, Mapping[str, Hashable]]) -> int | None:
    alike: Callable[[int], int] = lambda n: sum(others[n].get(k, _MISSING) == v for k, v in row.items())  # noqa: E731
    best = max(others, key=alike, default=None)
    return best if best is not None and 2 * alike(best) >= len(row) and alike(best) > 0 else None
