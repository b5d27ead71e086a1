"""What docs/examples tell people to type, and getting-started.md and pipelines.md of pipelines and their tables: blocks
as they stand, one after another, in a folder with a copy of the examples. `barnabas up` is on ports of ours, and the
flights are of three days.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator

import pytest

from tests.spark.test_pipeline_table_command import rows_of
from tests.support.documented import ROOT, Folder, blocks_of, placed, said
from tests.support.waiting import wait_until

RUN_SECONDS = 900.0
DAYS = 3
PAGES = ("windowed-delays", "enrichment", "change-stream", "dead-letters", "backfill", "shifts")
pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.night("a Spark for each of two dozen commands, minutes; test_examples.py has their pipelines by day"),
]


class Reader(Folder):
    """Somebody who follows the pages in a checkout."""

    def type(self, block: str, *, refused: str = "nothing is") -> str:
        """Runs each line of a block, which has to succeed, but for those that the page says are refused; what all of
        them say.
        """
        output = ""
        for line in block.replace("\\\n", " ").splitlines():
            status, words = self.typed(line, seconds=RUN_SECONDS)
            assert (status == 0) == (refused not in line), f"{line}\n{words}"
            output += words
        return output

    def python(self, block: str) -> str:
        """Runs a block of Python."""
        self.write("block.py", block)
        return self.type("python block.py")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    directory = tmp_path_factory.mktemp("documented-examples")
    for name in ("examples", "demo"):
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("out", ".barnabas", "__pycache__"))
    made = Reader(directory)
    python = made.write("bin/python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    try:
        up, load = blocks_of("examples/README.md")
        server = made.serve("up", placed(up, {".venv/bin/barnabas up": "barnabas up --port 0"}))
        found = re.search(r"bootstrap servers +([^\s,]+)", said(server, "Ctrl-C stops everything."))
        assert found is not None
        made.environment["BARNABAS_BOOTSTRAP_SERVERS"] = found[1]
        assert "flights: 2,6" in made.type(placed(load, {"--days 14": f"--days {DAYS}"}))
        yield made
    finally:
        made.close()


def blocks(page: str) -> list[str]:
    return blocks_of(f"examples/{page}.md")


def test_every_page_of_an_example_is_followed_here() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "examples").glob("*.md")}
    assert pages == {*PAGES, "README"}


def test_windowed_delays(reader: Reader) -> None:
    run, consume, read = blocks("windowed-delays")
    reader.type(run)
    status = json.loads(reader.type("barnabas pipeline status examples/windowed_delays.yaml --json"))
    assert {query["totals"]["rows_dropped_by_watermark"] for query in status["queries"]} == {0}
    assert reader.type(consume).count("flights") > 100
    assert int(reader.python(f"{read}\nprint(len(result))")) > 100


def test_enrichment(reader: Reader) -> None:
    (block,) = blocks("enrichment")
    assert "United Air Lines" in reader.type(block)


def test_change_stream(reader: Reader) -> None:
    run, change, table = blocks("change-stream")
    once, lasting = run.splitlines()
    reader.type(once)
    server = reader.serve("lasting", lasting)
    try:
        reader.type(change)

        def is_there() -> bool:
            assert server.is_running, server.log_tail()
            rows = {row["flight"]: row for row in rows_of(reader.directory / "examples" / "out" / "flight-status")}
            return rows["UA1545 EWR 2013-01-01"]["status"] == "diverted" and "UA1714 LGA 2013-01-01" not in rows

        wait_until(is_there, "the changed flight is in the table", RUN_SECONDS, server.log_tail)
        os.kill(server.process_id, signal.SIGINT)
        wait_until(lambda: not server.is_running, "Ctrl-C has ended it", RUN_SECONDS, server.log_tail)
        assert server.exit_status == 0
    finally:
        server.stop()
    reader.type(table)
    assert (reader.directory / "examples" / "flight-table.yaml").exists()


def test_dead_letters(reader: Reader) -> None:
    first, mend = blocks("dead-letters")
    assert '"NA' in reader.type(first).replace("\\", "")
    reader.type(mend)
    assert "dep_delay STRING" in (reader.directory / "examples" / "dead_letters.yaml").read_text()
    assert reader.type("barnabas pipeline replay dead-letters") == "0 letters sent back\n"
    assert "dead-letters.dlq" in reader.type("barnabas group describe barnabas-replay-dead-letters")


def test_backfill(reader: Reader) -> None:
    block, compare = blocks("backfill")
    words = reader.type(block, refused="# refused")
    assert "was changed" in words
    assert "LGA" in reader.python(compare)
    reader.type("barnabas pipeline backfill examples/days_mended.yaml --discard-old")
    assert not (reader.directory / "examples" / "out" / "days~before").exists()


def test_shifts(reader: Reader) -> None:
    (block,) = blocks("shifts")
    assert "carrier" in reader.type(block)


def test_a_table_is_read_as_the_page_of_pipelines_has_it(reader: Reader) -> None:
    """Of two batches, the later one with another sum of the same day."""
    by_pandas, by_spark = (
        each for each in blocks_of("pipelines.md") if each.startswith(("import pandas", "# Spark")) and "delays" in each
    )
    made = "import os, pandas\nfor batch, minutes in enumerate([5, 7, 9]):\n"
    made += "    os.makedirs(path := f'out/delays/batch_id={batch}')\n"
    made += "    pandas.DataFrame([('UA', '2013-01-01', minutes)], columns=['carrier', 'day', 'minutes'])"
    reader.python(made + ".to_parquet(f'{path}/part.parquet')\n")
    assert reader.python(f"{by_pandas}\nprint(newest.minutes.tolist())") == "[9]\n"
    began = "from pyspark.sql import SparkSession\n"
    began += "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', False).getOrCreate()\n"
    selected = placed(by_spark, {"spark.sql(": "newest = spark.sql("})
    assert "[9]" in reader.python(f"{began}{selected}\nprint([row.minutes for row in newest.collect()])")


def test_the_pipeline_of_getting_started(reader: Reader) -> None:
    (block,) = [each for each in blocks_of("getting-started.md") if each.startswith("barnabas pipeline init")]
    assert "Prague" in reader.type(block)
