"""The tables of docs/architecture.md: each function that the one of what is where names is in its file, and so are the
files that the glossary names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_BEGIN = "| question | Kafka | file | function |"


def _rows() -> list[tuple[str, str]]:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rows = []
    for line in text[text.index(_BEGIN) :].splitlines()[2:]:
        if not line.startswith("|"):
            break
        _, _, file, function = (cell.strip().strip("`") for cell in line.strip("|").split("|"))
        rows.append((file, function))
    return rows


ROWS = _rows()


def test_has_what_was_promised() -> None:
    assert len(ROWS) >= 25


@pytest.mark.parametrize(("file", "function"), ROWS)
def test_names_functions_that_there_are(file: str, function: str) -> None:
    body = ast.parse((ROOT / "src" / "barnabas" / file).read_text("utf-8")).body
    for name in function.split("."):
        found = [node for node in body if getattr(node, "name", None) == name]
        assert found, f"{file} has no {name}"
        (node,) = found
        body = getattr(node, "body", [])


def test_the_glossary_names_files_and_folders_that_there_are() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    words = text[text.index("| word | meaning |") :].split("\n\n")[0]
    named = re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", words)
    assert len(named) > 5
    assert [name for name in named if not (ROOT / "src" / "barnabas" / name).exists()] == []
