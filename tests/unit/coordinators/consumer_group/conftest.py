"""Fixtures of the tests of consumer groups."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.coordinators.consumer_group.consumer_world import ConsumerWorld


@pytest.fixture
def world() -> Iterator[ConsumerWorld]:
    """A coordinator of group `g`, and topic `t` of six partitions."""
    world = ConsumerWorld()
    yield world
    world.close()
