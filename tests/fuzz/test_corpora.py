"""Plays the corpora of the fuzzer, and the inputs that it begins with, as ordinary tests; and holds that the work and
the memory for an input are in proportion to its size.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.fuzz import corpora
from tests.fuzz.corpora import read_corpus, write_corpus
from tests.fuzz.target_names import TARGET_NAMES
from tests.fuzz.targets import LINES_MAX, MEMORY_BYTES_MAX, TARGETS

every_target = pytest.mark.parametrize("name", TARGET_NAMES)


def test_every_target_has_its_name() -> None:
    assert tuple(TARGETS) == TARGET_NAMES


def checked(check: Callable[[bytes], bool], data: bytes) -> bool:
    try:
        return check(data)
    except Exception as error:
        error.add_note(f"from bytes.fromhex({data.hex()!r})")
        raise


@every_target
def test_seeds_and_corpus_break_no_rule(name: str) -> None:
    target = TARGETS[name]
    taken = [checked(target.check, data) for data in target.seeds()]
    assert any(taken), "no seed is good"
    assert read_corpus(name), f"nothing was kept: python -m tests.fuzz.run --keep {name}"
    for data in read_corpus(name):
        checked(target.check, data)


@every_target
def test_memory_is_in_proportion_to_the_input(name: str) -> None:
    target = TARGETS[name]
    inputs = largest(target.seeds() + read_corpus(name))
    for data in inputs:
        target.check(data)  # what is kept for ever is not counted
    tracemalloc.start()
    try:
        for data in inputs:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            target.check(data)
            allocated = tracemalloc.get_traced_memory()[1] - before
            allowed = MEMORY_BYTES_MAX + target.memory_per_byte_max * len(data)
            assert allocated <= allowed, f"{allocated} bytes for {len(data)}: {data.hex()}"
    finally:
        tracemalloc.stop()


@every_target
def test_work_is_in_proportion_to_the_input(name: str) -> None:
    target = TARGETS[name]
    for data in largest(target.seeds() + read_corpus(name)):
        target.check(data)
        allowed = LINES_MAX + target.lines_per_byte_max * len(data)
        lines = lines_run(target.check, data)
        assert lines <= allowed, f"{lines} lines of Python for {len(data)} bytes: {data.hex()}"


def largest(inputs: list[bytes]) -> list[bytes]:
    return sorted(inputs, key=len)[-30:]


def lines_run(check: Callable[[bytes], Any], data: bytes) -> int:
    """How many lines of Python run, which is the same on every machine."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        check(data)
    finally:
        sys.settrace(previous)
    return count


def test_what_was_put_in_by_hand_stays(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "CORPUS", tmp_path)
    (tmp_path / "znodes.txt").write_text("# a list too deep\n0102\n03\n\n04\n05\n", encoding="ascii")
    write_corpus("znodes", [b"\x06", b"\x07"])
    assert read_corpus("znodes") == [b"\x01\x02", b"\x03", b"\x06", b"\x07"]
    assert (tmp_path / "znodes.txt").read_text(encoding="ascii") == "# a list too deep\n0102\n03\n\n06\n07\n"
