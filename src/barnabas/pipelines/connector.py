"""Spark's own connector for Kafka: jars at exactly the installed Spark's version, fetched once into a cache.

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
from collections.abc import Callable
from pathlib import Path

from barnabas.pipelines.definition import PipelineError, PipelineMissingError
from barnabas.pipelines.ivy import IvyError, Module, locked, retrieve
from barnabas.pipelines.java import Java
from barnabas.pipelines.spark_extra import pyspark_version

_SCALA_VERSION = "2.13"
_CONNECTOR = f"spark-sql-kafka-0-10_{_SCALA_VERSION}"
_TOKEN_PROVIDER = f"spark-token-provider-kafka-0-10_{_SCALA_VERSION}"
# Which versions Spark's connector asks for is what Ivy knows; in a directory any of these major versions will do, which
# are those that it is compiled against.
_LIBRARY_MAJOR_VERSIONS = {"kafka-clients": 3, "commons-pool2": 2}
# pyspark has the jars of these organisations already, at the versions that the connector was built with.
_ORGANISATIONS_AT_HAND = (
    "com.github.luben",
    "com.google.code.findbugs",
    "org.apache.hadoop",
    "org.lz4",
    "org.scala-lang",
    "org.scala-lang.modules",
    "org.slf4j",
    "org.xerial.snappy",
)
_MANIFEST = "manifest.json"
_WORK_PREFIX = "fetching-"


def cache_directory() -> Path:
    """The connector's place in the user's cache (XDG_CACHE_HOME, else ~/.cache), whether it is there or not.

    Raises PipelineError for a user without a home.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # The specification has it that a relative path is as if none were set.
        root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    except RuntimeError as error:
        raise PipelineError(
            "Spark's Kafka connector cannot be stored, since this user has no home directory: set XDG_CACHE_HOME to a "
            "directory that can be written"
        ) from error
    return root / "barnabas" / f"spark-{pyspark_version()}-kafka-connector"


def cached_connector() -> tuple[Path, ...]:
    """The jars in the cache; none where they were never fetched, or are damaged. Fetches nothing."""
    try:
        return _cached(cache_directory()) or ()
    except PipelineError:
        return ()


def resolve_connector(
    java: Java, jars_directory: Path | None, say: Callable[[str], None], stop: threading.Event | None = None
) -> tuple[Path, ...]:
    """The jars that Spark needs beside its own to speak to Kafka, from `jars_directory` or else from the cache.

    Fills the cache first when it is empty or damaged, and tells `say` so. Safe in several processes at once: one
    fetches and the others wait. Raises PipelineError, with the remedy, when the jars cannot be had, and RunStopped when
    `stop` is set before they are.
    """
    if jars_directory is not None:
        return _jars_of(jars_directory)
    directory = cache_directory()
    jars = _cached(directory)
    if jars is None:
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            lock = directory.with_name(f"{directory.name}.lock")
            with locked(
                lock, lambda: say(f"another process fetches Spark's Kafka connector into {directory} ..."), stop
            ):
                jars = _cached(directory)
                if jars is None:
                    _fetch(java, directory, say, stop)
                    jars = _cached(directory)
        except OSError as error:
            raise PipelineError(
                f"Spark's Kafka connector cannot be stored in {directory}: {error.strerror or error}; set "
                "XDG_CACHE_HOME to a directory that can be written, or give the jars by --jars DIR"
            ) from error
    if jars is None:
        raise PipelineError(
            f"Spark's Kafka connector in {directory} is damaged right after the download; is the disk full?"
        )
    return jars


def _jars_of(directory: Path) -> tuple[Path, ...]:
    """The needed jars of a user's directory, each whole.

    Raises PipelineMissingError, which names those that are not there, PipelineError for one that is damaged.
    """
    if not directory.is_dir():
        raise PipelineMissingError(f"--jars {directory} is not a directory")
    jars: list[Path] = []
    missing: list[str] = []
    for name, wanted, others in _candidates(directory):
        if wanted is not None:
            jars.append(wanted)
        else:
            missing.append(f"{name} (it has {', '.join(others)})" if others else name)
    if missing:
        raise PipelineMissingError(
            f"--jars {directory} lacks {', '.join(missing)}; on a machine with network, {cache_directory()} has all of "
            "them after one run"
        )
    for jar in jars:
        fault = _fault_of(jar)
        if fault is not None:
            raise PipelineError(f"--jars {directory}: {jar.name} is damaged ({fault}); copy it again")
    return tuple(jars)


def _candidates(directory: Path) -> list[tuple[str, Path | None, list[str]]]:
    """For each needed jar its name, where it is, and what the directory has of other versions."""
    found: list[tuple[str, Path | None, list[str]]] = []
    for artifact in (_CONNECTOR, _TOKEN_PROVIDER):
        name = f"{artifact}-{pyspark_version()}.jar"
        others = sorted(jar.name for jar in directory.glob(f"{artifact.partition('_')[0]}_*.jar") if jar.name != name)
        found.append((name, directory / name if (directory / name).is_file() else None, others))
    for library, major in _LIBRARY_MAJOR_VERSIONS.items():
        versions = sorted((_version_of(jar, library), jar.name) for jar in directory.glob(f"{library}-[0-9]*.jar"))
        fitting = [directory / name for version, name in versions if version[:1] == (major,)]
        found.append((f"{library}-{major}.x.jar", fitting[-1] if fitting else None, [name for _, name in versions]))
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


def _fetch(java: Java, directory: Path, say: Callable[[str], None], stop: threading.Event | None) -> None:
    """Rebuilds the cache by one rename, so that it is complete or missing. Only one process runs this."""
    say(f"fetching Spark's Kafka connector {pyspark_version()} into {directory} (once, 10 MB) ...")
    for left in directory.parent.glob(f"{_WORK_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)  # of one that was killed
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=_WORK_PREFIX) as work:
        arrived = _retrieved(java, Path(work), stop)
        names = sorted(jar.name for jar in arrived.glob("*.jar"))
        wanted = (_CONNECTOR, _TOKEN_PROVIDER, *_LIBRARY_MAJOR_VERSIONS)
        missing = [name for name in wanted if not any(jar.startswith(f"{name}-") for jar in names)]
        if missing:
            raise PipelineError(
                f"Maven Central has no complete Kafka connector for Spark {pyspark_version()} ({', '.join(missing)} "
                "did not come); install the version that barnabas asks for: pip install 'barnabas[spark]'"
            )
        manifest = {name: _digest(arrived / name) for name in names}
        (arrived / _MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")
        shutil.rmtree(directory, ignore_errors=True)
        arrived.rename(directory)


def _retrieved(java: Java, work: Path, stop: threading.Event | None) -> Path:
    try:
        return retrieve(
            java,
            [Module("org.apache.spark", _CONNECTOR, pyspark_version())],
            work,
            work / "cache",
            without_organisations=_ORGANISATIONS_AT_HAND,
            without_modules=[f"spark-tags_{_SCALA_VERSION}"],
            stop=stop,
        )
    except IvyError as error:
        raise PipelineError(
            f"Spark's Kafka connector {pyspark_version()} could not be fetched from Maven Central ({error}); check "
            "the network and HTTPS_PROXY and try again, or copy the jars from a machine that has them and give "
            "their directory by --jars DIR"
        ) from error
