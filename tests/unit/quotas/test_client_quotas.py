"""`barnabas.quotas.client_quotas`."""

from __future__ import annotations

import itertools
import math
import sys
from random import Random

import pytest

from barnabas.quotas.client_quotas import (
    ACCOUNTS_MAX,
    DEFAULT,
    NAMES_CHARACTERS_MAX,
    THROTTLE_MS_MAX,
    AccountLimits,
    BucketAccount,
    ClientQuotas,
    Name,
    QuotaEntity,
    RateAccount,
)
from barnabas.quotas.rate import Rate

PRECEDENCE = (
    QuotaEntity("u", "c"),
    QuotaEntity("u", DEFAULT),
    QuotaEntity("u", None),
    QuotaEntity(DEFAULT, "c"),
    QuotaEntity(DEFAULT, DEFAULT),
    QuotaEntity(DEFAULT, None),
    QuotaEntity(None, "c"),
    QuotaEntity(None, DEFAULT),
)


class World:
    """Quotas of rates, and their time."""

    def __init__(self) -> None:
        self.time = 100.0
        self.limits = AccountLimits(lambda: self.time, 11, 1.0)
        self.quotas = ClientQuotas(RateAccount, self.limits)

    def bound(self, user: str, client_id: str | None) -> float:
        account = self.quotas.account(user, client_id)
        return math.inf if account is None else account.bound


@pytest.mark.parametrize("chosen", [chosen for count in range(9) for chosen in itertools.combinations(range(8), count)])
def test_the_first_of_eight_that_is_set_holds(chosen: tuple[int, ...]) -> None:
    world = World()
    for level in chosen:
        world.quotas.set(PRECEDENCE[level], float(level + 1))
    assert world.bound("u", "c") == (chosen[0] + 1.0 if chosen else math.inf)
    of_others = [level for level in chosen if PRECEDENCE[level].user is not None and PRECEDENCE[level].user != "u"]
    of_others += [level for level in chosen if PRECEDENCE[level].user is None]
    assert world.bound("other", "c") == (of_others[0] + 1.0 if of_others else math.inf)
    for level in chosen:
        world.quotas.set(PRECEDENCE[level], None)
    assert world.bound("u", "c") == math.inf


def test_all_requests_for_which_the_same_quota_holds_take_from_one_account() -> None:
    world = World()
    account = world.quotas.account
    world.quotas.set(QuotaEntity("u", None), 1.0)
    assert account("u", "a") is account("u", "b")
    world.quotas.set(QuotaEntity("u", "a"), 1.0)
    assert account("u", "a") is not account("u", "b")
    world.quotas.set(QuotaEntity(None, DEFAULT), 1.0)
    assert account("v", "a") is account("w", "a")
    assert account("v", "a") is not account("v", "b")
    assert account("v", "a") is not account("u", "a")
    world.quotas.set(QuotaEntity(DEFAULT, None), 1.0)
    assert account("v", "a") is account("v", "b")
    assert account("v", "a") is not account("w", "a")


def test_a_request_without_a_client_id_has_the_quota_of_its_user_only() -> None:
    world = World()
    world.quotas.set(QuotaEntity(None, DEFAULT), 5.0)
    assert world.bound("u", None) == world.bound("u", "") == math.inf
    world.quotas.set(QuotaEntity("u", None), 7.0)
    assert world.bound("u", None) == world.bound("u", "") == 7.0


def test_an_open_account_takes_another_bound_at_once() -> None:
    world = World()
    world.quotas.set(QuotaEntity(None, DEFAULT), 100.0)
    account = world.quotas.account("u", "c")
    assert account is not None
    assert account.take(1000) == 0
    epoch = world.quotas.epoch
    world.quotas.set(QuotaEntity(None, "c"), 50.0)
    assert world.quotas.epoch != epoch
    assert account.take(0) == 10_000
    world.quotas.set(QuotaEntity(None, "c"), None)
    assert account.take(0) == 0
    world.quotas.set(QuotaEntity(None, DEFAULT), None)
    assert world.quotas.account("u", "c") is None
    assert account.take(10**9) == 0


def test_a_quota_of_one_name_looks_at_the_accounts_of_that_name_alone() -> None:
    world = World()
    world.quotas.set(QuotaEntity(DEFAULT, DEFAULT), 5.0)
    for number in range(100):
        assert world.bound(f"u{number % 20}", f"c{number}") == 5.0
    world.quotas.set(QuotaEntity("u0", None), 6.0)
    assert world.bound("u0", "c") == 6.0
    changes = {
        QuotaEntity("u1", None): 0,
        QuotaEntity("u0", None): 1,
        QuotaEntity("u2", "c2"): 1,
        QuotaEntity(None, "c2"): 0,
        QuotaEntity("u3", DEFAULT): 5,
        QuotaEntity(DEFAULT, "c4"): 1,
        QuotaEntity(DEFAULT, DEFAULT): 101,
        QuotaEntity(DEFAULT, None): 101,
        QuotaEntity(None, DEFAULT): 101,
    }
    assert {entity: world.quotas.set(entity, 7.0) for entity in changes} == changes
    assert world.quotas.set(QuotaEntity("u0", None), 7.0) == 0


@pytest.mark.parametrize("seed", range(10))
def test_open_accounts_have_the_bounds_that_new_ones_would_have(seed: int) -> None:
    random, world = Random(seed), World()
    users: list[Name | None] = ["u", "v", DEFAULT, None]
    clients: list[Name | None] = ["c", "d", DEFAULT, None]
    compared = 0
    for _ in range(300):
        entity = QuotaEntity(random.choice(users), random.choice(clients))
        if entity != (None, None):
            world.quotas.set(entity, random.choice([None, 1.0, 2.0, 3.0]))
        world.quotas.account(random.choice(["u", "v", "w"]), random.choice(["c", "d", "e", None]))
        if not random.randrange(50):
            world.time += 3601
            for number in range(100):  # so many that those that are not used are dropped
                world.quotas.account("many", f"{seed}-{number}")
        for account in world.quotas:
            fresh = ClientQuotas(RateAccount, world.limits)
            fresh.bounds = world.quotas.bounds
            opened = fresh.account(account.user, account.client_id)
            # Another account may be the one now: then nobody takes from the old one.
            if opened is not None and (opened.user, opened.client_id) == (account.user, account.client_id):
                assert account.bound == opened.bound
                compared += 1
    assert compared > 300


def test_what_is_set_again_changes_nothing() -> None:
    world = World()
    world.quotas.set(QuotaEntity("u", None), None)
    world.quotas.set(QuotaEntity("u", None), 5.0)
    epoch = world.quotas.epoch
    world.quotas.set(QuotaEntity("u", None), 5.0)
    assert world.quotas.epoch == epoch


def test_a_throttle_is_no_longer_than_a_response_can_say_or_the_kind_allows() -> None:
    world = World()
    world.quotas.set(QuotaEntity("u", None), 0.0)
    account = world.quotas.account("u", "c")
    assert account is not None
    assert account.take(1) == THROTTLE_MS_MAX
    short = ClientQuotas(RateAccount, world.limits._replace(throttle_ms_max=1000))
    short.set(QuotaEntity("u", None), 1.0)
    limited = short.account("u", "c")
    assert limited is not None
    assert limited.take(100) == 1000


def test_the_burst_is_what_may_be_taken_at_once() -> None:
    world = World()
    world.quotas.set(QuotaEntity("u", None), 30.0)
    account = world.quotas.account("u", "c")
    assert account is not None
    assert account.burst == 300.0
    assert account.take(account.burst) == 0
    assert account.take(1) > 0


@pytest.mark.parametrize("seed", range(20))
def test_an_account_says_what_its_rate_would_however_it_is_used(seed: int) -> None:
    """Most of what is taken is only added up, and comes to the rate later; whole numbers, so that sums are the same."""
    chance, world = Random(seed), World()
    account, rate, bound = RateAccount("u", "", 100.0, world.limits), Rate(11, 1.0), 100.0
    held_back = 0
    for _ in range(3_000):
        match chance.randrange(12):
            case 0:
                bound = chance.choice([0.0, 10.0, 100.0, 1_000.0, 1e308, math.inf])
                account.limit(bound)
            case 1:
                assert account.rate == rate.measure(world.time)
            case 2 | 3:
                value = chance.choice([-20, 0, 20, 200])
                account.count(value)
                rate.record(value, world.time)
            case _:
                value = chance.choice([0, 1, 20, 50, 300])
                throttle_ms = account.take(value)
                is_surely_not_too_much = rate.record(value, world.time) <= account.burst
                seconds = 0.0 if is_surely_not_too_much else rate.throttle_seconds(bound, world.time)
                assert throttle_ms == min(round(min(seconds, 1e9) * 1000), THROTTLE_MS_MAX)
                held_back += throttle_ms > 0
        assert not account.has_room(50) or rate.at_most + 50 <= account.burst
        world.time += chance.choice([0.0, 0.0, 2**-10, 0.25, 1.0, 13.0] if chance.random() < 0.3 else [0.0])
        assert account.used_at <= world.time
    assert 100 < held_back < 2_500


def test_throttles_of_the_last_minute_are_averaged() -> None:
    world = World()
    account = RateAccount("u", "", 1.0, world.limits)
    assert account.throttle_ms_average == 0.0
    account.note_throttled(100)
    account.note_throttled(300)
    assert account.throttle_ms_average == 200.0
    world.time += 61
    assert account.throttle_ms_average == 0.0


def test_unused_accounts_are_dropped_and_there_are_never_too_many() -> None:
    world = World()
    world.quotas.set(QuotaEntity(None, DEFAULT), 5.0)
    for number in range(100):
        world.quotas.account("u", f"old-{number}")
    world.time += 3601
    epoch = world.quotas.epoch
    for number in range(200):
        world.quotas.account("u", f"new-{number}")
    assert {account.client_id for account in world.quotas} == {f"new-{number}" for number in range(200)}
    assert world.quotas.epoch != epoch
    for number in range(2 * ACCOUNTS_MAX):
        world.time += 0.001
        world.quotas.account("u", f"many-{number}")
        assert len(list(world.quotas)) <= ACCOUNTS_MAX if number % 1000 == 0 else True
    assert len(list(world.quotas)) <= ACCOUNTS_MAX
    assert f"many-{2 * ACCOUNTS_MAX - 1}" in {account.client_id for account in world.quotas}


def test_an_account_of_tokens_says_how_long_to_wait() -> None:
    world = World()
    quotas = ClientQuotas(BucketAccount, world.limits)
    quotas.set(QuotaEntity("u", None), 2.0)
    account = quotas.account("u", "c")
    assert account is not None
    assert account.wait_ms() == 0
    assert account.take(20) == 0
    assert account.tokens == 2.0
    assert account.take(12) == 5000
    assert account.rate == pytest.approx(3.2)
    world.time += 2
    assert account.wait_ms() == 3000
    world.time += 3
    assert account.wait_ms() == 0


def test_who_has_taken_too_much_is_not_let_off_by_many_others() -> None:
    """Whoever changes his client id with each request opens accounts until some have to go: not those of others who
    are held back, nor one of his own."""
    world = World()
    world.quotas.set(QuotaEntity(None, DEFAULT), 1_000.0)
    held_back = world.quotas.account("u", "held back")
    assert held_back is not None
    assert held_back.take(50_000) == 40_000
    for number in range(3 * ACCOUNTS_MAX):
        world.time += 0.0001
        account = world.quotas.account("u", f"fresh-{number}")
        assert account is not None
        account.take(100)
    assert len(list(world.quotas)) <= ACCOUNTS_MAX
    assert world.quotas.account("u", "held back") is held_back
    assert held_back.take(0) > 30_000


@pytest.mark.parametrize("name", ["x" * 32_000, "\U0001f600" + "x" * 32_000], ids=["narrow", "wide"])
def test_names_that_are_as_long_as_a_request_allows_take_little_memory(name: str) -> None:
    """A client id may have 32 KiB, and 128 in memory where one of its characters is wide."""
    world = World()
    world.quotas.set(QuotaEntity(None, DEFAULT), 5.0)
    for number in range(ACCOUNTS_MAX):
        world.time += 0.001
        world.quotas.account("u", f"{name}{number}")
    assert sum(sys.getsizeof(account.client_id) for account in world.quotas) <= 4 * NAMES_CHARACTERS_MAX + 2**20
    assert f"{name}{ACCOUNTS_MAX - 1}" in {account.client_id for account in world.quotas}
