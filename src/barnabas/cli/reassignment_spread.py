"""Which log directories replicas should come into: so that each broker's fill evenly, by bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from barnabas.cli.reassignment_directories import Map, Replica

if TYPE_CHECKING:
    from barnabas.cli.reassignment_planner import Move


def spread(moves: Iterable[Move], where: Map) -> dict[Replica, str]:
    """A directory for each replica that comes to a broker which has several that can be used; the others are left to
    their brokers.

    The largest is placed first, each where least is then: of the directories that have room for it, as far as the
    broker tells, or of all where none has. What leaves a directory makes room in it only for the count, as it is
    deleted when all copies are made. The same input gives the same directories.
    """
    coming: dict[int, list[Move]] = {}
    leaving: dict[int, list[Move]] = {}
    for move in moves:
        for node_id in move.adding:
            coming.setdefault(node_id, []).append(move)
        for node_id in move.removing:
            leaving.setdefault(node_id, []).append(move)
    found: dict[Replica, str] = {}
    for node_id, arrivals in sorted(coming.items()):
        usable = [directory for directory in where.told.get(node_id, ()) if directory.error is None]
        if len(usable) < 2:
            continue
        filled = {directory.path: directory.size_bytes for directory in usable}
        room = {directory.path: directory.usable_bytes for directory in usable}
        for move in leaving.get(node_id, ()):
            located = where.at((move.partition, node_id))
            if located.current in filled:
                filled[located.current] -= located.size_bytes
        for move in sorted(arrivals, key=lambda move: (-move.size_bytes, move.partition)):
            fitting = [path for path, left in room.items() if left is None or left >= move.size_bytes]
            path = min(fitting or filled, key=lambda path: (filled[path], path))
            found[move.partition, node_id] = path
            filled[path] += move.size_bytes
            left = room[path]
            room[path] = None if left is None else left - move.size_bytes
    return found
