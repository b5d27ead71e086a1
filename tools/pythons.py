"""Runs the unit tests on every Python that the classifiers name: `python -m tools.pythons [ARGUMENTS OF PYTEST]`.

An interpreter is looked for in `BARNABAS_PYTHONS` (paths, separated as in PATH), then as `python3.N` on PATH, then
among pyenv's versions. Each gets an environment from the pinned versions in `.cache/pythons/3.N`; the Python that runs
this has one already. Exit status 1 when tests fail somewhere or an environment cannot be made. What is missing is said.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parent.parent
ENVIRONMENTS: Final = PROJECT / ".cache" / "pythons"
ENV_VARIABLE: Final = "BARNABAS_PYTHONS"
INSTALLED: Final = (".[spark]", "-r", "requirements/test.txt")
PINS: Final = ("pyproject.toml", "requirements/constraints.txt", "requirements/test.txt")
_MINOR_VERSION: Final = re.compile(r"Programming Language :: Python :: (3\.\d+)")


def supported_versions(pyproject: Path = PROJECT / "pyproject.toml") -> list[str]:
    """`3.N` of each classifier, lowest first."""
    classifiers = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["classifiers"]
    versions = [match[1] for text in classifiers if (match := _MINOR_VERSION.fullmatch(text))]
    return sorted(versions, key=lambda version: int(version.partition(".")[2]))


def candidates(version: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Paths that may be an interpreter of the version, the best first."""
    yield from filter(None, environment.get(ENV_VARIABLE, "").split(os.pathsep))
    path = environment.get("PATH")
    if on_path := shutil.which(f"python{version}", path=path):
        yield on_path
    if pyenv := shutil.which("pyenv", path=path):
        for installed in reversed(_output([pyenv, "versions", "--bare"]).split()):
            if installed.startswith(f"{version}."):
                yield f"{_output([pyenv, 'prefix', installed])}/bin/python"


def find_python(version: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The path of an interpreter of the version that runs; None where there is none."""
    wanted = version.replace(".", ", ")
    program = f"import sys; print(sys.executable if sys.version_info[:2] == ({wanted}) else '')"
    return next((found for path in candidates(version, environment) if (found := _output([path, "-c", program]))), None)


def _output(command: Sequence[str]) -> str:
    """What a command prints; nothing where it fails, as pyenv's shim does for a version that is not switched on."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def prepare(version: str, python: str) -> Path:
    """The interpreter of an environment that has all the tests need. Raises subprocess.CalledProcessError."""
    if f"{sys.version_info[0]}.{sys.version_info[1]}" == version:
        return Path(sys.executable)
    environment = ENVIRONMENTS / version
    own = environment / "bin" / "python"
    installed = environment / "installed"
    if installed.exists() and all((PROJECT / pin).stat().st_mtime < installed.stat().st_mtime for pin in PINS):
        return own
    print(f"Python {version}: installing what the tests need (some 600 MB, once) ...", flush=True)
    shutil.rmtree(environment, ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(environment)], check=True)
    pins = str(PROJECT / "requirements" / "constraints.txt")
    subprocess.run(
        [
            own,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--quiet",
            "install",
            "--no-compile",
            "--editable",
            *INSTALLED,
        ],
        cwd=PROJECT,
        env={**os.environ, "PIP_CONSTRAINT": pins, "PIP_BUILD_CONSTRAINT": pins},
        check=True,
    )
    installed.touch()
    return own


def test_on(version: str, arguments: Sequence[str]) -> tuple[str, bool]:
    """What is to be said of the version at the end, and whether that is well."""
    python = find_python(version)
    if python is None:
        return f"not found: install python{version}, or name its path in {ENV_VARIABLE}", True
    try:
        own = prepare(version, python)
    except subprocess.CalledProcessError as error:
        return f"{python}: no environment could be made ({error})", False
    print(f"Python {version}: {python}", flush=True)
    done = subprocess.run([own, "-m", "pytest", *arguments], cwd=PROJECT, check=False)
    return f"{python}: " + ("passed" if not done.returncode else "FAILED"), not done.returncode


def main(arguments: Sequence[str]) -> int:
    results = {version: test_on(version, arguments or ["tests/unit"]) for version in supported_versions()}
    for version, (sentence, _) in results.items():
        print(f"Python {version}: {sentence}")
    return 0 if all(is_well for _, is_well in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
