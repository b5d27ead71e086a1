"""Numbers that the protocol has for "none", and for what is no number: each has one name, which all rooms use."""

from __future__ import annotations

from typing import Final

NO_EPOCH: Final = -1
"""No epoch is known, of a leader, a broker, a controller, a producer ...; in a request, none is to be checked."""
EPOCH_DURING_DELETE: Final = -2
"""In StopReplica: the topic is being deleted, whatever the leader epoch is. Its deletion does not count it up."""

NO_LEADER: Final = -1
"""The leader of a partition that has none."""
LEADER_DURING_DELETE: Final = -2
"""The leader that the controller names for a partition of a topic that is being deleted."""
