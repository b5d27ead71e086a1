"""Config keys read, check and write values as Kafka does."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.config.keys import (
    Between,
    BetweenOr,
    ConfigError,
    ConfigKey,
    ConfigType,
    EachOf,
    NotEmpty,
    OneOf,
    Password,
    ThrottledReplicas,
    Validator,
)


def key(kind: ConfigType, validator: Validator[Any] | None = None) -> ConfigKey[object]:
    return ConfigKey("some.key", kind, None, "A key.", validator=validator)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (ConfigType.BOOLEAN, "true", True),
        (ConfigType.BOOLEAN, " FALSE ", False),
        (ConfigType.INT, "-2147483648", -(2**31)),
        (ConfigType.INT, "+7", 7),
        (ConfigType.SHORT, "32767", 32767),
        (ConfigType.LONG, "9223372036854775807", 2**63 - 1),
        (ConfigType.DOUBLE, "0.5", 0.5),
        (ConfigType.DOUBLE, "1e3", 1000.0),
        (ConfigType.DOUBLE, "-.5E-2", -0.005),
        (ConfigType.DOUBLE, "Infinity", math.inf),
        (ConfigType.LIST, "a, b ,c", ("a", "b", "c")),
        (ConfigType.LIST, "  ", ()),
        (ConfigType.LIST, "a,,b", ("a", "", "b")),
        (ConfigType.STRING, " x ", "x"),
        (ConfigType.CLASS, "org.example.Policy", "org.example.Policy"),
        (ConfigType.PASSWORD, " s ", Password("s")),
        (ConfigType.STRING, "\u00a0x", "\u00a0x"),
    ],
)
def test_reads_text(kind: ConfigType, text: str, value: object) -> None:
    assert key(kind).parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ConfigType.BOOLEAN, "yes"),
        (ConfigType.INT, "2147483648"),
        (ConfigType.INT, "1_000"),
        (ConfigType.INT, "1.0"),
        (ConfigType.INT, ""),
        (ConfigType.INT, "²"),
        (ConfigType.SHORT, "-32769"),
        (ConfigType.LONG, "9223372036854775808"),
        (ConfigType.LONG, "9" * 5000),
        (ConfigType.DOUBLE, "nan"),
        (ConfigType.DOUBLE, "inf"),
        (ConfigType.DOUBLE, "."),
        (ConfigType.DOUBLE, "\u0661"),
        (ConfigType.DOUBLE, "1_0"),
        (ConfigType.DOUBLE, "half"),
    ],
)
def test_refuses_with_key_value_and_what_is_allowed(kind: ConfigType, text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"configuration some\.key: (Not a number of type|Expected value to be) "
    ) as caught:
        key(kind).parse(text)
    assert caught.value.key == "some.key"
    assert caught.value.value == text


@pytest.mark.parametrize(
    ("validator", "good", "bad", "says"),
    [
        (Between(0, 3), 3, 4, "no more than 3"),
        (Between(least=1), 1, 0, "at least 1"),
        (Between(most=5), 5, 6, "no more than 5"),
        (BetweenOr(1, 9, -1), -1, 0, "between 1 and 9, or -1"),
        (BetweenOr(1, 9, -1), 9, 10, "between 1 and 9, or -1"),
        (ThrottledReplicas(), ("0:1", "1:0"), ("0-1",), "partition:broker"),
        (ThrottledReplicas(), ("*",), ("*", "0:1"), "partition:broker"),
        (ThrottledReplicas(), (), ("0:",), "partition:broker"),
        (OneOf(("gzip", "none")), "gzip", "GZIP", "one of: gzip, none"),
        (OneOf(("gzip", "none"), any_case=True), "GZIP", "zip", r"one of \(case insensitive\): gzip, none"),
        (EachOf(("compact", "delete")), (), ("x",), "Invalid value x for .* one of: compact, delete"),
        (EachOf(("compact", "delete"), may_be_empty=False), ("compact",), (), "one of: compact, delete"),
        (NotEmpty(), "x", " ", "must not be empty"),
        (NotEmpty(), ("x",), (), "must not be empty"),
    ],
)
def test_validators_allow_and_explain(validator: Validator[Any], good: object, bad: object, says: str) -> None:
    checked = key(ConfigType.STRING, validator)
    assert checked.check(good) == good
    with pytest.raises(ConfigError, match=says):
        checked.check(bad)


PARTS = st.sampled_from(["0", "1:2", "10:0", ":", ",", " ", "\t", "\n", "\u00a0", "*", "-", "\u0663", "a", "007"])


@given(st.lists(PARTS, max_size=9).map("".join))
def test_long_lists_are_read_as_entry_by_entry(text: str) -> None:
    entries = tuple(entry.strip() for entry in text.split(",")) if text.strip() else ()
    assert key(ConfigType.LIST).parse(text) == entries


@given(st.lists(st.lists(PARTS, max_size=3).map("".join), max_size=4).map(tuple))
def test_an_entry_of_throttled_replicas_is_one_pair(entries: tuple[str, ...]) -> None:
    pair = re.compile("[0-9]+:[0-9]+")
    allowed = "".join(entries) == "*" or all(not entry or pair.fullmatch(entry) for entry in entries)
    assert ThrottledReplicas().allows(entries) is bool(allowed)


def test_a_secret_is_never_shown() -> None:
    secret = key(ConfigType.PASSWORD, NotEmpty()).parse("hunter2")
    assert "hunter2" not in f"{secret} {secret!r} {[secret]}"
    assert key(ConfigType.PASSWORD).format(secret) == "hunter2"
    with pytest.raises(ConfigError) as caught:
        key(ConfigType.PASSWORD, OneOf(("a",))).parse("hunter2")
    assert "hunter2" not in str(caught.value)


@given(
    st.one_of(
        st.tuples(st.just(ConfigType.BOOLEAN), st.booleans()),
        st.tuples(st.just(ConfigType.LONG), st.integers(-(2**63), 2**63 - 1)),
        st.tuples(st.just(ConfigType.DOUBLE), st.floats(allow_nan=False)),
        st.tuples(st.just(ConfigType.LIST), st.lists(st.from_regex(r"[a-z.]{1,5}", fullmatch=True)).map(tuple)),
    )
)
def test_what_is_written_reads_back(kind_and_value: tuple[ConfigType, object]) -> None:
    kind, value = kind_and_value
    text = key(kind).format(value)
    assert text is not None
    assert key(kind).parse(text) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (1.0, "1.0"),
        (0.0, "0.0"),
        (1e7, "1.0E7"),
        (9999999.0, "9999999.0"),
        (0.001, "0.001"),
        (0.0005, "5.0E-4"),
        (123456789.25, "1.2345678925E8"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (-2.5e-7, "-2.5E-7"),
        (1e-6, "1.0E-6"),  # the nearest binary number is below it
        (math.inf, "Infinity"),
    ],
)
def test_writes_doubles_as_java_does(value: float, text: str) -> None:
    assert key(ConfigType.DOUBLE).format(value) == text


def test_no_value_is_allowed_where_it_is_the_default() -> None:
    assert key(ConfigType.STRING, NotEmpty()).check(None) is None
    with pytest.raises(ConfigError):
        ConfigKey("k", ConfigType.STRING, "x", "A key.", validator=NotEmpty()).check(None)  # type: ignore[arg-type]


def test_no_value_has_no_text() -> None:
    assert key(ConfigType.STRING).format(None) is None
