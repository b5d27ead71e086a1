"""What each process that shares the tests does before the first of them: it imports all of their files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
# Each takes 0.1 to 0.5 s of processor time.
HEAVY = (
    r"^(?:import|from) (?:kafka|matplotlib|numpy|pandas|pyarrow|pyspark)\b|^from barnabas\.tiered\.spark_source import"
)


@pytest.mark.parametrize("suite", ["unit", "simulation", "fuzz"])
def test_what_takes_long_to_import_is_imported_by_the_tests_that_use_it(suite: str) -> None:
    found = {
        path.relative_to(TESTS).as_posix(): lines
        for path in (TESTS / suite).rglob("*.py")
        if (lines := re.findall(HEAVY, path.read_text(), re.MULTILINE))
    }
    assert not found, "import it within the functions that use it"
