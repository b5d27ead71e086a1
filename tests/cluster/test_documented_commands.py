"""What README and getting-started show, on brokers of ours: blocks as they stand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.command_suite import new_topic
from tests.support.documented import ROOT, Folder, blocks_of

OVERRIDES = {
    "zookeeper.session.timeout.ms": 18_000,
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 1,
    "group.initial.rebalance.delay.ms": 0,
}
_FENCED = re.compile(r"^```\n(.*?)^```", re.DOTALL | re.MULTILINE)
_ELSEWHERE = re.compile(r"barnabas (up|broker|coordinator)\b|barnabas pipeline (check|run|status)|make run|<[a-z]")
"""What starts servers, needs Spark (tests/spark), or has something to be filled in."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path_factory.mktemp("documented"), 2, overrides=OVERRIDES) as running:
        yield running
        running.check_that_none_exited_by_itself()


def test_the_blocks_of_readme_and_getting_started_run_one_after_another(cluster: BrokerCluster, tmp_path: Path) -> None:
    """As somebody would who reads both: nothing of the second is in the way of what the first has left."""
    scripts = []
    for page in (ROOT / "README.md", ROOT / "docs" / "getting-started.md"):
        for block in _FENCED.findall(page.read_text("utf-8")):
            lines = [line for line in block.replace("\\\n", " ").splitlines() if not _ELSEWHERE.search(line)]
            if any("barnabas" in line for line in lines):
                scripts.append("\n".join(lines))
    assert len(scripts) == 5
    output, folder = "", Folder(tmp_path, cluster.bootstrap_servers)
    for script in scripts:
        output, _ = folder.run(script)
    assert output.splitlines()[:2] == [
        "Created topic orders: 3 partitions, 1 replica each.",
        "Created topic revenue: 3 partitions, 1 replica each.",
    ]
    assert (tmp_path / "flights.yaml").exists()
    assert (tmp_path / "revenue.yaml").exists()


def test_the_readmes_example_in_python_says_where_its_record_is(cluster: BrokerCluster) -> None:
    readme = (ROOT / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    with new_topic(cluster.bootstrap_servers, "--partitions", "1", "--replication-factor", "1") as topic:
        program = example.replace("localhost:9092", cluster.bootstrap_servers).replace('"flights"', f'"{topic}"')
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == f"{topic}, partition 0, offset 0\n"
        assert done.stderr == ""


@pytest.mark.night("five seconds of processor time for the flights, and has found nothing")
def test_the_topics_of_the_examples_are_filled_and_changed_as_their_pages_say(
    cluster: BrokerCluster, tmp_path: Path
) -> None:
    """What Spark makes of them is tested in tests/spark."""
    (load,) = [block for block in blocks_of("examples/README.md") if "examples.load" in block]
    (change,) = [block for block in blocks_of("examples/change-stream.md") if "diverted" in block]
    folder = Folder(tmp_path, cluster.bootstrap_servers)
    day = load.replace("--days 14", "--days 1").replace("python ", f"{sys.executable} ")
    filled, _ = folder.run(day, PYTHONPATH=ROOT)
    counts = {
        topic: int(count.replace(",", ""))
        for topic, count in re.findall(r"^(.*): ([\d,]+) records$", filled, re.MULTILINE)
    }
    assert counts.keys() == {"airlines", "weather", "flights", "flight-changes", "departures"}
    assert counts["flights"] == counts["departures"] > 800
    folder.run(change)
    consumed, _ = folder.run("barnabas consume flight-changes --from earliest --until-end --format json")
    newest = {record["key"]: record["value"] for record in map(json.loads, consumed.splitlines())}
    assert json.loads(newest["UA1545 EWR 2013-01-01"])["status"] == "diverted"
    assert newest["UA1714 LGA 2013-01-01"] is None
    assert len(consumed.splitlines()) == counts["flight-changes"] + 2
