"""What a command says while nothing goes on: for how long, and why, as far as the client has logged it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from barnabas.cli.output import printable, say

if TYPE_CHECKING:
    import asyncio

SILENCE_SECONDS: Final = 5.0
"""When nothing has happened for so long, the user is told why, as far as it is known; then every so often."""


class LastWords(logging.Handler):
    """Keeps what clients have logged last: of an attempt that was in vain."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.message = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.message = record.getMessage()


@contextlib.contextmanager
def last_words(logger: logging.Logger) -> Iterator[LastWords]:
    """What this logger says last within the block."""
    words = LastWords()
    level = logger.level
    logger.addHandler(words)
    logger.setLevel(logging.INFO)
    try:
        yield words
    finally:
        logger.removeHandler(words)
        logger.setLevel(level)


class Silence:
    """Says on standard error that nothing happens, and why, while the client goes on trying."""

    def __init__(self, loop: asyncio.AbstractEventLoop, words: LastWords, what: str) -> None:
        """`what` is such as "no record was acknowledged"."""
        self._loop = loop
        self._words = words
        self._what = what
        self._progress: object = None
        self._since = loop.time()
        self._said_at = self._since

    def look(self, progress: object, *, is_idle: bool = False) -> None:
        """Takes note of how far it is. Where there may be nothing to do (`is_idle`), silence needs a reason."""
        now = self._loop.time()
        if progress != self._progress:
            self._progress = progress
            self._since = self._said_at = now
            self._words.message = "" if is_idle else self._words.message
        if now - self._said_at < SILENCE_SECONDS:
            return
        self._said_at = now
        if is_idle and not self._words.message:
            return
        why = f" ({printable(self._words.message)})" if self._words.message else ""
        say(f"{self._what} for {now - self._since:.0f} s{why}; still trying, Ctrl-C gives up")
        if is_idle:
            self._words.message = ""
