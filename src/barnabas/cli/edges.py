"""The ends of a partition, as users write them; `starts` has the other places."""

from __future__ import annotations

import enum


class Edge(enum.Enum):
    """An end of a partition."""

    EARLIEST = "earliest"
    LATEST = "latest"
