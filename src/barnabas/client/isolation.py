"""Which records a consumer, or who looks up offsets, is shown."""

from __future__ import annotations

import enum


class IsolationLevel(enum.IntEnum):
    """Which records a consumer sees (`isolation.level`); the value is that of the protocol."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1
