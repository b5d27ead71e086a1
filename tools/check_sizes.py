"""The size rule: a file past 600 lines is two subjects, a function past a screen too.

Run as `python -m tools.check_sizes`; prints one line per finding and exits 1 when there is any.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "tools", "benchmarks", "demo", "examples")
GENERATED = Path("src/barnabas/wire/generated")
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80
"""A tall screen, docstring and all."""


def long_functions(path: Path) -> Iterator[tuple[int, str, int]]:
    """First line, name and length in lines of every function of the file that does not fit on a screen."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield node.lineno, node.name, lines


def findings(root: Path) -> list[str]:
    """One sentence per file or function below `root` that is too long."""
    found: list[str] = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            place = path.relative_to(root)
            if place.parent == GENERATED:
                continue
            lines = path.read_text(encoding="utf-8").count("\n")
            if lines > FILE_LINES_MAX:
                found.append(f"{place}: {lines} lines, more than {FILE_LINES_MAX}: split it by subject")
            found.extend(
                f"{place}:{line}: {name} has {length} lines, more than {FUNCTION_LINES_MAX}: split it by step"
                for line, name, length in long_functions(path)
            )
    return found


def main() -> int:
    found = findings(PROJECT)
    for sentence in found:
        print(sentence)
    print(f"size rule: {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
