"""`tools.check_cycles` finds cycles within rooms."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_cycles

MODULES = {
    "plain": "from barnabas.room.{other} import Thing",
    "module": "import barnabas.room.{other}",
    "from the package": "from barnabas.room import {other}",
    "for types": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from barnabas.room.{other} import Thing",
    "in a function": "def f():\n    from barnabas.room.{other} import Thing",
    "in a method of a class of a function": "def f():\n class A:\n  async def f():\n   import barnabas.room.{other}",
    "in a handler": "try:\n    pass\nexcept OSError:\n    import barnabas.room.{other}",
    "in the end of a try": "try:\n    pass\nfinally:\n    import barnabas.room.{other}",
    "in an else of a loop": "for a in b:\n    pass\nelse:\n    with a:\n        import barnabas.room.{other}",
    "in a case": "match a:\n    case 1:\n        import barnabas.room.{other}",
}


def package(tmp_path: Path, files: dict[str, str]) -> Path:
    root = tmp_path / "barnabas"
    for name, source in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return root


@pytest.mark.parametrize("source", MODULES.values(), ids=MODULES.keys())
def test_finds_a_cycle_however_it_is_imported(tmp_path: Path, source: str) -> None:
    root = package(
        tmp_path,
        {
            "room/__init__.py": "",
            "room/first.py": source.format(other="second"),
            "room/second.py": source.format(other="first"),
        },
    )
    graph = check_cycles.imports_within_rooms(root)
    assert check_cycles.cycles(graph) == {frozenset({"room/first.py", "room/second.py"})}


def test_one_direction_and_other_rooms_are_no_cycle(tmp_path: Path) -> None:
    root = package(
        tmp_path,
        {
            "room/first.py": "from barnabas.room.second import A\nfrom barnabas.room.sub.third import B",
            "room/second.py": "from barnabas.room.sub.third import B\nfrom barnabas.other.fourth import C",
            "room/sub/third.py": "import os",
            "other/fourth.py": "from barnabas.room.first import D",
        },
    )
    assert not check_cycles.findings(check_cycles.imports_within_rooms(root))


def test_a_cycle_goes_through_sub_rooms_and_packages(tmp_path: Path) -> None:
    root = package(
        tmp_path,
        {
            "room/__init__.py": "from barnabas.room.sub.third import B",
            "room/sub/third.py": "from barnabas.room import A",
        },
    )
    graph = check_cycles.imports_within_rooms(root)
    assert check_cycles.cycles(graph) == {frozenset({"room/__init__.py", "room/sub/third.py"})}


GRAPH = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}


def test_each_cycle_is_found_once_and_whole() -> None:
    assert check_cycles.cycles(GRAPH) == {frozenset("abc"), frozenset("de")}


def test_names_the_shortest_way_around() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"c"}}
    assert check_cycles.shortest_loop(graph, "abcd") == ["c", "d", "c"]


def test_each_cycle_is_a_finding() -> None:
    found = check_cycles.findings(GRAPH)
    assert [sentence.split(":")[0] for sentence in found] == ["a -> b -> c -> a", "d -> e -> d"]


def test_a_folder_without_python_is_no_package(tmp_path: Path) -> None:
    assert check_cycles.main([str(tmp_path)]) == 2
