"""Spark code of somebody who tests it on a cluster of `barnabas.testing`, as docs/testing.md shows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.pipelines.java import find_java

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.night(
        "a Spark of its own, 30 s of processor time, for a block of the docs; no commit names a fault of it"
    ),
]
ROOT = Path(__file__).resolve().parents[2]


def test_the_example_of_the_page_about_tests_passes_as_it_stands(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "testing.md").read_text("utf-8")
    (block,) = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "import pyspark" in each]
    (tmp_path / "test_delays.py").write_text(block)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    java = find_java()
    plugin = ("-p", "barnabas.testing.pytest_plugin", "-p", "no:cacheprovider")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", *plugin],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": str(ROOT / "src"),
            "JAVA_HOME": str(java.executable.parents[1]),
            "JDK_JAVA_OPTIONS": " ".join(java.trust_options),
        },
    )
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr
