"""Deleting the znodes of a topic, whatever others do meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from barnabas.controller import topic_znodes
from barnabas.controller.effects import read_children, write_as_controller
from barnabas.controller.topic_znodes import DELETE_ATTEMPTS_MAX, ZnodeWriteError, delete_topic_znodes
from barnabas.coordination.layout.admin import delete_topic_path
from barnabas.coordination.layout.topics import topic_path
from tests.unit.controller.memory_store import Cluster

ROOT = topic_path("t")


def cluster_with_topic() -> Cluster:
    cluster = Cluster()
    for path in (ROOT, f"{ROOT}/partitions", f"{ROOT}/partitions/0", delete_topic_path("t")):
        cluster.store.znodes[path] = (None, 0)
    return cluster


def delete(cluster: Cluster) -> None:
    cluster.shell.run(delete_topic_znodes("t", 8))


def made_meanwhile(cluster: Cluster, times: int) -> list[str]:
    """Has another client make a znode below the topic before each of so many batches that delete the topic's own."""
    made: list[str] = []
    depth = 0

    def before_batch() -> None:
        nonlocal depth
        depth += 1
        if ROOT in cluster.store.znodes and len(made) < times and depth % 2 == 0:
            made.append(f"{ROOT}/made-{len(made)}")
            cluster.store.znodes[made[-1]] = (None, 0)

    cluster.store.before_batch = before_batch
    return made


def test_deletes_what_is_made_meanwhile_too() -> None:
    cluster = cluster_with_topic()
    made = made_meanwhile(cluster, 3)
    delete(cluster)
    assert len(made) == 3
    assert not [path for path in cluster.store.znodes if path.startswith(ROOT) or path == delete_topic_path("t")]


def test_gives_up_where_that_does_not_end_and_keeps_the_request() -> None:
    cluster = cluster_with_topic()
    made = made_meanwhile(cluster, 10_000)
    with pytest.raises(ZnodeWriteError, match="something keeps creating znodes below it"):
        delete(cluster)
    assert len(made) >= DELETE_ATTEMPTS_MAX
    assert delete_topic_path("t") in cluster.store.znodes


def test_very_many_partitions_are_deleted_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listed and deleted in one effect each, a hundred thousand held the loop for as long as it took to name them."""
    cluster = cluster_with_topic()
    for number in range(2_500):
        for path in (f"{ROOT}/partitions/{number}", f"{ROOT}/partitions/{number}/state"):
            cluster.store.znodes[path] = (None, 0)
    sizes: list[int] = []
    for effects in (read_children, write_as_controller):

        def counted(items: Sequence[Any], *rest: Any, effects: Any = effects) -> Any:
            sizes.append(len(items))
            return effects(items, *rest)

        monkeypatch.setattr(topic_znodes, effects.__name__, counted)
    delete(cluster)
    assert max(sizes) == 1_000
    assert not [path for path in cluster.store.znodes if path.startswith(ROOT) or path == delete_topic_path("t")]


def test_what_another_has_deleted_in_the_end_is_deleted() -> None:
    cluster = cluster_with_topic()
    made, was_refused = f"{ROOT}/made", False

    def before_batch() -> None:
        """Makes a znode ahead of the deletion of the topic's own, and then deletes both."""
        nonlocal was_refused
        znodes = cluster.store.znodes
        if made in znodes and f"{ROOT}/partitions" not in znodes and was_refused:
            del znodes[made], znodes[ROOT]
        elif f"{ROOT}/partitions" not in znodes and ROOT in znodes and not was_refused:
            znodes[made] = (None, 0)
            was_refused = True

    cluster.store.before_batch = before_batch
    delete(cluster)
    assert ROOT not in cluster.store.znodes
    assert delete_topic_path("t") not in cluster.store.znodes
