"""Maven Central by the Ivy that is inside pyspark: jars, with all that they need, so that only Python is installed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from barnabas.pipelines.definition import PipelineError, RunStopped
from barnabas.pipelines.java import Java
from barnabas.pipelines.spark_extra import pyspark_directory

FETCH_SECONDS_MAX = 600.0
LOG_NAME = "ivy.log"
# Ivy's own defaults name the repository: Maven Central, and nothing beside it, since each more costs time.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""
_REASON_CHARACTERS_MAX = 200
_POLL_SECONDS = 0.05
_LOCK_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Module:
    """What a repository has under these three names."""

    organisation: str
    name: str
    version: str


class IvyError(Exception):
    """Ivy did not bring the jars; the message is the reason in its own words, in one line."""


def retrieve(
    java: Java,
    modules: Sequence[Module],
    work: Path,
    cache: Path,
    *,
    without_organisations: Sequence[str] = (),
    without_modules: Sequence[str] = (),
    stop: threading.Event | None = None,
) -> Path:
    """The directory, below `work`, of the jars of the modules and of what they need, but for what is left out.

    `work` exists, and gets Ivy's output as `ivy.log`; `cache` is Ivy's own, in which an interrupted fetch goes on.
    Raises IvyError, also after 10 minutes, PipelineError for a pyspark without Ivy, RunStopped once `stop` is set.
    """
    settings, description, arrived = work / "settings.xml", work / "ivy.xml", work / "jars"
    settings.write_text(_SETTINGS, encoding="utf-8")
    wanted = [
        f'<dependency org="{module.organisation}" name="{module.name}" rev="{module.version}" conf="default"/>'
        for module in modules
    ]
    wanted += [f'<exclude org="{organisation}"/>' for organisation in without_organisations]
    wanted += [f'<exclude module="{module}"/>' for module in without_modules]
    description.write_text(
        '<ivy-module version="2.0"><info organisation="barnabas" module="wanted"/>'
        f"<dependencies>{''.join(wanted)}</dependencies></ivy-module>",
        encoding="utf-8",
    )
    command: list[str | Path] = [
        java.executable,
        *java.trust_options,
        *_proxy_options(),
        # It mostly waits: code compiled better would cost twice what all else does.
        *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
        *("-jar", _ivy_jar()),
        *("-settings", settings),
        *("-cache", cache),
        *("-ivy", description),
        *("-types", "jar", "bundle"),
        *("-confs", "default"),
        *("-retrieve", f"{arrived}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    log = work / LOG_NAME
    status = _run(command, log, stop)
    if status is None:
        raise IvyError(f"it took longer than {FETCH_SECONDS_MAX:.0f} s")
    if status:
        raise IvyError(_reason(log) or f"Ivy ended with status {status}")
    return arrived


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None], stop: threading.Event | None = None) -> Iterator[None]:
    """Holds the lock that is the file `path`, so that one process fetches and the others wait for it.

    Calls `waiting` where another has it. Raises RunStopped once `stop` is set, OSError when there can be no such file.
    """
    with path.open("w") as lock:
        has_waited = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not has_waited:
                    waiting()
                has_waited = True
                _pause(_LOCK_POLL_SECONDS, stop)
        yield


def _run(command: Sequence[str | Path], log: Path, stop: threading.Event | None) -> int | None:
    """The exit status; None when it took too long. The process is gone afterwards, whatever happens."""
    deadline = time.monotonic() + FETCH_SECONDS_MAX
    with (
        log.open("wb") as output,
        subprocess.Popen(  # noqa: S603  # Java, by its path
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            while (status := process.poll()) is None and time.monotonic() < deadline:
                _pause(_POLL_SECONDS, stop)
            return status
        finally:
            process.kill()


def _pause(seconds: float, stop: threading.Event | None) -> None:
    """Raises RunStopped once `stop` is set."""
    if stop is None:
        time.sleep(seconds)
    elif stop.wait(seconds):
        raise RunStopped


def _reason(log: Path) -> str | None:
    """The line of Ivy's output that tells most: the first about the network, else the first that reports trouble."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    for telling in ("Exception", "timed out", "UNRESOLVED DEPENDENCY", "not found", "ERROR"):
        for line in lines:
            if telling in line:
                return line[:_REASON_CHARACTERS_MAX]
    return None


def _proxy_options() -> tuple[str, ...]:
    """The proxies that the environment names, as Java wants to be told of them."""
    options: list[str] = []
    for scheme in ("http", "https"):
        address = os.environ.get(f"{scheme}_proxy") or os.environ.get(f"{scheme.upper()}_PROXY")
        if address:
            proxy = urllib.parse.urlsplit(address if "//" in address else f"//{address}")
            if proxy.hostname:
                options.append(f"-D{scheme}.proxyHost={proxy.hostname}")
                options.append(f"-D{scheme}.proxyPort={proxy.port or (443 if proxy.scheme == 'https' else 80)}")
    without = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    if options and without:
        hosts = [name.strip() for name in without.split(",") if name.strip()]
        options.append("-Dhttp.nonProxyHosts=" + "|".join(f"*{name}" if name[0] == "." else name for name in hosts))
    return tuple(options)


def _ivy_jar() -> Path:
    found = sorted((pyspark_directory() / "jars").glob("ivy-*.jar"))
    if not found:
        raise PipelineError(
            "the installed pyspark is incomplete (it has no Ivy): pip install --force-reinstall pyspark"
        )
    return found[-1]
