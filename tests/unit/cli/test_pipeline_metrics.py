"""`--metrics` of runs: what can be said there, and that it is served for as long as the run lasts."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.request
from pathlib import Path

import click
import pytest

from barnabas.cli import pipeline_metrics
from barnabas.cli.connection import CommandError
from barnabas.cli.pipeline_metrics import THREAD_NAME, place_of, serving_metrics
from barnabas.server.metrics_endpoint import MetricsEndpoint
from tests.support.waiting import wait_until
from tests.unit.pipelines.pipeline_files import read_flights
from tests.unit.pipelines.test_progress_metrics import BATCH, Told


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("9404", ("127.0.0.1", 9404)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("host.example:1", ("host.example", 1)),
    ],
)
def test_a_port_is_one_of_this_machine_alone_unless_there_is_an_address(text: str, place: tuple[str, int]) -> None:
    assert place_of(text) == place


@pytest.mark.parametrize("text", ["", "x", ":9404", "localhost", "1.2.3.4:", "65536", "-1", "a:9x", "\u0663"])
def test_what_is_no_place_is_wrong_usage(text: str) -> None:
    with pytest.raises(click.UsageError, match="must be a port, or an address and a port"):
        place_of(text)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        content: bytes = answer.read()
    return content.decode()


def test_progress_is_served_until_the_run_ends(tmp_path: Path) -> None:
    told = Told()
    with serving_metrics("0", read_flights(tmp_path), told) as progress:
        (line,) = told.all
        url = str(line).removeprefix("metrics at ")
        assert url.startswith("http://127.0.0.1:")
        progress.batch(BATCH)
        assert 'barnabas_pipeline_rows_read_total{pipeline="delays",query="by_hour"} 40000.0\n' in get(url)
        assert is_served()
    wait_until(lambda: not is_served(), "nobody serves any more")


def is_served() -> bool:
    return any(thread.name == THREAD_NAME for thread in threading.enumerate())


def test_a_place_that_is_taken_is_told_and_the_run_does_not_begin(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(CommandError, match=f"--metrics {port} cannot be served: .*; name another"),
            serving_metrics(str(port), read_flights(tmp_path), Told()),
        ):
            pytest.fail("it began")


@pytest.mark.parametrize("name", ["a..b", "b" * 64, "no-such-host.invalid"])
def test_a_name_that_is_none_is_told_at_once(tmp_path: Path, name: str) -> None:
    with (
        pytest.raises(CommandError, match=rf"--metrics {name}:0 cannot be served: .*\w.*; name another"),
        serving_metrics(f"{name}:0", read_flights(tmp_path), Told()),
    ):
        pytest.fail("it began")


def test_why_nobody_listens_in_time_is_told_and_nobody_does_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = threading.Event()

    async def start(*_: object) -> int:
        """As where a name is looked up for long."""
        while not found.is_set():
            await asyncio.sleep(0.01)
        return 1

    monkeypatch.setattr(pipeline_metrics, "_START_SECONDS_MAX", 1.0)
    monkeypatch.setattr(MetricsEndpoint, "start", start)
    with (
        pytest.raises(CommandError, match=r"after 1 s\. slow\.example may be a name that is not found: name an"),
        serving_metrics("slow.example:0", read_flights(tmp_path), Told()),
    ):
        pytest.fail("it began")
    found.set()
    wait_until(lambda: not is_served(), "nobody serves")


def test_without_the_option_progress_is_what_it_is(tmp_path: Path) -> None:
    told = Told()
    with serving_metrics(None, read_flights(tmp_path), told) as progress:
        assert progress is told
