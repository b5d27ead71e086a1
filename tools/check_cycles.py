"""The rule on cycles: files within a room import in one direction, so that each can be read after those below it.

An import counts wherever it stands, inside a function and under TYPE_CHECKING too. Between rooms import-linter holds
the order. Run as `python -m tools.check_cycles [ROOT]`; prints one sentence per finding and exits 1 when there is any.
"""

from __future__ import annotations

import ast
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

SOURCE_ROOT = Path(__file__).resolve().parent.parent / "src" / "barnabas"

Graph = Mapping[str, Collection[str]]
"""From each file to those of the same room that it imports; paths below the package, with slashes."""


def imports_within_rooms(root: Path) -> dict[str, set[str]]:
    """The graph of the package at `root` (a checkout's `src/barnabas`). Raises SyntaxError for what is no Python."""
    package = root.name
    files = {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*.py"))}
    by_module = {_module(package, file): file for file in files}
    graph: dict[str, set[str]] = {}
    for file, path in files.items():
        room = file.split("/")[0]
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        found = {by_module[name] for name in _imported(tree, by_module)}
        graph[file] = {other for other in found if other != file and other.split("/")[0] == room}
    return graph


def _module(package: str, file: str) -> str:
    return ".".join([package, *file.removesuffix(".py").removesuffix("__init__").rstrip("/").split("/")]).rstrip(".")


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All of them, within others too. Of the nodes of a file they are a tenth, which `ast.walk` would go through."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            within = getattr(node, field, ())
            yield from within
            waiting += within


def _imported(tree: ast.AST, modules: Collection[str]) -> Iterator[str]:
    for node in _statements(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                name = name if name in modules else node.module
                if name in modules:
                    yield name
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)


def cycles(graph: Graph) -> set[frozenset[str]]:
    """The largest sets of files of which each imports, through others, every other."""
    below = {file: _reached(graph, file) for file in graph}
    return {
        frozenset([file, *(other for other in below[file] if file in below[other])])
        for file in graph
        if file in below[file]
    }


def _reached(graph: Graph, start: str) -> set[str]:
    """What `start` imports, itself or through others; itself too, where it is in a cycle."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for other in graph[waiting.pop()]:
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    return reached


def shortest_loop(graph: Graph, cycle: Collection[str]) -> list[str]:
    """One way around the cycle, as short as there is; the first file is the last, too."""
    loops = []
    for start in sorted(cycle):
        before: dict[str, str] = {}
        waiting = deque([start])
        while waiting and start not in before:
            file = waiting.popleft()
            for other in sorted(graph[file]):
                if other in cycle and other not in before:
                    before[other] = file
                    waiting.append(other)
        loop = [start]
        while len(loop) == 1 or loop[-1] != start:
            loop.append(before[loop[-1]])
        loops.append(loop[::-1])
    return min(loops, key=len)


def findings(graph: Graph) -> list[str]:
    """One sentence for each cycle."""
    return [
        f"{' -> '.join(shortest_loop(graph, cycle))}: a cycle of imports ({len(cycle)} files): put what both need into "
        "a file below them, or hand it in"
        for cycle in sorted(cycles(graph), key=sorted)
    ]


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else SOURCE_ROOT
    graph = imports_within_rooms(root)
    if not graph:
        print(f"{root}: no Python files here; give the folder of the package", file=sys.stderr)
        return 2
    found = findings(graph)
    for sentence in found:
        print(sentence)
    print(f"cycle rule: {len(graph)} files, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
