"""The connector's jars: from a directory that is looked at, or from a cache that mends itself."""

from __future__ import annotations

import os
import re
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from barnabas.pipelines import connector, ivy
from barnabas.pipelines.definition import NamedJar, PipelineError, PipelineMissingError, RunStopped
from barnabas.pipelines.java import Java
from barnabas.pipelines.named_jars import jar_set_of
from barnabas.pipelines.spark_extra import pyspark_version
from tests.support.waiting import wait_until
from tests.unit.pipelines.pipeline_files import read_flights

SPARK = pyspark_version()
NAMES = (
    f"spark-sql-kafka-0-10_2.13-{SPARK}.jar",
    f"spark-token-provider-kafka-0-10_2.13-{SPARK}.jar",
    "kafka-clients-3.9.0.jar",
    "commons-pool2-2.12.0.jar",
)
# A Java that does as Ivy: it counts how often it was asked, and leaves the jars where it was told to.
FAKE_IVY = """#!/bin/sh
echo asked >> "$ASKED"
for argument; do last=$argument; done
directory=$(dirname "$last")
mkdir -p "$directory"
for name in $ARRIVING; do echo "content of $name" > "$directory/$name"; done
[ -n "$SAYS" ] && echo "$SAYS"
exit ${STATUS:-0}
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    program = tmp_path / "java"
    program.write_text(FAKE_IVY)
    program.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    monkeypatch.setenv("ARRIVING", " ".join(NAMES))
    for name in ("SAYS", "STATUS"):
        monkeypatch.delenv(name, raising=False)
    return Java(program, 17, is_from_package=False)


def asked(directory: Path) -> int:
    return len((directory / "asked").read_text().splitlines())


def resolve(java: Java, jars_directory: Path | None = None) -> tuple[Path, ...]:
    return connector.resolve_connector(java, jars_directory, lambda _line: None)


def test_fetches_once_and_says_so(java: Java, tmp_path: Path) -> None:
    said: list[str] = []
    first = connector.resolve_connector(java, None, said.append)
    assert sorted(jar.name for jar in first) == sorted(NAMES)
    assert all(jar.is_file() and jar.is_relative_to(tmp_path / "cache" / "barnabas") for jar in first)
    assert connector.resolve_connector(java, None, said.append) == first
    assert asked(tmp_path) == 1
    assert len(said) == 1
    assert SPARK in said[0]


@pytest.mark.parametrize("damage", ["truncated", "removed", "no manifest"])
def test_makes_a_damaged_cache_anew(java: Java, tmp_path: Path, damage: str) -> None:
    first = resolve(java)
    if damage == "truncated":
        first[0].write_bytes(first[0].read_bytes()[:5])
    elif damage == "removed":
        first[0].unlink()
    else:
        (first[0].parent / "manifest.json").unlink()
    again = resolve(java)
    assert again == first
    assert all(jar.read_text() == f"content of {jar.name}\n" for jar in again)
    assert asked(tmp_path) == 2
    assert [entry.name for entry in first[0].parent.parent.iterdir() if entry.name.startswith("fetching-")] == []


def test_one_of_many_fetches(java: Java, tmp_path: Path) -> None:
    # The lock is of the opened file, so that threads stand for processes.
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: resolve(java), range(4)))
    assert len(set(found)) == 1
    assert asked(tmp_path) == 1


def test_says_why_it_cannot_be_fetched(java: Java, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SAYS", "  java.net.UnknownHostException: no such host")
    monkeypatch.setenv("STATUS", "1")
    with pytest.raises(PipelineError, match=r"could not be fetched.*UnknownHostException.*--jars DIR") as error:
        resolve(java)
    assert "\n" not in str(error.value)
    assert not connector.cache_directory().exists()
    assert asked(tmp_path) == 1


def test_refuses_a_connector_that_is_not_complete(java: Java, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARRIVING", " ".join(NAMES[1:]))
    with pytest.raises(PipelineError, match=r"spark-sql-kafka-0-10_2\.13 did not come"):
        resolve(java)
    assert not connector.cache_directory().exists()


def test_says_when_the_cache_cannot_be_written(java: Java, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(PipelineError, match=r"cannot be stored in .*Not a directory.*XDG_CACHE_HOME"):
        resolve(java)


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    """A directory of all that is needed, and of more."""
    directory = tmp_path / "jars"
    directory.mkdir()
    for name in (*NAMES, "kafka-clients-3.10.0.jar", "kafka-clients-2.8.1.jar", "something-else-1.0.jar"):
        write_jar(directory / name)
    return directory


def write_jar(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr("content", path.name * 100)


def test_takes_a_directory_of_jars_and_fetches_nothing(java: Java, jars: Path, tmp_path: Path) -> None:
    newest = [name.replace("3.9.0", "3.10.0") for name in NAMES]
    assert sorted(jar.name for jar in resolve(java, jars)) == sorted(newest)
    assert not (tmp_path / "asked").exists()


def test_names_the_jars_that_a_directory_lacks(java: Java, tmp_path: Path) -> None:
    directory = tmp_path / "jars"
    directory.mkdir()
    write_jar(directory / NAMES[0])
    with pytest.raises(PipelineMissingError) as error:
        resolve(java, directory)
    for name in (NAMES[1], "kafka-clients-3.x.jar", "commons-pool2-2.x.jar"):
        assert name in str(error.value)
    assert NAMES[0] not in str(error.value)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        (NAMES[0], "spark-sql-kafka-0-10_2.12-3.5.1.jar"),
        (NAMES[1], f"spark-token-provider-kafka-0-10_2.13-{SPARK}1.jar"),
        (NAMES[2], "kafka-clients-4.0.0.jar"),
        (NAMES[3], "commons-pool2-1.6.jar"),
    ],
)
def test_names_the_jar_of_another_version(java: Java, jars: Path, name: str, other: str) -> None:
    for jar in jars.glob(f"{name.rpartition('-')[0]}-*.jar"):
        jar.unlink()
    write_jar(jars / other)
    with pytest.raises(PipelineMissingError, match=rf"lacks \S+ \(it has {re.escape(other)}\)") as error:
        resolve(java, jars)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-30],
        lambda _content: b"",
        # A byte of the file inside, whose length and place stay as they are.
        lambda content: content.replace(b"spark", b"SPARK", 1),
    ],
    ids=["truncated", "empty", "overwritten"],
)
def test_names_the_jar_that_is_damaged(java: Java, jars: Path, damage: Callable[[bytes], bytes]) -> None:
    jar = jars / NAMES[1]
    jar.write_bytes(damage(jar.read_bytes()))
    with pytest.raises(PipelineError, match=rf"{re.escape(jar.name)} is damaged \(.+\); copy it again"):
        resolve(java, jars)


def test_stops_fetching_when_the_run_is_told_to_stop(java: Java, tmp_path: Path) -> None:
    java.executable.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/process\nexec sleep 600\n")
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(connector.resolve_connector, java, None, lambda _line: None, stop)
        wait_until(lambda: (tmp_path / "process").exists() and (tmp_path / "process").read_text().strip() != "", "Ivy")
        stop.set()
        with pytest.raises(RunStopped):
            fetching.result(30)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "process").read_text()), 0)
    assert [path.name for path in connector.cache_directory().parent.glob("fetching-*")] == []


def test_waits_for_another_that_fetches_and_says_so(java: Java) -> None:
    directory = connector.cache_directory()
    directory.parent.mkdir(parents=True)
    stop = threading.Event()
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        stop.set()

    with (
        ivy.locked(directory.with_name(f"{directory.name}.lock"), lambda: None),
        pytest.raises(RunStopped),
    ):
        connector.resolve_connector(java, None, say, stop)
    assert len(said) == 1
    assert "another process fetches" in said[0]


def test_removes_what_a_killed_one_was_fetching(java: Java) -> None:
    left = connector.cache_directory().parent / f"fetching-{connector.cache_directory().name}-killed"
    left.mkdir(parents=True)
    (left / "some.jar").touch()
    resolve(java)
    assert not left.exists()


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(PipelineError, match="set XDG_CACHE_HOME"):
        connector.cache_directory()


def test_says_that_the_directory_is_none(java: Java, tmp_path: Path) -> None:
    with pytest.raises(PipelineMissingError, match="is not a directory"):
        resolve(java, tmp_path / "nothing")


def test_takes_the_home_cache_without_an_absolute_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    expected = tmp_path / ".cache" / "barnabas" / f"spark-{SPARK}-kafka-connector"
    assert connector.cache_directory() == expected


def test_tells_java_of_the_proxies(java: Java, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java.executable.write_text('#!/bin/sh\necho "$@" > "$ASKED"\n')
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "localhost, .example")
    with pytest.raises(PipelineError):
        resolve(java)
    arguments = (tmp_path / "asked").read_text()
    assert (
        "-Dhttps.proxyHost=proxy.example -Dhttps.proxyPort=3128 -Dhttp.nonProxyHosts=localhost|*.example" in arguments
    )


def test_brings_the_jars_that_a_pipeline_names(java: Java, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "driver.jar").touch()
    pipeline = read_flights(tmp_path, ("name: delays\n", "name: delays\njars: [org.x:client:1.2, ./driver.jar]\n"))
    monkeypatch.setenv("ARRIVING", " ".join([*NAMES, "client-1.2.jar", "other-3.jar"]))
    found = connector.jars_of(pipeline, java, None, lambda _line: None)
    assert {jar.name for jar in found} == {*NAMES, "client-1.2.jar", "other-3.jar", "driver.jar"}
    assert tmp_path / "cache" / "barnabas" / "org.x-client-1.2" / "client-1.2.jar" in found
    assert asked(tmp_path) == 2
    # They are settings' matter too, which tests and `dev` have.
    assert tmp_path / "driver.jar" in connector.jars_without_brokers([pipeline], java, lambda _line: None)
    (tmp_path / "driver.jar").unlink()
    with pytest.raises(PipelineMissingError, match=r"delays\.yaml:2: the jar \S+driver\.jar does not exist"):
        connector.jars_of(pipeline, java, None, lambda _line: None)
    (tmp_path / "driver.jar").touch()
    monkeypatch.setenv("SAYS", "UNRESOLVED DEPENDENCY: org.x#client;1.2: not found")
    monkeypatch.setenv("STATUS", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    with pytest.raises(PipelineError, match=r"delays\.yaml:2: org\.x:client:1\.2 .*could not be fetched"):
        connector.jars_without_brokers([pipeline], java, lambda _line: None)


def test_a_jar_of_an_organisation_that_spark_has_jars_of_is_fetched_without_those() -> None:
    """Ivy leaves out of an organisation that is left out what was asked for, too."""
    of_hadoop = jar_set_of(NamedJar("org.apache.hadoop:hadoop-aws:3.4.1", None, 1), ("org.apache.hadoop", "org.slf4j"))
    assert of_hadoop.without_organisations == ("org.slf4j", "org.apache.spark")
    assert {"hadoop-client-api", "hadoop-common"} <= set(of_hadoop.without_modules)
    of_others = jar_set_of(NamedJar("org.x:client:1.2", None, 1), ("org.apache.hadoop",))
    assert (of_others.without_organisations, of_others.without_modules) == (
        ("org.apache.hadoop", "org.apache.spark"),
        (),
    )
