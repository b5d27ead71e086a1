"""`barnabas.quotas.replication_quota`."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.quotas.byte_quota import UNLIMITED
from barnabas.quotas.replication_quota import ReplicationQuota
from barnabas.quotas.settings import ReplicationQuotaSettings
from barnabas.wire.topics import TopicPartition
from tests.support.examples import examples

BROKER = 101


class Clock:
    """Seconds, as they are told."""

    def __init__(self) -> None:
        self.now = 50.0

    def time(self) -> float:
        return self.now


def quota_of(clock: Clock) -> ReplicationQuota:
    return ReplicationQuota(ReplicationQuotaSettings(), clock.time)


@pytest.mark.parametrize(
    ("replicas", "throttled"),
    [
        ((), ()),
        (("*",), (0, 1, 7)),
        (("", "*", ""), (0, 1, 7)),
        (("0:101", "1:102", "7:101"), (0, 7)),
        (("1:101", ""), (1,)),
        (("0:102",), ()),
    ],
)
def test_throttles_the_replicas_of_this_broker(replicas: tuple[str, ...], throttled: tuple[int, ...]) -> None:
    quota = quota_of(Clock())
    quota.throttle("flights", replicas, BROKER)
    assert tuple(number for number in (0, 1, 7) if quota.is_throttled(TopicPartition("flights", number))) == throttled
    assert bool(quota.topics) is bool(throttled), "a hot path looks at nothing else"
    assert not quota.is_throttled(TopicPartition("trains", 0))


@given(
    st.lists(
        st.tuples(st.from_regex("[0-9]{1,4}", fullmatch=True), st.sampled_from(["0", "1", "01", "001", "11", "10"]))
    ),
    st.sampled_from([0, 1, 10, 11]),
)
def test_a_long_list_is_read_as_pair_by_pair(pairs: list[tuple[str, str]], broker_id: int) -> None:
    quota = quota_of(Clock())
    quota.throttle("flights", [f"{partition}:{broker}" for partition, broker in pairs], broker_id)
    wanted = {int(partition) for partition, broker in pairs if int(broker) == broker_id}
    assert quota.topics.get("flights", frozenset()) == wanted


def test_a_topics_later_list_takes_the_place_of_its_former() -> None:
    quota = quota_of(Clock())
    quota.throttle("flights", ("0:101",), BROKER)
    quota.throttle("trains", ("*",), BROKER)
    quota.throttle("flights", ("1:101",), BROKER)
    assert not quota.is_throttled(TopicPartition("flights", 0))
    assert quota.is_throttled(TopicPartition("flights", 1))
    quota.throttle("flights", (), BROKER)
    quota.forget(["trains", "unknown"])
    assert not quota.topics


def test_is_unlimited_until_it_is_told_otherwise() -> None:
    clock = Clock()
    quota = quota_of(clock)
    heard: list[int] = []
    quota.on_change = lambda: heard.append(quota.bytes_per_second)
    quota.record(2**40)
    exceeded = [quota.is_exceeded]
    for limit in (2**30, UNLIMITED):
        quota.limit(limit)
        exceeded.append(quota.is_exceeded)
    assert exceeded == [False, True, False]
    assert heard == [2**30, UNLIMITED]


@settings(max_examples=examples(40))
@given(
    limit=st.integers(1_000, 50_000_000),
    sizes=st.lists(st.floats(0.001, 2.0), min_size=1, max_size=20),
    pause=st.floats(0.01, 0.1),
)
def test_what_waits_for_the_quota_passes_at_its_rate(limit: int, sizes: list[float], pause: float) -> None:
    """Responses of up to two seconds' worth, each sent as soon as the quota allows, a little late."""
    clock = Clock()
    quota = quota_of(clock)
    quota.limit(limit)
    began, passed, looked = clock.now, 0, 0
    while clock.now - began < 60:
        looked += 1
        if quota.is_exceeded:
            clock.now += max(0.001, min(quota.seconds_exceeded, 1.0))
            continue
        size = int(sizes[looked % len(sizes)] * limit) or 1
        quota.record(size)
        passed += size
        clock.now += pause
    rate, most = passed / (clock.now - began), max(sizes) * limit
    assert rate <= limit * 1.2 + most / 60
    mean = sum(sizes) / len(sizes) * limit
    # Small responses, one after another, need not reach it.
    assert rate >= min(limit, mean / pause / 2) * 0.8 - most / 60
