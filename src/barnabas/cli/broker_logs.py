"""Where the lines of a broker's loggers go: standard error, or files that are rolled, state changes in their own."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Final

from barnabas.kernel.logs import LineFormatter, Logs

if TYPE_CHECKING:
    from barnabas.config.broker_config import BrokerConfig
    from barnabas.kernel.host import Clock

STATE_CHANGE_LOGGER: Final = "state.change.logger"
SERVER_LOG: Final = "server.log"
STATE_CHANGE_LOG: Final = "state-change.log"
FILE_BYTES_MAX: Final = 64 * 1024 * 1024
FILES_KEPT: Final = 5


def broker_logs(config: BrokerConfig, clock: Clock) -> Logs:
    """The loggers of one broker, with the levels of `barnabas.logs.levels`, writing to `barnabas.logs.directory`.

    Raises OSError when a file cannot be opened, and ValueError for a level that there is not.
    """
    from barnabas.server.config import LOGS_DIRECTORY, LOGS_LEVELS, log_levels

    name = f"broker-{config.broker_id}" if config.broker_id >= 0 else "broker"
    levels = log_levels(config.values[LOGS_LEVELS.name])
    directory: str | None = config.values[LOGS_DIRECTORY.name]
    if directory is None:
        levels = {STATE_CHANGE_LOGGER: "WARN", **levels}
        return Logs(name, clock, logging.StreamHandler(sys.stderr), levels=levels)
    os.makedirs(directory, exist_ok=True)
    logs = Logs(name, clock, _rolled(directory, SERVER_LOG), levels=levels)
    changes = _rolled(directory, STATE_CHANGE_LOG)
    changes.setFormatter(LineFormatter(name, clock))
    logger = logs.logger(STATE_CHANGE_LOGGER)
    logger.addHandler(changes)
    logger.propagate = False
    return logs


def _rolled(directory: str, name: str) -> logging.Handler:
    from logging.handlers import RotatingFileHandler

    return RotatingFileHandler(f"{directory}/{name}", maxBytes=FILE_BYTES_MAX, backupCount=FILES_KEPT, encoding="utf-8")
