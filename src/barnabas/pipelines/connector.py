"""Spark's own connector for Kafka: jars at exactly the installed Spark's version, fetched once into a cache.

The Ivy that pyspark brings fetches them from Maven Central, so that nothing but Python has to be installed. A machine
without network gives a directory of jars instead.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

from barnabas.pipelines.definition import PipelineError, PipelineMissingError
from barnabas.pipelines.java import Java

_SCALA_VERSION = "2.13"
_CONNECTOR = f"spark-sql-kafka-0-10_{_SCALA_VERSION}"
_TOKEN_PROVIDER = f"spark-token-provider-kafka-0-10_{_SCALA_VERSION}"
# Whatever Spark's version asks for of these two is what Ivy brings; in a directory any version will do.
_LIBRARIES = ("kafka-clients", "commons-pool2")
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
# Ivy's own defaults name the repository: Maven Central, and nothing beside it, since each more costs time.
_IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""
_FETCH_SECONDS_MAX = 600
_MANIFEST = "manifest.json"


def pyspark_version() -> str:
    """The installed pyspark's version. Raises PipelineError, with the remedy, where there is none."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError as error:
        raise PipelineError("pipelines run on Spark, which is not installed: pip install 'barnabas[spark]'") from error


def pyspark_directory() -> Path:
    """Where pyspark is installed: its `jars` are Spark's. Raises PipelineError, with the remedy."""
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise PipelineError("pipelines run on Spark, which is not installed: pip install 'barnabas[spark]'")
    return Path(package.origin).parent


def cache_directory() -> Path:
    """The connector's place in the user's cache (XDG_CACHE_HOME, else ~/.cache), whether it is there or not."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification has it that a relative path is as if none were set.
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "barnabas" / f"spark-{pyspark_version()}-kafka-connector"


def resolve_connector(java: Java, jars_directory: Path | None, say: Callable[[str], None]) -> tuple[Path, ...]:
    """The jars that Spark needs beside its own to speak to Kafka, from `jars_directory` or else from the cache.

    Fills the cache first when it is empty or damaged, and tells `say` so. Safe in several processes at once: one
    fetches and the others wait. Raises PipelineError, with the remedy, when the jars cannot be had.
    """
    if jars_directory is not None:
        return _jars_of(jars_directory)
    directory = cache_directory()
    jars = _cached(directory)
    if jars is None:
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            with _locked(directory.with_name(f"{directory.name}.lock")):
                jars = _cached(directory)
                if jars is None:
                    _fetch(java, directory, say)
                    jars = _cached(directory)
        except OSError as error:
            raise PipelineError(
                f"Spark's Kafka connector cannot be kept in {directory}: {error.strerror or error}; set XDG_CACHE_HOME "
                "to a directory that can be written, or give the jars by --jars DIR"
            ) from error
    if jars is None:
        raise PipelineError(f"Spark's Kafka connector in {directory} is damaged as soon as it is fetched; is it full?")
    return jars


def _jars_of(directory: Path) -> tuple[Path, ...]:
    """The needed jars of a user's directory. Raises PipelineMissingError, which names those that are not there."""
    version = pyspark_version()
    if not directory.is_dir():
        raise PipelineMissingError(f"--jars {directory} is not a directory")
    jars: list[Path] = []
    missing: list[str] = []
    for name in (f"{_CONNECTOR}-{version}.jar", f"{_TOKEN_PROVIDER}-{version}.jar"):
        (jars.append(directory / name) if (directory / name).is_file() else missing.append(name))
    for library in _LIBRARIES:
        found = sorted(directory.glob(f"{library}-[0-9]*.jar"))
        (jars.append(found[-1]) if found else missing.append(f"{library}-VERSION.jar"))
    if missing:
        raise PipelineMissingError(
            f"--jars {directory} lacks {', '.join(missing)}; on a machine with network, {cache_directory()} has all of "
            "them after one run"
        )
    return tuple(jars)


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


def _fetch(java: Java, directory: Path, say: Callable[[str], None]) -> None:
    """Makes the cache anew, by one rename, so that it is there whole or not at all."""
    say(f"fetching Spark's Kafka connector {pyspark_version()} into {directory} (once, 10 MB) ...")
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix="fetching-") as work:
        arrived = _run_ivy(java, Path(work))
        names = sorted(jar.name for jar in arrived.glob("*.jar"))
        wanted = (_CONNECTOR, _TOKEN_PROVIDER, *_LIBRARIES)
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


def _run_ivy(java: Java, work: Path) -> Path:
    """Runs Ivy in the directory `work`; returns where the jars are. Raises PipelineError with the first reason."""
    settings, module, arrived, log = work / "settings.xml", work / "ivy.xml", work / "jars", work / "ivy.log"
    settings.write_text(_IVY_SETTINGS, encoding="utf-8")
    excluded = "".join(f'<exclude org="{organisation}"/>' for organisation in _ORGANISATIONS_AT_HAND)
    module.write_text(
        '<ivy-module version="2.0"><info organisation="barnabas" module="kafka-connector"/><dependencies>'
        f'<dependency org="org.apache.spark" name="{_CONNECTOR}" rev="{pyspark_version()}" conf="default"/>'
        f'{excluded}<exclude module="spark-tags_{_SCALA_VERSION}"/></dependencies></ivy-module>',
        encoding="utf-8",
    )
    command: list[str | Path] = [
        java.executable,
        *java.trust_options,
        *_proxy_options(),
        *("-jar", _ivy_jar()),
        *("-settings", settings),
        *("-cache", work / "cache"),
        *("-ivy", module),
        *("-types", "jar", "bundle"),
        *("-confs", "default"),
        *("-retrieve", f"{arrived}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    with log.open("wb") as output:
        try:
            status = subprocess.run(  # noqa: S603  # Java, by its path
                command, stdout=output, stderr=subprocess.STDOUT, timeout=_FETCH_SECONDS_MAX, check=False
            ).returncode
            reason = _reason(log) or f"Ivy ended with status {status}"
        except subprocess.TimeoutExpired:
            status, reason = 1, f"it took longer than {_FETCH_SECONDS_MAX} s"
    if status != 0:
        raise PipelineError(
            f"Spark's Kafka connector {pyspark_version()} could not be fetched from Maven Central ({reason}); look at "
            "the network and at HTTPS_PROXY and try again, or copy the jars from a machine that has them and give "
            "their directory by --jars DIR"
        )
    return arrived


def _reason(log: Path) -> str | None:
    """The line of Ivy's output that tells most: the first about the network, else the first that reports trouble."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    for telling in ("Exception", "timed out", "UNRESOLVED DEPENDENCY", "not found", "ERROR"):
        for line in lines:
            if telling in line:
                return line[:200]
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


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
