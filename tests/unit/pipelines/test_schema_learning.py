"""Schemas that turn up while a run lasts: what is asked of the registry, how often, and which batches begin again."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from barnabas.pipelines import schema_learning, schema_registry
from barnabas.pipelines.batch_offsets import BatchRange
from barnabas.pipelines.definition import Framing, PipelineUnreachableError, Registry, SourceFormat
from barnabas.pipelines.schema_learning import MISSES_MAX, NewSchemas, SchemaLearner
from barnabas.pipelines.sources import KafkaOptions
from barnabas.pipelines.state_directory import StateDirectory
from barnabas.pipelines.writer_schemas import UNKNOWN_SCHEMA, WriterSchemas
from tests.unit.pipelines.made_pipelines import airlines, flights, made_pipeline

SCHEMA = '{"type":"record","name":"F","fields":[{"name":"carrier","type":"string"}]}'
UNKNOWN = f"[USER_RAISED_EXCEPTION] {UNKNOWN_SCHEMA}flights:"


class World:
    """A registry with some ids, batches with some, a clock, and a learner whose query knows what the registry said."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writers = WriterSchemas()
        self.writers.was_asked = True
        source = flights(format=SourceFormat.AVRO, framing=Framing.CONFLUENT, subject="s", writers=self.writers)
        self.pipeline = made_pipeline(
            directory, sources=(source, airlines()), registry=Registry("http://registry:1", line=2)
        )
        self.registry: set[int] = set()
        self.batch: set[int] = set()
        self.asked: list[int] = []
        self.readings = 0
        self.now = 0.0
        self.is_down = False
        monkeypatch.setattr(schema_learning, "batch_range", lambda *_: BatchRange({0: 0}, {0: 9}))
        monkeypatch.setattr(schema_learning, "records_of_batch", lambda *_: None)
        monkeypatch.setattr(schema_learning, "unknown_ids", self.unknown_ids)
        monkeypatch.setattr(schema_registry, "_get", self.get)
        no_session: Any = None
        self.learner = SchemaLearner(
            self.pipeline,
            KafkaOptions("b:1"),
            StateDirectory(directory / "state"),
            no_session,
            lambda: self.now,
        )
        self.begin()

    def begin(self) -> None:
        """The query starts, by what is known."""
        for source in self.pipeline.sources:
            self.learner.makes_view(source, "by_day")
        self.learner.starts("by_day")

    def unknown_ids(self, _records: object, column: str, known: Iterable[int]) -> list[int]:
        assert column == "value"
        self.readings += 1
        return sorted(self.batch - set(known))

    def get(self, _pipeline: object, path: str, _given: object = None) -> dict[str, Any] | None:
        if self.is_down:
            raise PipelineUnreachableError("the schema registry does not answer")
        number = int(path.rpartition("/")[2])
        self.asked.append(number)
        return {"schema": SCHEMA} if number in self.registry else None

    def look(self) -> bool:
        """Whether the next batch begins; where it does not, the query starts anew."""
        try:
            self.learner.look("by_day", 0)
        except NewSchemas as error:
            begins_again = self.learner.has_learned("by_day", "whatever Spark says", error)
            self.begin()
            return not begins_again
        return True


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_schemas_of_a_batch_are_learned_together_and_until_there_is_garbage_nothing_is_read_twice(world: World) -> None:
    world.registry, world.batch = {7, 8, 9}, {7, 8, 9}
    assert world.look()
    assert world.readings == 0
    assert world.learner.has_learned("by_day", f"{UNKNOWN}8 SQLSTATE", None)
    assert (world.asked, set(world.writers.by_id), world.writers.is_careful) == ([7, 8, 9], {7, 8, 9}, False)
    assert not world.learner.has_learned("by_day", "a broker is gone", ValueError("gone"))


def test_garbage_ends_a_query_once_and_costs_few_requests_however_much_of_it_there_is(world: World) -> None:
    garbage = range(1_000_000, 1_005_000)
    world.batch = set(garbage)
    assert world.learner.has_learned("by_day", f"{UNKNOWN}{garbage[9]}", None)
    world.begin()
    assert world.writers.is_careful
    assert world.asked == list(garbage[:MISSES_MAX])
    # Those of one batch, and of the next ones within a second, are asked for no more.
    for number in range(5):
        world.now += 0.2
        world.batch = set(range(2_000_000 + 1_000 * number, 2_001_000 + 1_000 * number)) | set(garbage[:3])
        assert world.look()
    assert len(world.asked) <= MISSES_MAX + 5
    world.now += 1_000
    world.batch = set(range(3_000_000, 3_001_000))
    assert world.look()
    assert len(world.asked) <= 2 * MISSES_MAX + 5
    assert len(set(world.asked)) == len(world.asked)


def test_a_schema_that_is_new_among_garbage_begins_the_batch_again_and_is_no_garbage(world: World) -> None:
    world.batch = {2**32 - 1}
    assert world.learner.has_learned("by_day", f"{UNKNOWN}{2**32 - 1}", None)
    world.begin()
    world.now += 100
    world.registry, world.batch = {57}, set(range(1_000_000, 1_001_000)) | {57}
    assert not world.look()
    assert set(world.writers.by_id) == {57}
    assert world.look()


def test_what_another_query_has_learned_is_no_garbage_of_one_that_began_before(world: World) -> None:
    world.writers.is_careful = True
    world.writers.by_id[7] = SCHEMA
    world.batch = {7}
    assert not world.look()
    assert world.asked == []
    assert world.look()


def test_what_was_garbage_of_a_batch_that_was_cut_short_is_garbage_of_it_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table may have the batch without the row, and the letter may not be written yet."""
    world.writers.is_careful = True
    world.registry, world.batch = {8}, {7, 8}
    assert not world.look()
    assert world.look()
    checkpoint = StateDirectory(tmp_path / "state").checkpoint("by_day")
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").touch()

    after = World(tmp_path, monkeypatch)
    after.registry = after.batch = {7, 8}
    after.writers.by_id |= {7: SCHEMA, 8: SCHEMA}
    after.begin()
    assert set(after.writers.usable) == {8}
    for _ in range(2):  # again where the run fails in between
        assert after.look()
        assert set(after.writers.usable) == {8}, "letters, too, are written by this"
        after.begin()
    elsewhere: list[set[int]] = []
    thread = threading.Thread(target=lambda: elsewhere.append(set(after.writers.usable)))
    thread.start()
    thread.join()
    assert elsewhere == [{7, 8}], "other queries are at other batches"
    # Behind it the schema is known.
    (checkpoint / "commits").mkdir()
    (checkpoint / "commits" / "0").touch()
    (checkpoint / "offsets" / "1").touch()
    with pytest.raises(NewSchemas):
        after.learner.look("by_day", 1)
    after.begin()
    assert set(after.writers.usable) == {7, 8}
    after.learner.look("by_day", 1)


@pytest.mark.parametrize("content", ["", "[]", '{"batch": 0}', '{"batch": 0, "garbage": {"flights": 7}}'])
def test_a_note_of_garbage_that_nobody_understands_is_none(world: World, tmp_path: Path, content: str) -> None:
    notes = StateDirectory(tmp_path / "state").table_notes
    notes.mkdir(parents=True)
    (notes / "by_day.schemas").write_text(content)
    world.writers.is_careful = True
    world.writers.by_id[7] = SCHEMA
    world.batch = {7}
    assert not world.look()
    assert world.look()


def test_a_registry_that_is_down_or_slow_ends_the_batch_before_it_is_begun(world: World) -> None:
    world.writers.is_careful = True
    world.batch, world.is_down = {7}, True
    with pytest.raises(PipelineUnreachableError, match="does not answer"):
        world.learner.look("by_day", 0)
    assert not world.writers.is_settled(7)
    world.is_down, world.batch = False, set(range(50))
    asking = world.get

    def slow(*given: Any) -> Any:
        world.now += 9
        return asking(*given)

    schema_registry._get = slow  # type: ignore[assignment]  # the fixture puts it back
    with pytest.raises(PipelineUnreachableError, match=r"delays\.yaml:2: .* answers too slowly"):
        world.learner.look("by_day", 0)
    assert len(world.asked) < 10


def test_ids_that_are_kept_in_mind_are_bounded() -> None:
    writers = WriterSchemas()
    for number in range(60_000):
        writers.refuse(number)
    assert not writers.is_settled(0)
    assert writers.is_settled(59_999)


def test_a_failure_that_only_names_a_schema_that_the_plan_has_is_a_failure(world: World) -> None:
    """A record's own bytes are in the message of what is wrong with it, so anyone may write the words of the mark."""
    world.registry = world.batch = {7}
    bad = f'barnabas-bad-record:{{"offset":5,"value":"{UNKNOWN_SCHEMA}flights:7"}}'
    assert world.learner.has_learned("by_day", bad, None)
    world.begin()
    assert not world.learner.has_learned("by_day", bad, None)
    assert world.learner.has_learned("by_day", bad.replace(":7", ":1000"), None)
    world.begin()
    for number in range(3):
        assert not world.learner.has_learned("by_day", bad.replace(":7", f":200{number}"), None)
    assert world.asked == [7, 1000]
