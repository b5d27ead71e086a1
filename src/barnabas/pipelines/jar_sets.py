"""Jars that Spark needs beside its own, a set for each purpose: fetched once into a cache, looked at each time.

The Ivy that pyspark brings fetches them, so that nothing but Python has to be installed. A machine without network
gives a directory of jars instead.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from barnabas.pipelines.definition import PipelineError, PipelineMissingError
from barnabas.pipelines.ivy import IvyError, Module, locked, retrieve
from barnabas.pipelines.java import Java
from barnabas.pipelines.spark_extra import pyspark_version

SCALA_VERSION: Final = "2.13"
"""That of pyspark's own jars."""

_MANIFEST: Final = "manifest.json"
_WORK_PREFIX: Final = "fetching-"


@dataclass(frozen=True, slots=True)
class JarSet:
    """What is fetched together: `modules`, and what they need but for organisations and modules that are at hand.

    `title` is how messages call it, `name` that of its directory in the cache, `size_mb` 0 if nobody knows. `jars` are
    (artifact, version) that it cannot do without, a version of digits alone standing for any with this major.
    """

    title: str
    name: str
    size_mb: int
    modules: tuple[Module, ...]
    jars: tuple[tuple[str, str], ...]
    without_organisations: tuple[str, ...] = ()
    without_modules: tuple[str, ...] = ()

    @property
    def coordinates(self) -> str:
        """The modules as Maven names them."""
        return ", ".join(f"{each.organisation}:{each.name}:{each.version}" for each in self.modules)


def cache_root() -> Path:
    """Where sets are kept: in XDG_CACHE_HOME, else ~/.cache. Raises PipelineError for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # The specification has it that a relative path is as if none were set.
        root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    except RuntimeError as error:
        raise PipelineError(
            "Spark's Kafka connector, and other jars, cannot be stored, since this user has no home directory: set "
            "XDG_CACHE_HOME to a directory that can be written"
        ) from error
    return root / "barnabas"


def cached_jars(wanted: JarSet) -> tuple[Path, ...]:
    """The jars in the cache; none where they were never fetched, or are damaged. Fetches nothing."""
    try:
        return _cached(cache_root() / wanted.name) or ()
    except PipelineError:
        return ()


def resolve_jars(
    wanted: JarSet,
    java: Java,
    jars_directory: Path | None,
    say: Callable[[str], None],
    stop: threading.Event | None = None,
) -> tuple[Path, ...]:
    """The jars of a set, from `jars_directory` or else from the cache.

    Fills the cache first when it is empty or damaged, and tells `say` so. Safe in several processes at once: one
    fetches and the others wait. Raises PipelineError, with the remedy, when the jars cannot be had, and RunStopped when
    `stop` is set before they are.
    """
    if jars_directory is not None:
        return _jars_of(wanted, jars_directory)
    directory = cache_root() / wanted.name
    jars = _cached(directory)
    if jars is None:
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            lock = directory.with_name(f"{directory.name}.lock")
            with locked(lock, lambda: say(f"another process fetches {wanted.title} into {directory} ..."), stop):
                jars = _cached(directory)
                if jars is None:
                    _fetch(wanted, java, directory, say, stop)
                    jars = _cached(directory)
        except OSError as error:
            raise PipelineError(
                f"{wanted.title} cannot be stored in {directory}: {error.strerror or error}; set XDG_CACHE_HOME to a "
                "directory that can be written, or give the jars by --jars DIR"
            ) from error
    if jars is None:
        raise PipelineError(f"{wanted.title} in {directory} is damaged right after the download; is the disk full?")
    return jars


def _jars_of(wanted: JarSet, directory: Path) -> tuple[Path, ...]:
    """The needed jars of a user's directory, each whole.

    Raises PipelineMissingError, which names those that are not there, PipelineError for one that is damaged.
    """
    if not directory.is_dir():
        raise PipelineMissingError(f"--jars {directory} is not a directory")
    jars: list[Path] = []
    missing: list[str] = []
    for name, found, others in _candidates(wanted, directory):
        if found is not None:
            jars.append(found)
        else:
            missing.append(f"{name} (it has {', '.join(others)})" if others else name)
    if missing:
        raise PipelineMissingError(
            f"--jars {directory} lacks {', '.join(missing)}; on a machine with network, {cache_root() / wanted.name} "
            "has all of them after one run"
        )
    for jar in jars:
        fault = _fault_of(jar)
        if fault is not None:
            raise PipelineError(f"--jars {directory}: {jar.name} is damaged ({fault}); copy it again")
    return tuple(jars)


def _candidates(wanted: JarSet, directory: Path) -> list[tuple[str, Path | None, list[str]]]:
    """For each needed jar its name, where it is, and what the directory has of other versions."""
    found: list[tuple[str, Path | None, list[str]]] = []
    for artifact, version in wanted.jars:
        if version.isdecimal():
            versions = sorted(
                (_version_of(jar, artifact), jar.name) for jar in directory.glob(f"{artifact}-[0-9]*.jar")
            )
            fitting = [directory / name for numbers, name in versions if numbers[:1] == (int(version),)]
            others = [name for _, name in versions]
            found.append((f"{artifact}-{version}.x.jar", fitting[-1] if fitting else None, others))
        else:
            name = f"{artifact}-{version}.jar"
            pattern = f"{artifact.partition('_')[0]}_*.jar" if "_" in artifact else f"{artifact}-[0-9]*.jar"
            others = sorted(jar.name for jar in directory.glob(pattern) if jar.name != name)
            found.append((name, directory / name if (directory / name).is_file() else None, others))
    return found


def _version_of(jar: Path, library: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", jar.name.removeprefix(library)))


def _fault_of(jar: Path) -> str | None:
    """Why a jar cannot be what was copied: Java itself would take it for one that is empty, and say so much later."""
    try:
        with zipfile.ZipFile(jar) as content:
            broken = content.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)
    return None if broken is None else f"its checksum of {broken} is wrong"


def _cached(directory: Path) -> tuple[Path, ...] | None:
    """The cached jars when all are there as they were fetched, by length and SHA-256; None when any is not."""
    try:
        manifest = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))
        jars = tuple(directory / name for name in sorted(manifest))
        if not jars or any(_digest(jar) != manifest[jar.name] for jar in jars):
            return None
    except (OSError, ValueError, TypeError):
        return None
    return jars


def _digest(jar: Path) -> str:
    with jar.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _fetch(
    wanted: JarSet, java: Java, directory: Path, say: Callable[[str], None], stop: threading.Event | None
) -> None:
    """Rebuilds the cache by one rename, so that it is complete or missing. Only one process runs this for a set."""
    size = f", {wanted.size_mb} MB" if wanted.size_mb else ""
    say(f"fetching {wanted.title} into {directory} (once{size}) ...")
    prefix = f"{_WORK_PREFIX}{wanted.name}-"
    for left in directory.parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)  # of one that was killed
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=prefix) as work:
        arrived = _retrieved(wanted, java, Path(work), stop)
        names = sorted(jar.name for jar in arrived.glob("*.jar"))
        missing = _missing(names, [artifact for artifact, _ in wanted.jars])
        if missing:
            raise PipelineError(
                f"Maven Central has no complete {wanted.title} for Spark {pyspark_version()} ({', '.join(missing)} "
                "did not come); install the version that barnabas asks for: pip install 'barnabas[spark]'"
            )
        manifest = {name: _digest(arrived / name) for name in names}
        (arrived / _MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")
        shutil.rmtree(directory, ignore_errors=True)
        arrived.rename(directory)


def _missing(names: Sequence[str], artifacts: Sequence[str]) -> list[str]:
    return [artifact for artifact in artifacts if not any(name.startswith(f"{artifact}-") for name in names)]


def _retrieved(wanted: JarSet, java: Java, work: Path, stop: threading.Event | None) -> Path:
    try:
        return retrieve(
            java,
            wanted.modules,
            work,
            work / "cache",
            without_organisations=wanted.without_organisations,
            without_modules=wanted.without_modules,
            stop=stop,
        )
    except IvyError as error:
        raise PipelineError(
            f"{wanted.title} ({wanted.coordinates}) could not be fetched from Maven Central ({error}); check the "
            "network and HTTPS_PROXY and try again, or copy the jars from a machine that has them and give their "
            "directory by --jars DIR"
        ) from error
