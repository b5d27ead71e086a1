"""Alerts: the rules of contrib, judged by what brokers tell; what they do not tell is not called well."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from barnabas.client.cluster_health import Problem, Severity
from barnabas.console.alerts import LAG_MIN, RULES, WINDOW_MS, AlertBoard, AlertState
from barnabas.console.groups import Group, GroupsAndEnds, ListedGroup
from barnabas.console.history import SERIES_MAX, Samples
from barnabas.console.html import markup
from barnabas.console.runbook import as_html, runbook

ROOT = Path(__file__).resolve().parents[3]
NOW = 1_000_000_000
READERS = Group("readers", "Empty", "consumer", "", 1, (), {})


def question(value: object = None, *, stale: bool = False, error: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(value=value, error=error, is_stale=lambda _now_ms: stale)


def poller(*problems: Problem, shrinks: int = 0, **questions: SimpleNamespace) -> Any:
    controller = SimpleNamespace(node=SimpleNamespace(node_id=1), found=SimpleNamespace(queued_events=0, counts=[]))
    known = {
        "cluster": question(object()),
        "brokers": question({}),
        "settings": question(({}, 10)),
        "controller": question(controller),
        "groups": question(GroupsAndEnds({}, {}, 0)),
        **questions,
    }
    history = SimpleNamespace(shrinks_since=lambda _since_ms: shrinks)
    return SimpleNamespace(**known, problems=lambda: list(problems), history=history, lags=Samples())


def problem(kind: str) -> Problem:
    return Problem(kind, Severity.WARNING, f"this is {kind}", "do something")


def state_of(board: AlertBoard, name: str, now_ms: int = NOW) -> AlertState:
    return next(each.state for each in board.alerts(now_ms) if each.rule.name == name)


def test_the_rules_are_those_of_contrib() -> None:
    groups = yaml.safe_load((ROOT / "contrib" / "prometheus" / "alerts.yml").read_text("utf-8"))["groups"]
    seconds = {None: 0, "1m": 60, "5m": 300, "10m": 600, "15m": 900}
    theirs = {
        (
            rule["alert"],
            rule["labels"]["severity"],
            seconds[rule.get("for")],
            Path(rule["annotations"]["runbook"]).stem,
        )
        for group in groups
        for rule in group["rules"]
    }
    assert {(rule.name, rule.severity.value, rule.for_seconds, rule.page) for rule in RULES if rule.page} == theirs
    operating = (ROOT / "docs" / "operating.md").read_text("utf-8")
    assert all(f"| {rule.name} | {rule.severity.value} | {rule.what}" in operating for rule in RULES if rule.page)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("broker_gone", "BrokerDown"),
        ("broker_silent", "BrokerDown"),
        ("no_controller", "NoController"),
        ("without_leader", "OfflinePartitions"),
        ("under_min_isr", "UnderMinIsr"),
        ("under_replicated", "UnderReplicated"),
        ("log_directory", "LogDirectoryOffline"),
    ],
)
def test_a_condition_is_an_alert_when_it_has_held_for_long_enough(kind: str, name: str) -> None:
    board = AlertBoard()
    board.see(poller(problem(kind)), NOW)
    rule = next(each for each in RULES if each.name == name)
    later = NOW + rule.for_seconds * 1_000
    if rule.for_seconds:
        assert state_of(board, name, later - 1) is AlertState.PENDING
    board.see(poller(problem(kind)), later)
    assert state_of(board, name, later) is AlertState.FIRING
    assert board.alerts(later)[0].said == f"this is {kind}"
    board.see(poller(), later + 1)
    assert state_of(board, name, later + 1) is AlertState.QUIET
    board.see(poller(problem(kind)), later + 2)
    assert state_of(board, name, later + 2) is (AlertState.PENDING if rule.for_seconds else AlertState.FIRING)


def test_what_is_not_answered_is_not_known() -> None:
    board = AlertBoard()
    assert {each.state for each in board.alerts(NOW)} == {AlertState.UNKNOWN}
    board.see(poller(cluster=question(stale=True, error="refused")), NOW)
    assert state_of(board, "BrokerDown") is AlertState.PENDING
    assert state_of(board, "OfflinePartitions") is AlertState.UNKNOWN
    silent = question(stale=True)
    board.see(poller(brokers=silent, settings=silent, controller=silent, groups=silent), NOW)
    unknown = {each.rule.name for each in board.alerts(NOW) if each.state is AlertState.UNKNOWN}
    assert {"UnderMinIsr", "LogDirectoryOffline", "ControllerBehind", "UncleanElection", "LagGrows"} <= unknown
    assert state_of(board, "UnderReplicated") is AlertState.QUIET


def test_a_condition_that_nobody_can_tell_of_for_a_while_still_holds_since_then() -> None:
    board = AlertBoard()
    board.see(poller(problem("without_leader")), NOW)
    board.see(poller(cluster=question(stale=True)), NOW + 30_000)
    board.see(poller(problem("without_leader")), NOW + 60_000)
    assert state_of(board, "OfflinePartitions", NOW + 60_000) is AlertState.FIRING


def test_of_apache_kafkas_controller_is_said_what_is_not_known() -> None:
    board = AlertBoard()
    board.see(poller(controller=question(SimpleNamespace(node=SimpleNamespace(node_id=1), found=None))), NOW)
    said = {each.rule.name: each.said for each in board.alerts(NOW) if each.state is AlertState.UNKNOWN}
    assert "Barnabas" in said["ControllerBehind"]
    assert "Barnabas" in said["UncleanElection"]


def test_what_brokers_do_not_tell_is_not_called_well() -> None:
    board = AlertBoard()
    views = {
        1: SimpleNamespace(software="Barnabas", directories=()),
        2: SimpleNamespace(software="x", directories=None),
    }
    groups = question(SimpleNamespace(groups={}, failed={2: "forbidden"}))
    board.see(poller(brokers=question(views), groups=groups), NOW)
    said = {each.rule.name: each.said for each in board.alerts(NOW) if each.state is AlertState.UNKNOWN}
    assert said["LogDirectoryOffline"] == "not told by brokers 2"
    assert said["LagGrows"] == "brokers 2 do not tell of their groups"
    board.see(poller(problem("log_directory"), brokers=question(views)), NOW)
    assert state_of(board, "LogDirectoryOffline") is AlertState.FIRING


def test_unclean_elections_are_alerts_while_they_are_new() -> None:
    def counting(node_id: int, count: int) -> Any:
        counts = [SimpleNamespace(name="UncleanLeaderElectionsPerSec", value=count)]
        found = SimpleNamespace(queued_events=101, counts=counts)
        return poller(controller=question(SimpleNamespace(node=SimpleNamespace(node_id=node_id), found=found)))

    board = AlertBoard()
    board.see(counting(1, 5), NOW)
    assert state_of(board, "UncleanElection") is AlertState.QUIET
    assert state_of(board, "ControllerBehind") is AlertState.PENDING
    board.see(counting(2, 9), NOW)
    assert state_of(board, "UncleanElection") is AlertState.QUIET
    board.see(counting(2, 11), NOW)
    assert state_of(board, "UncleanElection") is AlertState.FIRING
    board.see(counting(2, 11), NOW + WINDOW_MS)
    assert state_of(board, "UncleanElection", NOW + WINDOW_MS) is AlertState.QUIET


def test_isrs_that_shrink_often() -> None:
    board = AlertBoard()
    board.see(poller(shrinks=31), NOW)
    assert state_of(board, "IsrFlapping") is AlertState.PENDING
    board.see(poller(shrinks=30), NOW)
    assert state_of(board, "IsrFlapping") is AlertState.QUIET


@pytest.mark.parametrize(
    ("lags", "state"),
    [
        ([0, LAG_MIN, 2 * LAG_MIN], AlertState.FIRING),
        ([LAG_MIN, 5 * LAG_MIN, 2 * LAG_MIN], AlertState.QUIET),
        ([LAG_MIN, LAG_MIN, LAG_MIN], AlertState.QUIET),
        ([0, 1, LAG_MIN - 1], AlertState.QUIET),
    ],
)
def test_a_lag_that_never_falls_is_an_alert(lags: list[int], state: AlertState) -> None:
    some = poller(groups=question(GroupsAndEnds({"readers": READERS}, {}, 0)))
    board = AlertBoard()
    some.lags.add("readers", NOW - WINDOW_MS // 2, 0)
    board.see(some, NOW)
    assert state_of(board, "LagGrows") is AlertState.UNKNOWN
    some.lags = Samples()
    for number, lag in enumerate(lags):
        some.lags.add("readers", NOW - WINDOW_MS + number * WINDOW_MS // 2, lag)
    board.see(some, NOW)
    assert state_of(board, "LagGrows") is state


def test_groups_whose_lag_is_not_followed_are_not_called_well() -> None:
    other = ListedGroup("others", "Stable", "consumer", 1)
    board, some = AlertBoard(), poller(groups=question(GroupsAndEnds({"readers": READERS}, {}, 0, others={"o": other})))
    for time_ms in (NOW - WINDOW_MS, NOW):
        some.lags.add("readers", time_ms, 0)
    board.see(some, NOW)
    (alert,) = (each for each in board.alerts(NOW) if each.rule.name == "LagGrows")
    assert (alert.state, alert.said) == (AlertState.UNKNOWN, "the console does not follow the lag of 1 group")
    some.lags.add("readers", NOW, LAG_MIN)
    board.see(some, NOW)
    assert state_of(board, "LagGrows") is AlertState.FIRING
    some.groups.value = GroupsAndEnds({"readers": READERS, "without": READERS}, {}, 0)
    some.lags = Samples()
    for number in range(SERIES_MAX):
        some.lags.add(f"g{number}", NOW - WINDOW_MS, 0)
    some.lags.add("without", NOW, 0)
    board.see(some, NOW)
    assert state_of(board, "LagGrows") is AlertState.UNKNOWN


def test_every_rule_has_a_page_that_the_console_shows() -> None:
    for rule in RULES:
        if rule.page:
            found = runbook(rule.page)
            assert found is not None
            title, blocks = found
            assert title.startswith(f"{rule.name}: ")
            shown = markup(blocks)
            assert "<h2>Look</h2>" in shown
            assert "<h2>Do</h2>" in shown
            assert "](" not in shown
            assert "`" not in shown


@pytest.mark.parametrize("name", ["nope", "", "..", "../console", "a/b", "under-replicated.md", "Under"])
def test_other_files_are_no_pages(name: str) -> None:
    assert runbook(name) is None


def test_markdown_becomes_html_and_its_text_stays_text() -> None:
    title, blocks = as_html("# T: <b>\n\nA `<x>` and\n[b.md](b.md), [c](../c.md#d).\n\n## Do\n\n- one\n  more\n- two\n")
    assert title == "T: <b>"
    assert markup(blocks) == (
        '<p>A <code>&lt;x&gt;</code> and <a href="/alerts/b">b</a>, c (docs/c.md#d).</p><h2>Do</h2>'
        "<ul><li>one more</li><li>two</li></ul>"
    )
