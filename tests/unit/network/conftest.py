"""Fixtures of the tests of the network: both kinds of loops, since sockets and turns are what is tested."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.support.loops import run_on_both

__all__ = ["no_collector", "run_on_both"]


@pytest.fixture
def no_collector() -> Iterator[None]:
    """This process may have very many objects of other tests; to walk through them is none of the loop's work."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
