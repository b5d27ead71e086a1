"""Offsets that cannot be committed are warned of, and never stop a run."""

from __future__ import annotations

import pytest

from barnabas.pipelines import group_offsets
from barnabas.pipelines.group_offsets import committing
from tests.support.ports import free_port


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_offsets, "_COMMIT_TIMEOUT_MS", 300)


def test_brokers_that_are_away_are_a_warning_and_one_more_at_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    warnings: list[str] = []
    with committing("barnabas-pipeline-delays", f"127.0.0.1:{free_port()}", warnings.append) as group:
        group.finished({"flights": {0: 5}})
        group.finished({"flights": {0: 6}})
    assert len(warnings) == 2
    assert "group barnabas-pipeline-delays not committed yet" in warnings[0]
    assert "trying with the next batch" in warnings[0]
    assert "could not be committed; the next run commits them" in warnings[1]
    assert capfd.readouterr() == ("", "")


def test_without_a_batch_nobody_is_asked() -> None:
    warnings: list[str] = []
    with committing("barnabas-pipeline-delays", f"127.0.0.1:{free_port()}", warnings.append):
        pass
    assert warnings == []
