"""Delta tables: whose they are. What Delta makes of a commit is tested with Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.pipelines import delta_sink
from barnabas.pipelines.definition import DeltaSink
from barnabas.pipelines.delta_sink import DeltaTable
from barnabas.pipelines.lake_marks import RUN, WRITER
from barnabas.pipelines.spark_internals import DeltaSnapshot

WANTED = f"ALTER TABLE delta.`s3a://b/t` SET TBLPROPERTIES ('{WRITER}' = 'me', '{RUN}' = 'now')"


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ({}, [WANTED]),
        ({WRITER: "me", RUN: "then"}, [WANTED]),
        ({WRITER: "other", RUN: "now"}, [WANTED]),
        ({WRITER: "me", RUN: "now"}, []),
    ],
)
def test_a_table_at_a_url_says_whose_it_is_and_a_directory_only_where_it_said_so_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: dict[str, str], said: list[str]
) -> None:
    found: list[str] = []
    session = cast("Any", SimpleNamespace(sql=found.append))
    monkeypatch.setattr(delta_sink, "delta_snapshot", lambda *_: DeltaSnapshot("id", 0, before, {}))
    DeltaTable(DeltaSink(None, "by_day", 1, 1, url="s3a://b/t")).take(session, "me", "now")
    assert found == said
    # A directory has a lock.
    DeltaTable(DeltaSink(tmp_path, "by_day", 1, 1)).take(session, "me", "now")
    assert len(found) == len(said) * (1 if not before else 2)
