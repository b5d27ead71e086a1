"""The last offset of each key of a stretch of the log, in bounded memory; Apache Kafka's SkimpyOffsetMap."""

from __future__ import annotations

from _blake2 import blake2b  # what hashlib gives, which would load OpenSSL into every broker
from typing import Final

from barnabas.wire.sentinels import NO_OFFSET

ENTRY_BYTES: Final = 256
"""What an entry takes at most: digest (49 bytes and padding), offset (32), and its places in a dict that has just grown
(three times 32)."""


class OffsetMap:
    """From keys, by their digests of 128 bits, to offsets. Two keys with one digest would be one key, as in Kafka."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._offsets: dict[bytes, int] = {}
        self.latest_offset = NO_OFFSET
        """Up to where, inclusive, the log is in the map."""

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, key: bytes, offset: int) -> bool:
        """Takes a later record; False, and nothing changed, where the key is new and the map full."""
        digest = _digest(key)
        if len(self._offsets) >= self._entries_max and digest not in self._offsets:
            return False
        self._offsets[digest] = offset
        self.latest_offset = max(self.latest_offset, offset)
        return True

    def passed(self, offset: int) -> None:
        """Everything up to `offset` was looked at."""
        self.latest_offset = max(self.latest_offset, offset)

    def get(self, key: bytes) -> int:
        """The last offset of the key; NO_OFFSET for one that is not in the stretch."""
        return self._offsets.get(_digest(key), NO_OFFSET)


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=16).digest()
