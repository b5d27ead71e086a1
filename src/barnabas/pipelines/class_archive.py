"""Spark's classes as Java maps them into memory, read and checked once for all starts (AppCDS, JEP 310 and 350).

Nearly half of the processor time until a first query goes into some 15,000 classes, which Java finds in 280 jars,
reads, and verifies, each time. An archive is of one Java and one list of jars: its name has both, and Java itself looks
at the jars and at the archive's checksums before it uses it; what does not fit is not used, and Spark starts as if
there were none.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import hashlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from barnabas.pipelines.connector import cache_directory
from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.java import Java
from barnabas.pipelines.spark_extra import pyspark_directory

VARIABLE: Final = "BARNABAS_SPARK_ARCHIVE"
"""`off`: no archive is used; `use`: one that is there is used, and none made. Where CI is set, it is `use`."""

CLASSES_NAME: Final = "classes"
"""The file, beside the log, in which a session without an archive notes its classes."""

MAKE_SECONDS_MAX: Final = 600.0
_ARCHIVES_MAX: Final = 3
_CLASSES_MIN: Final = 5_000
_NICENESS: Final = 5
_POLL_SECONDS: Final = 0.1
_ARGUMENT_BYTES_MAX: Final = 120_000


class ArchiveUse(enum.Enum):
    """What the environment says of archives."""

    OFF = "off"
    USE = "use"
    MAKE = "make"


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive of a Java and a class path, whether it is there or not."""

    path: Path
    class_path: str
    java: Java

    def options(self, classes: Path | None) -> tuple[str, ...]:
        """For Java: to use the archive, or, where there is none, to note classes in a file, if one is given."""
        if self.path.is_file():
            return ("-Xshare:auto", f"-XX:SharedArchiveFile={self.path}", "-XX:+VerifySharedSpaces")
        return () if classes is None else (f"-XX:DumpLoadedClassList={classes}",)


def archive_use(environment: Mapping[str, str] | None = None) -> ArchiveUse:
    """What the environment says; what it says wrongly is no reason to end a run."""
    variables = os.environ if environment is None else environment
    said = variables.get(VARIABLE, "").lower()
    if said in {use.value for use in ArchiveUse}:
        return ArchiveUse(said)
    return ArchiveUse.USE if variables.get("CI", "").lower() not in {"", "0", "false"} else ArchiveUse.MAKE


def class_path_of(jars: Sequence[Path]) -> str:
    """Spark's own jars, in an order that does not change, and the others behind them."""
    own = sorted(str(jar) for jar in (pyspark_directory() / "jars").glob("*.jar"))
    return os.pathsep.join([*own, *(str(jar.resolve()) for jar in jars)])


def archive_of(java: Java, jars: Sequence[Path]) -> ClassArchive | None:
    """The archive for a session with these jars; None where none can or shall be used."""
    class_path = class_path_of(jars)
    if archive_use() is ArchiveUse.OFF or len(class_path) > _ARGUMENT_BYTES_MAX:
        return None
    try:
        marks = [_mark(java.executable.resolve()), *(_mark(Path(jar)) for jar in class_path.split(os.pathsep))]
        cache = cache_directory()
    except (OSError, PipelineError):
        return None
    key = hashlib.sha256("\n".join(marks).encode()).hexdigest()[:16]
    return ClassArchive(cache.with_name(f"{_prefix(cache)}{key}.jsa"), class_path, java)


def make_archive(archive: ClassArchive | None, classes: Path, say: Callable[[str], None]) -> bool:
    """Makes the archive of the classes that a session has noted; whether it is there afterwards.

    Takes a minute of one core. Does nothing where it is there already, where another process makes it,
    and where the environment says so. Whatever prevents it is said, and nothing is raised, since what the user wanted
    is done; Ctrl-C leaves it for another time.
    """
    if archive is None or archive_use() is not ArchiveUse.MAKE or not _is_of_a_run(classes):
        return archive is not None and archive.path.is_file()
    made = archive.path.with_suffix(".being-made")
    try:
        with _lock(archive.path.with_suffix(".lock")) as is_mine:
            if is_mine and not archive.path.is_file():
                say("storing Spark's classes, to start it sooner from now on (once, a minute; Ctrl-C leaves it) ...")
                _dump(archive, classes, made)
                made.rename(archive.path)
                _remove_old(archive.path)
    except KeyboardInterrupt:
        say("left for another time")
    except (OSError, subprocess.SubprocessError) as error:
        say(f"warning: Spark's classes cannot be stored in {archive.path.parent} ({error}); {VARIABLE}=use leaves it")
    finally:
        for left in (made, classes):
            with contextlib.suppress(OSError):
                left.unlink(missing_ok=True)
    return archive.path.is_file()


def _dump(archive: ClassArchive, classes: Path, made: Path) -> None:
    """Runs Java until it has written the archive. Raises OSError, SubprocessError."""
    command = [
        *("nice", "-n", str(_NICENESS)),
        str(archive.java.executable),
        "-Xshare:dump",
        f"-XX:SharedClassListFile={classes}",
        f"-XX:SharedArchiveFile={made}",
        # The program is over before code compiled better would gain anything.
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        *("-cp", archive.class_path),
    ]
    with subprocess.Popen(  # noqa: S603  # Java, by its path
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=made.parent,
        start_new_session=True,
    ) as process:
        try:
            deadline = time.monotonic() + MAKE_SECONDS_MAX
            while process.poll() is None:
                if time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired(command[3], MAKE_SECONDS_MAX)
                time.sleep(_POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
    if process.returncode or not made.is_file():
        raise OSError(f"Java ended with status {process.returncode}")


def _is_of_a_run(classes: Path) -> bool:
    """Whether the file has the classes of a session that has come far enough."""
    try:
        with classes.open("rb") as lines:
            return sum(1 for _ in lines) >= _CLASSES_MIN
    except OSError:
        return False


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Holds the lock that is the file; False where another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _remove_old(newest: Path) -> None:
    """Leaves the newest few archives: each has some 170 MB. A Java that has mapped one keeps it."""
    found = sorted(newest.parent.glob(f"spark-*{_MIDDLE}*.jsa"), key=lambda each: each.stat().st_mtime, reverse=True)
    for old in found[_ARCHIVES_MAX:]:
        old.unlink(missing_ok=True)
        old.with_suffix(".lock").unlink(missing_ok=True)


_MIDDLE: Final = "-classes-"


def _prefix(cache: Path) -> str:
    return cache.name.removesuffix("-kafka-connector") + _MIDDLE


def _mark(path: Path) -> str:
    """What changes when the file does."""
    found = path.stat()
    return f"{path} {found.st_size} {found.st_mtime_ns}"
