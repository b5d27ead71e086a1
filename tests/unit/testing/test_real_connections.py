"""Who has made a connection, as the processes of a cluster tell each other."""

from __future__ import annotations

from pathlib import Path

from barnabas.testing.real_connections import ConnectionTable


def test_what_one_process_writes_down_the_others_see_until_it_is_over(tmp_path: Path) -> None:
    path = str(tmp_path / "connections")
    ours = ConnectionTable(path, 3, is_new=True)
    theirs = ConnectionTable(path, 3)
    theirs.add(1, 40_000, 9_092)
    theirs.add(1, 40_000, 9_093)
    ours.add(0, 40_000, 9_094)
    theirs.add(2, 65_535, 1)
    assert [port for port in range(9_090, 9_100) if ours.has(40_000, port)] == [9_092, 9_093, 9_094]
    assert theirs.has(40_000, 9_094)
    assert ours.has(65_535, 1)
    assert not ours.has(65_534, 1)
    theirs.remove(1, 40_000, 9_092)
    assert (ours.has(40_000, 9_092), ours.has(40_000, 9_093)) == (False, True)
    ours.forget(1)
    assert not ours.has(40_000, 9_093)
    assert ours.has(40_000, 9_094), "of another owner"
    assert ours.has(65_535, 1)
    theirs.close()
    ours.close()


def test_a_new_table_has_nothing_of_an_older_one_and_takes_next_to_no_disk(tmp_path: Path) -> None:
    path = tmp_path / "connections"
    old = ConnectionTable(str(path), 5, is_new=True)
    old.add(4, 1, 2)
    new = ConnectionTable(str(path), 5, is_new=True)
    assert not new.has(1, 2)
    assert path.stat().st_size == 5 * 512 * 1024
    assert path.stat().st_blocks * 512 < 64 * 1024


def test_more_connections_from_one_port_than_there_are_places_forget_an_older_one(tmp_path: Path) -> None:
    table = ConnectionTable(str(tmp_path / "connections"), 1, is_new=True)
    for port in range(1, 7):
        table.add(0, 40_000, port)
    assert [port for port in range(1, 7) if table.has(40_000, port)] == [1, 2, 3, 6]
    assert not table.has(40_001, 1)
