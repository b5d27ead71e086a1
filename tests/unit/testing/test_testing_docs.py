"""The code of docs/testing.md, as its readers would run it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.testing.test_pytest_plugin import run_pytest

NEEDS_SPARK = re.compile("pipeline_tester|pyspark")
"""These are tried in tests/spark: test_pipeline_cases.py and test_code_of_users.py."""
PAGE = Path(__file__).resolve().parents[3] / "docs" / "testing.md"


def test_every_block_of_python_passes_with_the_ini_file_and_without(tmp_path: Path) -> None:
    page = PAGE.read_text("utf-8")
    blocks = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if not NEEDS_SPARK.search(each)]
    assert len(blocks) == 6
    for number, block in enumerate(blocks):
        (tmp_path / f"test_block_{number}.py").write_text(block)
    # kafka-python reads its schemas in a way that Python 3.11 deprecates.
    oracle = "    ignore:(read|open)_text is deprecated:DeprecationWarning\n"
    said = run_pytest(tmp_path, "def test_nothing():\n    pass\n", oracle)
    assert "9 passed" in said, said
    (ini,) = re.findall(r"```ini\n\[pytest\]\n(.*?)```", page, re.DOTALL)
    said = run_pytest(
        tmp_path,
        "def test_it(kafka_cluster, kafka_topic):\n    assert kafka_cluster.broker_ids == (1, 2, 3)\n",
        ini,
        "test_it.py",
    )
    assert "1 passed" in said, said
