"""`barnabas.client.settings` and `retrying`: what is refused, with the reason, and how pauses grow."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from barnabas.client.assignors import COOPERATIVE_STICKY, RANGE
from barnabas.client.errors import ClientTimeoutError
from barnabas.client.retrying import Backoff, is_retriable
from barnabas.client.settings import ClientSettings, ConsumerSettings, ProducerSettings, split_address
from barnabas.link.errors import ConnectionLostError, RequestTimeoutError
from barnabas.wire.errors import ErrorCode, KafkaError


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClientSettings(bootstrap_servers=()), "give host:port of at least one broker"),
        (lambda: ClientSettings(bootstrap_servers=("here",)), "'here' is not the address of a broker"),
        (lambda: ClientSettings(bootstrap_servers=("a:1",), request_timeout_ms=0), "request_timeout_ms is 0"),
        (lambda: ProducerSettings(acks=2), "acks is 2"),
        (lambda: ProducerSettings(acks=1), "needs acks=-1"),
        (lambda: ProducerSettings(in_flight_max=6), "must not be more"),
        (lambda: ConsumerSettings(assignors=()), "at least one"),
        (lambda: ConsumerSettings(assignors=(RANGE, COOPERATIVE_STICKY)), "all eager or all cooperative"),
        (lambda: ConsumerSettings(heartbeat_interval_ms=9, session_timeout_ms=9), "a third of it is usual"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("text", "address"), [("a:1", ("a", 1)), (" b.c:65535 ", ("b.c", 65535)), ("[::1]:9092", ("::1", 9092))]
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize("text", ["", ":1", "a:", "a:0", "a:65536", "a:b", "a"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_address(text)


def test_pauses_double_up_to_a_limit_and_begin_anew() -> None:
    backoff = Backoff(Random(1), 100, 1_000)
    for expected in (100, 200, 400, 800, 1_000, 1_000):
        assert 0.8 * expected <= backoff.next_ms() <= 1.2 * expected
    backoff.reset()
    assert backoff.next_ms() <= 120


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionLostError("gone"), True),
        (RequestTimeoutError("late"), True),
        (ConnectionRefusedError(), True),
        (KafkaError(ErrorCode.NOT_CONTROLLER), True),
        (KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS), False),
        (ClientTimeoutError("the time is up"), False),
        (ValueError("wrong"), False),
    ],
)
def test_what_is_tried_again(error: Exception, expected: bool) -> None:
    assert is_retriable(error) is expected
