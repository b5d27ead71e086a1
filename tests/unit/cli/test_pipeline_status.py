"""How far a pipeline is, by its own account and by the cluster's."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from barnabas.cli import pipeline_status
from barnabas.cli.pipeline_status import PartitionPosition, TopicPosition, described, show_status, topic_positions
from barnabas.client.admin import Admin
from barnabas.client.cluster import PartitionInfo, TopicInfo
from barnabas.client.records import OffsetAndMetadata, OffsetAndTimestamp
from barnabas.pipelines.definition import Pipeline
from barnabas.pipelines.progress import Totals
from barnabas.pipelines.status import PipelineState, PipelineStatus, QueryStatus
from barnabas.wire.topics import TopicPartition
from tests.unit.pipelines.pipeline_files import read_flights

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class FakeAdmin:
    """A cluster with the ends of its partitions, and what a group has committed."""

    def __init__(self, ends: Mapping[str, tuple[int, ...]], committed: Mapping[tuple[str, int], int]) -> None:
        self._ends = ends
        self._committed = committed
        self.groups: list[str] = []

    async def list_topics(self, timeout_ms: float | None = None) -> tuple[str, ...]:
        return tuple(self._ends)

    async def describe_topics(self, names: Iterable[str], timeout_ms: float | None = None) -> dict[str, TopicInfo]:
        partition = PartitionInfo(1, 0, (1,), (1,), ())
        return {
            name: TopicInfo(name, bytes(16), False, dict.fromkeys(range(len(self._ends[name])), partition))
            for name in names
        }

    async def list_offsets(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        assert set(times_ms.values()) == {-1}
        return {place: OffsetAndTimestamp(self._ends[place.topic][place.partition], -1, -1) for place in times_ms}

    async def list_group_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        self.groups.append(group_id)
        return {TopicPartition(*place): OffsetAndMetadata(offset) for place, offset in self._committed.items()}


def query(view: str, offsets: Mapping[str, Mapping[int, int]]) -> QueryStatus:
    return QueryStatus(
        view, 4, 1_700_000_000_000, 250.4, 1_600_000_000_000, 10, 1_000, Totals(5, 1_200, 30, 2), offsets
    )


def running(offsets: Mapping[str, Mapping[int, int]]) -> PipelineStatus:
    return PipelineStatus(
        PipelineState.RUNNING, 77, None, 1_699_999_000_000, 1_700_000_000_000, (query("by_hour", offsets),)
    )


def positions(run: Run, admin: FakeAdmin, pipeline: Pipeline, status: PipelineStatus) -> tuple[TopicPosition, ...]:
    found: tuple[TopicPosition, ...] = run(topic_positions(cast("Admin", admin), pipeline, status))
    return found


def test_lag_is_what_is_behind_the_last_finished_batch(run: Run, tmp_path: Path) -> None:
    admin = FakeAdmin({"flights": (100, 50, 7), "airlines": (16,)}, {("flights", 0): 80, ("flights", 1): 50})
    pipeline = read_flights(tmp_path)
    (flights,) = positions(run, admin, pipeline, running({"flights": {0: 90, 1: 50}}))
    assert admin.groups == ["barnabas-pipeline-delays"]
    assert flights == TopicPosition(
        "flights",
        (PartitionPosition(0, 90, 80, 100), PartitionPosition(1, 50, 50, 50), PartitionPosition(2, None, None, 7)),
    )
    assert (flights.lag, flights.group_lag) == (10, 20)


def test_of_two_queries_the_one_that_is_behind_counts(run: Run, tmp_path: Path) -> None:
    pipeline = read_flights(tmp_path)
    status = PipelineStatus(
        PipelineState.STOPPED, queries=(query("by_hour", {"flights": {0: 9}}), query("named", {"flights": {0: 4}}))
    )
    (flights,) = positions(run, FakeAdmin({"flights": (10,)}, {}), pipeline, status)
    assert (flights.lag, flights.group_lag) == (6, None)


def test_nothing_is_behind_an_end_that_has_gone_back(run: Run, tmp_path: Path) -> None:
    admin = FakeAdmin({"flights": (3,)}, {("flights", 0): 9})
    (flights,) = positions(run, admin, read_flights(tmp_path), running({"flights": {0: 9}}))
    assert (flights.lag, flights.group_lag) == (0, 0)


def test_a_topic_that_is_gone_has_no_partitions(run: Run, tmp_path: Path) -> None:
    (flights,) = positions(run, FakeAdmin({}, {}), read_flights(tmp_path), running({}))
    assert flights == TopicPosition("flights", ())
    assert flights.lag is None


def test_programs_get_stable_keys(tmp_path: Path) -> None:
    pipeline = read_flights(tmp_path)
    topics = (TopicPosition("flights", (PartitionPosition(0, 90, 80, 100),)),)
    document = json.loads(json.dumps(described(pipeline, running({"flights": {0: 90}}), topics)))
    assert document["state"] == "running"
    assert document["process_id"] == 77
    assert document["group_id"] == "barnabas-pipeline-delays"
    assert document["queries"][0]["totals"] == {
        "batches": 5, "rows_in": 1_200, "rows_out": 30, "rows_dropped_by_watermark": 2,
        "rows_without_event_time": 0, "rows_ahead": 0, "records_refused": 0,
        "records_lost": 0,
    }  # fmt: skip
    assert document["topics"] == [
        {
            "topic": "flights",
            "exists": True,
            "lag": 10,
            "group_lag": 20,
            "partitions": [
                {"partition": 0, "offset": 90, "committed_offset": 80, "end_offset": 100, "lag": 10, "group_lag": 20}
            ],
        }
    ]
    assert described(pipeline, PipelineStatus(PipelineState.NEVER_RAN), None)["topics"] is None


def test_people_get_two_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flights = TopicPosition("flights", (PartitionPosition(0, 90, 80, 100),))
    topics = (flights, TopicPosition("gone", ()), TopicPosition("never made", ()))
    monkeypatch.setattr(pipeline_status, "read_status", lambda _: running({"flights": {0: 90}, "gone": {0: 1}}))
    monkeypatch.setattr(pipeline_status, "ask_cluster_of", lambda *_: topics)
    show_status(read_flights(tmp_path), "b:1", as_json=False)
    printed = capsys.readouterr()
    lines = [line.split() for line in printed.out.splitlines()]
    assert ["State", "running"] in lines
    assert ["Process", "77"] in lines
    moment = ["2023-11-14", "22:13:20", "UTC"]
    watermark = ["2020-09-13", "12:26:40", "UTC"]
    assert ["by_hour", "4", *moment, "1200", "30", "2", "250", *watermark] in lines
    assert ["flights", "1", "10", "20"] in lines
    assert ["gone", "0", "-", "-"] in lines
    assert "future" not in printed.out
    assert printed.err.splitlines() == [
        "the topic gone does not exist any more; what was read of it is in the results",
        "the topic never made does not exist; create it with `barnabas topic create 'never made'`",
    ]


def test_rows_that_are_in_no_result_have_a_table_where_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = running({"flights": {0: 90}}).queries
    totals = replace(found.totals, rows_without_event_time=3, rows_ahead=1, records_refused=4, records_lost=5)
    status = replace(running({}), queries=(replace(found, query="other"), replace(found, totals=totals)))
    monkeypatch.setattr(pipeline_status, "read_status", lambda _: status)
    monkeypatch.setattr(pipeline_status, "ask_cluster_of", lambda *_: None)
    show_status(read_flights(tmp_path), "b:1", as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    at = lines.index("View Without event time In the future Not of the schema Lost".split())
    assert lines[at + 1 :] == [["by_hour", "3", "1", "4", "5"]]
