"""OAUTHBEARER's messages, and both ends of the exchange (RFC 7628)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.kernel.steps import at_once
from barnabas.sasl.bearer_tokens import INSUFFICIENT_SCOPE, BearerToken, TokenRefusedError
from barnabas.sasl.errors import LoginConfigError, SaslAuthenticationError, SaslError
from barnabas.sasl.oauthbearer_client import OAuthBearerClient
from barnabas.sasl.oauthbearer_messages import TOKEN_CHARACTERS_MAX, ClientFirst, check_extensions
from barnabas.sasl.oauthbearer_server import (
    OAUTHBEARER_SERVER,
    OAuthBearerServer,
    OAuthBearerServerEvent,
    OAuthBearerServerState,
)

KEYS = st.from_regex(r"[A-Za-z]+", fullmatch=True).filter(lambda key: key != "auth")
VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E) | st.sampled_from(" \t\r\n"), min_size=1)


def validate(text: str) -> BearerToken:
    if text == "scope":
        raise TokenRefusedError("for the log", INSUFFICIENT_SCOPE, "[a, b]")
    if text != "good":
        raise TokenRefusedError("for the log")
    return BearerToken("alice", 5000)


def server() -> OAuthBearerServer:
    return OAuthBearerServer(validate)


@given(st.from_regex(r"[-_~+/.a-zA-Z0-9]+=*", fullmatch=True), st.dictionaries(KEYS, VALUES))
def test_what_is_written_is_read(token: str, extensions: dict[str, str]) -> None:
    first = ClientFirst(token, extensions=extensions)
    check_extensions(extensions)
    assert ClientFirst.decode(first.encode()) == first


@given(st.binary())
def test_anything_else_is_an_error_of_sasl(message: bytes) -> None:
    for text in (message, b"n,," + message, b"n,,\x01auth=Bearer " + message + b"\x01\x01"):
        try:
            ClientFirst.decode(text)
        except SaslError:
            continue


def test_a_message_is_as_kafka_writes_it() -> None:
    assert ClientFirst("t", "", {"a": "1", "b": "2"}).encode() == b"n,,\x01auth=Bearer t\x01a=1\x01b=2\x01\x01"
    assert ClientFirst("t", "alice").encode() == b"n,a=alice,\x01auth=Bearer t\x01\x01"


def test_no_token_is_shown() -> None:
    assert "secret" not in repr(ClientFirst("secret", "", {"a": "secret"}))


def test_a_token_has_a_bound() -> None:
    assert len(ClientFirst.decode(ClientFirst("t" * TOKEN_CHARACTERS_MAX).encode()).token) == TOKEN_CHARACTERS_MAX
    with pytest.raises(SaslError, match="more than"):
        ClientFirst.decode(ClientFirst("t" * (TOKEN_CHARACTERS_MAX + 1)).encode())
    with pytest.raises(SaslError, match="bytes, more than"):
        ClientFirst.decode(ClientFirst("t" * 500_000).encode())


@pytest.mark.parametrize("extensions", [{"auth": "x"}, {"a1": "x"}, {"": "x"}, {"a": ""}, {"a": "\x01"}, {"a": "ä"}])
def test_extensions_that_no_message_can_say_are_refused(extensions: dict[str, str]) -> None:
    with pytest.raises(LoginConfigError):
        check_extensions(extensions)


def test_a_token_shows_who_the_client_is_and_until_when() -> None:
    end = server()
    assert (end.username, end.token_expiry_ms) == (None, None)
    assert end.respond(ClientFirst("good", "alice").encode()) == b""
    assert (end.username, end.token_expiry_ms) == ("alice", 5000)
    assert not end.is_by_delegation_token


def test_a_client_is_not_who_its_token_does_not_name() -> None:
    end = server()
    with pytest.raises(SaslAuthenticationError, match=r"authorization id \(bob\) that is different .* \(alice\)"):
        end.respond(ClientFirst("good", "bob").encode())
    assert end.username is None
    with pytest.raises(SaslAuthenticationError) as refusal:
        server().respond(ClientFirst("good", "b" * 20_000).encode())
    assert len(str(refusal.value)) < 2_000  # it finds room in any version of an answer


@pytest.mark.parametrize(
    ("token", "told"),
    [("bad", '{"status":"invalid_token"}'), ("scope", '{"status":"insufficient_scope", "scope":"[a, b]"}')],
)
def test_a_token_that_is_not_taken_is_answered_and_then_the_end(token: str, told: str) -> None:
    end = server()
    assert end.respond(ClientFirst(token).encode()) == told.encode()
    with pytest.raises(SaslAuthenticationError) as refusal:
        end.respond(b"\x01")
    assert str(refusal.value) == told
    assert refusal.value.reason == f"{told}: for the log"
    assert end.username is None


def test_no_second_token_is_looked_at() -> None:
    end = server()
    end.respond(ClientFirst("bad").encode())
    with pytest.raises(SaslError, match="after the end"):
        end.respond(ClientFirst("good").encode())
    assert (end.username, end.state) == (None, OAuthBearerServerState.FAILED)


def test_a_message_too_many_takes_the_login_back() -> None:
    end = server()
    end.respond(ClientFirst("good").encode())
    with pytest.raises(SaslError):
        end.respond(b"\x01")
    assert end.username is None


@pytest.mark.parametrize("state", OAuthBearerServerState)
@pytest.mark.parametrize("event", OAuthBearerServerEvent)
def test_the_table_has_these_and_no_others(state: OAuthBearerServerState, event: OAuthBearerServerEvent) -> None:
    fresh = state is OAuthBearerServerState.EXPECTS_TOKEN
    is_refusal = event is OAuthBearerServerEvent.REFUSED and state is not OAuthBearerServerState.FAILED
    assert OAUTHBEARER_SERVER.allows(state, event) == (fresh or is_refusal)


def test_our_end_confirms_a_refusal_and_expects_no_more() -> None:
    ours = OAuthBearerClient("good", {"a": "1"})
    assert ours.begin() == b"n,,\x01auth=Bearer good\x01a=1\x01\x01"
    assert at_once(ours.answer(b'{"status":"invalid_token"}')) == b"\x01"
    assert not ours.is_complete
    with pytest.raises(SaslError):
        at_once(ours.answer(b""))
    ours = OAuthBearerClient("good", {})
    assert at_once(ours.answer(b"")) is None
    assert ours.is_complete
    with pytest.raises(SaslError):
        at_once(ours.answer(b""))
