"""Numbers that the protocol and the files have for "none", and for what is no number: each has one name, which all
rooms use.
"""

from __future__ import annotations

from typing import Final

NO_EPOCH: Final = -1
"""No epoch is known, of a leader, a broker, a controller, a producer ...; in a request, none is to be checked."""
EPOCH_DURING_DELETE: Final = -2
"""In StopReplica: the topic is being deleted, whatever the leader epoch is. Its deletion does not count it up."""

NO_BROKER: Final = -1
"""Instead of a broker's id: there is none, or none that is known."""
NO_LEADER: Final = -1
"""The leader of a partition that has none."""
LEADER_DURING_DELETE: Final = -2
"""The leader that the controller names for a partition of a topic that is being deleted."""
CONSUMER_ID: Final = -1
"""The replica id in requests of consumers, which are no replicas."""

NO_OFFSET: Final = -1
"""No offset is known, or there is none."""
NO_PRODUCER_ID: Final = -1
"""Of a batch whose producer is not idempotent."""
NO_SEQUENCE: Final = -1
"""Likewise, and of control batches."""
NO_TIMESTAMP: Final = -1
"""Of records before message format 1, and where none is known."""

# What ListOffsets takes instead of a time.
LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL_TIMESTAMP: Final = -4
LATEST_TIERED_TIMESTAMP: Final = -5

ACKS_ALL: Final = -1
"""In Produce: acknowledged when all in-sync replicas have it."""
