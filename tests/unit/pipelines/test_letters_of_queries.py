"""A record that any query leaves out has one letter: whatever fits in which run, wherever queries are, and are killed.

Spark and the topic of letters are played by the test; who writes which letters, and looks where, is the pipeline's.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from barnabas.pipelines import dead_letters
from barnabas.pipelines.batch_offsets import BatchRange
from barnabas.pipelines.dead_letters import LetterBook, LetterWriter
from barnabas.pipelines.definition import Framing, OnError, ParquetSink, Pipeline, Source, SourceFormat
from barnabas.pipelines.sources import KafkaOptions
from barnabas.pipelines.state_directory import BatchesDone
from barnabas.pipelines.writer_schemas import WriterSchemas
from tests.unit.pipelines.made_pipelines import airlines, flights, made_pipeline

VIEWS = ("by_day", "timed")
RECORDS = 60
Place = tuple[int, int]
"""Partition and offset."""


class KilledError(Exception):
    """Stands for kill -9."""


class Letter(NamedTuple):
    place: Place
    written_ms: int


class Query:
    """What Spark keeps of one query."""

    def __init__(self) -> None:
        self.begun: list[BatchRange] = []
        self.finished = 0
        self.left_out: set[Place] = set()
        self.taken: set[Place] = set()


class State:
    """What a run reads of it before its queries begin."""

    table_notes = Path("tables")

    def __init__(self, queries: Mapping[str, Query]) -> None:
        self._queries = queries

    def name_of(self, view: str) -> str:
        return view

    def checkpoint(self, view: str) -> Path:
        return Path(view)

    def begun_since_ms(self) -> int:
        return 1

    def batches_done(self, view: str) -> BatchesDone:
        return BatchesDone(len(self._queries[view].begun) - 1, self._queries[view].finished - 1)

    def end_offsets(self, view: str, batch_id: int, *, furthest: bool) -> dict[str, dict[int, int]]:
        assert furthest
        return {"flights": dict(self._queries[view].begun[batch_id].ends)}


class Letters:
    """A frame of letters."""

    def __init__(self, world: World, places: list[Place]) -> None:
        self.world, self.places = world, places
        self.write = self

    def format(self, _name: str) -> Letters:
        return self

    def options(self, **_options: str) -> Letters:
        return self

    def save(self) -> None:
        for place in self.places:
            self.world.step()
            self.world.topic.append(Letter(place, self.world.now))


class World:
    """A topic of two partitions, what of it fits at the moment, the topic of letters, and a clock that goes on."""

    def __init__(self, chance: random.Random, kills_at: Iterator[bool]) -> None:
        self.chance, self.kills_at = chance, kills_at
        self.queries = {view: Query() for view in VIEWS}
        self.topic: list[Letter] = []
        self.now = 10
        self.unfit: dict[str, set[Place]] = {}
        self.batch: tuple[str, BatchRange, set[Place]] = ("", BatchRange({}, {}), set())
        self.looked = self.passed = 0

    def step(self) -> None:
        self.now += 1
        if next(self.kills_at):
            raise KilledError

    def next_batch(self, view: str) -> BatchRange | None:
        """The batch that is to be done: that which was cut short, or a new one; None at the end."""
        query = self.queries[view]
        if len(query.begun) == query.finished:
            starts = dict(query.begun[-1].ends) if query.begun else {0: 0}
            ends = {number: min(starts.get(number, 0) + self.chance.randrange(9), RECORDS) for number in (0, 1)}
            if all(starts.get(number, 0) == RECORDS for number in ends):
                return None
            query.begun.append(BatchRange(starts, ends))
        return query.begun[-1]


def places_of(place: BatchRange) -> set[Place]:
    return {(number, at) for number, end in place.ends.items() for at in range(place.starts.get(number, 0), end)}


def run(world: World, pipeline: Pipeline, views: Iterator[str]) -> None:
    """One run, in which queries take turns as `views` says, until all are done or it is killed."""
    state: Any = State(world.queries)
    book = LetterBook(pipeline, state, lambda: world.now / 1000)
    no_session: Any = None
    writers = {
        view: LetterWriter(pipeline, view, KafkaOptions("b:1"), state, no_session, book) for view in world.queries
    }
    open_views = set(VIEWS)
    while open_views:
        view = next(views)
        place, query = world.next_batch(view), world.queries[view]
        if place is None:
            open_views.discard(view)
            continue
        world.step()
        left_out = places_of(place) & world.unfit[view]
        world.batch = (view, place, left_out)
        before = len(world.topic)
        writers[view].write(len(query.begun) - 1)
        world.passed += bool(left_out) and len(world.topic) == before
        world.step()
        query.finished += 1
        query.left_out |= left_out
        query.taken |= places_of(place) - left_out


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[[World], None]:
    """Has Spark and the cluster be a world."""

    def play(world: World) -> None:
        def records(_session: object, _source: object, place: BatchRange, *_: object, has_headers: bool) -> Any:
            assert has_headers
            return place

        def letters(place: BatchRange, *_: object) -> Letters:
            return Letters(world, sorted(places_of(place) & world.unfit[world.batch[0]]))

        def since(_session: object, _topic: object, since_ms: int, _kafka: object) -> set[Place]:
            world.looked += 1
            return {letter.place for letter in world.topic if letter.written_ms >= since_ms}

        def unwritten(letters: Letters, known: set[Place]) -> Letters:
            return Letters(world, [place for place in letters.places if place not in known])

        monkeypatch.setattr(dead_letters, "batch_range", lambda *_, **__: world.batch[1])
        monkeypatch.setattr(dead_letters, "observed_in_batch", lambda *_: len(world.batch[2]))
        monkeypatch.setattr(dead_letters, "records_of_batch", records)
        monkeypatch.setattr(dead_letters, "letters_of", letters)
        monkeypatch.setattr(dead_letters, "letters_since", since)
        monkeypatch.setattr(dead_letters, "unwritten", unwritten)
        monkeypatch.setattr(dead_letters, "make_letters_topic", lambda *_: bool(world.topic))

    return play


def pipeline_of(directory: Path, source: Source) -> Pipeline:
    sinks = (ParquetSink(directory / "a", "by_day", 1, 2), ParquetSink(directory / "b", "timed", 3, 4))
    return made_pipeline(directory, sources=(source, airlines()), sinks=sinks)


def plain() -> Source:
    return flights(on_error=OnError.TOPIC)


def registered() -> Source:
    """Of a registry, which may know more when the second query asks."""
    avro = flights(format=SourceFormat.AVRO, framing=Framing.CONFLUENT, subject="s", writers=WriterSchemas())
    return dataclasses.replace(avro, on_error=OnError.TOPIC)


def some(chance: random.Random) -> set[Place]:
    share = chance.choice([0.0, 0.1, 0.5, 0.9])
    return {(number, at) for number in (0, 1) for at in range(RECORDS) if chance.random() < share}


def kills(chance: random.Random) -> Iterator[bool]:
    while True:
        yield chance.random() < 0.02


def turns(chance: random.Random, favourite: str) -> Iterator[str]:
    """Which query is next; one of them is ahead of the other, most of the time."""
    while True:
        yield chance.choice(VIEWS) if chance.random() < 0.5 else favourite


@pytest.mark.parametrize("source", [plain, registered])
def test_a_record_that_a_query_leaves_out_has_one_letter_whatever_fits_and_wherever_runs_are_killed(
    tmp_path: Path, played: Callable[[World], None], source: Callable[[], Source]
) -> None:
    pipeline = pipeline_of(tmp_path, source())
    tried: Counter[str] = Counter()
    for seed in range(150):
        chance = random.Random(seed)
        world = World(chance, kills(chance))
        played(world)
        views = turns(chance, VIEWS[seed % 2])
        for number in itertools.count():
            unfit = some(chance)
            # In one run the same fits for all, but where a registry is asked.
            world.unfit = {view: unfit if source is plain else unfit | some(chance) for view in VIEWS}
            if number > 40:
                world.kills_at = itertools.repeat(False)
            try:
                run(world, pipeline, views)
            except KilledError:
                tried["kills"] += 1
                continue
            break
        letters = Counter(letter.place for letter in world.topic)
        for view, query in world.queries.items():
            assert len(query.taken) + len(query.left_out) == 2 * RECORDS
            assert query.left_out <= set(letters), f"seed {seed}, {view}"
            tried["of others"] += len(set(letters) - query.left_out)
        assert max(letters.values(), default=1) == 1, f"seed {seed}"
        tried["looked"] += world.looked
        tried["passed"] += world.passed
    assert min(tried[name] for name in ("kills", "of others", "looked", "passed")) > 50, tried


def test_the_query_that_comes_second_reads_nothing_again_where_all_fits_as_before(
    tmp_path: Path, played: Callable[[World], None]
) -> None:
    world = World(random.Random(1), itertools.repeat(False))
    played(world)
    unfit = {(0, 3), (1, 40)}
    world.unfit = dict.fromkeys(VIEWS, unfit)
    run(world, pipeline_of(tmp_path, plain()), itertools.chain(["timed"] * 60, itertools.cycle(VIEWS)))
    assert sorted(letter.place for letter in world.topic) == sorted(unfit)
    assert world.looked == 0


def test_an_added_query_writes_no_letter_again_and_those_of_what_only_it_leaves_out(
    tmp_path: Path, played: Callable[[World], None]
) -> None:
    world = World(random.Random(2), itertools.repeat(False))
    played(world)
    pipeline = pipeline_of(tmp_path, plain())
    world.unfit = {view: {(0, 3), (0, 4)} for view in VIEWS}
    run(world, pipeline, itertools.cycle(VIEWS))
    world.queries["timed"] = Query()
    world.unfit = {view: {(0, 4), (1, 7)} for view in VIEWS}
    run(world, pipeline, itertools.cycle(VIEWS))
    assert sorted(letter.place for letter in world.topic) == [(0, 3), (0, 4), (1, 7)]
