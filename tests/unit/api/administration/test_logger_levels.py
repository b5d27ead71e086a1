"""Levels of loggers as configs."""

from __future__ import annotations

import logging

import pytest

from barnabas.api.administration.config_alteration import ConfigEdit, ConfigOperation
from barnabas.api.administration.logger_levels import LoggerLevels
from barnabas.kernel.logs import Logs
from barnabas.wire.errors import KafkaError
from tests.unit.network.serving import Lines

NAME = "kafka.controller.KafkaController"


class FixedClock:
    def time_ms(self) -> int:
        return 0

    def stopwatch(self) -> float:
        return 0.0


def levels_of_broker() -> tuple[LoggerLevels, logging.Logger]:
    logs = Logs("broker-1", FixedClock(), Lines())
    return LoggerLevels(logs, 1, logs.logger("kafka.server.ZkAdminManager")), logs.logger(NAME)


def test_tells_the_levels_in_kafkas_words() -> None:
    levels, logger = levels_of_broker()
    logger.setLevel(logging.WARNING)
    described = levels.describe("1")
    assert described["root"] == "INFO"
    assert described[NAME] == "WARN"
    assert described["kafka.server.ZkAdminManager"] == "INFO"


def test_sets_levels_and_takes_them_back() -> None:
    levels, logger = levels_of_broker()
    levels.alter("1", [ConfigEdit(NAME, ConfigOperation.SET, "TRACE")], validate_only=True)
    assert logger.getEffectiveLevel() == logging.INFO
    levels.alter("1", [ConfigEdit(NAME, ConfigOperation.SET, "TRACE")], validate_only=False)
    assert logger.getEffectiveLevel() == logging.DEBUG
    levels.alter("1", [ConfigEdit(NAME, ConfigOperation.DELETE, None)], validate_only=False)
    assert logger.getEffectiveLevel() == logging.INFO
    levels.alter("1", [ConfigEdit("root", ConfigOperation.SET, "ERROR")], validate_only=False)
    assert logger.getEffectiveLevel() == logging.ERROR


@pytest.mark.parametrize(
    ("broker", "edit", "code"),
    [
        ("", ConfigEdit(NAME, ConfigOperation.SET, "INFO"), "INVALID_REQUEST"),
        ("2", ConfigEdit(NAME, ConfigOperation.SET, "INFO"), "INVALID_REQUEST"),
        ("one", ConfigEdit(NAME, ConfigOperation.SET, "INFO"), "INVALID_REQUEST"),
        ("1", ConfigEdit(NAME, ConfigOperation.SET, "LOUD"), "INVALID_CONFIG"),
        ("1", ConfigEdit("nobody", ConfigOperation.SET, "INFO"), "INVALID_CONFIG"),
        ("1", ConfigEdit("nobody", ConfigOperation.DELETE, None), "INVALID_CONFIG"),
        ("1", ConfigEdit("root", ConfigOperation.DELETE, None), "INVALID_REQUEST"),
        ("1", ConfigEdit(NAME, ConfigOperation.APPEND, "INFO"), "INVALID_REQUEST"),
        ("1", ConfigEdit(NAME, ConfigOperation.SUBTRACT, "INFO"), "INVALID_REQUEST"),
    ],
)
def test_refuses_all_or_nothing(broker: str, edit: ConfigEdit, code: str) -> None:
    levels, logger = levels_of_broker()
    good = ConfigEdit(NAME, ConfigOperation.SET, "DEBUG")
    with pytest.raises(KafkaError) as refusal:
        levels.alter(broker, [good, edit], validate_only=False)
    assert refusal.value.code.name == code
    assert logger.getEffectiveLevel() == logging.INFO
