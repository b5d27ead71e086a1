"""What of a changed pipeline its state can go on with, and what it cannot, and why; without Spark.

A query without state of Spark's (no groups, no joins of streams) may change as it likes, as long as it reads the same
streams. One with state may get what the state knows nothing of: another filter, another name of a step, a column that
is made beside those that are there. What decides is compared as syntax trees; what cannot be told apart is refused.
Whether Spark keeps state for a function of Python its checkpoint says, and what of it nobody: there all is refused that
was changed, unless the step's `revision` says that it goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from barnabas.pipelines.definition import Pipeline
from barnabas.pipelines.python_code import changed_parts
from barnabas.pipelines.query_parts import QueryParts, parts_of, renamed_query, tables_of
from barnabas.pipelines.spark_schema import SchemaError, parse_schema
from barnabas.pipelines.sql_steps import SqlError, is_same_query, parse_query

_SQL: Final = "sql"
_DEDUPLICATE: Final = "deduplicate"
_PYTHON: Final = "python"
_TIMES: Final = ("watermark", _DEDUPLICATE)
_NAMED_PARTS_MAX: Final = 5
Definition = Mapping[str, Any]


class _RefusedError(Exception):
    """A change that the state cannot go on with: what, why, and of which step, source or sink."""

    def __init__(self, part: str, name: str, what: str) -> None:
        super().__init__(what)
        self.part, self.name, self.what = part, name, what


@dataclass(frozen=True, slots=True)
class Changes:
    """`refused` is the first change that the state cannot go on with, and its line; `taken` are those that it can, in
    words. `names` has, by view that is written, the name that it had when its checkpoint was made, where that differs.
    """

    refused: tuple[str, int] | None = None
    taken: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)


def changes_of(
    pipeline: Pipeline,
    now: Definition,
    before: Definition,
    names: Mapping[str, str] | None = None,
    stateful: Collection[str] | None = None,
) -> Changes:
    """Compares two definitions (`definition_of`); `names` are those that the state has had so far (`Changes`), and
    `stateful` the views, by these names, for which Spark has kept state: it may be any where that is None.
    """
    looking = _Looking(pipeline, now, before, dict(names or {}), stateful)
    try:
        return looking.look()
    except _RefusedError as refused:
        return Changes((refused.what, looking.line(refused.part, refused.name)))


class _Looking:
    def __init__(
        self,
        pipeline: Pipeline,
        now: Definition,
        before: Definition,
        names: dict[str, str],
        stateful: Collection[str] | None,
    ) -> None:
        self._pipeline = pipeline
        self._stateful = stateful
        self._old, self._new = _Graph(before), _Graph(now)
        self._names = names
        self._taken: list[str] = []
        self._renames = _renames(self._old, self._new)

    def line(self, part: str, name: str) -> int:
        """Of a step, source or sink; of the pipeline where it is there no longer."""
        lines = {
            "source": {source.name: source.line for source in self._pipeline.sources},
            "step": {step.name: step.line for step in self._pipeline.steps},
            "sink": {sink.target: sink.line for sink in self._pipeline.sinks},
        }
        return lines[part].get(name, self._pipeline.line)

    def look(self) -> Changes:
        old_views = {sink["from"] for sink in self._old.sinks.values()}
        for target, sink in self._new.sinks.items():
            if target in self._old.sinks:
                self._compare_sink(target, self._old.sinks[target], sink)
            elif not target.startswith("console ") and any(
                self._renames.get(view, view) == sink["from"] for view in old_views
            ):
                why = f"sink {target} was added, and {sink['from']} has run: what it gave until now would not be there"
                raise _RefusedError("sink", target, why)
        for target in self._old.sinks:
            if target not in self._new.sinks:
                raise _RefusedError("sink", target, f"sink {target} was removed")
        names: dict[str, str] = {}
        for view in dict.fromkeys(sink["from"] for sink in self._old.sinks.values()):
            becomes = self._renames.get(view, view)
            self._compare_query(view, becomes)
            if self._names.get(view, view) != becomes:
                names[becomes] = self._names.get(view, view)
        self._take_new_sinks(old_views, names)
        for old, new in self._renames.items():
            self._taken.append(f"step {old} is named {new} now")
        return Changes(None, tuple(dict.fromkeys(self._taken)), names)

    def _take_new_sinks(self, old_views: set[str], names: Mapping[str, str]) -> None:
        kept = {self._renames.get(view, view) for view in old_views}
        for target, sink in self._new.sinks.items():
            if target in self._old.sinks:
                continue
            if sink["from"] not in kept and sink["from"].lower() in (name.lower() for name in names.values()):
                what = f"step {sink['from']} has the name that {_key_of(names, sink['from'])} had, whose state is kept"
                raise _RefusedError("step", sink["from"], f"{what} under it: name it otherwise")
            self._taken.append(f"sink {target} was added: it begins where its sources begin")

    def _compare_sink(self, target: str, old: Definition, new: Definition) -> None:
        moved = {**old, "from": self._renames.get(old["from"], old["from"])}
        aspects = [key for key in {**new, **moved} if moved.get(key) != new.get(key)]
        if aspects:
            raise _RefusedError("sink", target, f"sink {target} was changed ({', '.join(aspects)})")

    def _compare_query(self, old_view: str, new_view: str) -> None:
        """Raises _RefusedError where what Spark has kept for a query is not what the query of now needs."""
        old_chain, new_chain = self._old.chain(old_view), self._new.chain(new_view)
        for name in self._old.sources_behind(old_view):
            self._compare_source(name, self._new.sources_behind(new_view))
        streams = self._old.streams(old_view)
        pairs = self._pairs(old_chain, new_chain)
        if self._old.has_python(old_chain) or self._new.has_python(new_chain):
            self._refuse_other_streams(old_view, new_view)
            if not self._keeps_state_of_python(old_view, old_chain, new_chain):
                self._take_stateless(new_view, pairs, old_chain, new_chain)
                return
            self._refuse_other_steps(new_view, pairs, old_chain, new_chain)
            for old, new in pairs.items():
                self._compare_beside_python(old, new, new_view)
            self._compare_inputs_of_python(old_view, pairs)
            return
        if not self._old.has_state(old_view) and not self._new.has_state(new_view) and len(streams) == 1:
            self._refuse_other_streams(old_view, new_view)
            self._take_stateless(new_view, pairs, old_chain, new_chain)
            return
        self._refuse_other_steps(new_view, pairs, old_chain, new_chain)
        grouped = next((name for name in old_chain if self._old.aggregates(name)), new_view)
        for old, new in pairs.items():
            self._compare_step(old, new, _Place(self._old, old_view, old), grouped)
        self._refuse_other_streams(old_view, new_view)
        for name in self._old.sources_behind(old_view):
            self._compare_schema(name, old_view)
        self._compare_keys(new_view, pairs)

    def _refuse_other_steps(
        self, view: str, pairs: Mapping[str, str], old_chain: Sequence[str], new_chain: Sequence[str]
    ) -> None:
        for name in old_chain:
            if name not in pairs:
                raise _RefusedError("step", view, f"step {name} was removed from what {view} reads")
        for name in new_chain:
            if name not in pairs.values():
                raise _RefusedError("step", name, f"step {name} was added before {view}, which has state")

    def _keeps_state_of_python(self, old_view: str, old_chain: Sequence[str], new_chain: Sequence[str]) -> bool:
        """Whether Spark has kept state for the query of a view, or the text says that it does or will."""
        if self._stateful is None or self._names.get(old_view, old_view) in self._stateful:
            return True
        is_grouped = any(
            graph.aggregates(name)
            for graph, chain in ((self._old, old_chain), (self._new, new_chain))
            for name in chain
        )
        return is_grouped or len(self._old.streams(old_view)) > 1

    def _compare_beside_python(self, old: str, new: str, view: str) -> None:
        """Of a query with state and a function of Python each step stays what it is, but for what `revision` says."""
        before, after = self._old.steps[old], self._new.steps[new]
        revisions = [str(step.get("revision") or "") for step in (before, after)]
        if all(revisions) and revisions[0] != revisions[1]:
            raise _RefusedError("step", new, f"step {new} was changed (revision), and Spark keeps state for {view}")
        if self._is_same_step(old, new):
            return
        if not (self._old.is_python(old) and self._new.is_python(new)):
            what = f"step {new} was changed (sql), and Spark keeps state for {view}, of which Python is a part"
            raise _RefusedError("step", new, what)
        times = [key for key in _TIMES if before.get(key) != after.get(key)]
        if times:
            raise _RefusedError("step", new, f"step {new} was changed ({times[0]}), and {view} forgets by it")
        parts = changed_parts(before.get("code", {}), after.get("code", {})) or ["what it reads"]
        more = ["..."] if len(parts) > _NAMED_PARTS_MAX else []
        what = f"step {new} was changed ({', '.join([*parts[:_NAMED_PARTS_MAX], *more])})"
        if not revisions[1]:
            raise _RefusedError("step", new, f"{what}, without a `revision` by which the state of {view} goes on,")
        self._taken.append(f"{what}, and goes on since it is of the same revision")

    def _compare_inputs_of_python(self, old_view: str, pairs: Mapping[str, str]) -> None:
        """A function has all columns of what it reads; which of them it keeps, only its `revision` can say."""
        if all(self._new.steps[new].get("revision") for new in pairs.values() if self._new.is_python(new)):
            return
        for name in self._old.sources_behind(old_view):
            before, after = (list(_columns_of(graph.sources[name])) for graph in (self._old, self._new))
            if before != after:
                what = f"the columns of source {name} were changed, without a `revision` of its step in Python"
                raise _RefusedError("source", name, f"{what} by which the state of {old_view} goes on,")

    def _compare_schema(self, name: str, view: str) -> None:
        """Raises _RefusedError where Spark would take a column that it has kept for another: it knows them by their
        places, as the schema has them, and by their types.
        """
        before, after = (_columns_of(graph.sources[name]) for graph in (self._old, self._new))
        what = None
        if [each for each in before if each in after] != [each for each in after if each in before]:
            what = "order of columns"
        elif any(before[each] != kind and "STRUCT" in kind.upper() for each, kind in after.items() if each in before):
            what = "a STRUCT"
        elif before.keys() != after.keys() and self._old.takes_all(view):
            what = "columns"
        elif hiding := [each for each in after if each not in before and each.lower() in self._old.grouped_in(view)]:
            what = f"column {hiding[0]}, a name that is grouped by"
        if what is not None and (what != "order of columns" or self._old.keeps_rows(view)):
            message = f"the schema of source {name} was changed ({what}), and Spark keeps columns by their places"
            raise _RefusedError("source", name, f"{message} for {view}")

    def _refuse_other_streams(self, old_view: str, new_view: str) -> None:
        before, after = self._old.streams(old_view), self._new.streams(new_view)
        if before != after:
            what = f"{new_view} reads the streams {', '.join(after)} now, and its offsets are of {', '.join(before)}"
            raise _RefusedError("step", new_view, f"step {what}")

    def _pairs(self, old_chain: Sequence[str], new_chain: Sequence[str]) -> dict[str, str]:
        paired = ((name, self._renames.get(name, name)) for name in old_chain)
        return {old: new for old, new in paired if new in new_chain}

    def _take_stateless(
        self, view: str, pairs: Mapping[str, str], old_chain: Sequence[str], new_chain: Sequence[str]
    ) -> None:
        changed = [new for old, new in pairs.items() if not self._is_same_step(old, new)]
        hidden = next((new for new in changed if self._new.names_parts(new)), None)
        if hidden is not None:
            what = f"step {hidden} was changed (sql), and has WITH: how often it reads a stream cannot be told"
            raise _RefusedError("step", hidden, what)
        self._compare_keys(view, pairs)
        added = [name for name in new_chain if name not in pairs.values()]
        removed = [name for name in old_chain if name not in pairs]
        for word, names in (("changed", changed), ("added", added), ("removed", removed)):
            self._taken += [f"step {name} was {word}" for name in names]

    def _compare_keys(self, view: str, pairs: Mapping[str, str]) -> None:
        """The columns by which a row is known are made as they were: rows of former keys would stay for ever."""
        old = next((old for old, new in pairs.items() if new == view), None)
        if old is None or self._is_same_step(old, view):
            return
        before, after = self._parts(self._old, old), self._parts(self._new, view)
        keys = {name for sink in self._new.sinks.values() if sink["from"] == view for name in sink["key"]}
        if before is None or after is None:
            return
        for key in sorted(keys):
            if before.column(key) != after.column(key):
                what = f"step {view} was changed (column {key}): rows are known by it, and those of former keys stay"
                raise _RefusedError("step", view, what)

    def _compare_source(self, name: str, now: Sequence[str]) -> None:
        old, new = self._old.sources[name], self._new.sources.get(name)
        if new is None:
            raise _RefusedError("source", name, f"source {name} was removed")
        aspects = [key for key in {**new, **old} if key != "schema" and old.get(key) != new.get(key)]
        if aspects and name in now:
            raise _RefusedError("source", name, f"source {name} was changed ({', '.join(aspects)})")

    def _compare_step(self, old: str, new: str, place: _Place, grouped: str) -> None:
        if self._is_same_step(old, new):
            return
        if self._old.steps[old]["watermark"] != self._new.steps[new]["watermark"]:
            raise _RefusedError("step", new, f"step {new} was changed (watermark), and {grouped} forgets by it")
        kept = [graph.steps[name].get(_DEDUPLICATE) for graph, name in ((self._old, old), (self._new, new))]
        if any(kept):
            aspect = _SQL if kept[0] == kept[1] else _DEDUPLICATE
            what = f"step {new} was changed ({aspect}), and Spark keeps what it has let through"
            raise _RefusedError("step", new, what)
        before, after = self._parts(self._old, old), self._parts(self._new, new)
        if before is None or after is None or before.rest != after.rest or place.is_of_several_streams:
            raise _RefusedError("step", new, f"step {new} was changed (sql), and Spark keeps state for {grouped}")
        fault = before.grouping_fault(after, is_written=place.is_written)
        if fault is None and place.is_before_groups:
            fault = before.input_fault(after, is_read_whole=place.is_read_whole, names=place.grouped_names)
        if fault is None and (place.is_after_groups or not (place.aggregates or place.is_before_groups)):
            fault = before.output_fault(after)
        if fault is not None:
            whose = "its groups" if place.aggregates else f"groups of {grouped}"
            what = f"step {new} was changed ({fault}), and Spark keeps {whose} that were made before that"
            raise _RefusedError("step", new, what)
        self._taken += [f"step {new} was changed ({what})" for what in before.differences(after)]

    def _is_same_step(self, old: str, new: str) -> bool:
        before, after = self._old.steps[old], self._new.steps[new]
        if any(before.get(key) != after.get(key) for key in _TIMES):
            return False
        if self._old.is_python(old) or self._new.is_python(new):
            return _is_same_python(before, after, self._renames)
        return is_same_query(renamed_query(before[_SQL], self._renames), renamed_query(after[_SQL], {}))

    def _parts(self, graph: _Graph, name: str) -> QueryParts | None:
        if graph.is_python(name):
            return None
        renames = self._renames if graph is self._old else {}
        return parts_of(renamed_query(graph.steps[name][_SQL], renames))


class _Graph:
    """A definition, by names as they are written."""

    def __init__(self, definition: Definition) -> None:
        self.sources: Mapping[str, Definition] = definition.get("sources", {})
        self.steps: Mapping[str, Definition] = definition.get("steps", {})
        self.sinks: Mapping[str, Definition] = definition.get("sinks", {})
        names = {name.lower(): name for name in (*self.sources, *self.steps)}
        self._reads: dict[str, tuple[str, ...]] = {}
        self._aggregates: dict[str, bool] = {}
        self._has_with: dict[str, bool] = {}
        for name, step in self.steps.items():
            if _PYTHON in step:
                found = (names.get(str(view).lower()) for view in step.get("reads", ()))
                self._reads[name] = tuple(view for view in found if view is not None and view != name)
                self._aggregates[name] = bool(step.get(_DEDUPLICATE))
                self._has_with[name] = False
                continue
            try:
                query = parse_query(str(step[_SQL]))
            except SqlError:
                self._reads[name], self._aggregates[name] = (), True
                continue
            tables, self._has_with[name] = tables_of(str(step[_SQL]))
            read = (names.get(view) for view in tables)
            self._reads[name] = tuple(view for view in read if view is not None and view != name)
            self._aggregates[name] = query.aggregates or bool(step.get(_DEDUPLICATE))

    def reads(self, name: str) -> tuple[str, ...]:
        """The views that a view reads itself, as often as it does."""
        return self._reads.get(name, ())

    def is_python(self, name: str) -> bool:
        """Whether a step is a function of Python."""
        return _PYTHON in self.steps[name]

    def has_python(self, names: Sequence[str]) -> bool:
        """Whether one of the steps is."""
        return any(map(self.is_python, names))

    def names_parts(self, name: str) -> bool:
        """Whether a step has WITH."""
        return self._has_with.get(name, True)

    def aggregates(self, name: str) -> bool:
        """Whether a step puts rows of a stream together."""
        return self._aggregates.get(name, False) and bool(self.streams(name))

    def takes_by_name(self, name: str) -> bool:
        """Whether a step names all columns that it takes."""
        parts = parts_of(self.steps[name][_SQL])
        return parts is not None and not parts.has_star

    def grouped_names(self, name: str) -> frozenset[str]:
        """The names, in lower case, that a step gives to what it groups by."""
        parts = parts_of(self.steps[name][_SQL]) if self.aggregates(name) else None
        return frozenset() if parts is None else frozenset(parts.grouped)

    def chain(self, view: str) -> list[str]:
        """The steps behind a view and itself, each once, what is read first."""
        found: dict[str, None] = {}
        for name in self._walk(view):
            if name in self.steps:
                found.setdefault(name)
        return list(found)

    def sources_behind(self, view: str) -> list[str]:
        """All sources behind a view."""
        return list(dict.fromkeys(name for name in self._walk(view) if name in self.sources))

    def streams(self, view: str) -> list[str]:
        """The streams that are read, as often as they are."""
        read = (self.sources.get(name, {}).get("read") for name in self._walk(view))
        return [name for name, mode in zip(self._walk(view), read, strict=True) if mode == "stream"]

    def has_state(self, view: str) -> bool:
        """Whether Spark keeps state for the query of a view, as far as its text says."""
        return any(self.aggregates(name) or len(self.streams(name)) > 1 for name in self.chain(view))

    def keeps_rows(self, view: str) -> bool:
        """Whether Spark keeps rows of a stream as they come for a view, not what functions have made of them."""
        return len(self.streams(view)) > 1 or self.takes_all(view)

    def takes_all(self, view: str) -> bool:
        """Whether what Spark keeps for a view may have columns that no step names."""
        is_joined = len(self.streams(view)) > 1
        return any(not self.takes_by_name(name) for name in self.chain(view) if is_joined or self.aggregates(name))

    def grouped_in(self, view: str) -> frozenset[str]:
        """The names that the steps of a view give to what they group by, in lower case."""
        return frozenset(name for each in self.chain(view) for name in self.grouped_names(each))

    def readers(self, view: str, chain: Sequence[str]) -> list[str]:
        """The steps of the chain that read a view themselves."""
        return [name for name in chain if view in self.reads(name)]

    def _walk(self, view: str) -> Iterator[str]:
        for name in self.reads(view):
            yield from self._walk(name)
        yield view


class _Place:
    """Where a step stands in the query of a view."""

    def __init__(self, graph: _Graph, view: str, name: str) -> None:
        self._graph, self._chain = graph, graph.chain(view)
        self.aggregates = graph.aggregates(name)
        self.is_of_several_streams = len(graph.streams(view)) > 1
        self.is_written = name == view
        behind = list(self._behind(name))
        self.is_before_groups = any(graph.aggregates(each) for each in behind)
        self.is_read_whole = self.is_before_groups and not self._ends_in_groups(name)
        self.is_after_groups = any(graph.aggregates(each) for each in graph.chain(name) if each != name)
        self.grouped_names = frozenset(group for each in behind for group in graph.grouped_names(each))

    def _behind(self, name: str) -> Iterator[str]:
        """The steps that read a view, themselves or through others."""
        for reader in self._graph.readers(name, self._chain):
            yield reader
            yield from self._behind(reader)

    def _ends_in_groups(self, name: str) -> bool:
        """Whether all that comes of a step goes through groups that name the columns that they take."""
        readers = self._graph.readers(name, self._chain)
        return bool(readers) and all(
            self._graph.takes_by_name(each) if self._graph.aggregates(each) else self._ends_in_groups(each)
            for each in readers
        )


def _renames(old: _Graph, new: _Graph) -> dict[str, str]:
    """The steps that have another name and are else what they were."""
    found: dict[str, str] = {}
    added = [name for name in new.steps if name not in old.steps and name not in old.sources]
    for name, step in old.steps.items():
        if name in new.steps or name in new.sources:
            continue
        for candidate in added:
            other = new.steps[candidate]
            is_alike = all(other.get(key) == step.get(key) for key in _TIMES)
            if is_alike and _is_same_rows(step, other, found):
                found[name] = candidate
                added.remove(candidate)
                break
    return found


def _is_same_rows(step: Definition, other: Definition, renames: Mapping[str, str]) -> bool:
    if _PYTHON in step or _PYTHON in other:
        return _is_same_python(step, other, renames)
    return is_same_query(renamed_query(step[_SQL], renames), renamed_query(other[_SQL], {}))


def _is_same_python(before: Definition, after: Definition, renames: Mapping[str, str]) -> bool:
    """Whether two steps are the same function of the same views, as far as its text says."""
    if not all(before.get(key) == after.get(key) for key in (_PYTHON, "result", "code")):
        return False
    return [renames.get(view, view) for view in before.get("reads", ())] == list(after.get("reads", ()))


def _columns_of(source: Definition) -> dict[str, str]:
    """The columns of a source, their types by their names; none where the schema cannot be read."""
    try:
        return {column.name: column.type for column in parse_schema(str(source.get("schema", "")))}
    except SchemaError:
        return {}


def _key_of(names: Mapping[str, str], former: str) -> str:
    return next((name for name, each in names.items() if each.lower() == former.lower()), former)
