"""Two directories change places, at once or in steps; and what was cut short is gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.pipelines import directory_exchange
from barnabas.pipelines.directory_exchange import exchange, identity_of_directory


@pytest.mark.parametrize("has_exchange", [True, False])
@pytest.mark.parametrize("steps", range(8))
def test_directories_change_places_wherever_that_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, *, has_exchange: bool
) -> None:
    place, new = tmp_path / "table", tmp_path / "table~new"
    for path in (place, new):
        path.mkdir()
        (path / path.name).touch()
    identity = identity_of_directory(new)
    assert identity is not None
    if not has_exchange:
        monkeypatch.setattr(directory_exchange, "_exchanged", lambda *_: False)
    left = iter(range(steps))
    rename = Path.rename

    def cut_short(path: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", cut_short)
        try:
            exchange(place, new, identity)
        except KeyboardInterrupt:
            assert not has_exchange
    exchange(place, new, identity)
    assert [path.name for path in place.iterdir()] == ["table~new"]
    assert [path.name for path in new.iterdir()] == ["table"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table", "table~new"]


def test_a_directory_takes_a_place_where_nothing_was(tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    identity = identity_of_directory(new)
    assert identity is not None
    exchange(tmp_path / "table", new, identity)
    assert [path.name for path in tmp_path.iterdir()] == ["table"]
