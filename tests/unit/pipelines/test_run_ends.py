"""What a state directory says of a run that ended, in whatever way."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from barnabas.pipelines import runner
from barnabas.pipelines.definition import PipelineError, RunStopped
from barnabas.pipelines.progress import Progress, RunSummary
from barnabas.pipelines.run_options import RunOptions
from barnabas.pipelines.runner import run_pipeline
from barnabas.pipelines.status import PipelineState, read_status
from tests.unit.pipelines.made_pipelines import IDENTITY, made_pipeline

OPTIONS = RunOptions("broker:9092", once=True)


class Silence:
    """Takes progress, and remembers only the end."""

    def __init__(self) -> None:
        self.summaries: list[RunSummary] = []

    def said(self, line: str) -> None:
        pass

    def batch(self, progress: Progress) -> None:
        pass

    def ended(self, summary: RunSummary) -> None:
        self.summaries.append(summary)


def summary(*, was_stopped: bool) -> RunSummary:
    return RunSummary("delays", was_stopped, 1, 2, 3, 0, {}, 10)


@pytest.mark.parametrize("was_stopped", [False, True])
def test_a_run_that_ended_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_stopped: bool) -> None:
    pipeline, progress = made_pipeline(tmp_path), Silence()
    monkeypatch.setattr(runner, "_run", lambda *_: summary(was_stopped=was_stopped))
    run_pipeline(pipeline, OPTIONS, progress, threading.Event())
    status = read_status(pipeline)
    assert (status.state, status.reason) == (PipelineState.STOPPED, None)
    assert progress.summaries == [summary(was_stopped=was_stopped)]


def test_a_run_that_is_stopped_before_spark_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told_to_stop(*_: object) -> None:
        raise RunStopped

    monkeypatch.setattr(runner, "read_identity", lambda *_: IDENTITY)
    monkeypatch.setattr(runner, "opened_outboxes", lambda *_: contextlib.nullcontext({}))
    monkeypatch.setattr(runner, "jars_of", told_to_stop)
    pipeline, progress = made_pipeline(tmp_path), Silence()
    ended = run_pipeline(pipeline, OPTIONS, progress, threading.Event())
    assert (ended.was_stopped, ended.batches, ended.rows_in) == (True, 0, 0)
    assert read_status(pipeline).state is PipelineState.STOPPED
    assert progress.summaries == [ended]


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (
            KeyboardInterrupt(),
            PipelineState.STOPPED,
            "the run was cut short; the next one repeats the batch under way",
        ),
        (PipelineError("a record does not fit"), PipelineState.FAILED, "a record does not fit"),
        (RuntimeError("a mistake of ours"), PipelineState.FAILED, "RuntimeError: a mistake of ours"),
    ],
)
def test_a_run_that_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, state: PipelineState, reason: str
) -> None:
    def fail(*_: Any) -> RunSummary:
        raise error

    monkeypatch.setattr(runner, "_run", fail)
    pipeline, progress = made_pipeline(tmp_path), Silence()
    with pytest.raises(type(error)):
        run_pipeline(pipeline, OPTIONS, progress, threading.Event())
    status = read_status(pipeline)
    assert (status.state, status.reason) == (state, reason)
    assert progress.summaries == []
