"""Which interpreters the unit tests run on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tools import pythons
from tools.pythons import ENV_VARIABLE, find_python, supported_versions

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_versions_are_those_of_the_classifiers() -> None:
    assert supported_versions() == ["3.11", "3.12", "3.13"]


def test_finds_an_interpreter_that_the_environment_names(tmp_path: Path) -> None:
    other = script(tmp_path / "other", "echo")  # a Python of another version prints nothing
    named = os.pathsep.join([str(tmp_path / "missing"), str(other), sys.executable])
    assert find_python(HERE, {ENV_VARIABLE: named, "PATH": ""}) == sys.executable


def test_finds_an_interpreter_on_the_path(tmp_path: Path) -> None:
    script(tmp_path / f"python{HERE}", f'exec "{sys.executable}" "$@"')
    assert find_python(HERE, {"PATH": str(tmp_path)}) is not None


def test_asks_pyenv_where_its_shim_does_not_run(tmp_path: Path) -> None:
    script(tmp_path / f"python{HERE}", "exit 127")
    python = script(tmp_path / "versions" / f"{HERE}.9" / "bin" / "python", f'exec "{sys.executable}" "$@"')
    listing = f'case "$1" in versions) echo 2.7.18; echo {HERE}.9;; prefix) echo "{python.parent.parent}";; esac'
    script(tmp_path / "pyenv", listing)
    assert find_python(HERE, {"PATH": f"{tmp_path}{os.pathsep}/bin"}) is not None
    assert find_python("3.99", {"PATH": f"{tmp_path}{os.pathsep}/bin"}) is None


def test_says_which_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pythons, "supported_versions", lambda: ["3.99"])
    assert pythons.main([]) == 0
    assert capsys.readouterr().out == (
        "Python 3.99: not found: install python3.99, or name its path in BARNABAS_PYTHONS\n"
    )


def test_fails_where_tests_fail(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pythons, "supported_versions", lambda: [HERE])
    monkeypatch.setenv(ENV_VARIABLE, sys.executable)
    assert pythons.main(["--version"]) == 0
    assert pythons.main(["tests/there/is/none"]) == 1
    assert f"Python {HERE}: {sys.executable}: FAILED" in capfd.readouterr().out
