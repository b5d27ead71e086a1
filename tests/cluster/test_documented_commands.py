"""What README, getting-started and docs/commands.md show, on brokers of ours: blocks as they stand, JSON by names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.command_suite import barnabas, fresh, new_topic
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


# JSON by its names.

_ANY = None
"""The shape of what is told no more of: no object, and no list of objects."""
_TOKEN = re.compile(r"[{}\[\],:]|[\w.]+")


def read_shape(text: str) -> Any:
    """A shape as docs/commands.md writes it, `{topics: [{name, configs: {KEY: VALUE}}]}`: an object is a dict of the
    shapes of its names, a list is a list of the shape of its items, and an object with any names is `...`.
    """
    tokens = _TOKEN.findall(text)

    def value() -> Any:
        token = tokens.pop(0)
        if token == "{":
            shape: Any = {}
            while tokens[0] != "}":
                name = tokens.pop(0)
                shape[name] = value() if tokens[0] == ":" and tokens.pop(0) else _ANY
                if tokens[0] == ",":
                    tokens.pop(0)
            tokens.pop(0)
            return ... if any(name.isupper() for name in shape) else shape
        if token == "[":
            items = value()
            assert tokens.pop(0) == "]", text
            return [items]
        return ... if token == "..." else _ANY

    return value()


def differences(shape: Any, found: Any, where: str) -> list[str]:
    """In what a document differs from its shape; null may stand for anything."""
    if shape is ... or found is None:
        return []
    if isinstance(shape, dict):
        if not isinstance(found, dict) or found.keys() != shape.keys():
            return [f"{where}: the page has {list(shape)}, and it is {found}"]
        return [each for name in shape for each in differences(shape[name], found[name], f"{where}.{name}")]
    if isinstance(shape, list):
        if not isinstance(found, list):
            return [f"{where}: the page has a list, and it is {found}"]
        return [each for item in found for each in differences(shape[0], item, f"{where}[]")]
    items = found if isinstance(found, list) else [found]
    return (
        [f"{where}: the page does not tell what is in {found}"] if any(isinstance(each, dict) for each in items) else []
    )


def shapes(section: str) -> dict[str, Any]:
    """The shapes in a section of docs/commands.md, by command; "" where the section names none."""
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")
    text = page[page.index(f"\n## {section}\n") + 1 :].partition("\n## ")[0]
    told = re.findall(r"((?:`[a-z -]*--json`(?:, )?)+):\s+`(\{[^`]*\})`", text)
    return {
        name.removesuffix("--json").strip(): read_shape(shape)
        for names, shape in told
        for name in re.findall("`([^`]*)`", names)
    }


def test_json_has_the_names_of_the_page(cluster: BrokerCluster, tmp_path: Path) -> None:
    bootstrap, group, new = cluster.bootstrap_servers, fresh("group"), fresh("topic")
    lines, plan = tmp_path / "lines.txt", tmp_path / "plan.json"
    lines.write_text("a\nb\n")
    with new_topic(
        bootstrap, "--partitions", "2", "--replication-factor", "1", "--config", "retention.ms=5000000"
    ) as topic:

        def document(*arguments: str) -> Any:
            return barnabas(bootstrap, *arguments, "--json").document

        wrong: list[str] = []

        def hold(section: str, name: str, *arguments: str) -> Any:
            shape, found = shapes(section)[name], document(*arguments)
            wrong.extend(differences(shape, found, f"{section}: {name}"))
            return found

        hold("Records", "", "produce", topic, "--file", str(lines))
        hold("Topics", "list", "topic", "list")
        hold("Topics", "describe", "topic", "describe", topic)
        hold("Topics", "alter", "topic", "alter", topic, "--config", "retention.ms=6000000", "--partitions", "3")
        document("topic", "create", new, "--replication-factor", "1")
        hold("Topics", "delete", "topic", "delete", new)
        hold("Configs", "get", "config", "get", f"topic:{topic}")
        hold("Configs", "set", "config", "set", f"topic:{topic}", "retention.ms=7000000")
        hold("Configs", "diff", "config", "diff", f"topic:{topic}")
        hold("Configs", "unset", "config", "unset", f"topic:{topic}", "retention.ms")
        hold("Records", "offsets", "offsets", topic)
        hold("Records", "records delete", "records", "delete", topic, "--before", "latest")
        hold(
            "Groups", "reset", "group", "reset", group, "--to", "1", "--topic", f"{topic}:0,1", "--create", "--execute"
        )
        hold("Groups", "list", "group", "list")
        hold("Groups", "describe", "group", "describe", group)
        hold("Groups", "delete-offsets", "group", "delete-offsets", group, "--topic", f"{topic}:1")
        hold("Groups", "delete", "group", "delete", group)
        hold("The cluster", "describe", "cluster", "describe")
        hold("The cluster", "elect", "elect", "preferred", "--topic", topic)
        hold("The cluster", "health", "cluster", "health")
        hold("Log directories of brokers", "describe", "log-dirs", "describe", topic)
        (partition,) = document("topic", "describe", topic)["topics"][0]["partitions"][:1]
        moving = hold(
            "Moving partitions", "plan", *("reassign", "plan", "--topic", topic, "--measure", "0s"),
            *("--drain", str(partition["leader"])),
        )  # fmt: skip
        plan.write_text(json.dumps(moving))
        hold("Moving partitions", "execute", "reassign", "execute", str(plan))
        hold("Moving partitions", "status", "reassign", "status", str(plan))
        hold("Moving partitions", "cancel", "reassign", "cancel", "--all")
        assert wrong == []


def test_a_name_that_is_missing_or_too_many_is_seen() -> None:
    shape = read_shape("{topics: [{name, configs: {KEY: VALUE}, partitions: [{leader}]}], count}")
    good = {"topics": [{"name": "a", "configs": {"b": "c"}, "partitions": [{"leader": 1}]}], "count": 2}
    assert differences(shape, good, "it") == []
    assert len(differences(shape, {**good, "more": 1}, "it")) == 1
    assert len(differences(shape, {"topics": [{"name": "a"}], "count": 2}, "it")) == 1
    assert len(differences(shape, {**good, "count": {"a": 1}}, "it")) == 1
