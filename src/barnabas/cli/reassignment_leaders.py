"""Who should be preferred as leader: changes of the order of replicas, which copy nothing. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise

from barnabas.wire.topics import TopicPartition

Ways = dict[int, dict[int, list[TopicPartition]]]
"""Partitions of which one broker is preferred and another has a replica, by both."""


def spread_leaders(
    replicas: Mapping[TopicPartition, list[int]], movable: Iterable[TopicPartition], node_ids: Collection[int]
) -> None:
    """Puts other replicas first in these lists, of the movable partitions, until the brokers lead as evenly as that
    makes possible, with the fewest changes for each leadership that goes from one broker to another.
    """
    leads = Counter(dict.fromkeys(node_ids, 0))
    leads.update(each[0] for each in replicas.values() if each and each[0] in leads)
    ways: Ways = {}
    for partition in movable:
        _add_ways(ways, partition, replicas[partition], leads)
    while True:
        path = _path(leads, ways, replicas)
        if path is None:
            return
        while leads[path[0]] - leads[path[-1]] > 1 and all(
            _has_way(ways, source, target, replicas) for source, target in pairwise(path)
        ):
            for source, target in pairwise(path):
                partition = ways[source][target].pop()
                found = replicas[partition]
                at = found.index(target)
                found[0], found[at] = found[at], found[0]
                _add_ways(ways, partition, found, leads)
            leads[path[0]] -= 1
            leads[path[-1]] += 1


def _add_ways(ways: Ways, partition: TopicPartition, replicas: list[int], leads: Mapping[int, int]) -> None:
    first, *others = replicas
    if first not in leads:
        # Who is gone leads nothing that could be given away.
        return
    for node_id in others:
        if node_id in leads:
            ways.setdefault(first, {}).setdefault(node_id, []).append(partition)


def _has_way(ways: Ways, source: int, target: int, replicas: Mapping[TopicPartition, list[int]]) -> bool:
    """Whether a broker can give the leadership of a partition to another: then the last of the list is one. Those that
    it leads no more are left in the lists until they come to their end.
    """
    found = ways[source][target]
    while found and replicas[found[-1]][0] != source:
        found.pop()
    return bool(found)


def _path(leads: Mapping[int, int], ways: Ways, replicas: Mapping[TopicPartition, list[int]]) -> list[int] | None:
    """Brokers, each of which can give the leadership of a partition to the next, from one that leads two or more than
    the last does; None where there is no such.
    """
    for source in sorted(leads, key=lambda node_id: (-leads[node_id], node_id)):
        came_from: dict[int, int] = {source: source}
        waiting = deque([source])
        while waiting:
            at = waiting.popleft()
            if leads[source] - leads[at] > 1:
                path = [at]
                while path[-1] != source:
                    path.append(came_from[path[-1]])
                return path[::-1]
            for target in sorted(ways.get(at, {})):
                if target not in came_from and _has_way(ways, at, target, replicas):
                    came_from[target] = at
                    waiting.append(target)
    return None
