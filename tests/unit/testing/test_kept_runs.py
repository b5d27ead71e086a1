"""What the tests of simulations keep of their runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.kept_runs import KeptRuns, Shown

SHOWN = Shown(("a record is gone",), Counter({"consumed": 3, "power": 1}))


def never() -> Shown:
    raise AssertionError("it is run again")


def test_another_process_has_what_a_run_has_shown(tmp_path: Path) -> None:
    assert KeptRuns(tmp_path).shown("cluster-1", lambda: SHOWN) == SHOWN
    assert KeptRuns(tmp_path).shown("cluster-1", never) == SHOWN
    assert KeptRuns(tmp_path).shown("cluster-1", never).met["never met"] == 0


def test_runs_are_told_apart_by_their_names(tmp_path: Path) -> None:
    other = Shown((), Counter())
    runs = KeptRuns(tmp_path)
    runs.shown("cluster-1", lambda: SHOWN)
    assert runs.shown("cluster-10", lambda: other) == other


def test_nothing_is_kept_of_a_run_that_raises(tmp_path: Path) -> None:
    runs = KeptRuns(tmp_path)
    with pytest.raises(AssertionError, match="again"):
        runs.shown("cluster-1", never)
    assert runs.shown("cluster-1", lambda: SHOWN) == SHOWN
