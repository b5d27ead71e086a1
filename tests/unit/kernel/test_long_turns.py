"""`barnabas.kernel.long_turns`: what is counted, and what the log says of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from barnabas.kernel.long_turns import NAMES_MAX, OTHER, LongTurn, LongTurns
from barnabas.kernel.metrics import Gauge, Meter, MetricName, MetricsRegistry
from barnabas.kernel.metrics_prometheus import scrape_in_steps
from barnabas.kernel.steps import at_once
from tests.support.long_turns import follow, judge, new_turns

LOGGER = logging.getLogger("test.loop")


class Counted:
    def __init__(self) -> None:
        self.now = 100.0
        self.metrics = MetricsRegistry(lambda: self.now)
        self.turns = LongTurns(lambda: self.now, LOGGER, self.metrics)

    def count(self, name: str, duration_ms: int = 60) -> None:
        self.turns.count(LongTurn(name, duration_ms, duration_ms - 1, 0, "here:1"))


def test_counts_by_name_and_keeps_the_longest() -> None:
    counted = Counted()
    for name, duration_ms in [("Metadata", 60), ("Metadata", 90), ("Metadata", 70), ("task a", 51)]:
        counted.count(name, duration_ms)
    tags = (("what", "Metadata"),)
    meter = counted.metrics.get(MetricName("barnabas.kernel", "EventLoop", "LongTurnsPerSec", tags))
    longest = counted.metrics.get(MetricName("barnabas.kernel", "EventLoop", "LongestTurnMs", tags))
    assert isinstance(meter, Meter)
    assert meter.count == 3
    assert isinstance(longest, Gauge)
    assert longest.read() == 90
    assert (counted.turns.total, counted.turns.longest_ms) == (4, 90)
    lines = at_once(scrape_in_steps(counted.metrics)).decode().splitlines()
    assert 'barnabas_kernel_eventloop_longturns_total{what="Metadata"} 3.0' in lines
    assert 'barnabas_kernel_eventloop_longestturnms{what="task a"} 51.0' in lines


def test_names_are_bounded() -> None:
    counted = Counted()
    for number in range(2 * NAMES_MAX):
        counted.count(f"name {number}")
    assert len(counted.turns.by_name) == NAMES_MAX + 1
    assert counted.turns.by_name[OTHER].meter.count == NAMES_MAX
    assert counted.turns.total == 2 * NAMES_MAX


def test_says_each_name_once_a_second_and_how_many_it_did_not_say(caplog: pytest.LogCaptureFixture) -> None:
    counted = Counted()
    for _ in range(5):
        counted.count("Metadata", 80)
        counted.count("Fetch")
        counted.now += 0.1
    counted.now += 1.0
    counted.count("Metadata", 70)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert lines[0] == "One turn of the loop took 80 ms (79 ms of processor time): Metadata, in here:1"
    assert lines[2].endswith("Metadata, in here:1; 4 more since the last such line")


def test_says_of_the_longest_at_once(caplog: pytest.LogCaptureFixture) -> None:
    counted = Counted()
    for duration_ms in (80, 70, 300, 90):
        counted.count("Metadata", duration_ms)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" ms")[0] for line in lines] == [f"One turn of the loop took {count}" for count in (80, 300)]
    assert lines[1].endswith("; 1 more since the last such line")


@pytest.mark.parametrize(
    ("duration_ms", "processor_ms", "fails"), [(251, 251, True), (900, 251, True), (900, 250, False), (249, 260, False)]
)
def test_the_verdict_on_servers_under_test_reads_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, duration_ms: int, processor_ms: int, fails: bool
) -> None:
    path = tmp_path / "server.log"
    follow("broker-1", path)
    Counted().turns.count(LongTurn("Metadata", duration_ms, processor_ms, 9, "here:1"))
    path.write_text(f"[now] WARNING {caplog.records[0].getMessage()} (barnabas.loop)\n")
    turns = new_turns()
    assert [turn.processor_ms for turn in turns] == [min(duration_ms, processor_ms)]
    if fails:
        with pytest.raises(pytest.fail.Exception, match="more than 250 ms of processor time"):
            judge(turns)
        with pytest.raises(pytest.fail.Exception):
            judge(turns, turns[0].processor_ms - 251)
        judge(turns, turns[0].processor_ms - 250)
    else:
        judge(turns)
    assert new_turns() == []
