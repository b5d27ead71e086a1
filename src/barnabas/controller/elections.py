"""Elections of partition leaders: pure functions of what the controller knows.

Each takes the present leadership and the replicas in the order of the assignment, the preferred leader first, and gives
`Elected` or `NotElected`. An election raises the leader epoch by one; the writer of the result sets the controller
epoch and the znode's version.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from barnabas.controller.leadership import LeaderAndIsr
from barnabas.wire.topics import LeaderRecoveryState


class ElectionStrategy(enum.Enum):
    """Why a leader is elected, which decides who may become one."""

    OFFLINE = "offline"
    OFFLINE_UNCLEAN = "offline, unclean allowed"
    REASSIGN = "reassign"
    PREFERRED = "preferred"
    CONTROLLED_SHUTDOWN = "controlled shutdown"


@dataclass(frozen=True, slots=True)
class Elected:
    """A leader was found. `recipients` are the brokers that must receive LeaderAndIsr; `unclean` says that the leader
    was not in sync, so that records may be lost.
    """

    leader_and_isr: LeaderAndIsr
    recipients: tuple[int, ...]
    unclean: bool = False


@dataclass(frozen=True, slots=True)
class NotElected:
    """No replica may lead; the partition stays as it is."""

    reason: str


Election = Elected | NotElected


def elect_offline(
    current: LeaderAndIsr,
    assignment: Sequence[int],
    live: Collection[int],
    *,
    unclean_allowed: bool,
    recovery_supported: bool = True,
) -> Election:
    """For a partition without a leader: the first live replica that is in sync; the dead leave the ISR.

    Without one, and where `unclean_allowed`, the first live replica alone; it is marked as recovering (KIP-704) where
    `recovery_supported` (inter.broker.protocol.version 3.2 and above). LeaderAndIsr goes to the live replicas.
    """
    live_replicas = tuple(replica for replica in assignment if replica in live)
    leader = next((replica for replica in live_replicas if replica in current.isr), None)
    if leader is not None:
        isr = tuple(replica for replica in current.isr if replica in live)
        return Elected(current.elect(leader, isr), live_replicas)
    if not live_replicas:
        return NotElected(f"none of the replicas {list(assignment)} is alive")
    if not unclean_allowed:
        return NotElected(
            f"no replica that is in sync is alive (in sync {list(current.isr)}, alive {list(live_replicas)}) and "
            "unclean elections are not allowed"
        )
    leader = live_replicas[0]
    state = LeaderRecoveryState.RECOVERING if recovery_supported else None
    return Elected(current.elect(leader, (leader,), state), live_replicas, unclean=True)


def elect_for_reassignment(current: LeaderAndIsr, target: Sequence[int], live: Collection[int]) -> Election:
    """For a partition whose leader is not among its target replicas: the first of these that is live and in sync. The
    ISR stays. LeaderAndIsr goes to the whole target.
    """
    leader = next((replica for replica in target if replica in live and replica in current.isr), None)
    if leader is None:
        return NotElected(f"none of the target replicas {list(target)} is alive and in sync")
    return Elected(current.elect(leader, current.isr), tuple(target))


def elect_preferred(current: LeaderAndIsr, assignment: Sequence[int], live: Collection[int]) -> Election:
    """The first assigned replica, if it is live and in sync. The ISR stays. LeaderAndIsr goes to all replicas."""
    if not assignment:
        return NotElected("the partition has no replicas")
    preferred = assignment[0]
    if preferred not in live or preferred not in current.isr:
        return NotElected(f"the preferred replica {preferred} is not both alive and in sync")
    return Elected(current.elect(preferred, current.isr), tuple(assignment))


def elect_for_controlled_shutdown(
    current: LeaderAndIsr,
    assignment: Sequence[int],
    live_or_shutting_down: Collection[int],
    shutting_down: Collection[int],
) -> Election:
    """Moves the leadership off brokers that shut down: the first replica in sync that is live and stays, and those that
    shut down leave the ISR. LeaderAndIsr goes to the replicas that are live or shutting down.
    """
    recipients = tuple(replica for replica in assignment if replica in live_or_shutting_down)
    isr = tuple(replica for replica in current.isr if replica not in shutting_down)
    leader = next((replica for replica in recipients if replica in isr), None)
    if leader is None:
        return NotElected(f"no replica in sync is alive but those shutting down ({sorted(shutting_down)})")
    return Elected(current.elect(leader, isr), recipients)
