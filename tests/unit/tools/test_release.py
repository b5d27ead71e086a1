"""`tools.release`: what it writes into changelog and version, and what it refuses."""

from __future__ import annotations

import datetime as dt
import tomllib
from pathlib import Path

import pytest

from tools.release import ReleaseError, dated, missing, with_version

DAY = dt.date(2026, 11, 22)
CHANGELOG = "# Changelog\n\nWhat changes.\n\n## Unreleased\n\n### Fixed\n\n- A thing.\n"


def test_what_is_unreleased_gets_version_and_day() -> None:
    changed = dated(CHANGELOG, "0.1.0", DAY)
    assert changed == CHANGELOG.replace("## Unreleased\n", "## Unreleased\n\n## 0.1.0 - 2026-11-22\n")


def test_a_version_is_released_once() -> None:
    more = dated(CHANGELOG, "0.1.0", DAY).replace("## Unreleased\n", "## Unreleased\n\n- Another thing.\n")
    with pytest.raises(ReleaseError, match="has a section of"):
        dated(more, "0.1.0", DAY)
    assert "## 0.1.1 - 2026-11-22\n\n- Another thing." in dated(more, "0.1.1", DAY)


@pytest.mark.parametrize(
    "text", ["# Changelog\n", "## Unreleased\n", "## Unreleased\n\n## 0.1.0 - 2026-11-22\n\n- A.\n"]
)
def test_nothing_is_no_release(text: str) -> None:
    with pytest.raises(ReleaseError, match="say what changes"):
        dated(text, "0.2.0", DAY)


@pytest.mark.parametrize("line", ['version = "0.1.0.dev0"', '__version__ = "0.1.0.dev0"'])
def test_writes_the_version(line: str) -> None:
    text = f'a = "0"\n{line}\nother_version = "1"\n'
    assert with_version(text, "0.1.0") == text.replace("0.1.0.dev0", "0.1.0")


@pytest.mark.parametrize("text", ["", 'version = "1"\nversion = "2"\n'])
def test_one_line_names_the_version(text: str) -> None:
    with pytest.raises(ReleaseError, match="lines name a version"):
        with_version(text, "0.1.0")


def test_finds_what_an_archive_lacks() -> None:
    assert missing(["top-1/a/b.py", "top-1/c.py"], ("a/b.py", "b.py", "d.py", "op-1/c.py")) == ["d.py", "op-1/c.py"]


def test_pipx_runs_the_package_by_its_name() -> None:
    """`pipx run barnabas up` takes the command that is called as the package is."""
    project = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] in project["scripts"]
