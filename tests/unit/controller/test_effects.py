"""Writes that only the controller may make."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.controller.effects import ControllerMovedError, Steps, ZnodeOperations, operate, write_as_controller
from barnabas.coordination.errors import (
    BadVersionError,
    ConnectionLossError,
    MultiFailedError,
    NoNodeError,
    RuntimeInconsistencyError,
    SessionExpiredError,
)
from barnabas.coordination.operations import Check, Delete, GetData, Multi, SetData

WRITE, OTHER = SetData("/a", b"1", 3), Delete("/b", 4)


def answered(steps: Steps[list[Any]], outcomes: list[Any]) -> list[Any]:
    next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send((outcomes,))
    result: list[Any] = end.value.value
    return result


def failed(index: int, error: Any) -> MultiFailedError:
    return MultiFailedError(index, error, (RuntimeInconsistencyError(), error))


def test_each_write_is_guarded_by_the_epoch_of_the_controller() -> None:
    steps = write_as_controller([WRITE, OTHER], 8)
    check = Check("/controller_epoch", 8)
    assert next(steps) == (ZnodeOperations((Multi((check, WRITE)), Multi((check, OTHER)))),)


def test_outcomes_are_those_of_the_writes() -> None:
    conflict, lost = BadVersionError("/b"), ConnectionLossError()
    assert answered(write_as_controller([WRITE, OTHER], 8), [[None, "stat"], failed(1, conflict)]) == ["stat", conflict]
    assert answered(write_as_controller([WRITE], 8), [lost]) == [lost]


@pytest.mark.parametrize("error", [BadVersionError(), NoNodeError()])
def test_a_deposed_controller_learns_of_it(error: Exception) -> None:
    steps = write_as_controller([WRITE], 8)
    next(steps)
    with pytest.raises(ControllerMovedError, match="no longer the version 8"):
        steps.send(([failed(0, error)],))


def test_another_failure_of_the_check_is_none_of_another_controller() -> None:
    expired = SessionExpiredError()
    assert answered(write_as_controller([WRITE], 8), [failed(0, expired)]) == [expired]


def test_nothing_to_do_yields_nothing() -> None:
    with pytest.raises(StopIteration) as end:
        next(operate([]))
    assert end.value.value == []


def test_a_shell_that_loses_outcomes_is_found_out() -> None:
    steps = operate([GetData("/a"), GetData("/b")])
    next(steps)
    with pytest.raises(RuntimeError, match="2 operations on znodes got 1 outcomes"):
        steps.send((["one"],))
