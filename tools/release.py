"""Builds what is released, and tries it in an empty environment; with a version, makes a release of it.

`python -m tools.release check` builds the sdist and the wheel (the wheel from the sdist), looks at what is in them,
installs the wheel into a new virtual environment without anything else of this checkout, and sends a record through a
broker there. `python -m tools.release 0.1.0` dates the changelog, writes the version, checks as above, commits and
tags; nothing is uploaded or pushed. Exits 1 with a line that says what is wrong.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNRELEASED = "## Unreleased"
_VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
_VERSION_FILES = ("pyproject.toml", "src/barnabas/__init__.py")
_VERSION_LINE = re.compile(r'^((?:version|__version__) = )"[^"]+"$', re.MULTILINE)
_IN_WHEEL = ("barnabas/py.typed", "barnabas/wire/messages.pyi", "barnabas/cli/entry.py")
_IN_SDIST = ("LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "hatch_build.py", "src/barnabas/py.typed")
_TESTING_TRIAL = """
from importlib.metadata import entry_points
from importlib.util import find_spec
from barnabas.testing import KafkaCluster
from barnabas.wire import catalogue, generated_code
unused = [file for file in catalogue.file_names() if generated_code.module(file) is None]
assert not unused, f"what was generated of them is not used: {unused}"
(plugin,) = entry_points(group="pytest11", name="barnabas")
assert find_spec(plugin.value) is not None, "pytest would not find the plugin"
with KafkaCluster() as cluster:
    cluster.create_topic()
"""
_ONE_RECORD = "a record of a released wheel"
_TRY_SECONDS_MAX = 120


class ReleaseError(Exception):
    """What is wrong, in words for whoever releases."""


def dated(changelog: str, version: str, day: dt.date) -> str:
    """The changelog with what is unreleased under a version, and room for what comes next."""
    if f"## {version} " in changelog:
        raise ReleaseError(f"CHANGELOG.md has a section of {version} already")
    before, found, after = changelog.partition(UNRELEASED + "\n")
    if not found or not after.strip() or after.lstrip().startswith("## "):
        raise ReleaseError(f"CHANGELOG.md has nothing under '{UNRELEASED}': say what changes for users")
    return f"{before}{UNRELEASED}\n\n## {version} - {day.isoformat()}\n{after}"


def with_version(text: str, version: str) -> str:
    """A file's text with another version; it has to name one, once."""
    changed, count = _VERSION_LINE.subn(rf'\g<1>"{version}"', text)
    if count != 1:
        raise ReleaseError(f"{count} lines name a version where one was expected")
    return changed


def missing(names: list[str], needed: tuple[str, ...]) -> list[str]:
    """Which of the needed files an archive does not have, wherever its top folder is."""
    return [need for need in needed if not any(name == need or name.endswith(f"/{need}") for name in names)]


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist and the wheel, looked through."""
    _run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)])
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    with tarfile.open(sdist) as archive:
        lacking = missing(archive.getnames(), _IN_SDIST)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    lacking += missing(names, _IN_WHEEL)
    schemas = len(list((ROOT / "src/barnabas/wire/schemas").iterdir()))
    packed, generated = (
        sum(name.startswith(f"barnabas/wire/{folder}/") for name in names) for folder in ("schemas", "generated")
    )
    if lacking or packed < schemas or generated < schemas:
        raise ReleaseError(
            f"the archives lack {', '.join(lacking) or 'schema files'} ({packed} of {schemas} schemas, and {generated} "
            "modules that are generated of them)"
        )
    strangers = [name for name in names if not name.startswith(("barnabas/", "barnabas-"))]
    if strangers:
        raise ReleaseError(f"the wheel has what is not the package's: {', '.join(strangers[:5])}")
    return sdist, wheel


def check_installed(wheel: Path, folder: Path) -> None:
    """Installs the wheel alone, and sends a record through a broker of it."""
    environment = folder / "environment"
    venv.create(environment, with_pip=True)
    _run(
        [
            str(environment / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            str(wheel),
        ]
    )
    command = str(environment / "bin" / "barnabas")
    _run([command, "--version"], folder)
    _run([str(environment / "bin" / "python"), "-W", "error", "-c", _TESTING_TRIAL], folder)
    up = subprocess.Popen(
        [command, "up", "--port", "0", "--json", "--data", str(folder / "data")],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert up.stdout is not None
        found = re.search(r"[\w.]+:\d+", up.stdout.readline())
        if found is None:
            raise ReleaseError("the installed 'barnabas up' did not say where its broker is")
        servers = ["--bootstrap-server", found.group()]
        _run([command, "topic", "create", "released", *servers], folder)
        _run([command, "produce", "released", *servers], folder, _ONE_RECORD + "\n")
        consumed = _run(
            [command, "consume", "released", "--from", "earliest", "--max", "1", "--timeout", "30", *servers], folder
        )
        if _ONE_RECORD not in consumed:
            raise ReleaseError(f"the installed 'barnabas consume' printed {consumed!r}")
    finally:
        up.terminate()
        up.wait(_TRY_SECONDS_MAX)


def check(keep: Path | None = None) -> None:
    """Builds and tries; the archives are copied to `keep`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archives = build(folder / "dist")
        print(f"built {', '.join(archive.name for archive in archives)}", flush=True)
        check_installed(archives[1], folder)
        print("the wheel, installed alone, takes a record and gives it back", flush=True)
        if keep is not None:
            keep.mkdir(exist_ok=True)
            for archive in archives:
                shutil.copy(archive, keep)


def release(version: str) -> None:
    """Version, changelog, archives, commit, tag."""
    if not _VERSION.fullmatch(version):
        raise ReleaseError(f"{version!r} is no version such as 0.1.0 or 0.2.0rc1")
    if _run(["git", "status", "--porcelain"]).strip():
        raise ReleaseError("there are changes that are not committed: commit them, or put them aside")
    if _run(["git", "tag", "--list", f"v{version}"]).strip():
        raise ReleaseError(f"the tag v{version} is there already")
    changelog = ROOT / "CHANGELOG.md"
    texts = {changelog: dated(changelog.read_text("utf-8"), version, dt.datetime.now(dt.UTC).date())}
    texts |= {path: with_version(path.read_text("utf-8"), version) for path in (ROOT / name for name in _VERSION_FILES)}
    before = {path: path.read_text("utf-8") for path in texts}
    for path, text in texts.items():
        path.write_text(text, "utf-8")
    try:
        check(ROOT / "dist")
    except BaseException:
        for path, text in before.items():
            path.write_text(text, "utf-8")
        raise
    _run(["git", "commit", "--quiet", "-m", f"Release {version}", *(str(path) for path in texts)])
    _run(["git", "tag", "--annotate", f"v{version}", "-m", f"Barnabas {version}"])
    print(f"committed and tagged v{version}; the archives are in dist: upload them, and push the tag, when you want to")


def _run(command: list[str], folder: Path = ROOT, said: str | None = None) -> str:
    try:
        ended = subprocess.run(
            command, cwd=folder, input=said, capture_output=True, text=True, timeout=600, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ReleaseError(f"{' '.join(command)} did not end within ten minutes") from error
    if ended.returncode:
        raise ReleaseError(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", help="of the release; or 'check', to build and try only")
    what = parser.parse_args().version
    try:
        if what == "check":
            check()
        else:
            release(what)
    except ReleaseError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
