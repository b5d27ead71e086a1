"""Who waits, one of each address in turn: however many come from one, those of others wait for one of them at most."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar


class Addressed(Protocol):
    """Somebody with an address."""

    address: str


Waiting = TypeVar("Waiting", bound=Addressed)


class Lines(Generic[Waiting]):
    """A line for each address."""

    def __init__(self, *, is_last_first: bool = False) -> None:
        """With `is_last_first`, of one address those who came last come first."""
        self._is_last_first = is_last_first
        self._lines: OrderedDict[str, OrderedDict[Waiting, None]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, one: Waiting) -> None:
        """Who does not wait yet."""
        self._lines.setdefault(one.address, OrderedDict())[one] = None
        self._count += 1

    def discard(self, one: Waiting) -> bool:
        """Whether it was here."""
        line = self._lines.get(one.address)
        if line is None or one not in line:
            return False
        del line[one]
        self._count -= 1
        if not line:
            del self._lines[one.address]
        return True

    def pop(self) -> Waiting:
        """The next; there must be one."""
        address, line = next(iter(self._lines.items()))
        one, _ = line.popitem(last=self._is_last_first)
        self._count -= 1
        if line:
            self._lines.move_to_end(address)
        else:
            del self._lines[address]
        return one

    def put_back(self, one: Waiting) -> None:
        """It is the next again."""
        self.add(one)
        self._lines[one.address].move_to_end(one, last=self._is_last_first)
        self._lines.move_to_end(one.address, last=False)
