"""Endpoints of stores that a pipeline's file names: who takes no connection is told before Spark starts."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.pipelines.definition import Pipeline, PipelineUnreachableError
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.store_endpoints import refuse_silent_stores

ENDPOINT = "spark.hadoop.fs.s3a.endpoint"


def pipeline_of(directory: Path, url: str, **settings: str) -> Pipeline:
    path = directory / "flights.yaml"
    lines = "".join(f"  spark.hadoop.fs.s3a.{name}: '{value}'\n" for name, value in settings.items())
    path.write_text(
        "name: flights\nsources:\n  flights: {topic: flights, schema: 'id INT'}\n"
        + (f"spark:\n{lines}" if lines else "")
        + f"sinks:\n  - {{delta: '{url}', from: flights}}\n"
    )
    return read_pipeline(path)


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that nobody else has, and nobody listens at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def answering() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("scheme", ["", "http://", "https://"])
def test_an_endpoint_that_takes_no_connection_is_told_with_its_setting(
    tmp_path: Path, silent: str, scheme: str
) -> None:
    pipeline = pipeline_of(tmp_path, "s3a://bucket/lake/t", endpoint=f"{scheme}{silent}")
    began = time.monotonic()
    told = rf"flights.yaml:7: nobody answers at {silent}, the store that {ENDPOINT} names: .*refused; correct it, or"
    with pytest.raises(PipelineUnreachableError, match=told):
        refuse_silent_stores(pipeline, 0.6)
    assert time.monotonic() - began > 0.5, "it may be starting"


def test_what_a_reference_stands_for_is_not_shown(tmp_path: Path, silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE", silent.partition(":")[0])
    endpoint = "${env:STORE}:" + silent.partition(":")[2]
    with pytest.raises(PipelineUnreachableError, match=r"nobody answers at \*\*\*:\d+, the store"):
        refuse_silent_stores(pipeline_of(tmp_path, "s3a://bucket/lake/t", endpoint=endpoint), 0)


def test_a_buckets_own_endpoint_is_the_one_that_is_tried(tmp_path: Path, silent: str, answering: str) -> None:
    of_bucket = {"bucket.mine.endpoint": answering, "endpoint": silent}
    refuse_silent_stores(pipeline_of(tmp_path, "s3a://mine/lake/t", **of_bucket), 0)
    with pytest.raises(PipelineUnreachableError, match=f"{ENDPOINT} names"):
        refuse_silent_stores(pipeline_of(tmp_path, "s3a://another/lake/t", **of_bucket), 0)


def test_what_the_file_does_not_tell_is_left_to_spark(tmp_path: Path, silent: str) -> None:
    for url, settings in (
        ("s3a://bucket/lake/t", {}),
        ("s3a://bucket/lake/t", {"endpoint": ""}),
        ("s3a://bucket/lake/t", {"endpoint": "http://host:port"}),
        ("s3a://bucket/lake/t", {"endpoint": silent, "proxy.host": "proxy"}),
        ("hdfs://place/lake/t", {"endpoint": silent}),
        ("./table", {"endpoint": silent}),
    ):
        refuse_silent_stores(pipeline_of(tmp_path, url, **settings), 0)
