"""Rooms take their configs as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from barnabas.config.keys import ConfigKey, ConfigType, Required
from barnabas.config.settings import optional_setting, own_setting, setting, take, taken_keys, topic_setting

SENDFILE = ConfigKey("barnabas.sendfile.enable", ConfigType.BOOLEAN, False, "Sends files without reading them.")
MUST: ConfigKey[int] = ConfigKey("barnabas.must", ConfigType.INT, Required.REQUIRED, "A key that must be given.")


@dataclass(frozen=True, slots=True)
class Some:
    lag_time_max_ms: int = setting("replica.lag.time.max.ms", int)
    cleaner_enable: bool = setting("log.cleaner.enable", bool)
    cleaner_ratio: float = setting("log.cleaner.min.cleanable.ratio", float)
    mechanisms: tuple[str, ...] = setting("sasl.enabled.mechanisms", tuple)
    rack: str | None = optional_setting("broker.rack", str)
    segment_bytes: int = topic_setting("segment.bytes", int)
    sendfile: bool = own_setting(SENDFILE)
    derived: int = 7


def test_without_values_it_has_the_defaults() -> None:
    assert Some() == Some(30_000, True, 0.5, ("GSSAPI",), None, 1 << 30, False, 7)
    assert Some(segment_bytes=100).segment_bytes == 100


def test_takes_values_by_key() -> None:
    values = {
        "replica.lag.time.max.ms": 1,
        "log.cleaner.enable": False,
        "log.cleaner.min.cleanable.ratio": 0.25,
        "sasl.enabled.mechanisms": ("PLAIN",),
        "broker.rack": "r",
        "segment.bytes": 2,
        "barnabas.sendfile.enable": True,
        "another": 3,
    }
    assert take(Some, values) == Some(1, False, 0.25, ("PLAIN",), "r", 2, True)
    with pytest.raises(KeyError, match=r"broker\.rack"):
        take(Some, {name: value for name, value in values.items() if name != "broker.rack"})


def test_tells_the_keys_that_it_takes() -> None:
    assert [key.name for key in taken_keys(Some)] == [
        "replica.lag.time.max.ms",
        "log.cleaner.enable",
        "log.cleaner.min.cleanable.ratio",
        "sasl.enabled.mechanisms",
        "broker.rack",
        "segment.bytes",
        "barnabas.sendfile.enable",
    ]


@dataclass(frozen=True, slots=True)
class WrongType:
    field: str = setting("replica.lag.time.max.ms", str)


@dataclass(frozen=True, slots=True)
class NotOptional:
    field: str = setting("broker.rack", str)


@dataclass(frozen=True, slots=True)
class Optional:
    field: int | None = optional_setting("replica.lag.time.max.ms", int)


@dataclass(frozen=True, slots=True)
class Unknown:
    field: int = setting("replica.lag.time.max.msec", int)


@dataclass(frozen=True, slots=True)
class Must:
    field: int = own_setting(MUST)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (WrongType, "type LONG, which is not str"),
        (NotOptional, "may be without a value: take it by optional_setting"),
        (Optional, "cannot be without a value: take it by setting"),
    ],
)
def test_a_field_that_disagrees_with_its_key_is_refused(kind: type[object], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        take(kind, {"replica.lag.time.max.ms": 1, "broker.rack": "r"})
    with pytest.raises(TypeError, match=says):
        kind()


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(KeyError, match=r"did you mean replica\.lag\.time\.max\.ms"):
        taken_keys(Unknown)


def test_a_key_without_default_must_be_given() -> None:
    with pytest.raises(TypeError, match=r"barnabas\.must has no default"):
        Must()
    assert take(Must, {"barnabas.must": 3}) == Must(3)
