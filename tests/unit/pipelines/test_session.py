"""How a session of Spark is made, without one."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.pipelines import session
from barnabas.pipelines.session import SparkOptions, submitted_session


@pytest.mark.parametrize("is_submitted", [True, False])
def test_ctrl_c_is_the_runs_own_when_spark_has_its_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_submitted: bool
) -> None:
    """pyspark's handler would call Java in the middle of the call that makes the session."""
    import pyspark.sql

    before = signal.getsignal(signal.SIGINT)
    found: list[Any] = []

    class Settings:
        def __init__(self, **_: object) -> None: ...

        def __getattr__(self, name: str) -> Any:
            return lambda *_: "" if name == "get" else self

    def context(**_: object) -> Any:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return cast("Any", SimpleNamespace(_jvm=SimpleNamespace(java=Java())))

    class Java:
        def __getattr__(self, _name: str) -> Java:
            return self

        def __call__(self, *_: object) -> None:
            found.append(signal.getsignal(signal.SIGINT))

    def made(_context: object) -> Any:
        found.append(signal.getsignal(signal.SIGINT))
        return SimpleNamespace(stop=lambda: None)

    monkeypatch.setattr(pyspark, "SparkConf", Settings)
    monkeypatch.setattr(pyspark, "SparkContext", context)
    monkeypatch.setattr(pyspark.sql, "SparkSession", made)
    options = SparkOptions(cast("Any", None), (), tmp_path, "x")
    try:
        if is_submitted:
            with submitted_session(options):
                pass
        else:
            session._started(options, cast("Any", SimpleNamespace(scratch_directory=tmp_path, log_path=tmp_path)))
        assert found
        assert set(found) == {before}
    finally:
        signal.signal(signal.SIGINT, before)
