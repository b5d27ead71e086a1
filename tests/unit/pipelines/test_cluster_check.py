"""A pipeline's topics against those of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest

from barnabas.client.cluster import PartitionInfo, TopicInfo
from barnabas.pipelines.cluster_check import check_cluster
from barnabas.pipelines.definition import PipelineMissingError
from tests.unit.pipelines.pipeline_files import read_flights

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class FakeAdmin:
    """Knows topics and how many partitions they have."""

    def __init__(self, **topics: int) -> None:
        self._topics = topics

    async def list_topics(self, timeout_ms: float | None = None) -> tuple[str, ...]:
        return tuple(self._topics)

    async def describe_topics(
        self, names: Iterable[str] | None = None, timeout_ms: float | None = None
    ) -> dict[str, TopicInfo]:
        partition = PartitionInfo(1, 0, (1,), (1,), ())
        return {
            name: TopicInfo(name, bytes(16), False, dict.fromkeys(range(self._topics[name]), partition))
            for name in names or self._topics
        }


def refusal(run: Run, directory: Path, admin: FakeAdmin, option: str = "") -> str:
    pipeline = read_flights(directory)
    with pytest.raises(PipelineMissingError) as caught:
        run(check_cluster(pipeline, admin, option))
    return str(caught.value).removeprefix(f"{pipeline.path}:")


def test_passes_where_every_topic_is_there(run: Run, tmp_path: Path) -> None:
    run(check_cluster(read_flights(tmp_path), FakeAdmin(flights=6, airlines=1, delays=3, other=1)))


def test_names_the_topic_of_a_source_that_is_nearest(run: Run, tmp_path: Path) -> None:
    message = '4: the topic "flights" of source "flights" does not exist; did you mean "flight"?'
    assert refusal(run, tmp_path, FakeAdmin(flight=6, airlines=1, delays=3)) == message
    message = '7: the topic "airlines" of source "airlines" does not exist; `barnabas topic list` shows which there are'
    assert refusal(run, tmp_path, FakeAdmin(flights=6, delays=3)) == message


def test_gives_the_command_that_makes_the_topic_of_a_sink(run: Run, tmp_path: Path) -> None:
    admin = FakeAdmin(flights=6, airlines=1)
    message = '23: the topic "delays" does not exist; create it with `barnabas topic create delays --partitions 6`'
    assert refusal(run, tmp_path, admin) == message
    assert refusal(run, tmp_path, admin, "--bootstrap-server b:1").endswith("--partitions 6 --bootstrap-server b:1`")
