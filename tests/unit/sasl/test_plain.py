"""PLAIN: what a client is told is what Apache Kafka tells it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.kernel.steps import at_once
from barnabas.sasl import plain
from barnabas.sasl.errors import SaslAuthenticationError, SaslError
from barnabas.sasl.plain import PlainClient, PlainServer

PASSWORDS = {"odd": "\ufffd", "alice": "secret", "bøb": "pässword", "none": ""}


@pytest.mark.parametrize(
    ("token", "name"),
    [
        (b"\0alice\0secret", "alice"),
        (b"alice\0alice\0secret", "alice"),
        ("\0bøb\0pässword".encode(), "bøb"),
    ],
)
def test_who_knows_the_password_is_let_in(token: bytes, name: str) -> None:
    broker = PlainServer(PASSWORDS)
    assert broker.respond(token) == b""
    assert broker.username == name


@pytest.mark.parametrize(
    ("token", "answer"),
    [
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"alice\0secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0secret\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0\0\0\0\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"\0alice\0Secret", "Authentication failed: Invalid username or password"),
        (b"\0carol\0secret", "Authentication failed: Invalid username or password"),
        (b"\0carol\0the password of those who have none", "Authentication failed: Invalid username or password"),
        (
            b"carol\0alice\0secret",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (b"\0alice\0\xff", "Authentication failed: Invalid username or password"),
        (b"\0odd\0\xff", "Authentication failed: Invalid username or password"),
        (b"\xff", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
    ],
)
def test_who_does_not_is_told_why(token: bytes, answer: str) -> None:
    broker = PlainServer(PASSWORDS)
    with pytest.raises(SaslAuthenticationError) as refusal:
        broker.respond(token)
    assert str(refusal.value) == answer
    assert broker.username is None


def test_passwords_are_compared_in_a_time_that_does_not_tell_where_they_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of users that there are not, too: whatever else is compared, that decides."""
    compared: list[bytes] = []

    def nothing_is_the_same(one: bytes, _other: bytes) -> bool:
        compared.append(one)
        return False

    monkeypatch.setattr(plain, "is_same", nothing_is_the_same)
    for name in ("alice", "nobody"):
        with pytest.raises(SaslAuthenticationError):
            PlainServer({"alice": "secret"}).respond(f"\0{name}\0secret".encode())
    assert compared == [b"secret", b"secret"]


def test_there_is_one_message_only() -> None:
    broker = PlainServer(PASSWORDS)
    with pytest.raises(SaslError):
        broker.respond(b"\0alice\0wrong")
    with pytest.raises(SaslError):
        broker.respond(b"\0alice\0secret")
    assert broker.username is None


@given(token=st.binary(max_size=100))
def test_garbage_lets_nobody_in_and_breaks_nothing(token: bytes) -> None:
    broker = PlainServer({"alice": "a secret that no garbage has"})
    with pytest.raises(SaslAuthenticationError):
        broker.respond(token)
    assert broker.username is None


def test_the_client_sends_all_at_once() -> None:
    client = PlainClient("bøb", "pässword")
    broker = PlainServer(PASSWORDS)
    assert at_once(client.answer(broker.respond(client.begin()))) is None
    assert client.is_complete
    assert broker.username == "bøb"


def test_the_client_has_nothing_more_to_say() -> None:
    client = PlainClient("alice", "secret")
    client.begin()
    with pytest.raises(SaslError):
        at_once(client.answer(b"more"))
    assert not client.is_complete
