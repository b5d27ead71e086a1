"""An archive of classes in a real Java: it is mapped where it fits, and is in nobody's way where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.pipelines import class_archive
from barnabas.pipelines.class_archive import VARIABLE, ClassArchive, class_path_of, make_archive
from barnabas.pipelines.java import find_java
from barnabas.pipelines.jvm import JvmOptions, running_jvm
from tests.spark.pipeline_process import java_processes

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.night("an archive is made for it, 90 s of 7,721; found nothing yet: all Sparks of the tests map one"),
]

CLASSES = """\
java/lang/Object
java/lang/String
org/apache/spark/deploy/SparkSubmit
org/apache/spark/deploy/SparkSubmit$
org/apache/spark/SparkConf
"""


def is_mapped(options: JvmOptions, archive: ClassArchive) -> bool:
    """Starts it; whether it is up, with the archive in its memory."""
    with running_jvm(options):
        (process,) = java_processes(options.log_directory)
        return str(archive.path) in Path(f"/proc/{process}/maps").read_text()


def test_it_is_mapped_and_one_that_is_damaged_or_of_other_jars_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "make")
    monkeypatch.setattr(class_archive, "_CLASSES_MIN", 1)
    java = find_java()
    archive = ClassArchive(tmp_path / "classes.jsa", class_path_of(()), java)
    noted = tmp_path / "classes"
    noted.write_text(CLASSES)
    assert make_archive(archive, noted, print)
    options = JvmOptions(java, (), tmp_path / "logs", 1 << 30, is_short=True, archive=archive)
    (tmp_path / "logs").mkdir()
    assert is_mapped(options, archive)

    whole = archive.path.read_bytes()
    archive.path.chmod(0o644)
    middle = len(whole) // 3
    torn = whole[:middle] + bytes(100_000) + whole[middle + 100_000 :]
    for damaged in (torn, whole[:middle], b"", bytes(len(whole))):
        archive.path.write_bytes(damaged)
        assert not is_mapped(options, archive)

    other = tmp_path / "other.jar"
    other.write_bytes(b"")
    archive.path.write_bytes(whole)
    assert not is_mapped(JvmOptions(java, (other,), tmp_path / "logs", 1 << 30, archive=archive), archive)
