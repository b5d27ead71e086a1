"""How the sources of suites come: by the registries' ordinary clients, each version pinned, below `.cache`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.suites.model import SuiteUnusable
from tests.support.apache_kafka_jars import CACHE_DIRECTORY

SUITES_DIRECTORY = CACHE_DIRECTORY / "suites"
FETCH_SECONDS_MAX = 600.0
_CONSTRAINTS = Path(__file__).resolve().parents[2] / "requirements" / "constraints.txt"


def called(
    command: Sequence[str | Path],
    directory: Path,
    *,
    seconds_max: float = FETCH_SECONDS_MAX,
    environment: Mapping[str, str] | None = None,
) -> str:
    """What a command writes to its standard output. `SuiteUnusable` with its end when it fails or takes too long."""
    shown = " ".join(str(word) for word in command[:4])
    if shutil.which(str(command[0])) is None:
        raise SuiteUnusable(f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=directory,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds_max,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SuiteUnusable(f"{shown} ...: not within {seconds_max:.0f} s") from error
    if done.returncode:
        raise SuiteUnusable(f"{shown} ... ended with {done.returncode}\n{done.stdout[-1_500:]}\n{done.stderr[-1_500:]}")
    return done.stdout


def source_archive(package: str, version: str) -> Path:
    """The unpacked source archive of a package of PyPI."""
    target = SUITES_DIRECTORY / f"{package}-{version}"
    if target.exists():
        return target
    SUITES_DIRECTORY.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SUITES_DIRECTORY, prefix="fetching-") as work:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        # The Makefile names them relative to where it is.
        constraints = dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), str(_CONSTRAINTS))
        called([*pip, "--no-binary", package, f"{package}=={version}"], Path(work), environment=constraints)
        (archive,) = Path(work).glob("*.tar.gz")
        with tarfile.open(archive) as opened:
            opened.extractall(Path(work) / "unpacked", filter="data")
        (unpacked,) = (Path(work) / "unpacked").iterdir()
        unpacked.rename(target)
    return target


def crate(name: str, version: str) -> Path:
    """The unpacked source of a crate of crates.io, as `cargo vendor` lays it."""
    target = SUITES_DIRECTORY / f"{name}-{version}"
    if target.exists():
        return target
    SUITES_DIRECTORY.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SUITES_DIRECTORY, prefix="fetching-") as work:
        (Path(work) / "src").mkdir()
        (Path(work) / "src" / "lib.rs").write_text("")
        (Path(work) / "Cargo.toml").write_text(
            f'[package]\nname = "suite"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\n"{name}" = "={version}"\n'
        )
        called(["cargo", "vendor", "--quiet", "vendored"], Path(work))
        (Path(work) / "vendored" / name).rename(target)
    return target


def npm_package(name: str, version: str, beside: Mapping[str, str]) -> Path:
    """A package of npm as installed, with its tests if it has some, and the packages at their versions `beside` it."""
    target = SUITES_DIRECTORY / f"{name}-{version}"
    if not target.exists():
        SUITES_DIRECTORY.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=SUITES_DIRECTORY, prefix="fetching-") as work:
            wanted = {"private": True, "dependencies": {name: version, **beside}}
            (Path(work) / "package.json").write_text(json.dumps(wanted))
            called(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], Path(work))
            Path(work).rename(target)
            Path(work).mkdir()
    return target / "node_modules" / name


def go_module(module: str, version: str, packages: Sequence[str], stubs: Mapping[str, str]) -> Path:
    """A directory with a `go.mod` that has what the tests of a module's `packages` need; `stubs` have the source of
    modules in place of theirs.
    """
    target = SUITES_DIRECTORY / f"{module.replace('/', '-')}-{version}{'-stubs' if stubs else ''}"
    if not (target / "go.sum").exists():
        target.mkdir(parents=True, exist_ok=True)
        replaced = ""
        for number, (stub, source) in enumerate(stubs.items()):
            place = target / f"stub{number}"
            place.mkdir(exist_ok=True)
            (place / "go.mod").write_text(f"module {stub}\n\ngo 1.21\n")
            (place / "stub.go").write_text(source)
            replaced += f"\nreplace {stub} => ./{place.name}\n"
        (target / "go.mod").write_text(f"module suites\n\ngo 1.24.0\n{replaced}")
        called(["go", "get", "-t", *(f"{package}@{version}" for package in packages)], target)
    return target
