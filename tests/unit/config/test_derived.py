"""Values that follow from several keys: units, fall-backs, older names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from barnabas.config.broker_config import read_broker_config
from barnabas.config.derived import (
    delegation_token_secret_key,
    log_dirs,
    log_retention_ms,
    max_connections_per_ip_overrides,
    milliseconds_per_unit,
    super_users,
    timestamp_after_max_ms,
    timestamp_before_max_ms,
    with_fall_back,
    zookeeper_connection_timeout_ms,
)
from barnabas.config.keys import ConfigError

HOUR_MS = 60 * 60 * 1000


def values_of(text: str) -> Mapping[str, Any]:
    return read_broker_config(f"zookeeper.connect=localhost:2181\n{text}\n", "test.properties").values


@pytest.mark.parametrize(
    ("text", "retention_ms"),
    [
        ("", 168 * HOUR_MS),
        ("log.retention.hours=2", 2 * HOUR_MS),
        ("log.retention.hours=2\nlog.retention.minutes=3", 180_000),
        ("log.retention.hours=2\nlog.retention.minutes=3\nlog.retention.ms=4", 4),
        ("log.retention.hours=-1", -1),
        ("log.retention.minutes=-7", -1),
    ],
)
def test_the_finest_unit_counts(text: str, retention_ms: int) -> None:
    assert log_retention_ms(values_of(text)) == retention_ms


def test_values_that_follow_from_others() -> None:
    values = values_of("log.roll.hours=2\nlog.flush.scheduler.interval.ms=3\nzookeeper.session.timeout.ms=6000\n")
    assert with_fall_back(values, "log.roll.ms") == 2 * HOUR_MS
    assert with_fall_back(values, "log.roll.jitter.ms") == 0
    assert with_fall_back(values, "log.flush.interval.ms") == 3
    with pytest.raises(ValueError, match=r"neither broker\.rack"):
        with_fall_back(values, "broker.rack")
    assert zookeeper_connection_timeout_ms(values) == 6000
    assert zookeeper_connection_timeout_ms({**values, "zookeeper.connection.timeout.ms": 5}) == 5
    assert delegation_token_secret_key(values) is None
    assert delegation_token_secret_key(values_of("delegation.token.master.key=old\n")) == "old"
    assert (
        delegation_token_secret_key(values_of("delegation.token.master.key=o\ndelegation.token.secret.key=n\n")) == "n"
    )
    assert max_connections_per_ip_overrides(values_of("max.connections.per.ip.overrides=a:1, ::1:2\n")) == {
        "a": 1,
        "::1": 2,
    }


def test_the_older_limit_of_timestamps_counts_where_the_newer_one_is_not_set() -> None:
    values = values_of("log.message.timestamp.difference.max.ms=5\nlog.message.timestamp.after.max.ms=6\n")
    assert timestamp_before_max_ms(values) == 5
    assert timestamp_after_max_ms(values) == 6


def test_log_dirs_go_before_log_dir() -> None:
    assert log_dirs(values_of("log.dir=/a")) == ("/a",)
    assert log_dirs(values_of("log.dir=/a\nlog.dirs=/b , /c")) == ("/b", "/c")


def test_a_unit_is_what_the_name_ends_with() -> None:
    names = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
    assert [milliseconds_per_unit(name) for name in names] == [1, 60_000, HOUR_MS]


@pytest.mark.parametrize(
    ("text", "users"),
    [
        ("", set()),
        (";", set()),
        ("User:a", {"User:a"}),
        ("User:CN=x,OU=y; User:b;;", {"User:CN=x,OU=y", "User:b"}),
        ("User:a:b", {"User:a:b"}),
    ],
)
def test_super_users_are_parted_by_semicolons(text: str, users: set[str]) -> None:
    assert super_users({"super.users": text}) == users


@pytest.mark.parametrize("text", ["alice", "User:a;;User:b", " ", "User:a;bob"])
def test_super_users_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"for configuration super\.users: .* must be TYPE:NAME, as in User:alice"):
        super_users({"super.users": text})
