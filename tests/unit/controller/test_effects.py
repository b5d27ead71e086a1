"""Writes that only the controller may make."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.controller.effects import (
    BYTES_PER_MULTI_MAX,
    WRITES_PER_MULTI_MAX,
    ControllerMovedError,
    Steps,
    ZnodeOperations,
    operate,
    write_as_controller,
)
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


CHECK = Check("/controller_epoch", 8)


def test_writes_share_a_guard_by_the_epoch_of_the_controller() -> None:
    steps = write_as_controller([WRITE, OTHER], 8)
    assert next(steps) == (ZnodeOperations((Multi((CHECK, WRITE, OTHER)),)),)


def test_a_group_of_writes_is_bounded_in_number_and_size() -> None:
    many = [Delete(f"/{number}") for number in range(2 * WRITES_PER_MULTI_MAX + 1)]
    (effect,) = next(write_as_controller(many, 8))
    assert isinstance(effect, ZnodeOperations)
    assert [operation.weight - 1 for operation in effect.operations] == [WRITES_PER_MULTI_MAX, WRITES_PER_MULTI_MAX, 1]
    large = [SetData("/a", b"x" * (BYTES_PER_MULTI_MAX // 2)), SetData("/b", b"x" * (BYTES_PER_MULTI_MAX // 2 + 1))]
    (effect,) = next(write_as_controller(large, 8))
    assert effect == ZnodeOperations((Multi((CHECK, large[0])), Multi((CHECK, large[1]))))


def test_where_one_write_of_a_group_fails_each_is_done_by_itself() -> None:
    conflict = BadVersionError("/b")
    steps = write_as_controller([WRITE, OTHER], 8)
    next(steps)
    again = steps.send(([failed(2, conflict)],))
    assert again == (ZnodeOperations((Multi((CHECK, WRITE)), Multi((CHECK, OTHER)))),)
    with pytest.raises(StopIteration) as end:
        steps.send(([[None, "stat"], failed(1, conflict)],))
    assert end.value.value == ["stat", conflict]


def test_outcomes_are_those_of_the_writes() -> None:
    lost = ConnectionLossError()
    assert answered(write_as_controller([WRITE, OTHER], 8), [[None, "stat", None]]) == ["stat", None]
    assert answered(write_as_controller([WRITE], 8), [lost]) == [lost]
    assert answered(write_as_controller([WRITE], 8), [failed(1, NoNodeError("/a"))])[0].path == "/a"


@pytest.mark.parametrize("error", [BadVersionError(), NoNodeError()])
def test_a_deposed_controller_learns_of_it(error: Exception) -> None:
    steps = write_as_controller([WRITE], 8)
    next(steps)
    with pytest.raises(ControllerMovedError, match="no longer has version 8"):
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
