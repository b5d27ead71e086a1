"""How the rows of a key in one batch are compared, as far as that can be seen without Spark."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from barnabas.pipelines.definition import DeltaSink
from barnabas.pipelines.lake_rows import newest_of_keys


def test_rows_of_a_key_are_compared_to_the_last_digit_of_their_times(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import pyspark.sql

    functions = MagicMock()
    monkeypatch.setattr(pyspark.sql, "functions", functions)
    newest_of_keys(MagicMock(columns=["id", "at"]), DeltaSink(tmp_path, "changes", 1, 1, key=("id",)))
    # Spark's own form has milliseconds: two rows would be taken for alike, and one of them by chance.
    for call in functions.to_json.call_args_list:
        assert call.args[1]["timestampFormat"].endswith("ss.SSSSSSXXX")
        assert call.args[1]["timestampNTZFormat"].endswith("ss.SSSSSS")
    assert functions.to_json.call_count == 2
