"""Kafka's `zookeeper.connect`."""

from __future__ import annotations

import pytest

from barnabas.coordination.connection_string import Endpoint, parse_connection_string
from barnabas.coordination.errors import ConnectionStringError


@pytest.mark.parametrize(
    ("text", "endpoints", "chroot"),
    [
        ("h:1", [("h", 1)], ""),
        ("h", [("h", 2181)], ""),
        (" a:1 , b:2 /", [("a", 1), ("b", 2)], ""),
        ("a:1,b/kafka/x", [("a", 1), ("b", 2181)], "/kafka/x"),
        ("[::1]:5,[fe80::1],fe80::2", [("::1", 5), ("fe80::1", 2181), ("fe80::2", 2181)], ""),
    ],
)
def test_is_read(text: str, endpoints: list[tuple[str, int]], chroot: str) -> None:
    assert parse_connection_string(text) == (tuple(endpoints), chroot)


@pytest.mark.parametrize(
    "text", ["", "/a", ",", "h:0", "h:65536", "h:x", ":1", "[::1", "[::1]5", "h:1/a/", "a:1/k,b:1/k"]
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ConnectionStringError):
        parse_connection_string(text)


def test_endpoints_read_as_they_are_written() -> None:
    assert (str(Endpoint("h", 1)), str(Endpoint("::1", 2))) == ("h:1", "[::1]:2")
