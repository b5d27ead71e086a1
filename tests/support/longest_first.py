"""What takes longest comes first, so that no process of xdist begins it when the others are done.

For `--dist loadfile` and the schedulers that are made of it, with `--no-loadscope-reorder`: without that xdist begins
with the files that have most tests, which often are the shortest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest


def file_of(item: pytest.Item) -> str:
    """`test_x`."""
    return item.path.stem


def longest_first(
    items: list[pytest.Item], longest: Sequence[str], scope: Callable[[pytest.Item], str] = file_of
) -> None:
    """Sorts the tests: those of the scopes in `longest`, in that order, then all others, as they were."""
    places = {name: number for number, name in enumerate(longest)}
    items.sort(key=lambda item: places.get(scope(item), len(places)))
