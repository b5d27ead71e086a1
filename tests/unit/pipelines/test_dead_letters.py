"""Which queries write the letters of a source, and when one reads a batch again. Spark is played by the test."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.client.cluster import PartitionInfo, TopicInfo
from barnabas.pipelines import dead_letters
from barnabas.pipelines.batch_offsets import BatchRange
from barnabas.pipelines.dead_letters import (
    LetterBook,
    LetterWriter,
    letter_sources,
    letters_since,
    new_letters_topic,
    reason_of,
)
from barnabas.pipelines.definition import OnError, ParquetSink, Pipeline
from barnabas.pipelines.sources import ROW_BYTES_MAX, KafkaOptions
from barnabas.pipelines.state_directory import StateDirectory
from tests.unit.pipelines.made_pipelines import airlines, flights, made_pipeline


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """Two queries that read the same source, one of them through two steps."""
    sinks = (ParquetSink(tmp_path / "a", "by_day", 1, 2), ParquetSink(tmp_path / "b", "timed", 3, 4))
    return made_pipeline(tmp_path, sources=(flights(on_error=OnError.TOPIC), airlines()), sinks=sinks)


def names(pipeline: Pipeline) -> dict[str, list[str]]:
    return {view: [source.name for source in sources] for view, sources in letter_sources(pipeline).items()}


def test_each_query_that_reads_a_source_has_to_do_with_its_letters(pipeline: Pipeline) -> None:
    assert names(pipeline) == {"by_day": ["flights"], "timed": ["flights"]}
    skipping = dataclasses.replace(pipeline, sources=(flights(on_error=OnError.SKIP), airlines()))
    assert names(skipping) == {"by_day": [], "timed": []}


@pytest.mark.parametrize(("alive", "replicas"), [(5, 3), (3, 3), (2, 2), (1, 1)])
def test_the_topic_of_letters_is_made_like_that_of_the_source_also_while_a_broker_is_down(
    alive: int, replicas: int
) -> None:
    of_two = PartitionInfo(1, 0, (1, 2), (1,), (2,))
    source = TopicInfo("flights", bytes(16), False, {0: of_two, 1: PartitionInfo(1, 0, (1, 2, 3), (1,), (2, 3))})
    topic = new_letters_topic("delays.dlq", source, alive)
    assert (topic.name, topic.partitions, topic.replication_factor) == ("delays.dlq", 2, replicas)
    # A letter is never compacted away, and is as large as any record and its headers.
    assert topic.configs["cleanup.policy"] == "delete"
    assert int(topic.configs["max.message.bytes"]) >= ROW_BYTES_MAX


class FakeLetters:
    """Letters that note what is done with them."""

    def __init__(self, done: list[str], *, is_empty: bool) -> None:
        self._done = done
        self._is_empty = is_empty
        self.write = self

    def isEmpty(self) -> bool:  # noqa: N802  # Spark's name
        self._done.append("looked")
        return self._is_empty

    def format(self, _name: str) -> FakeLetters:
        return self

    def options(self, **options: str) -> FakeLetters:
        self._done.append(f"to {options['topic']}")
        return self

    def save(self) -> None:
        self._done.append("written")


@pytest.mark.parametrize(
    ("refused", "is_read_twice", "is_empty", "expected"),
    [
        (0, False, False, []),
        (2, False, False, ["made", "to delays.dlq", "written"]),
        # Without a count, or with one that may be of other records, nothing is taken for good unseen.
        (None, False, False, ["looked", "made", "to delays.dlq", "written"]),
        (0, True, False, ["looked", "made", "to delays.dlq", "written"]),
        (None, False, True, ["looked"]),
    ],
)
def test_a_batch_is_read_again_where_it_may_have_records_that_do_not_fit(
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    refused: int | None,
    is_read_twice: bool,
    is_empty: bool,
    expected: list[str],
) -> None:
    done: list[str] = []
    read: list[Any] = []
    options: dict[str, str] = {}

    def load() -> str:
        return "records"

    def keep(**given: str) -> Any:
        options.update(given)
        return SimpleNamespace(load=load)

    def letters(records: Any, source: Any, *names: str) -> FakeLetters:
        read.append((records, source.name, *names))
        return FakeLetters(done, is_empty=is_empty)

    session: Any = SimpleNamespace(read=SimpleNamespace(format=lambda _name: SimpleNamespace(options=keep)))
    place = BatchRange({0: 3}, {0: 10, 1: 4}, is_read_twice)
    monkeypatch.setattr(dead_letters, "observed_in_batch", lambda *_: refused)
    monkeypatch.setattr(dead_letters, "batch_range", lambda *_, **__: place)
    monkeypatch.setattr(dead_letters, "letters_of", letters)
    monkeypatch.setattr(dead_letters, "make_letters_topic", lambda *_: done.append("made"))
    state = StateDirectory(pipeline.state_directory)
    writer = LetterWriter(pipeline, "by_day", KafkaOptions("host:1"), state, session, LetterBook(pipeline, state))
    writer.write(7)
    assert done == expected
    if done:
        assert read == [("records", "flights", "delays", "by_day/7")]
        assert options["assign"] == '{"flights": [0, 1]}'
        assert options["startingOffsets"] == '{"flights": {"0": 3, "1": -2}}'
        assert options["endingOffsets"] == '{"flights": {"0": 10, "1": 4}}'
    done.clear()
    writer.write(8)
    assert "made" not in done


def test_the_reason_of_a_letter_has_the_schema_but_no_more_of_it_than_a_person_reads() -> None:
    source = flights()
    assert reason_of(source) == f"the value is not one JSON object of the schema {source.schema}"
    wide = dataclasses.replace(source, schema=", ".join(f"c{number} STRING" for number in range(1_000)))
    assert len(reason_of(wide)) < 1_100
    assert reason_of(wide).endswith(" ...")


@pytest.mark.parametrize(("since_ms", "from_ms"), [(1_000_000, "940000"), (59_999, "0")])
def test_letters_are_looked_for_from_a_minute_before_since_clocks_differ(since_ms: int, from_ms: str) -> None:
    given: dict[str, str] = {}

    class Reader:
        def format(self, _name: str) -> Reader:
            return self

        def options(self, **options: str) -> Reader:
            given.update(options)
            return self

        def load(self) -> None: ...

    letters_since(cast("Any", SimpleNamespace(read=Reader())), "delays.dlq", since_ms, KafkaOptions("host:1"))
    assert (given["subscribe"], given["startingTimestamp"]) == ("delays.dlq", from_ms)
    assert (given["startingOffsetsByTimestampStrategy"], given["includeHeaders"]) == ("latest", "true")
