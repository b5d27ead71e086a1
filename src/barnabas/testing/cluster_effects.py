"""What faults have done to a simulated cluster: a strike that nobody has noticed proves nothing, and is not counted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from barnabas.testing.faults import FaultKind

if TYPE_CHECKING:
    from collections.abc import Mapping

SEEN_BY_EFFECT: Final = frozenset(
    {
        FaultKind.ROLLING_RESTART,
        FaultKind.EXPIRY,
        FaultKind.CONTROLLER_DELETED,
        FaultKind.ZNODE_SPOILED,
        FaultKind.CONFIG_CHANGED,
        FaultKind.RECORDS_DELETED,
        FaultKind.INTERNAL_TOPIC_DELETED,
        FaultKind.REASSIGNED,
        FaultKind.LOG_MOVED,
        FaultKind.LEADERS_ELECTED,
        FaultKind.THROTTLED,
        FaultKind.TOPIC_MADE_ANEW,
        FaultKind.DIRECTORY_ERROR,
        FaultKind.DIRECTORY_FULL,
        FaultKind.DIRECTORY_READ_ONLY,
        FaultKind.CHECKPOINT_SPOILED,
        FaultKind.MANY_ASKED_FOR,
        FaultKind.CERTIFICATE_EXCHANGED,
        FaultKind.PASSWORD_STORED,
        FaultKind.SECRET_ROLLED,
        FaultKind.SECRET_MISTYPED,
        FaultKind.TOKEN_KEYS_ROLLED,
        FaultKind.TLS_BROKEN,
        FaultKind.HTTP_FLOODED,
    }
)
"""Kinds that are only asked for, or may strike where nobody looks. The others have happened when they have struck."""

Forget = Callable[[], None]
"""Ends the wait for an effect."""


class Effects:
    """Counts strikes by their effects: those that happened, were seen, or were told in a broker's log."""

    def __init__(self) -> None:
        self._counts: Counter[FaultKind] = Counter()
        self._awaited: dict[int, tuple[FaultKind, Callable[[], bool]]] = {}
        self._reports: dict[int, tuple[FaultKind, str]] = {}
        self._numbers = 0

    def of(self, launched: Mapping[FaultKind, int]) -> dict[FaultKind, int]:
        """How many strikes were effective, given how many there were."""
        return {kind: self._counts[kind] if kind in SEEN_BY_EFFECT else count for kind, count in launched.items()}

    def happened(self, kind: FaultKind) -> None:
        """A strike has had its effect."""
        self._counts[kind] += 1

    def when_seen(self, kind: FaultKind, condition: Callable[[], bool]) -> Forget:
        """Counts a strike as soon as the condition, which only looks, holds."""
        self._numbers += 1
        number = self._numbers
        self._awaited[number] = (kind, condition)
        return lambda: _nothing(self._awaited.pop(number, None))

    def when_reported(self, kind: FaultKind, text: str) -> Forget:
        """Counts a strike as soon as a broker warns of something with this text."""
        self._numbers += 1
        number = self._numbers
        self._reports[number] = (kind, text)
        return lambda: _nothing(self._reports.pop(number, None))

    def look(self) -> None:
        """Looks for what is awaited."""
        for number, (kind, condition) in list(self._awaited.items()):
            if condition():
                del self._awaited[number]
                self.happened(kind)

    def heard(self, message: str) -> None:
        """A broker has warned of something."""
        for number, (kind, text) in list(self._reports.items()):
            if text in message:
                del self._reports[number]
                self.happened(kind)


class Listener(logging.Handler):
    """Hears what a broker warns of, and gives everything on to another handler, if there is one."""

    def __init__(self, effects: Effects, following: logging.Handler | None) -> None:
        super().__init__()
        self._effects = effects
        self._following = following

    def setFormatter(self, fmt: logging.Formatter | None) -> None:  # noqa: N802 - of logging
        """The other one formats, too."""
        super().setFormatter(fmt)
        if self._following is not None:
            self._following.setFormatter(fmt)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self._effects.heard(record.getMessage())
        if self._following is not None:
            self._following.handle(record)


def _nothing(_: object) -> None:
    """Whatever it is, nobody wants it."""
