"""The page of every group is where its link leads."""

from __future__ import annotations

import logging
import re
from html import unescape
from types import SimpleNamespace
from typing import Any
from urllib.parse import urljoin

import confluent_kafka
import pytest

from barnabas.client.client import Client
from barnabas.client.settings import ClientSettings
from barnabas.console import groups as groups_module
from barnabas.console.groups import GROUPS_PER_BROKER_MAX, Group, GroupsAndEnds
from barnabas.console.history import Samples
from barnabas.console.html import markup
from barnabas.console.http import parse
from barnabas.console.pages.groups import groups
from barnabas.console.pages.page import Page, Visit, Visitor
from barnabas.console.poller import Poller
from barnabas.kernel.real_host import RealHost, run
from barnabas.testing import KafkaCluster
from barnabas.wire.topics import TopicPartition
from tests.support.running_console import RunningConsole

PARTITIONS = {TopicPartition("t", number): 0 for number in range(250)}


def page_at(name: str, address: str) -> Page:
    group = Group(name, "Empty", "consumer", "", 1, (), PARTITIONS)
    question = SimpleNamespace(
        value=GroupsAndEnds({name: group}, {}, 0), age_ms=lambda _now_ms: 0, is_stale=lambda _now_ms: False
    )
    poller: Any = SimpleNamespace(groups=question, lags=Samples())
    # As a browser asks for it, which takes away what is `.` or `..`.
    request = parse(f"GET {urljoin('/', address)} HTTP/1.1".encode("ascii"))
    assert request.segments[0] == "groups"
    unused: Any = None
    return groups(Visit(poller, unused, 0, request.segments[1:], request.query, "h:1", Visitor(""), unused))


def link_of(page: Page, label: str) -> str:
    (address,) = re.findall(rf'<a href="([^"]*)">{re.escape(label)}</a>', markup(page.body))
    return unescape(address)


@pytest.mark.parametrize("name", ["readers", "", ".", "..", "a/b", "...", "a?b=c&d", "%2e"])
def test_the_link_of_a_group_leads_to_its_page(name: str) -> None:
    label = name.replace("&", "&amp;") or "(empty name)"
    page = page_at(name, link_of(page_at(name, "/groups"), label))
    assert page.title == f"Group {name or '(empty name)'}"
    behind = page_at(name, link_of(page, "Next"))
    assert behind.title == page.title
    assert "101 to 200 of 250 rows" in markup(behind.body)


def test_what_is_no_group_is_not_there() -> None:
    assert page_at("readers", "/groups/others").status == 404
    assert page_at("readers", "/groups?name=").status == 404


def test_a_group_that_was_not_described_is_listed_and_asked_for_when_somebody_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups_module, "GROUPS_PER_BROKER_MAX", 2)
    names = ["a", "b", "barnabas-pipeline-p", "y", "z"]
    with KafkaCluster() as cluster:
        topic = cluster.create_topic()
        for name in names:
            settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": name, "log_level": 0}
            consumer = confluent_kafka.Consumer(settings)
            consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 0)], asynchronous=False)
            consumer.close()
        with RunningConsole(cluster.bootstrap_servers) as console:
            console.wait_for("/", "Groups 5", "Lag of groups 0 records of 2 groups")
            assert "barnabas-pipeline-p" in console.get("/pipelines/p").words
            said = console.get("/groups/z").words
            assert "Group z" in said
            assert "are asked for: it may take" in said
            console.wait_for("/groups/z", "Lag 0 records", f"{topic} 0 0 0 0")
            console.wait_for("/groups?q=y", "y ▲ Empty - 0 1 0 1")
            said = console.get("/groups").words
            assert all(f" {name} " in said for name in names)
            assert "5 groups" in said
            assert console.get("/groups/none").status == 404


def test_groups_that_are_looked_at_are_bounded() -> None:
    async def on_host(host: RealHost) -> None:
        client = Client(host, ClientSettings(bootstrap_servers=("127.0.0.1:1",)), logging.getLogger("tests.groups"))
        poller = Poller(client)
        poller.look_at_groups(["first"])
        poller.look_at_groups(f"g{number}" for number in range(GROUPS_PER_BROKER_MAX - 1))
        poller.look_at_groups(["first", "last"])
        assert len(poller._groups_looked_at) == GROUPS_PER_BROKER_MAX
        assert "g0" not in poller._groups_looked_at
        assert {"first", "last", "g1"} <= poller._groups_looked_at.keys()
        await poller.close()
        await client.close()

    run(on_host, name="test")
