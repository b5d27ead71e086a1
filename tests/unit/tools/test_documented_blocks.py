"""Every block of code in README and docs/ is run, read or drawn by a test: here stands by which."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).resolve().parents[3]
_FENCED = re.compile(r"^ *```(\w*)\n.*?^ *```$", re.DOTALL | re.MULTILINE)
FIRST_STEPS: Final = "tests/cluster/test_documented_commands.py"
SERVERS: Final = "tests/cluster/test_documented_servers.py"
CLIENTS: Final = "tests/clients/test_documented_clients.py"
EXAMPLES: Final = "tests/spark/test_documented_examples.py"
OUTPUT: Final = "tests/cluster/test_documented_output.py"
CHAPTERS: Final = "tests/unit/testing/test_how_it_works.py"
TESTING: Final = "tests/unit/testing/test_testing_docs.py"
KEYS: Final = "tests/unit/pipelines/test_json_schema.py"
DIAGRAMS: Final = "tests/unit/tools/test_docs_site.py"
COMMANDS: Final = "tests/unit/cli/test_documented_commands.py"
"""Whether each command of any page is there, and takes what it is given; those of most pages are run by others."""
HELD: Final = {
    "README.md": {"": FIRST_STEPS, "python": FIRST_STEPS, "java": CLIENTS, "javascript": CLIENTS},
    "docs/acls.md": {"properties": SERVERS},
    "docs/commands.md": {"": OUTPUT, "console": OUTPUT},
    "docs/console.md": {"console": SERVERS},
    "docs/coordinator.md": {"": SERVERS},
    "docs/getting-started.md": {"": FIRST_STEPS},
    "docs/how-it-works.md": {"python": CHAPTERS, "mermaid": DIAGRAMS},
    "docs/operating.md": {"": SERVERS, "yaml": SERVERS, "python": SERVERS, "properties": SERVERS},
    "docs/pipelines.md": {"": COMMANDS, "yaml": KEYS, "python": EXAMPLES, "sql": "DuckDB is none of what tests have"},
    "docs/state-machines.md": {"mermaid": DIAGRAMS},
    "docs/testing.md": {"python": TESTING, "yaml": KEYS, "ini": TESTING},
    "docs/zh/getting-started.md": {"": "tests/unit/tools/test_translations.py"},
    **{f"docs/examples/{path.name}": {"": EXAMPLES} for path in (ROOT / "docs" / "examples").glob("*.md")},
}
HELD["docs/examples/backfill.md"] |= {"python": EXAMPLES}
HELD["docs/examples/windowed-delays.md"] |= {"python": EXAMPLES}


def test_each_kind_of_block_of_each_page_has_a_test() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = {str(page.relative_to(ROOT)): set(_FENCED.findall(page.read_text("utf-8"))) for page in pages}
    assert {page: kinds for page, kinds in found.items() if kinds} == {page: set(kinds) for page, kinds in HELD.items()}


@pytest.mark.parametrize("page", HELD)
def test_the_tests_look_at_the_page(page: str) -> None:
    """By its name; those of all pages do not name it."""
    name = page.removeprefix("docs/")
    for test in HELD[page].values():
        if test.startswith("tests/") and test not in (COMMANDS, DIAGRAMS, "tests/unit/tools/test_translations.py"):
            text = (ROOT / test).read_text("utf-8")
            assert Path(name).name in text or Path(name).stem in text, (page, test)
