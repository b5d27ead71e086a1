"""Listeners are read as Kafka reads them, and refused with the reason."""

from __future__ import annotations

import pytest

from barnabas.config.keys import ConfigError
from barnabas.config.listeners import Endpoint, SecurityProtocol, parse_listeners, parse_protocol_map

PROTOCOLS = {"PLAINTEXT": SecurityProtocol.PLAINTEXT, "SSL": SecurityProtocol.SSL, "INSIDE": SecurityProtocol.SASL_SSL}


def parse(text: str, *, distinct_ports: bool = True) -> list[str]:
    return [str(endpoint) for endpoint in parse_listeners("listeners", text, PROTOCOLS, distinct_ports=distinct_ports)]


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("PLAINTEXT://:9092", Endpoint("PLAINTEXT", SecurityProtocol.PLAINTEXT, None, 9092)),
        ("plaintext://localhost:0", Endpoint("PLAINTEXT", SecurityProtocol.PLAINTEXT, "localhost", 0)),
        ("INSIDE://10.0.0.1:65535", Endpoint("INSIDE", SecurityProtocol.SASL_SSL, "10.0.0.1", 65535)),
        ("SSL://[::1]:9093", Endpoint("SSL", SecurityProtocol.SSL, "::1", 9093)),
        ("SSL://[fe80::1%eth0]:1", Endpoint("SSL", SecurityProtocol.SSL, "fe80::1%eth0", 1)),
    ],
)
def test_reads_one_listener(text: str, endpoint: Endpoint) -> None:
    assert parse_listeners("listeners", text, PROTOCOLS, distinct_ports=True) == (endpoint,)
    assert parse_listeners("listeners", str(endpoint), PROTOCOLS, distinct_ports=True) == (endpoint,)


def test_reads_several() -> None:
    assert parse(" PLAINTEXT://a:1 , SSL://b:2,") == ["PLAINTEXT://a:1", "SSL://b:2"]
    assert parse("PLAINTEXT://a:0,SSL://b:0") == ["PLAINTEXT://a:0", "SSL://b:0"]
    assert parse("PLAINTEXT://127.0.0.1:1,SSL://[::1]:1") == ["PLAINTEXT://127.0.0.1:1", "SSL://[::1]:1"]
    assert parse("PLAINTEXT://a:1,SSL://b:1", distinct_ports=False) == ["PLAINTEXT://a:1", "SSL://b:1"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "at least one"),
        ("localhost:9092", "NAME://host:port"),
        ("PLAINTEXT://localhost", "NAME://host:port"),
        ("PLAINTEXT://localhost:65536", "up to 65535"),
        ("PLAINTEXT://localhost:-1", "NAME://host:port"),
        ("PLAINTEXT://a b:1", "NAME://host:port"),
        ("PLAINTEXT://[::1:1", "NAME://host:port"),
        ("OUTSIDE://a:1", "listener OUTSIDE; add it to listener.security.protocol.map"),
        ("SSL://a:1,ssl://a:2", "not twice SSL"),
        ("PLAINTEXT://a:1,SSL://b:1", "port 1"),
        ("PLAINTEXT://127.0.0.1:1,SSL://10.0.0.1:1", "port 1"),
        ("PLAINTEXT://127.0.0.1:1,SSL://[::1]:1,INSIDE://:1", "port 1"),
    ],
)
def test_refuses_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(text)


def test_reads_the_map_of_protocols() -> None:
    assert parse_protocol_map("k", "inside:ssl , A:SASL_PLAINTEXT") == {
        "INSIDE": SecurityProtocol.SSL,
        "A": SecurityProtocol.SASL_PLAINTEXT,
    }
    for text, says in (("A", "NAME:PROTOCOL"), (":SSL", "NAME:PROTOCOL"), ("A:TLS", "one of PLAINTEXT, SSL")):
        with pytest.raises(ConfigError, match=says):
            parse_protocol_map("k", text)


def test_protocols_tell_what_they_are_made_of() -> None:
    assert {each for each in SecurityProtocol if each.uses_sasl} == {
        SecurityProtocol.SASL_PLAINTEXT,
        SecurityProtocol.SASL_SSL,
    }
    assert {each for each in SecurityProtocol if each.uses_tls} == {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}
