"""Small files of Delta and Iceberg tables are put together, by runs and by hand: no row is lost or doubled, whatever
ends that, and no reader is disturbed. Files stand for topics, and one Spark is for all.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.delta_sink import DeltaTable
from barnabas.pipelines.iceberg_sink import IcebergTable
from barnabas.pipelines.lake_sink import LakeWriter
from barnabas.pipelines.sinks import settings_of, writer_of
from tests.spark.pipeline_runs import KEYED, KilledError, Runs, row

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

KINDS: dict[str, Any] = {"delta": DeltaTable, "iceberg": IcebergTable}
AGAIN = pytest.mark.night(
    "15 to 50 s of processor time; found nothing yet in this format alone: test_pipeline_urls by day"
)
ICEBERG_BY_DAY = (pytest.param("delta", marks=AGAIN), "iceberg")
EVERY_THIRD = "from: flights, compact: {{every: 3, target: 1MiB}}".replace("{{", "{").replace("}}", "}")
MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def spark(spark_with_tables: Any) -> Any:
    return spark_with_tables


def table_of(runs: Runs) -> tuple[LakeWriter, Any]:
    """What compacts the table, and a session for it."""
    session = runs.spark.newSession()
    for name, value in settings_of(runs.pipeline).items():
        if name.startswith("spark.sql.catalog.barnabas"):
            session.conf.set(name, value)
    writer = writer_of(runs.pipeline, runs.pipeline.sinks[0])
    assert isinstance(writer, LakeWriter)
    return writer, session


def files(runs: Runs) -> int:
    writer, session = table_of(runs)
    return writer.files(session, MEBIBYTE).files


@pytest.mark.parametrize("kind", ICEBERG_BY_DAY)
def test_a_run_compacts_behind_its_batches_and_has_each_of_them_once_whatever_ends_it(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Before the compaction, behind it, and behind the batch that it belongs to, which Spark never hears of."""
    runs = Runs(spark, tmp_path, f"{kind}: 'a table', {EVERY_THIRD}")
    for number in range(3):
        runs.add([row(number)])
    compact = KINDS[kind].compact

    def killed_before(*_: Any) -> Any:
        raise KilledError

    def killed_behind(table: Any, session: Any, target_bytes: int) -> Any:
        compact(table, session, target_bytes)
        raise KilledError

    for killed in (killed_before, killed_behind):
        with monkeypatch.context() as patched, pytest.raises(KilledError):
            patched.setattr(KINDS[kind], "compact", killed)
            runs.run()
        assert [number for number, *_ in runs.table()] == [0, 1, 2]
        assert runs.state.batches_done("flights").finished == 1
    runs.run(killed_after=2)
    runs.run()
    assert [number for number, *_ in runs.table()] == [0, 1, 2]
    assert files(runs) == 1
    for number in range(3, 8):
        runs.add([row(number)])
    runs.run()
    # Batches 3 to 5 became a part of the one file, 6 and 7 are beside it.
    assert [number for number, *_ in runs.table()] == list(range(8))
    assert files(runs) == 3


@pytest.mark.parametrize("kind", ICEBERG_BY_DAY)
def test_a_compaction_that_fails_is_told_and_the_run_goes_on(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    runs = Runs(spark, tmp_path, f"{kind}: out, {EVERY_THIRD}")

    def fail(_table: Any, session: Any, _target_bytes: int) -> Any:
        session.sql("SELECT 1 FROM a_table_that_is_gone")

    monkeypatch.setattr(KINDS[kind], "compact", fail)
    said: list[str] = []
    tidy = LakeWriter.tidy

    def noted(writer: LakeWriter, batch_id: int) -> str:
        said.append(tidy(writer, batch_id))
        return said[-1]

    monkeypatch.setattr(LakeWriter, "tidy", noted)
    for number in range(4):
        runs.add([row(number)])
    runs.run()
    assert [number for number, *_ in runs.table()] == [0, 1, 2, 3]
    told = [line for line in said if line]
    assert len(told) == 1
    assert "was not compacted behind batch 2" in told[0]


@pytest.mark.night("44 s of processor time; found nothing yet: test_compaction_attempts of the units is by day")
def test_a_compaction_that_ends_each_run_is_left_out_in_the_end_and_told(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one for which a process has not enough memory: else the run would end at this batch for ever."""
    runs = Runs(spark, tmp_path, f"delta: out, {EVERY_THIRD}")
    for number in range(3):
        runs.add([row(number)])

    def end_the_process(*_: Any) -> Any:
        raise KilledError

    said: list[str] = []
    tidy = LakeWriter.tidy

    def noted(writer: LakeWriter, batch_id: int) -> str:
        said.append(tidy(writer, batch_id))
        return said[-1]

    monkeypatch.setattr(LakeWriter, "tidy", noted)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "compact", end_the_process)
        for _ in range(3):
            with pytest.raises(KilledError):
                runs.run()
        runs.run()
        assert [line.partition(":")[0].rpartition("was ")[2] for line in said if line] == [
            "not compacted behind batch 2"
        ]
        assert "3 runs ended while they did that; it is tried again behind batch 8" in said[-1]
        for number in range(3, 8):
            runs.add([row(number)])
        runs.run()
    assert runs.state.batches_done("flights").finished == 7
    assert files(runs) == 8
    runs.add([row(8)])
    runs.run()
    assert [number for number, *_ in runs.table()] == list(range(9))
    assert files(runs) == 1
    assert not list(runs.state.table_notes.glob("*.compaction"))


@pytest.mark.parametrize("kind", ICEBERG_BY_DAY)
def test_what_is_cut_short_by_hand_leaves_the_rows_and_the_next_time_ends_it(
    spark: Any, tmp_path: Path, kind: str
) -> None:
    runs = Runs(spark, tmp_path, f"{kind}: out, {KEYED}")
    for number in range(6):
        runs.add([row(number), row(number + 100)])
    runs.run()
    expected = runs.table()
    writer, session = table_of(runs)
    before = writer.files(session, MEBIBYTE)
    assert (before.files, before.small, before.instead) == (6, 6, 1)
    for moment in (0.0, 0.1, 0.3):
        cut_short(spark, writer, session, moment)
        assert runs.table() == expected
    with writer.alone(), pytest.raises(PipelineError, match="is being written by another run"):
        runs.run()
    reading = runs.spark.newSession().read.format(kind).load(str(tmp_path / "out")).toLocalIterator()
    first = next(reading)
    writer.compact(session, MEBIBYTE)
    assert len([first, *reading]) == len(expected)
    after = writer.files(session, MEBIBYTE)
    assert (after.files, after.small) == (1, 0)
    assert runs.table() == expected
    # The run goes on with the table, which still says which batches it has.
    runs.add([row(0, "DL")])
    runs.run()
    assert len(runs.table()) == len(expected)


def cut_short(spark: Any, writer: LakeWriter, session: Any, moment: float) -> None:
    """A compaction whose jobs of Spark are ended after some time: what it has not committed is not done."""

    def work() -> None:
        with contextlib.suppress(Exception):  # that it was cut short
            writer.compact(session, MEBIBYTE)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(moment)
    while thread.is_alive():
        spark.sparkContext.cancelAllJobs()
        thread.join(0.05)
