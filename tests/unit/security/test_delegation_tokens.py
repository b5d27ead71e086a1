"""Delegation tokens: how long they hold, who may change that, and what they log in with."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.coordination.layout.delegation_tokens import DelegationToken
from barnabas.sasl.scram_mechanisms import ITERATIONS_MIN, ScramCredential, ScramMechanism
from barnabas.security.delegation_tokens import (
    DelegationTokens,
    TokenLifetimes,
    belongs_to,
    expiring,
    has_expired,
    new_token,
    renewed,
)
from barnabas.wire.errors import ErrorCode, KafkaError

LIFETIMES = TokenLifetimes(lifetime_ms_max=1000, expiry_ms=100)
ALICE, BOB, CAROL, DORA = (f"User:{name}" for name in ("alice", "bob", "carol", "dora"))
NOW = 1_000_000
INT64 = st.integers(-(2**63), 2**63 - 1)


def token(lifetime_ms: int = -1, lifetimes: TokenLifetimes = LIFETIMES, now_ms: int = NOW) -> DelegationToken:
    """Alice's, for which Dora has asked, and which Bob may renew."""
    return new_token("t1", ALICE, DORA, (BOB,), lifetime_ms=lifetime_ms, now_ms=now_ms, lifetimes=lifetimes)


@pytest.mark.parametrize(
    ("asked", "life", "holds"),
    [(-1, 1000, 100), (0, 1000, 100), (50, 50, 50), (500, 500, 100), (1001, 1000, 100), (2**63 - 1, 1000, 100)],
)
def test_a_token_lives_as_long_as_is_asked_within_bounds(asked: int, life: int, holds: int) -> None:
    made = token(asked)
    assert (made.issue_timestamp_ms, made.max_timestamp_ms, made.expiry_timestamp_ms) == (NOW, NOW + life, NOW + holds)


def test_a_token_has_expired_after_either_end() -> None:
    made = token()
    assert not has_expired(made, NOW + 100)
    assert has_expired(made, NOW + 101)
    made = token(50)
    assert not has_expired(made, NOW + 50)
    assert has_expired(made, NOW + 51)


@pytest.mark.parametrize(
    ("period", "end"), [(-1, 110), (-(2**63), 110), (0, 10), (5, 15), (2000, 1000), (2**63 - 1, 1000)]
)
@pytest.mark.parametrize("who", [ALICE, BOB])
def test_owner_and_renewers_renew_within_its_life(who: str, period: int, end: int) -> None:
    after = renewed(token(), who, period, NOW + 10, LIFETIMES)
    assert after.expiry_timestamp_ms == NOW + end
    assert after.max_timestamp_ms == NOW + 1000


@pytest.mark.parametrize(("period", "end"), [(0, 10), (5, 15), (2000, 1000), (2**63 - 1, 1000)])
def test_owner_and_renewers_set_an_end_within_its_life(period: int, end: int) -> None:
    after = expiring(token(), BOB, period, NOW + 10)
    assert after is not None
    assert after.expiry_timestamp_ms == NOW + end


def test_a_negative_period_ends_it_at_once_also_when_it_has_expired() -> None:
    assert expiring(token(), ALICE, -1, NOW + 10) is None
    assert expiring(token(), ALICE, -1, NOW + 5000) is None


@pytest.mark.parametrize("who", [CAROL, DORA, "User:*", "Group:alice", ""])
def test_others_may_not_even_who_has_asked_for_it(who: str) -> None:
    changes: tuple[Callable[[], object], ...] = (
        lambda: renewed(token(), who, -1, NOW, LIFETIMES),
        lambda: expiring(token(), who, -1, NOW),
        lambda: expiring(token(), who, 5, NOW + 5000),
    )
    for change in changes:
        with pytest.raises(KafkaError) as refusal:
            change()
        assert refusal.value.code is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


def test_an_expired_token_is_not_brought_back() -> None:
    changes: tuple[Callable[[], object], ...] = (
        lambda: renewed(token(), ALICE, -1, NOW + 101, LIFETIMES),
        lambda: expiring(token(), ALICE, 5, NOW + 101),
    )
    for change in changes:
        with pytest.raises(KafkaError) as refusal:
            change()
        assert refusal.value.code is ErrorCode.DELEGATION_TOKEN_EXPIRED


@given(lifetime=INT64, period=INT64, longest=st.integers(1, 2**63 - 1), usual=st.integers(1, 2**63 - 1))
def test_no_number_leads_beyond_a_life_or_what_a_message_can_hold(
    lifetime: int, period: int, longest: int, usual: int
) -> None:
    lifetimes = TokenLifetimes(longest, usual)
    made = token(lifetime, lifetimes)
    for each in (made, renewed(made, ALICE, period, NOW, lifetimes), expiring(made, ALICE, period, NOW) or made):
        assert NOW <= each.expiry_timestamp_ms <= each.max_timestamp_ms < 2**63
        assert each.max_timestamp_ms - NOW <= longest
        DelegationToken.decode(each.encode(), "x")


def test_a_token_belongs_to_its_owner_its_requester_and_its_renewers() -> None:
    assert [who for who in (ALICE, BOB, CAROL, DORA) if belongs_to(token(), {who})] == [ALICE, BOB, DORA]
    assert belongs_to(token(), {CAROL, BOB})
    assert not belongs_to(token(), ())


# Held.


def held() -> DelegationTokens:
    tokens = DelegationTokens("what all share", lambda count: b"x" * count)
    tokens.put(token())
    return tokens


def test_the_secret_is_the_hmac_of_the_id() -> None:
    tokens = held()
    expected = hmac.digest(b"what all share", b"t1", "sha512")
    assert tokens.hmac_of("t1") == expected
    found = tokens.with_hmac(expected)
    assert found is not None
    assert found.token_id == "t1"
    assert tokens.with_hmac(expected[:-1]) is None
    assert tokens.with_hmac(b"") is None


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_it_logs_in_as_its_owner_with_its_secret(mechanism: ScramMechanism) -> None:
    tokens = held()
    login = tokens.login(mechanism, "t1")
    assert login is not None
    assert (login.owner, login.expiry_ms) == ("alice", NOW + 100)
    password = base64.b64encode(tokens.hmac_of("t1")).decode()
    assert login.credential == ScramCredential.of_password(mechanism, password, login.credential.salt, ITERATIONS_MIN)
    assert tokens.login(mechanism, "alice") is None


@pytest.mark.parametrize("owner", ["Group:root", "user:root", ":root", "Group:User:root"])
def test_a_token_whose_owner_is_no_user_logs_nobody_in(owner: str) -> None:
    """Kafka would let in a user of that name."""
    tokens = held()
    tokens.put(replace(token(), token_id="t2", owner=owner))
    assert tokens.login(ScramMechanism.SHA_256, "t2") is None
    tokens.put(replace(token(), token_id="t2", owner="User:ro:ot"))
    login = tokens.login(ScramMechanism.SHA_256, "t2")
    assert login is not None
    assert login.owner == "ro:ot"


def test_a_changed_token_keeps_its_credentials_and_a_removed_one_is_gone() -> None:
    tokens = held()
    before = tokens.login(ScramMechanism.SHA_256, "t1")
    tokens.put(renewed(token(), ALICE, 500, NOW, LIFETIMES))
    after = tokens.login(ScramMechanism.SHA_256, "t1")
    assert before is not None
    assert after is not None
    assert after.credential is before.credential
    assert after.expiry_ms == NOW + 500
    secret = tokens.hmac_of("t1")
    tokens.remove("t1")
    tokens.remove("t1")
    assert tokens.login(ScramMechanism.SHA_256, "t1") is None
    assert tokens.with_hmac(secret) is None
    assert len(tokens) == 0


def test_no_secret_is_shown() -> None:
    tokens = held()
    login = tokens.login(ScramMechanism.SHA_256, "t1")
    assert tokens.hmac_of("t1").hex() not in repr(vars(tokens)) + repr(login)
    assert repr(tokens.hmac_of("t1"))[2:20] not in repr(vars(tokens)["_held"])
