"""How many connections may come in a second: bounds of the broker, of a listener, and of an address."""

from __future__ import annotations

import pytest

from barnabas.quotas.connection_rates import ADDRESSES_MAX, UNLIMITED, ConnectionRates, canonical
from barnabas.quotas.settings import ClientQuotaSettings

HERE, THERE = "10.0.0.1", "10.0.0.2"


def rates(windows: int = 11, seconds: int = 1) -> ConnectionRates:
    return ConnectionRates(ClientQuotaSettings(window_count=windows, window_seconds=seconds))


def accepted(rate: ConnectionRates, listener: str, seconds: int, *, is_protected: bool = False) -> list[float]:
    """When connections come in that are ready all the time, as an acceptor takes them one after the other."""
    now = 100.0
    times: list[float] = []
    while now < 100.0 + seconds and len(times) < 5000:
        now += rate.accept(listener, now, is_protected=is_protected)
        times.append(now - 100.0)
    return times


def test_without_a_bound_nobody_waits() -> None:
    rate = rates()
    assert {rate.accept("A", 1.0) for _ in range(1000)} == {0.0}
    assert {rate.accept_from(HERE, "A", 1.0) for _ in range(1000)} == {0.0}
    assert rate.addresses == 0


@pytest.mark.parametrize("of_listener", [False, True])
def test_a_bound_holds_over_all_windows(of_listener: bool) -> None:
    rate = rates()
    if of_listener:
        rate.limit_listener("A", 20)
    else:
        rate.limit_broker(20)
    times = accepted(rate, "A", 30)
    assert sum(time == 0 for time in times) == 200  # of all windows but one
    later = [time for time in times if time > 15]
    # The rate is measured over whole windows and the one that has begun, so some fewer come than may.
    assert 15 * 20 * 0.6 < len(later) <= 15 * 20


def test_nobody_waits_longer_than_a_window() -> None:
    rate = rates(seconds=2)
    rate.limit_broker(0)
    assert [rate.accept("A", 5.0) for _ in range(3)] == [2.0, 2.0, 2.0]
    rate.limit_broker(1)
    for _ in range(1000):
        assert rate.accept("A", 5.0) <= 2.0


def test_the_brokers_bound_counts_all_but_what_is_protected() -> None:
    rate = rates()
    rate.limit_broker(1)
    assert set(accepted(rate, "BROKERS", 1, is_protected=True)) == {0.0}
    assert rate.accept("A", 100.0) == 0.0
    for _ in range(20):
        rate.accept("A", 100.0)
    assert rate.accept("B", 100.0) > 0
    rate.limit_listener("BROKERS", 1)
    assert rate.accept("BROKERS", 100.0, is_protected=True) > 0


def test_a_bound_that_is_raised_holds_at_once() -> None:
    rate = rates()
    rate.limit_broker(1)
    assert [rate.accept("A", 1.0) > 0 for _ in range(12)][-1]
    rate.limit_broker(UNLIMITED)
    assert rate.accept("A", 1.0) == 0.0
    rate.limit_broker(1)
    assert rate.accept("A", 1.0) > 0


def test_an_address_has_its_own_bound_or_that_of_all() -> None:
    rate = rates()
    rate.limit_address(None, 1)
    rate.limit_address(THERE, 10)
    refused = {address: [rate.accept_from(address, "A", 1.0) > 0 for _ in range(50)] for address in (HERE, THERE)}
    assert refused[HERE].count(False) == 10
    assert not any(refused[THERE])
    rate.limit_address(THERE, None)
    assert rate.accept_from(THERE, "A", 1.0) > 0
    rate.limit_address(None, None)
    assert rate.accept_from(HERE, "A", 1.0) == 0.0


def test_what_an_address_may_not_make_counts_nowhere() -> None:
    rate = rates()
    rate.limit_address(HERE, 1)
    for _ in range(500):
        rate.accept("A", 1.0)
        rate.accept_from(HERE, "A", 1.0)
    assert rate.measure("A", 1.0) == rate.measure(None, 1.0) == 1.0
    # A second later there is room for what that second brings, however many were refused.
    assert [rate.accept_from(HERE, "A", 13.0) > 0 for _ in range(11)] == [False] * 10 + [True]


def test_very_many_addresses_take_bounded_memory_and_the_quiet_ones_are_forgotten() -> None:
    rate = rates()
    rate.limit_address(None, 1)
    for number in range(ADDRESSES_MAX + 1000):
        rate.accept_from(f"a{number}", "A", 1.0)
    assert rate.addresses == ADDRESSES_MAX
    rate.accept_from(HERE, "A", 100.0)
    assert rate.addresses == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("::1", "0:0:0:0:0:0:0:1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("FE80::1", "fe80:0::1"),
        ("no:address", "no:address"),
    ],
)
def test_an_address_has_one_form(one: str, other: str) -> None:
    assert canonical(one) == canonical(other)
    rate = rates()
    rate.limit_address(one, 0)
    assert rate.accept_from(other, "A", 1.0) > 0
