"""Partitions that a request names more than once: as Apache Kafka, we answer each once, and the last mention counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

from barnabas.kernel.steps import STEP_ELEMENTS, Steps


class _Named(Protocol):
    name: str


Topic = TypeVar("Topic", bound=_Named)
Partition = TypeVar("Partition")


class NamedTopic(NamedTuple, Generic[Partition]):
    """A topic of a request with what it says of each partition."""

    name: str
    partitions: list[Partition]


def named_once(
    topics: Iterable[Topic],
    partitions: Callable[[Topic], Iterable[Partition]],
    number: Callable[[Partition], int],
) -> Steps[list[NamedTopic[Partition]]]:
    """The topics in the order of their first mention, each with its partitions; those without partitions are left out.

    `number` gives the number of a partition.
    """
    found: dict[str, dict[int, Partition]] = {}
    left = STEP_ELEMENTS
    for topic in topics:
        for partition in partitions(topic):
            found.setdefault(topic.name, {})[number(partition)] = partition
            left -= 1
            if not left:
                yield
                left = STEP_ELEMENTS
        left -= 1
        if not left:
            yield
            left = STEP_ELEMENTS
    named: list[NamedTopic[Partition]] = []
    for name, by_number in found.items():
        named.append(NamedTopic(name, list(by_number.values())))
        if len(named) % STEP_ELEMENTS == 0:
            yield
    return named
