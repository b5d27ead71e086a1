"""Tokens that nobody has signed: Kafka's default, and what it asks of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from barnabas.sasl.bearer_tokens import INVALID_TOKEN, BearerToken, TokenRefusedError
from barnabas.sasl.errors import LoginConfigError
from barnabas.sasl.unsecured_tokens import UnsecuredTokens, make_unsecured
from tests.support.identity_provider import signed, unsecured

NOW_MS = 1_000_000_000
NOW = NOW_MS / 1000
GOOD = {"sub": "alice", "exp": NOW + 10}


def reader(**options: str) -> UnsecuredTokens:
    return UnsecuredTokens({f"unsecuredValidator{name}": value for name, value in options.items()}, lambda: NOW_MS)


def test_a_token_is_who_it_says_it_is() -> None:
    assert reader()(unsecured(GOOD)) == BearerToken("alice", NOW_MS + 10_000)
    assert reader(PrincipalClaimName="name")(unsecured(GOOD | {"name": "bob"})).principal == "bob"


@pytest.mark.parametrize(
    "token",
    [
        signed(GOOD),
        unsecured(GOOD, "x"),
        unsecured(GOOD, alg="None"),
        unsecured({"sub": "alice"}),
        unsecured(GOOD | {"exp": NOW}),
        unsecured(GOOD | {"exp": "soon"}),
        unsecured(GOOD | {"iat": NOW + 1}),
        unsecured(GOOD | {"iat": NOW + 10}),
        unsecured({"exp": NOW + 10}),
        unsecured(GOOD | {"sub": " "}),
        unsecured(GOOD | {"sub": 5}),
        unsecured(GOOD | {"sub": "alice\ud800"}),
        unsecured(GOOD | {"sub": "ä" * 2048 + "e"}),
        unsecured(GOOD | {"scope": 5}),
        unsecured(json.dumps(GOOD)[:-1] + ', "sub": "bob"}'),
        unsecured("[" * 10_000),
        unsecured('{"sub": "alice", "exp": NaN}'),
        unsecured('{"sub": "alice", "exp": ' + "9" * 5000 + "}"),
        unsecured("[]"),
        "",
        "..",
        "!.!.",
    ],
)
def test_others_are_refused(token: str) -> None:
    with pytest.raises(TokenRefusedError) as refusal:
        reader()(token)
    assert refusal.value.status == INVALID_TOKEN


def test_a_long_name_is_taken() -> None:
    assert reader()(unsecured(GOOD | {"sub": "ä" * 2048})).principal == "ä" * 2048


def test_clocks_may_differ_by_what_is_allowed() -> None:
    late, early = unsecured(GOOD | {"exp": NOW - 1}), unsecured(GOOD | {"iat": NOW + 2})
    for token in (late, early):
        reader(AllowableClockSkewMs="2000")(token)
        with pytest.raises(TokenRefusedError):
            reader(AllowableClockSkewMs="1000")(token)


@pytest.mark.parametrize("scope", ["a", ["a"], ["b", "c"], None])
def test_a_scope_that_is_wanted_and_not_there_is_told(scope: Any) -> None:
    wanting = reader(RequiredScope=" a b ")
    with pytest.raises(TokenRefusedError) as refusal:
        wanting(unsecured(GOOD | {"scope": scope}))
    assert (refusal.value.status, refusal.value.scope) == ("insufficient_scope", "[a, b]")
    assert wanting(unsecured(GOOD | {"scope": ["b", " a", "c"]})).principal == "alice"


@pytest.mark.parametrize("skew", ["-1", "x", "1.5", "²"])
def test_a_skew_is_a_number(skew: str) -> None:
    with pytest.raises(LoginConfigError, match="AllowableClockSkewMs"):
        reader(AllowableClockSkewMs=skew)


def test_what_is_made_is_taken() -> None:
    token, expiry_ms = make_unsecured(
        {
            "unsecuredLoginStringClaim_sub": 'al"ice',
            "unsecuredLoginListClaim_scope": "|a|b",
            "unsecuredLoginNumberClaim_n": "1.5",
            "unsecuredLoginLifetimeSeconds": "60",
        },
        NOW_MS,
    )
    assert expiry_ms == NOW_MS + 60_000
    assert reader(RequiredScope="a b")(token) == BearerToken('al"ice', expiry_ms)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"unsecuredLoginStringClaim_sub": ""},
        {"unsecuredLoginNumberClaim_sub": "1"},
        {"unsecuredLoginStringClaim_sub": "a", "unsecuredLoginStringClaim_exp": "1"},
        {"unsecuredLoginStringClaim_sub": "a", "unsecuredLoginNumberClaim_n": "x"},
        {"unsecuredLoginStringClaim_sub": "a", "unsecuredLoginLifetimeSeconds": "+-5"},
    ],
)
def test_what_cannot_be_made_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(LoginConfigError):
        make_unsecured(options, NOW_MS)
