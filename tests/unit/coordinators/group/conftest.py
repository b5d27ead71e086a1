"""Fixtures of the tests of groups."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.coordinators.group.group_world import GroupWorld


@pytest.fixture
def world() -> Iterator[GroupWorld]:
    """A coordinator that leads nothing yet."""
    world = GroupWorld()
    yield world
    world.close()


@pytest.fixture
def leads_g(world: GroupWorld) -> None:
    """Has it lead the partition of group `g`."""
    world.elect("g")
