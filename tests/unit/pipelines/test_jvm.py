"""How Spark's Java process is started, as far as that can be seen without one."""

from __future__ import annotations

import dataclasses
import os
import re
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.pipelines import jvm, session
from barnabas.pipelines.class_archive import ClassArchive, class_path_of
from barnabas.pipelines.definition import PipelineError, RunStopped
from barnabas.pipelines.java import Java
from barnabas.pipelines.spark_extra import pyspark_directory
from tests.support.waiting import wait_until


def options(directory: Path, script: str) -> jvm.JvmOptions:
    program = directory / "java"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return jvm.JvmOptions(Java(program, 17, is_from_package=False), (), directory / "logs", 1 << 30)


def test_module_options_are_those_of_sparks_own_launcher_but_for_the_vector_module() -> None:
    (launcher,) = (pyspark_directory() / "jars").glob("spark-launcher_*.jar")
    with zipfile.ZipFile(launcher) as jar:
        content = jar.read("org/apache/spark/launcher/JavaModuleOptions.class")
    theirs = {option.decode() for option in re.findall(rb"-(?:XX:|D|-add-)[ -~]+", content)}
    assert theirs - set(jvm.MODULE_OPTIONS) == {"--add-modules=jdk.incubator.vector"}
    assert set(jvm.MODULE_OPTIONS) <= theirs


def test_a_java_that_ends_at_once_is_told_with_what_it_said(tmp_path: Path) -> None:
    broken = options(tmp_path, "echo 'Error: Could not reserve enough space for object heap'; exit 1")
    with (
        pytest.raises(PipelineError, match=r"status 1 before Spark was up: Error: Could not reserve") as error,
        jvm.running_jvm(broken),
    ):
        pass
    assert str(tmp_path / "logs" / "jvm.log") in str(error.value)
    assert not broken.scratch_directory.exists()


def test_a_java_that_never_answers_is_given_up_and_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "STOP_SECONDS_MAX", 0.2)
    process = tmp_path / "process"
    deaf = options(tmp_path, f"echo $$ > {process}.new && mv {process}.new {process}; exec sleep 600")
    for seconds_max in (0.2, 2.0, 20.0, 100.0):  # a busy machine may take longer to start it
        monkeypatch.setattr(jvm, "START_SECONDS_MAX", seconds_max)
        with pytest.raises(PipelineError, match="not up within"), jvm.running_jvm(deaf):
            pass
        if process.exists():
            break
    with pytest.raises(ProcessLookupError):
        os.kill(int(process.read_text()), 0)


def test_a_java_that_is_not_up_yet_is_killed_when_the_run_is_told_to_stop(tmp_path: Path) -> None:
    slow = options(
        tmp_path, f"echo $$ > {tmp_path}/started && mv {tmp_path}/started {tmp_path}/process; exec sleep 600"
    )
    stop = threading.Event()

    def stop_when_it_runs() -> None:
        wait_until((tmp_path / "process").exists, "Java runs")
        stop.set()

    stopping = threading.Thread(target=stop_when_it_runs)
    stopping.start()
    with pytest.raises(RunStopped), jvm.running_jvm(slow, stop):
        pass
    stopping.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "process").read_text()), 0)
    assert not slow.scratch_directory.exists()


def test_the_process_has_a_clean_environment_and_ends_with_its_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", "/of/another/spark")
    monkeypatch.setenv("SPARK_CONF_DIR", "/of/another/spark")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master yarn")
    kept = (tmp_path / "lock").open("w")
    script = (
        f"env > {tmp_path}/environment; pwd > {tmp_path}/place; "
        r"""printf '\000\000\001\000\000\000\000\006secret' > "$_PYSPARK_DRIVER_CONN_INFO_PATH".new; """
        'mv "$_PYSPARK_DRIVER_CONN_INFO_PATH".new "$_PYSPARK_DRIVER_CONN_INFO_PATH"; '
        f"readlink /proc/$$/fd/{kept.fileno()} > {tmp_path}/kept; cat; echo ended > {tmp_path}/ended"
    )
    started = replace(options(tmp_path, script), kept_open=(kept.fileno(),))
    with jvm.running_jvm(started) as (port, secret):
        assert (port, secret) == (256, "secret")
        assert (tmp_path / "place").read_text().strip() == str(started.scratch_directory)
    kept.close()
    assert (tmp_path / "kept").read_text().strip() == str(tmp_path / "lock")
    assert (tmp_path / "ended").exists()
    assert not started.scratch_directory.exists()
    environment = (tmp_path / "environment").read_text()
    assert "/of/another/spark" not in environment
    assert "yarn" not in environment
    assert f"SPARK_HOME={pyspark_directory()}\n" in environment


def test_a_path_that_java_would_split_is_refused(tmp_path: Path) -> None:
    jar = tmp_path / "with:colon" / "some.jar"
    of_colon = dataclasses.replace(options(tmp_path, "exit 0"), jars=(jar,))
    with pytest.raises(PipelineError, match=r'path with ":" in it: \S+with:colon/some\.jar'), jvm.running_jvm(of_colon):
        pass


@pytest.mark.parametrize(
    ("limit", "expected_mebibytes"), [("max\n", 4096), (str(2 << 30), 640), (str(8 << 30), 2048), (str(64 << 30), 4096)]
)
def test_memory_fits_the_machine_and_the_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str, expected_mebibytes: int
) -> None:
    (tmp_path / "memory.max").write_text(limit)
    monkeypatch.setattr(session, "_CONTAINER_LIMITS", (tmp_path / "memory.max", tmp_path / "none"))
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 32 << 18, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert session.driver_memory_bytes() == expected_mebibytes << 20


def test_a_java_that_fails_with_an_archive_is_started_again_without(tmp_path: Path) -> None:
    fails = options(tmp_path, f'case "$*" in *SharedArchiveFile*) exit 1;; esac; echo "$@" > {tmp_path}/said; exit 2')
    made = ClassArchive(tmp_path / "x.jsa", class_path_of(()), fails.java)
    made.path.write_text("damaged")
    with (
        pytest.raises(PipelineError, match="status 2 before Spark was up"),
        jvm.running_jvm(replace(fails, archive=made)),
    ):
        pass
    assert not made.path.exists()
    assert (tmp_path / "said").read_text().split()[:2] == ["-cp", f"{pyspark_directory() / 'jars'}/*"]


def test_something_is_done_while_it_starts(tmp_path: Path) -> None:
    waits = options(tmp_path, f"while [ ! -e {tmp_path}/done ]; do sleep 0.05; done; exit 3")
    with (
        pytest.raises(PipelineError, match="status 3"),
        jvm.running_jvm(waits, meanwhile=(tmp_path / "done").touch),
    ):
        pass


@pytest.mark.parametrize("is_short", [True, False])
def test_what_is_over_in_a_minute_is_compiled_less(tmp_path: Path, is_short: bool) -> None:
    told = replace(options(tmp_path, f'echo "$@" > {tmp_path}/said; exit 2'), is_short=is_short)
    with pytest.raises(PipelineError, match="status 2"), jvm.running_jvm(told):
        pass
    said = set((tmp_path / "said").read_text().split())
    assert set(jvm.SHORT_OPTIONS if is_short else jvm.LONG_OPTIONS) <= said
    assert not said & set(jvm.LONG_OPTIONS if is_short else jvm.SHORT_OPTIONS)
