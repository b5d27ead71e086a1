"""Quotas: the bookkeeping below `/zookeeper/quota`.

A quota on `/a/b` is a pair of znodes, `/zookeeper/quota/a/b/zookeeper_limits` and `.../zookeeper_stats`; the server
keeps the number of znodes and bytes of the subtree in the latter. As in ZooKeeper's default, limits are not enforced.
"""

from __future__ import annotations

QUOTA_ROOT = "/zookeeper/quota"
LIMITS = "zookeeper_limits"
STATISTICS = "zookeeper_stats"


class QuotaLedger:
    """Which paths have a quota, and what their statistics say."""

    def __init__(self) -> None:
        self.limited: dict[str, None] = {}

    def concerns(self, path: str) -> bool:
        """Whether the znode is one of the bookkeeping's own."""
        return path.startswith(QUOTA_ROOT)

    def note(self, path: str, name: str, *, created: bool) -> str | None:
        """Takes notice of a znode of the bookkeeping; returns the subtree to count when its statistics begin."""
        subtree = path[len(QUOTA_ROOT) : -len(name) - 1]
        if name == LIMITS:
            if created:
                self.limited[subtree] = None
            else:
                self.limited.pop(subtree, None)
        return subtree if created and name == STATISTICS else None

    def statistics_path_for(self, path: str) -> str | None:
        """Where the deepest quota at or above the path keeps its statistics."""
        while path:
            if path in self.limited:
                return f"{QUOTA_ROOT}{path}/{STATISTICS}"
            path = path[: path.rfind("/")]
        return None

    def statistics(self, count: int, total_bytes: int) -> bytes:
        """Fresh statistics."""
        return f"count={count},bytes={total_bytes}".encode()

    def charged(self, data: bytes, byte_difference: int, count_difference: int) -> bytes:
        """The statistics with the differences added; what is missing or unreadable counts from -1, as in ZooKeeper."""
        values = {"count": -1, "bytes": -1}
        for pair in data.decode(errors="replace").replace(";", ",").split(","):
            key, _, value = pair.partition("=")
            if key:
                try:
                    number = int(value.strip("=") or "-1")
                except ValueError:
                    continue
                if number == _wrap(number):
                    values[key] = number
        values["count"] = _wrap(values["count"] + count_difference)
        values["bytes"] = _wrap(values["bytes"] + byte_difference)
        others = sorted(set(values) - {"count", "bytes"})
        text = f"count={values['count']},bytes={values['bytes']}"
        if others:
            text += "=" + "".join(f";{key}={values[key]}" for key in others)
        return text.encode()


def _wrap(value: int) -> int:
    """The 64-bit integer that Java would have."""
    return ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)
