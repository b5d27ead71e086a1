"""What queries say: in order, no more than a bound at a time, and nobody is kept from ending."""

from __future__ import annotations

import threading

import pytest

from barnabas.pipelines.run_notes import NOTES_MAX, RunNotes
from tests.support.waiting import wait_until


def test_whoever_says_more_than_is_read_waits_and_nothing_is_lost() -> None:
    notes = RunNotes(threading.Event())
    said = [str(number) for number in range(3 * NOTES_MAX)]
    sent: list[str] = []

    def say() -> None:
        for line in said:
            notes.put(line)
            sent.append(line)

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    found: list[object] = []
    for number in range(1, 4):
        wait_until(lambda: len(sent) == number * NOTES_MAX, "as many as there is room for")  # noqa: B023
        thread.join(0.02)
        assert len(sent) == number * NOTES_MAX
        found += notes.taken()
        assert len(found) == number * NOTES_MAX
    thread.join()
    assert (found, notes.taken()) == (said, [])


@pytest.mark.parametrize("is_told_to_stop", [True, False])
def test_nobody_waits_once_the_run_ends(*, is_told_to_stop: bool) -> None:
    stop = threading.Event()
    notes = RunNotes(stop)
    for number in range(NOTES_MAX):
        notes.put(str(number))
    thread = threading.Thread(target=notes.put, args=("last",), daemon=True)
    thread.start()
    stop.set() if is_told_to_stop else notes.close()
    thread.join(10)
    assert not thread.is_alive()
    notes.put("behind it")
    assert notes.taken()[NOTES_MAX:] == ["last", "behind it"]
