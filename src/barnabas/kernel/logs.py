"""Logging that is handed in: loggers of one host, in a tree of their own, with the host's name and the host's clock.

    logs = Logs("broker-1", host.clock, logging.StreamHandler(), levels={"kafka.controller": "DEBUG"})
    logger = logs.logger("kafka.controller.KafkaController")

Names are those of Kafka's loggers. The tree is not the global one of `logging`, so several brokers in one process, as
in tests and in the simulator, keep their levels and their lines apart.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barnabas.kernel.host import Clock

ROOT = "root"
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
# Log4j's names, which the BROKER_LOGGER configs speak (KIP-412), and those of `logging`.
_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "CRITICAL": logging.CRITICAL,
}


class LineFormatter(logging.Formatter):
    """One line per event: time (UTC), level, host, logger, message. A traceback follows in lines that begin with a tab.

    Control characters in a message are escaped: what a peer sends must not be able to forge a line.
    """

    def __init__(self, host_name: str, clock: Clock) -> None:
        super().__init__()
        self._host_name = host_name
        self._clock = clock

    def format(self, record: logging.LogRecord) -> str:
        seconds, milliseconds = divmod(self._clock.time_ms(), 1000)
        time = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S},{milliseconds:03}"
        message = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], record.getMessage())
        line = f"[{time}] {record.levelname} {self._host_name} {message} ({record.name})"
        if record.exc_info:
            record.exc_text = record.exc_text or self.formatException(record.exc_info)
        if record.exc_text:
            line += "".join(f"\n\t{_CONTROL.sub(' ', trace)}" for trace in record.exc_text.splitlines())
        return line


class Logs:
    """The loggers of one host. A level that is set for a name holds for every name below it that has none of its
    own."""

    def __init__(
        self,
        host_name: str,
        clock: Clock,
        handler: logging.Handler,
        *,
        level: str = "INFO",
        levels: Mapping[str, str] | None = None,
    ) -> None:
        """Lines go to `handler`, which gets its formatter here. Raises ValueError for an unknown level."""
        root = logging.RootLogger(_level_number(level))
        self._manager = logging.Manager(root)
        root.manager = self._manager  # the class has the global one, whose cache of levels is not ours
        self._root = root
        handler.setFormatter(LineFormatter(host_name, clock))
        root.addHandler(handler)
        for name, name_level in (levels or {}).items():
            self.set_level(name, name_level)

    def logger(self, name: str) -> logging.Logger:
        """The logger of that name, the same one each time."""
        return self._root if name == ROOT else self._manager.getLogger(name)

    def set_level(self, name: str, level: str | None) -> None:
        """Sets the level of a logger and of those below it; None takes it back, except from the root."""
        if level is None:
            if name == ROOT:
                raise ValueError("the root logger must have a level")
            self.logger(name).setLevel(logging.NOTSET)
        else:
            self.logger(name).setLevel(_level_number(level))

    def levels(self) -> dict[str, str]:
        """The level in force for each logger that exists, by name, the root first."""
        found = {ROOT: logging.getLevelName(self._root.level)}
        for name, logger in sorted(self._manager.loggerDict.items()):
            if isinstance(logger, logging.Logger):
                found[name] = logging.getLevelName(logger.getEffectiveLevel())
        return found


def _level_number(level: str) -> int:
    number = _LEVELS.get(level.upper())
    if number is None:
        raise ValueError(f"{level!r} is not a log level: use one of {', '.join(_LEVELS)}")
    return number
