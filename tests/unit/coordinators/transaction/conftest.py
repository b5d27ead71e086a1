"""A world for the tests of the transaction coordinator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.coordinators.transaction.transaction_world import TransactionWorld


@pytest.fixture
def world() -> Iterator[TransactionWorld]:
    """One whose broker leads the partition."""
    made = TransactionWorld()
    made.elect()
    yield made
    made.close()
