"""The places where a config can be set, as the protocol numbers them. Commands need these, and not the keys."""

from __future__ import annotations

import enum


class ConfigSource(enum.IntEnum):
    """Where a value comes from; the number is DescribeConfigs'."""

    UNKNOWN = 0
    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
