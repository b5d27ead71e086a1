"""A pipeline looked at on Spark: rows of its steps over samples, faults at their line, and quick once it is warm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from barnabas.pipelines.cases import GivenRecord
from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.dev_session import DevSession
from barnabas.pipelines.reading import read_pipeline
from tests.unit.pipelines.pipeline_files import flights, read_flights

# py4j leaves the sockets by which rows arrive to the garbage collector.
pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]


def record(offset: int, value: object, key: bytes | None = None) -> GivenRecord:
    return GivenRecord("", key, json.dumps(value).encode(), 0, offset, 0)


@pytest.fixture(scope="module")
def dev(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> DevSession:
    directory = tmp_path_factory.mktemp("dev")
    session = DevSession(spark, directory, directory / "spark.log")
    session.keep("airlines", [record(n, {"carrier": "UA", "name": name}, b"UA") for n, name in enumerate("ab")])
    rows = [{"carrier": "UA", "delay": n, "time": f"2013-01-01T05:{n % 60:02}:00Z"} for n in range(100)]
    session.keep("flights", [*(record(n, row) for n, row in enumerate(rows)), record(100, "nonsense")])
    return session


def test_rows_of_steps_are_shown_as_they_would_be_written(dev: DevSession, tmp_path: Path) -> None:
    look = dev.look(read_flights(tmp_path), ("by_hour", "named"), 5)
    by_hour, named = look.views
    assert by_hour.rows == ({"name": "b", "hour": "2013-01-01T05:00:00.000000Z", "delay": 49.5},)
    assert (len(named.rows), named.has_more, by_hour.has_more) == (5, True, False)
    assert look.refused == {"flights": 1}


def test_a_change_is_seen_in_seconds(dev: DevSession, tmp_path: Path) -> None:
    dev.look(read_flights(tmp_path), ("by_hour",), 20)
    dev.check(read_flights(tmp_path))
    look = dev.look(read_flights(tmp_path, ("avg(delay) AS delay", "max(delay) AS delay")), ("by_hour",), 20)
    assert look.views[0].rows[0]["delay"] == 99
    # It takes less than 2 s of processor time; a machine of tests has other things to do.
    assert look.seconds < 60


def test_faults_are_told_at_their_line_also_those_of_a_stream_only(dev: DevSession, tmp_path: Path) -> None:
    unknown = read_flights(tmp_path, ("avg(delay)", "avg(nosuch)"))
    with pytest.raises(PipelineError, match=r"delays\.yaml:19: step by_hour: .*nosuch"):
        dev.look(unknown, ("by_hour",), 5)
    ranked = ("avg(delay) AS delay", "avg(delay) AS delay, rank() OVER (ORDER BY name) AS place")
    with pytest.raises(PipelineError, match="cannot run on a stream"):
        dev.check(read_flights(tmp_path, ranked))
    strict = flights(tmp_path, ("    topic: flights\n", "    topic: flights\n    on_error: fail\n"))
    with pytest.raises(PipelineError, match="a record is not JSON of the source's schema: topic flights, partition 0"):
        dev.look(read_pipeline(strict), ("by_hour",), 5)
    with pytest.raises(PipelineError, match="no samples of the topic"):
        dev.look(read_flights(tmp_path, ("    topic: flights\n", "    topic: others\n")), ("by_hour",), 5)
