"""What requests cost of a tick (`kernel.tick`), counted in bytes, and how much of one a connection has."""

from __future__ import annotations

from typing import Final

BYTES_PER_TURN: Final = 512 * 1024
"""How much of a tick one connection has; then it is the others' turn."""
BYTES_PER_REQUEST: Final = 6144
"""What a request costs beside its bytes, in bytes that are received or sent: so a tick has some 680 small ones, which
take up to 60 us each."""
BYTES_PER_SECOND: Final = BYTES_PER_REQUEST * 1_000_000 // 60
"""What work costs beside that whose time nobody knows before: so a tick has 40 ms of it."""
REQUESTS_PER_TURN: Final = BYTES_PER_TURN // BYTES_PER_REQUEST
"""How many of one connection are handled in one go at most."""
ENCODED_BYTE_COST: Final = 16
"""What a byte of a response costs that is put together from objects, likewise; records are only copied."""
BYTES_PER_RECORD: Final = 64
"""What each record costs of a produce request that may have many; it takes up to 0.4 us."""
