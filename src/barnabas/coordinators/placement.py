"""Which partition of an internal topic has the records of a key, and so which broker coordinates it.

Every broker of a cluster, Apache Kafka's among them, must come to the same answer, so this is Java's arithmetic:
`String.hashCode` over UTF-16 code units, made positive as Kafka's `Utils.abs` does.
"""

from __future__ import annotations

import struct
from typing import Final

_INT32_MODULUS: Final = 1 << 32
_INT32_MIN: Final = -(1 << 31)
_MULTIPLIER: Final = 31


def string_hash(text: str) -> int:
    """The int32 that Java's `String.hashCode` gives."""
    units: bytes | tuple[int, ...]
    if text.isascii():
        units = text.encode("ascii")
    else:
        encoded = text.encode("utf-16-be", "surrogatepass")
        units = struct.unpack(f">{len(encoded) // 2}H", encoded)
    value = 0
    for unit in units:
        value = (value * _MULTIPLIER + unit) % _INT32_MODULUS
    return value - _INT32_MODULUS if value >= -_INT32_MIN else value


def partition_for(key: str, partition_count: int) -> int:
    """The partition that holds the records of a group or a transactional id.

    The one hash value without a positive counterpart in 32 bits counts as 0.
    """
    value = string_hash(key)
    return 0 if value == _INT32_MIN else abs(value) % partition_count
