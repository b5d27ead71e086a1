"""The page of every group is where its link leads."""

from __future__ import annotations

import re
from html import unescape
from types import SimpleNamespace
from typing import Any
from urllib.parse import urljoin

import pytest

from barnabas.console.groups import Group, GroupsAndEnds
from barnabas.console.history import Samples
from barnabas.console.html import markup
from barnabas.console.http import parse
from barnabas.console.pages.groups import groups
from barnabas.console.pages.page import Page, Visit, Visitor
from barnabas.wire.topics import TopicPartition

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
