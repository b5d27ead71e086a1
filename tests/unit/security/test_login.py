"""What may come when, and who a client is: the table, and the rules around it."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.kernel.transitions import IllegalTransitionError
from barnabas.sasl.plain import PlainServer
from barnabas.sasl.scram_mechanisms import ScramCredential, ScramMechanism
from barnabas.sasl.scram_server import ScramServer
from barnabas.security.login import (
    LOGIN,
    ListenerLogins,
    Login,
    LoginEvent,
    LoginRefusedError,
    LoginState,
    UnsupportedMechanismError,
)

PASSWORDS = {"alice": "secret", "bob": "secret"}
CREDENTIAL = ScramCredential.of_password(ScramMechanism.SHA_256, "secret", b"salt")
LOGINS = ListenerLogins(
    {
        "PLAIN": partial(PlainServer, PASSWORDS),
        "SCRAM-SHA-256": partial(
            ScramServer, ScramMechanism.SHA_256, lambda _, user: CREDENTIAL if user == "alice" else None, bytes
        ),
    },
    {"PLAIN": 0, "SCRAM-SHA-256": 60_000},
    1024,
)


def logged_in(token: bytes = b"\0alice\0secret") -> Login:
    login = Login(LOGINS)
    login.choose("PLAIN")
    assert login.take(token) == b""
    return login


def test_how_clients_log_in_does_not_show_their_passwords() -> None:
    assert "secret" in repr(LOGINS.exchanges)  # of PLAIN they are what its exchanges are made with
    assert "secret" not in repr(LOGINS)


def test_every_state_and_event() -> None:
    fresh, told, busy, done, again, failed = LoginState
    expected = {
        (fresh, LoginEvent.VERSIONS_TOLD): told,
        (fresh, LoginEvent.MECHANISM_CHOSEN): busy,
        (told, LoginEvent.MECHANISM_CHOSEN): busy,
        (busy, LoginEvent.CHALLENGED): busy,
        (busy, LoginEvent.PROVEN): done,
        (done, LoginEvent.MECHANISM_CHOSEN): again,
        (again, LoginEvent.CHALLENGED): again,
        (again, LoginEvent.PROVEN): done,
        **{(state, LoginEvent.REFUSED): failed for state in (fresh, told, busy, done, again)},
    }
    for state in LoginState:
        for event in LoginEvent:
            if (state, event) in expected:
                assert LOGIN.advance("x", state, event) is expected[state, event]
            else:
                with pytest.raises(IllegalTransitionError):
                    LOGIN.advance("x", state, event)


def test_only_a_proof_leads_in() -> None:
    ways = {(state, event) for (state, event), to in LOGIN.transitions.items() if to is LoginState.AUTHENTICATED}
    assert ways == {(LoginState.AUTHENTICATING, LoginEvent.PROVEN), (LoginState.REAUTHENTICATING, LoginEvent.PROVEN)}


def test_who_shows_a_password_is_its_user() -> None:
    login = logged_in()
    assert login.state is LoginState.AUTHENTICATED
    assert login.principal == "User:alice"
    assert login.lifetime_ms(0) is None


@pytest.mark.parametrize(
    ("bound", "expiry", "lifetime"),
    [(0, 5000, 4000), (0, 1000, 0), (0, 500, 0), (60_000, 5000, 4000), (60_000, 100_000, 60_000), (60_000, 0, 0)],
)
def test_a_session_ends_with_its_token_or_before(bound: int, expiry: int, lifetime: int) -> None:
    class Token(PlainServer):
        def __init__(self) -> None:
            super().__init__(PASSWORDS)
            self.token_expiry_ms = expiry

    login = Login(ListenerLogins({"PLAIN": Token}, {"PLAIN": bound}, 1024))
    login.choose("PLAIN")
    login.take(b"\0alice\0secret")
    assert login.lifetime_ms(1000) == lifetime


@pytest.mark.parametrize("token", [b"", b"\0alice\0wrong", b"\0carol\0secret", b"\xff"])
def test_a_refusal_is_final(token: bytes) -> None:
    login = Login(LOGINS)
    login.versions_told()
    login.choose("PLAIN")
    with pytest.raises(LoginRefusedError):
        login.take(token)
    assert login.state is LoginState.FAILED
    assert login.principal is None
    with pytest.raises(IllegalTransitionError):
        login.choose("PLAIN")
    with pytest.raises((IllegalTransitionError, LoginRefusedError)):
        login.take(b"\0alice\0secret")
    assert login.principal is None


def test_who_has_no_credential_is_told_no_more_than_who_has_another_password() -> None:
    def told(*tokens: bytes) -> str | None:
        login = Login(LOGINS)
        login.choose("SCRAM-SHA-256")
        with pytest.raises(LoginRefusedError) as refusal:
            for token in tokens:
                login.take(token)
        return refusal.value.told

    expected = (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
    )
    proof = b"c=biws,r=x" + b"00" * 18 + b",p=" + b"A" * 43 + b"="
    assert told(b"n,,n=nobody,r=x") == expected
    assert told(b"n,,n=alice,r=x", proof) == expected
    assert told(b"n,,n=alice,r=x", b"garbage") == expected
    assert told(b"garbage") == expected


def test_a_mechanism_that_the_listener_lacks_is_refused() -> None:
    login = Login(LOGINS)
    with pytest.raises(UnsupportedMechanismError):
        login.choose("GSSAPI")
    assert login.state is LoginState.FAILED


def test_the_same_user_may_log_in_again() -> None:
    login = logged_in()
    login.choose("PLAIN")
    assert login.expects_token
    login.take(b"\0alice\0secret")
    assert login.principal == "User:alice"


@pytest.mark.parametrize("token", [b"\0bob\0secret", b"\0alice\0wrong"])
def test_nobody_else_may(token: bytes) -> None:
    login = logged_in()
    login.choose("PLAIN")
    with pytest.raises(LoginRefusedError) as refusal:
        login.take(token)
    assert login.state is LoginState.FAILED
    if b"bob" in token:
        expected = "Cannot change principals during re-authentication from User.alice: User.bob"
        assert refusal.value.told == expected


def test_another_mechanism_is_refused_with_the_next_message() -> None:
    login = logged_in()
    login.choose("SCRAM-SHA-256")
    with pytest.raises(LoginRefusedError, match="re-authentication of mechanism 'PLAIN'") as refusal:
        login.take(b"n,,n=alice,r=x")
    assert refusal.value.told is None
    assert login.state is LoginState.FAILED


@given(
    steps=st.lists(
        st.one_of(st.sampled_from(["versions", "PLAIN", "SCRAM-SHA-256", "X"]), st.binary(max_size=30)), max_size=8
    )
)
def test_nothing_but_a_proof_makes_a_principal(steps: list[str | bytes]) -> None:
    login = Login(LOGINS)
    for step in steps:
        try:
            if step == "versions":
                login.versions_told()
            elif isinstance(step, str):
                login.choose(step)
            elif login.expects_token:
                login.take(step)
        except (LoginRefusedError, IllegalTransitionError):
            continue
    assert login.principal is None
    assert login.state is not LoginState.AUTHENTICATED
