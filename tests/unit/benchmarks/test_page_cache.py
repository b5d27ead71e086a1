"""What `benchmarks.page_cache` says of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.page_cache import cached_part, read_through


def test_all_of_what_was_read_is_cached(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("first", "second")]
    for path in paths:
        path.write_bytes(bytes(100_001))
    read_through(paths)
    assert cached_part(paths) in (pytest.approx(1.0), None)


def test_of_no_bytes_none_are_cached(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert cached_part([tmp_path / "empty"]) in (0.0, None)
