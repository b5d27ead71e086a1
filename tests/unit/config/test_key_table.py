"""The table of Kafka's config names: every entry is sound, and a faulty file says where it is faulty."""

from __future__ import annotations

import importlib.resources
import re
from typing import Any

import pytest

from barnabas.config.key_table import (
    BROKER_SUBJECTS,
    DYNAMIC_SUBJECT,
    PLUGIN_SUBJECT,
    TOPIC_SUBJECT,
    KeyTableError,
    UnknownKeyError,
    broker_keys,
    dynamic_keys,
    kafka_key,
    plugin_keys,
    read_subject,
    subject,
    topic_key,
    topic_keys,
)
from barnabas.config.keys import Between, ConfigKey, ConfigType, EachOf, Importance, OneOf, Support, UpdateMode

ALL_KEYS = [*broker_keys().values(), *plugin_keys().values(), *dynamic_keys().values(), *topic_keys().values()]


def test_has_all_names_of_kafka() -> None:
    assert len(broker_keys()) == 328
    assert len(topic_keys()) == 36


def test_every_file_is_read_and_no_name_stands_twice() -> None:
    files = {entry.name for entry in importlib.resources.files("barnabas.config").joinpath("kafka_keys").iterdir()}
    names = (*BROKER_SUBJECTS, PLUGIN_SUBJECT, DYNAMIC_SUBJECT, TOPIC_SUBJECT)
    assert files == {f"{name}.keys" for name in names}
    of_brokers = [key.name for name in names if name != TOPIC_SUBJECT for key in subject(name).keys]
    assert len(of_brokers) == len(set(of_brokers))
    assert all(subject(name).title for name in names)


@pytest.mark.parametrize("key", ALL_KEYS, ids=lambda key: key.name)
def test_every_entry_is_sound(key: ConfigKey[Any]) -> None:
    assert key.check(key.default) == key.default
    if key.default is not None:
        text = key.format(key.default)
        assert text is not None
        assert key.parse(text) == key.default
    assert key.documentation.endswith(".")
    assert re.fullmatch(r"[\w.-]+", key.name)


@pytest.mark.parametrize("key", topic_keys().values(), ids=lambda key: key.name)
def test_a_topic_falls_back_to_keys_of_the_same_kind(key: ConfigKey[Any]) -> None:
    kinds = {kafka_key(name).type for name in key.synonyms}
    whole_numbers = {ConfigType.INT, ConfigType.LONG}
    assert kinds <= (whole_numbers if key.type in whole_numbers else {key.type})
    assert all(kafka_key(name).type is key.type for name in key.synonyms[:1])
    for name in key.synonyms:
        assert kafka_key(name).update_mode is not UpdateMode.PER_BROKER


def test_synonyms_of_broker_keys_are_broker_keys_in_coarser_units() -> None:
    chains = {key.name: key.synonyms for key in broker_keys().values() if key.synonyms}
    assert chains == {
        "log.retention.ms": ("log.retention.minutes", "log.retention.hours"),
        "log.retention.minutes": ("log.retention.hours",),
        "log.roll.ms": ("log.roll.hours",),
        "log.roll.jitter.ms": ("log.roll.jitter.hours",),
        "log.flush.interval.ms": ("log.flush.scheduler.interval.ms",),
    }


def test_an_unknown_name_brings_the_nearest_known_one() -> None:
    with pytest.raises(UnknownKeyError, match=r"log\.retension\.ms; did you mean log\.retention\.ms\?"):
        kafka_key("log.retension.ms")
    with pytest.raises(UnknownKeyError, match=r"^Unknown config zzz$"):
        topic_key("zzz")


def test_reads_every_kind_of_fact() -> None:
    text = """subject: A subject
# A remark.

a.number: int = 3; at least 1; high; cluster-wide; active
    What it is,
    on two lines.

a.ratio: double = 0.5; 0 to 0.5; low; per-broker; without effect; internal
    A ratio.

a.list: list = x, y; each one of x, y, z; falls back to a.number, b;
        medium
    A list.

a.word: string?; one, in any case, of A, B; medium
    A word.
"""
    read = read_subject("test", text)
    number, ratio, several, word = read.keys
    assert read.title == "A subject"
    assert (number.type, number.default, number.validator) == (ConfigType.INT, 3, Between(1))
    assert (number.importance, number.update_mode, number.support) == (
        Importance.HIGH,
        UpdateMode.CLUSTER_WIDE,
        Support.ACTIVE,
    )
    assert number.documentation == "What it is, on two lines."
    assert (ratio.default, ratio.validator, ratio.internal) == (0.5, Between(0, 0.5), True)
    assert (ratio.update_mode, ratio.support) == (UpdateMode.PER_BROKER, Support.WITHOUT_EFFECT)
    assert (several.default, several.validator) == (("x", "y"), EachOf(("x", "y", "z")))
    assert several.synonyms == ("a.number", "b")
    assert (word.default, word.validator) == (None, OneOf(("A", "B"), any_case=True))
    assert word.update_mode is UpdateMode.READ_ONLY
    assert word.support is Support.NOT_YET


@pytest.mark.parametrize(
    ("block", "line", "says"),
    [
        ("a: int = 1; high", 3, "documentation"),
        ("a int = 1; high\n    A key.", 3, "documentation"),
        ("a: number = 1; high\n    A key.", 3, "unknown type number"),
        ("a: int = 1\n    A key.", 3, "importance"),
        ("a: int; high\n    A key.", 3, "a default"),
        ("a: int? = 1; high\n    A key.", 3, "a default"),
        ("a: int = x; high\n    A key.", 3, "Not a number of type INT"),
        ("a: int = 0; at least 1; high\n    A key.", 3, "at least 1"),
        ("a: int = 0; sometimes; high\n    A key.", 3, "'sometimes' is unknown"),
        ("a: int = 0; high\n    A key.\nb: int = 0; high\n    B.", 5, "blank line"),
    ],
)
def test_a_faulty_file_says_where(block: str, line: int, says: str) -> None:
    with pytest.raises(KeyTableError, match=rf"^test\.keys:{line}: .*{says}"):
        read_subject("test", f"subject: A subject\n\n{block}\n")


def test_a_file_needs_a_subject() -> None:
    with pytest.raises(KeyTableError, match="subject"):
        read_subject("test", "a: int = 0; high\n    A key.\n")
