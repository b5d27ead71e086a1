from __future__ import annotations

from pathlib import Path

import pytest

from demo import workplace as module
from demo.workplace import WorkplaceError, workplace


def test_leaves_results_and_nothing_else(tmp_path: Path) -> None:
    with workplace(tmp_path / "results") as place:
        place.cluster.mkdir()
        place.table.mkdir()
        place.pipeline_state.mkdir()
        place.plot.write_bytes(b"")
    assert sorted(path.name for path in place.results.iterdir()) == [".lock", "delays", "delays.png"]


def test_removes_what_earlier_runs_left(tmp_path: Path) -> None:
    for name in ("work-killed", "delays", "state", "logs"):
        (tmp_path / name / "inside").mkdir(parents=True)
    (tmp_path / "delays.png").write_bytes(b"old")
    (tmp_path / "a file of the user").write_bytes(b"")
    with workplace(tmp_path) as place:
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == sorted([".lock", "a file of the user", place.work.name])
    assert place.temporary.is_relative_to(place.work)


def test_a_second_run_is_refused(tmp_path: Path) -> None:
    with workplace(tmp_path), pytest.raises(WorkplaceError, match="another run is working in"), workplace(tmp_path):
        pass
    with workplace(tmp_path):
        pass


def test_a_full_disk_is_said_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FREE_BYTES_MIN", 1 << 62)
    with pytest.raises(WorkplaceError, match="GB of free space; the run needs"), workplace(tmp_path):
        pass


def test_waits_no_longer_than_bounded_for_a_pipeline_that_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    monkeypatch.setattr(module, "EARLIER_PIPELINE_SECONDS_MAX", 0.0)
    (tmp_path / "state").mkdir()
    with open(tmp_path / "state" / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(WorkplaceError, match="a pipeline holds"), workplace(tmp_path):
            pass
    with workplace(tmp_path):
        pass


def test_keeps_the_ends_of_logs_when_the_run_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOG_BYTES_KEPT_MAX", 10)
    with pytest.raises(RuntimeError, match="it broke"), workplace(tmp_path) as place:
        (place.cluster / "broker-1" / "logs").mkdir(parents=True)
        (place.cluster / "broker-1" / "logs" / "server.log").write_text("long ago, and the end")
        (place.cluster / "broker-1" / "00000000000000000000.log").write_text("records")
        (place.pipeline_state / "logs").mkdir(parents=True)
        (place.pipeline_state / "logs" / "spark.log").write_text("spark")
        place.pipeline_output.write_text("said")
        (place.table / "batch_id=0").mkdir(parents=True)
        raise RuntimeError("it broke")
    kept = {path.name: path.read_text() for path in place.logs.iterdir()}
    assert kept == {
        "broker-1-logs-server.log": "nd the end",
        "state-logs-spark.log": "spark",
        "pipeline.log": "said",
    }
    assert sorted(path.name for path in place.results.iterdir()) == [".lock", "logs"]
