"""Names of versions of Kafka, as `inter.broker.protocol.version` takes them."""

from __future__ import annotations

import pytest

from barnabas.config.kafka_versions import full_version, is_at_least, record_magic


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("3.9", "3.9-IV0"),
        ("3.9.1", "3.9-IV0"),
        ("2.7", "2.7-IV2"),
        ("2.7-IV0", "2.7-IV0"),
        ("2.7-IV9", None),
        ("0.10", None),
        ("0.10.0", "0.10.0-IV1"),
        ("0.10.2.1", "0.10.2-IV0"),
        ("0.8.2.1", "0.8.2"),
        ("3", None),
        ("", None),
        ("5.0", None),
    ],
)
def test_a_release_means_its_newest_version(text: str, full: str | None) -> None:
    assert full_version(text) == full


def test_versions_are_in_order() -> None:
    assert is_at_least("3.9", "3.9-IV0")
    assert is_at_least("0.11.0", "0.10.2")
    assert not is_at_least("2.8", "3.0-IV1")
    assert not is_at_least("2.7-IV1", "2.7")
    with pytest.raises(ValueError, match="not a version"):
        is_at_least("x", "3.9")


@pytest.mark.parametrize(
    ("text", "magic"), [("0.9.0", 0), ("0.10.0-IV0", 1), ("0.10.2", 1), ("0.11.0-IV0", 2), ("3.9", 2)]
)
def test_versions_tell_the_format_of_records(text: str, magic: int) -> None:
    assert record_magic(text) == magic
