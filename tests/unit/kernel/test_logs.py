"""`barnabas.kernel.logs`."""

from __future__ import annotations

import io
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.kernel.logs import Logs


class FixedClock:
    def time_ms(self) -> int:
        return 1_700_000_000_042

    def stopwatch(self) -> float:
        return 0.0


def logs_to(stream: io.StringIO, name: str = "broker-1", level: str = "INFO", **levels: str) -> Logs:
    named = {key.replace("_", "."): value for key, value in levels.items()}
    return Logs(name, FixedClock(), logging.StreamHandler(stream), level=level, levels=named)


def test_a_line_has_the_time_of_the_hosts_clock_the_level_the_host_and_the_logger() -> None:
    stream = io.StringIO()
    logs_to(stream).logger("kafka.controller.KafkaController").info("%d partitions online", 7)
    assert stream.getvalue() == (
        "[2023-11-14 22:13:20,042] INFO broker-1 7 partitions online (kafka.controller.KafkaController)\n"
    )


def test_levels_hold_for_the_names_below() -> None:
    stream = io.StringIO()
    logs = logs_to(stream, level="WARN", kafka_controller="DEBUG", kafka_controller_Quiet="error")
    for name in ("kafka.controller.KafkaController", "kafka.controller.Quiet", "kafka.log.LogManager"):
        logs.logger(name).debug("debug %s", name)
        logs.logger(name).warning("warning %s", name)
        logs.logger(name).error("error %s", name)
    messages = [line.split(" broker-1 ")[1].split(" (")[0] for line in stream.getvalue().splitlines()]
    assert messages == [
        "debug kafka.controller.KafkaController",
        "warning kafka.controller.KafkaController",
        "error kafka.controller.KafkaController",
        "error kafka.controller.Quiet",
        "warning kafka.log.LogManager",
        "error kafka.log.LogManager",
    ]


def test_a_level_can_be_changed_and_taken_back_and_all_are_listed() -> None:
    logs = logs_to(io.StringIO())
    logger = logs.logger("kafka.log.LogCleaner")
    assert not logger.isEnabledFor(logging.DEBUG)
    logs.set_level("kafka.log", "DEBUG")
    assert logger.isEnabledFor(logging.DEBUG)
    assert logs.levels() == {"root": "INFO", "kafka.log": "DEBUG", "kafka.log.LogCleaner": "DEBUG"}
    logs.set_level("kafka.log", None)
    assert not logger.isEnabledFor(logging.DEBUG)
    logs.set_level("root", "TRACE")
    assert logger.isEnabledFor(logging.DEBUG)
    with pytest.raises(ValueError, match="must have a level"):
        logs.set_level("root", None)
    with pytest.raises(ValueError, match="'LOUD' is not a log level: use one of TRACE"):
        logs.set_level("kafka", "LOUD")


def test_hosts_in_one_process_and_the_global_loggers_do_not_mix() -> None:
    one, two = io.StringIO(), io.StringIO()
    first, second = logs_to(one, "broker-1", kafka="DEBUG"), logs_to(two, "broker-2")
    for logs in (first, second):
        logs.logger("kafka.server.KafkaServer").debug("details")
        logs.logger("kafka.server.KafkaServer").info("started")
    assert [line.split()[3:5] for line in one.getvalue().splitlines()] == [
        ["broker-1", "details"],
        ["broker-1", "started"],
    ]
    assert [line.split()[3:5] for line in two.getvalue().splitlines()] == [["broker-2", "started"]]
    assert "kafka.server.KafkaServer" not in logging.Logger.manager.loggerDict
    assert first.logger("kafka.server.KafkaServer") is not second.logger("kafka.server.KafkaServer")


def test_a_traceback_follows_in_lines_that_begin_with_a_tab() -> None:
    stream = io.StringIO()
    logger = logs_to(stream).logger("kafka.server")
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        logger.exception("It failed")
    first, *others = stream.getvalue().splitlines()
    assert first.endswith("ERROR broker-1 It failed (kafka.server)")
    assert others[0] == "\tTraceback (most recent call last):"
    assert others[-2:] == ["\tValueError: first", "\tsecond"]
    assert all(line.startswith("\t") for line in others)


@settings(deadline=None)
@given(st.text())
def test_no_message_makes_more_than_one_line(message: str) -> None:
    stream = io.StringIO()
    logs_to(stream).logger("kafka").info("client %s", message)
    assert len(stream.getvalue().splitlines()) == 1
    assert stream.getvalue().endswith(" (kafka)\n")


def test_control_characters_are_escaped_readably() -> None:
    stream = io.StringIO()
    logs_to(stream).logger("kafka").info("client %s", "evil\n[2023] ERROR \x1b[31m\u2028\tgrüße")
    assert "client evil\\n[2023] ERROR \\x1b[31m\\u2028\tgrüße (kafka)\n" in stream.getvalue()
