"""The connector's jars: from a directory that is looked at, or from a cache that mends itself."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from barnabas.pipelines import connector
from barnabas.pipelines.definition import PipelineError, PipelineMissingError
from barnabas.pipelines.java import Java

SPARK = connector.pyspark_version()
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
    with pytest.raises(PipelineError, match=r"cannot be kept in .*Not a directory.*XDG_CACHE_HOME"):
        resolve(java)


def test_takes_a_directory_of_jars_and_fetches_nothing(java: Java, tmp_path: Path) -> None:
    directory = tmp_path / "jars"
    directory.mkdir()
    for name in (*NAMES, "kafka-clients-2.8.1.jar", "something-else-1.0.jar"):
        (directory / name).touch()
    assert sorted(jar.name for jar in resolve(java, directory)) == sorted(NAMES)
    assert not (tmp_path / "asked").exists()


def test_names_the_jars_that_a_directory_lacks(java: Java, tmp_path: Path) -> None:
    directory = tmp_path / "jars"
    directory.mkdir()
    (directory / NAMES[0]).touch()
    (directory / f"spark-token-provider-kafka-0-10_2.13-{SPARK}1.jar").touch()
    with pytest.raises(PipelineMissingError) as error:
        resolve(java, directory)
    assert NAMES[1] in str(error.value)
    assert "kafka-clients-VERSION.jar" in str(error.value)
    assert "commons-pool2-VERSION.jar" in str(error.value)
    assert NAMES[0] not in str(error.value)


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
