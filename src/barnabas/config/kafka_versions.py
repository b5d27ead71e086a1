"""The versions that `inter.broker.protocol.version` and `log.message.format.version` can name, oldest first.

A version is given in full (`2.7-IV1`) or as a release, with or without a patch number (`2.7`, `2.7.2`), which means the
newest of that release. Source: Apache Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

KAFKA_VERSIONS: Final = (
    *("0.8.0", "0.8.1", "0.8.2", "0.9.0", "0.10.0-IV0", "0.10.0-IV1", "0.10.1-IV0", "0.10.1-IV1", "0.10.1-IV2"),
    *("0.10.2-IV0", "0.11.0-IV0", "0.11.0-IV1", "0.11.0-IV2", "1.0-IV0", "1.1-IV0", "2.0-IV0", "2.0-IV1", "2.1-IV0"),
    *("2.1-IV1", "2.1-IV2", "2.2-IV0", "2.2-IV1", "2.3-IV0", "2.3-IV1", "2.4-IV0", "2.4-IV1", "2.5-IV0", "2.6-IV0"),
    *("2.7-IV0", "2.7-IV1", "2.7-IV2", "2.8-IV0", "2.8-IV1", "3.0-IV0", "3.0-IV1", "3.1-IV0", "3.2-IV0", "3.3-IV0"),
    *("3.3-IV1", "3.3-IV2", "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2"),
    *("3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0", "4.0-IV0", "4.0-IV1"),
)

_NEWEST_OF_RELEASE: Final = {version.partition("-")[0]: version for version in KAFKA_VERSIONS}
_POSITIONS: Final = {version: position for position, version in enumerate(KAFKA_VERSIONS)}


def full_version(text: str) -> str | None:
    """The version that a text means, in full, such as `3.9-IV0` for `3.9.1`; None when it means none."""
    if text in _POSITIONS:
        return text
    segments = text.split(".")
    return _NEWEST_OF_RELEASE.get(".".join(segments[: 3 if text.startswith("0.") else 2]))


def is_at_least(text: str, least: str) -> bool:
    """Whether the version `text` is `least` or newer. Raises `ValueError` for a text that is no version."""
    version, limit = full_version(text), full_version(least)
    if version is None or limit is None:
        raise ValueError(f"{text if version is None else least!r} is not a version of Kafka")
    return _POSITIONS[version] >= _POSITIONS[limit]


def request_version(text: str, table: Sequence[tuple[str, int]]) -> int:
    """The version of a request between brokers for the version `text` of Kafka; `table` says from which one on there is
    which, the newest first. Raises `ValueError` as `is_at_least`, and for a text older than all of the table.
    """
    for least, version in table:
        if is_at_least(text, least):
            return version
    raise ValueError(f"inter.broker.protocol.version {text} is too old; {table[-1][0]} or newer is needed")


def record_magic(text: str) -> int:
    """The newest format of records, 0 to 2, that brokers of a version know. Raises `ValueError` as `is_at_least`."""
    return is_at_least(text, "0.10.0-IV0") + is_at_least(text, "0.11.0-IV0")


class VersionName:
    """Names of versions of Kafka."""

    __slots__ = ()

    def allows(self, value: str, /) -> bool:
        return full_version(value) is not None

    def describe(self) -> str:
        return "it must be a version of Kafka from 0.8.0 to 3.9, such as 3.9 or 2.8-IV1"

    def refusal(self, value: str, /) -> tuple[object, str]:
        return value, self.describe()
