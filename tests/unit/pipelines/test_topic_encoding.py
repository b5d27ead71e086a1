"""Rows beside the schema of the topic that they are written to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.pipelines.definition import SourceFormat, TopicSink
from barnabas.pipelines.topic_encoding import missing_and_strange


@pytest.mark.parametrize(
    ("form", "columns", "expected"),
    [
        (SourceFormat.AVRO, ["ID", "carrier", "gone"], ([], [])),
        (SourceFormat.AVRO, ["id", "gone"], (["carrier"], [])),
        (SourceFormat.AVRO, ["id", "carrier", "more", "gone"], ([], ["more"])),
        (SourceFormat.PROTOBUF, ["id", "gone"], ([], [])),
        (SourceFormat.JSON, ["what", "ever"], ([], [])),
    ],
)
def test_the_column_by_which_rows_delete_is_none_of_the_record(
    form: SourceFormat, columns: list[str], expected: tuple[list[str], list[str]]
) -> None:
    sink = TopicSink("o", "s", 1, 1, ("id",), format=form, fields=("id", "carrier"), delete="Gone")
    frame: Any = SimpleNamespace(columns=columns)
    assert missing_and_strange(frame, sink) == expected


def test_a_field_that_rows_delete_by_is_missing() -> None:
    sink = TopicSink("o", "s", 1, 1, ("id",), format=SourceFormat.AVRO, fields=("id", "gone"), delete="gone")
    frame: Any = SimpleNamespace(columns=["id", "gone"])
    assert missing_and_strange(frame, sink) == (["gone"], [])
