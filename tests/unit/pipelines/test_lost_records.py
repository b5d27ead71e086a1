"""Records that are gone before they are read: told before a run that may not lose any, counted by one that may."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from barnabas.pipelines import lost_records as module
from barnabas.pipelines.definition import ParquetSink, Pipeline, PipelineError
from barnabas.pipelines.lost_records import lost_records, refuse_lost_records
from barnabas.pipelines.state_directory import StateDirectory
from tests.unit.pipelines.made_pipelines import airlines, flights, made_pipeline


class Cluster:
    """Where topics begin, and who has asked for that."""

    def __init__(self, **beginnings: Mapping[int, int]) -> None:
        self.beginnings = beginnings
        self.asked: list[list[str]] = []

    def __call__(self, _pipeline: Pipeline, servers: str, topics: Any) -> Mapping[str, Mapping[int, int]]:
        assert servers == "host:1"
        self.asked.append(sorted(topics))
        return {topic: self.beginnings[topic] for topic in topics}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(flights={0: 0, 1: 0})
    monkeypatch.setattr(module, "read_beginnings", made)
    return made


def finish_batch(state: StateDirectory, view: str, offsets: Mapping[str, int]) -> None:
    for log in ("offsets", "commits"):
        (state.checkpoint(view) / log).mkdir(parents=True, exist_ok=True)
        (state.checkpoint(view) / log / "0").write_text(f"v1\n{{}}\n{json.dumps({'flights': offsets})}")


def test_a_run_that_may_lose_nothing_is_told_which_records_are_gone(tmp_path: Path, cluster: Cluster) -> None:
    sinks = (ParquetSink(tmp_path / "a", "by_day", 1, 2), ParquetSink(tmp_path / "b", "timed", 3, 4))
    pipeline = made_pipeline(tmp_path, sinks=sinks)
    state = StateDirectory(pipeline.state_directory)
    refuse_lost_records(pipeline, state, "host:1")
    assert cluster.asked == []  # nothing was ever read
    finish_batch(state, "by_day", {"0": 10, "1": 4})
    finish_batch(state, "timed", {"0": 8, "1": 6, "2": 5})
    cluster.beginnings = {"flights": {0: 8, 1: 4, 2: 5, 3: 9}}
    refuse_lost_records(pipeline, state, "host:1")
    assert cluster.asked == [["flights"]]
    # Of two queries the one that is behind has lost them.
    cluster.beginnings = {"flights": {0: 9, 1: 4, 2: 1_005}}
    with pytest.raises(PipelineError) as error:
        refuse_lost_records(pipeline, state, "host:1")
    places = "offsets 8 to 8 of partition 0, offsets 5 to 1004 of partition 2"
    places = "offsets 8 to 8 of partition 0, offsets 5 to 1004 of partition 2"
    assert str(error.value) == (
        f'{pipeline.path}:3: the topic "flights" has lost 1,001 records ({places}) that were not read yet, by '
        "retention or since they were deleted; set `allow_data_loss: true` at source flights to go on without them"
    )
    refuse_lost_records(
        dataclasses.replace(pipeline, sources=(flights(allow_data_loss=True), airlines())), state, "host:1"
    )


def test_a_first_run_of_a_range_has_not_lost_its_beginning_unseen(tmp_path: Path, cluster: Cluster) -> None:
    """As of a backfill that is gone on with when retention has deleted what it was to begin with."""
    pipeline = made_pipeline(tmp_path)
    state = StateDirectory(pipeline.state_directory)
    starts = {"flights": {0: 2, 1: 0}}
    cluster.beginnings = {"flights": {0: 2, 1: 0}}
    refuse_lost_records(pipeline, state, "host:1", starts)
    cluster.beginnings = {"flights": {0: 6, 1: 0}}
    with pytest.raises(PipelineError, match=r"lost 4 records \(offsets 2 to 5 of partition 0\)"):
        refuse_lost_records(pipeline, state, "host:1", starts)
    careless = dataclasses.replace(pipeline, sources=(flights(allow_data_loss=True), airlines()))
    assert lost_records(careless, "host:1", batch(3, None, {"0": 8, "1": 1}), starts) == 4
    finish_batch(state, "by_day", {"0": 6, "1": 4})
    refuse_lost_records(pipeline, state, "host:1", starts)


def test_of_very_many_partitions_some_are_told(tmp_path: Path, cluster: Cluster) -> None:
    pipeline = made_pipeline(tmp_path)
    state = StateDirectory(pipeline.state_directory)
    finish_batch(state, "by_day", {str(number): 0 for number in range(100)})
    cluster.beginnings = {"flights": dict.fromkeys(range(100), 1)}
    with pytest.raises(PipelineError, match=r"lost 100 records \(.* of partition 2, and of 97 more\) that"):
        refuse_lost_records(pipeline, state, "host:1")


def batch(records: int, start: Mapping[str, int] | None, end: Mapping[str, int]) -> dict[str, Any]:
    starts = None if start is None else {"flights": start}
    return {"sources": [{"startOffset": starts, "endOffset": {"flights": end}, "numInputRows": records}]}


@pytest.mark.parametrize(
    ("event", "beginnings", "lost", "has_asked"),
    [
        (batch(6, {"0": 4, "1": 0}, {"0": 8, "1": 2}), {0: 4, 1: 0}, 0, False),
        (batch(4, {"0": 4, "1": 0}, {"0": 8, "1": 2}), {0: 6, 1: 0}, 2, True),
        (batch(2, {"0": 4, "1": 0}, {"0": 8, "1": 2}), {0: 100, 1: 0}, 4, True),
        # A gap that is no loss: markers of transactions, or compaction.
        (batch(4, {"0": 4, "1": 0}, {"0": 8, "1": 2}), {0: 4, 1: 0}, 0, True),
        # Deleted right after it was read.
        (batch(5, {"0": 4, "1": 0}, {"0": 8, "1": 2}), {0: 8, 1: 2}, 1, True),
        (batch(3, None, {"0": 8, "1": 2}), {0: 5, 1: 0}, 0, False),
        # A partition that is new with the batch.
        (batch(4, {"0": 4}, {"0": 8, "1": 2}), {0: 4, 1: 0}, 0, False),
    ],
)
def test_what_a_batch_has_lost_is_counted(
    tmp_path: Path,
    cluster: Cluster,
    event: Mapping[str, Any],
    beginnings: Mapping[int, int],
    lost: int,
    has_asked: bool,
) -> None:
    cluster.beginnings = {"flights": beginnings}
    pipeline = made_pipeline(tmp_path)
    assert lost_records(pipeline, "host:1", event) == 0
    assert cluster.asked == []
    careless = dataclasses.replace(pipeline, sources=(flights(allow_data_loss=True), airlines()))
    assert lost_records(careless, "host:1", event) == lost
    assert bool(cluster.asked) is has_asked
