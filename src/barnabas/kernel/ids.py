"""Unique ids as Kafka writes them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from barnabas.kernel.host import Entropy

UUID_BYTES = 16
_TEXT_LENGTH_MAX = 24


class Uuid(bytes):
    """Sixteen bytes: the id of a topic (KIP-516), of a cluster, of a log directory.

    It is its bytes wherever bytes are wanted (the wire, comparing, sorting), and reads as base64url without padding.
    """

    __slots__ = ()

    def __new__(cls, value: bytes | bytearray | memoryview) -> Self:
        """Raises ValueError for anything but sixteen bytes."""
        if len(value) != UUID_BYTES:
            raise ValueError(f"a Uuid has {UUID_BYTES} bytes, not {len(value)}")
        return super().__new__(cls, value)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Reads what `str` gives, padded or not; ValueError for any other text."""
        if len(text) > _TEXT_LENGTH_MAX:
            raise ValueError(f"the Uuid {text[:_TEXT_LENGTH_MAX]!r}... is too long: it is 22 characters of base64url")
        bare = text.rstrip("=")
        try:
            if "+" in bare or "/" in bare:  # base64, but not base64url; the decoder would take both
                raise ValueError("characters of plain base64")
            value = base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_", validate=True)
        except ValueError as error:
            raise ValueError(f"the Uuid {text!r} is not base64url") from error
        if len(value) != UUID_BYTES:
            raise ValueError(f"the Uuid {text!r} decodes to {len(value)} bytes: it must be 22 characters of base64url")
        return cls(value)

    @classmethod
    def generate(cls, entropy: Entropy) -> Self:
        """A random one (RFC 4122, version 4), never reserved, and never read as an option: its text starts with no
        dash."""
        while True:
            value = bytearray(entropy(UUID_BYTES))
            value[6] = value[6] & 0x0F | 0x40
            value[8] = value[8] & 0x3F | 0x80
            made = cls(value)
            if made not in RESERVED_UUIDS and not str(made).startswith("-"):
                return made

    @property
    def dashed(self) -> str:
        """The form in hexadecimal groups, 8-4-4-4-12, which the ids of group members end in."""
        digits = self.hex()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(self).decode("ascii").rstrip("=")

    def __repr__(self) -> str:
        return f"Uuid({str(self)!r})"


ZERO_UUID = Uuid(bytes(UUID_BYTES))
"""No id."""

METADATA_TOPIC_ID = Uuid(bytes(UUID_BYTES - 1) + b"\x01")
"""The id of KRaft's metadata topic, which no other topic may have."""

RESERVED_UUIDS = frozenset({ZERO_UUID, METADATA_TOPIC_ID})
