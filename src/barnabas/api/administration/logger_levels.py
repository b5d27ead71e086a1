"""The levels of this broker's loggers as configs (KIP-412). They last until the process ends."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from barnabas.api.administration.config_alteration import ConfigEdit, ConfigOperation, check_broker_name
from barnabas.kernel.logs import ROOT, Logs
from barnabas.wire.errors import ErrorCode, KafkaError

LEVELS: Final = ("DEBUG", "ERROR", "FATAL", "INFO", "TRACE", "WARN")
_KAFKA_NAMES: Final[Mapping[str, str]] = {"WARNING": "WARN", "CRITICAL": "FATAL"}


class LoggerLevels:
    """Tells and changes the levels of the loggers that exist."""

    def __init__(self, logs: Logs, broker_id: int, logger: logging.Logger) -> None:
        self._logs = logs
        self._broker_id = broker_id
        self._logger = logger

    def describe(self, broker_name: str) -> dict[str, str]:
        """The level in force by logger. Raises `KafkaError` (INVALID_REQUEST) for another broker."""
        self._check_broker(broker_name)
        return {name: _KAFKA_NAMES.get(level, level) for name, level in self._logs.levels().items()}

    def alter(self, broker_name: str, edits: Sequence[ConfigEdit], *, validate_only: bool) -> None:
        """Sets levels or takes them back: all that is asked for, or nothing. Raises `KafkaError`."""
        self._check_broker(broker_name)
        existing = self._logs.levels()
        for edit in edits:
            _check(edit, existing)
        if validate_only:
            return
        for edit in edits:
            level = edit.value if edit.operation is ConfigOperation.SET else None
            self._logs.set_level(edit.name, level)
            self._logger.warning("The level of logger %s is now %s", edit.name, level or "that of the logger above it")

    def _check_broker(self, broker_name: str) -> None:
        if not broker_name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        check_broker_name(broker_name, self._broker_id)


def _check(edit: ConfigEdit, existing: Mapping[str, str]) -> None:
    """Raises `KafkaError`."""
    if edit.operation in {ConfigOperation.APPEND, ConfigOperation.SUBTRACT}:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{edit.operation.name} operation is not allowed for the BROKER_LOGGER resource",
        )
    if edit.name not in existing:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {edit.name} does not exist!")
    if edit.operation is ConfigOperation.DELETE:
        if edit.name == ROOT:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Removing the log level of the {ROOT} logger is not allowed")
    elif edit.value not in LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {edit.name} to {edit.value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(LEVELS)}",
        )
