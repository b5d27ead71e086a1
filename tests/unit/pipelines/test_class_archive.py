"""The archive of Spark's classes: whose it is, when it is made, and that nothing about it ends a run."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from barnabas.pipelines import class_archive
from barnabas.pipelines.class_archive import (
    VARIABLE,
    ArchiveUse,
    ClassArchive,
    archive_of,
    archive_use,
    class_path_of,
    make_archive,
)
from barnabas.pipelines.java import Java

WRITES = 'for each; do case $each in -XX:SharedArchiveFile=*) echo classes > "${each#*=}";; esac; done'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where archives are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("CI", raising=False)
    return tmp_path / "cache" / "barnabas"


def java(directory: Path, script: str = WRITES) -> Java:
    program = directory / "java"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Java(program, 17, is_from_package=False)


def classes(directory: Path, count: int = 10_000) -> Path:
    path = directory / "classes"
    path.write_text("java/lang/Object id: 0\n" * count)
    return path


def found(java: Java, *jars: Path) -> ClassArchive:
    archive = archive_of(java, jars)
    assert archive is not None
    return archive


def test_it_is_of_one_java_and_one_list_of_jars(tmp_path: Path, cache: Path) -> None:
    jar = tmp_path / "connector.jar"
    jar.write_text("x")
    first = found(java(tmp_path), jar)
    assert first.path.parent == cache
    assert first.path.name.startswith("spark-4.")
    assert first == found(first.java, jar)
    names = {first.path.name, found(first.java).path.name}
    jar.write_text("xy")
    names.add(found(first.java, jar).path.name)
    names.add(found(java(tmp_path, "exit 1"), jar).path.name)
    assert len(names) == 4


def test_the_class_path_is_a_list_in_an_order_that_stays(tmp_path: Path) -> None:
    parts = class_path_of((tmp_path / "z.jar", tmp_path / "a.jar")).split(os.pathsep)
    assert parts[:-2] == sorted(parts[:-2])
    assert [Path(part).name for part in parts[-2:]] == ["z.jar", "a.jar"]
    assert not any("*" in part for part in parts)


@pytest.mark.parametrize(
    ("environment", "use"),
    [
        ({}, ArchiveUse.MAKE),
        ({"CI": "false"}, ArchiveUse.MAKE),
        ({"CI": "true"}, ArchiveUse.USE),
        ({"CI": "true", VARIABLE: "make"}, ArchiveUse.MAKE),
        ({VARIABLE: "OFF"}, ArchiveUse.OFF),
        ({VARIABLE: "use"}, ArchiveUse.USE),
        ({VARIABLE: "what?"}, ArchiveUse.MAKE),
    ],
)
def test_the_environment_says_what_is_done(environment: dict[str, str], use: ArchiveUse) -> None:
    assert archive_use(environment) is use


def test_a_session_notes_classes_until_there_is_an_archive_and_uses_it_then(tmp_path: Path) -> None:
    archive = found(java(tmp_path))
    noted = tmp_path / "noted"
    assert archive.options(None) == ()
    assert archive.options(noted) == (f"-XX:DumpLoadedClassList={noted}",)
    assert make_archive(archive, classes(tmp_path), lambda _: None)
    assert archive.options(noted)[1] == f"-XX:SharedArchiveFile={archive.path}"
    assert not (tmp_path / "classes").exists()
    assert [each.name for each in archive.path.parent.glob("*being-made*")] == []


@pytest.mark.parametrize("value", ["off", "use"])
def test_none_is_made_where_the_environment_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    archive = found(java(tmp_path))
    monkeypatch.setenv(VARIABLE, value)
    assert (archive_of(java(tmp_path), ()) is None) == (value == "off")
    assert not make_archive(archive, classes(tmp_path), lambda _: None)


def test_a_session_that_ended_early_makes_none(tmp_path: Path) -> None:
    archive = found(java(tmp_path))
    assert not make_archive(archive, classes(tmp_path, 100), lambda _: None)
    assert not make_archive(archive, tmp_path / "none", lambda _: None)
    assert not make_archive(None, classes(tmp_path), lambda _: None)


@pytest.mark.parametrize("script", ["exit 1", f"{WRITES}; exit 1", "exit 0"])
def test_a_java_that_cannot_make_one_is_a_warning_and_leaves_nothing(tmp_path: Path, script: str) -> None:
    archive = found(java(tmp_path, script))
    said: list[str] = []
    assert not make_archive(archive, classes(tmp_path), said.append)
    assert said[-1].startswith("warning: Spark's classes cannot be stored")
    assert [each.suffix for each in archive.path.parent.iterdir()] == [".lock"]


def test_one_that_takes_too_long_is_given_up_and_its_process_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = tmp_path / "process"
    archive = found(java(tmp_path, f"echo $$ > {process}.new && mv {process}.new {process}; exec sleep 600"))
    for seconds_max in (0.3, 3.0, 30.0, 100.0):  # a busy machine may take longer to start it
        monkeypatch.setattr(class_archive, "MAKE_SECONDS_MAX", seconds_max)
        assert not make_archive(archive, classes(tmp_path), lambda _: None)
        if process.exists():
            break
    with pytest.raises(ProcessLookupError):
        os.kill(int(process.read_text()), 0)


def test_ctrl_c_leaves_it_for_another_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    archive = found(java(tmp_path, "exec sleep 600"))
    said: list[str] = []
    assert not make_archive(archive, classes(tmp_path), said.append)
    assert said[-1] == "left for another time"


def test_one_process_makes_it_and_the_others_go_on(tmp_path: Path) -> None:
    archive = found(java(tmp_path, "exit 1"))
    archive.path.parent.mkdir(parents=True)
    with archive.path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said: list[str] = []
        assert not make_archive(archive, classes(tmp_path), said.append)
        assert said == []


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path, cache: Path) -> None:
    archive = found(java(tmp_path))
    cache.parent.mkdir()
    cache.write_text("a file")
    said: list[str] = []
    assert not make_archive(archive, classes(tmp_path), said.append)
    assert "cannot be stored" in said[0]


def test_the_newest_few_stay(tmp_path: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    for number in range(5):
        old = cache / f"spark-3.9.{number}-classes-x.jsa"
        old.write_text("x")
        os.utime(old, (number, number))
    (cache / "spark-4.0.0-kafka-connector").mkdir()
    archive = found(java(tmp_path))
    assert make_archive(archive, classes(tmp_path), lambda _: None)
    assert sorted(each.name for each in cache.glob("*.jsa")) == [
        "spark-3.9.3-classes-x.jsa",
        "spark-3.9.4-classes-x.jsa",
        archive.path.name,
    ]


def test_it_is_made_for_the_class_path_that_its_name_is_of(tmp_path: Path) -> None:
    archive = found(java(tmp_path, f'echo "$@" > {tmp_path}/said; {WRITES}'))
    make_archive(archive, classes(tmp_path), lambda _: None)
    said = (tmp_path / "said").read_text().split()
    assert said[0] == "-Xshare:dump"
    assert said[-2:] == ["-cp", archive.class_path]
