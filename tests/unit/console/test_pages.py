"""Every page, of a cluster in this process."""

from __future__ import annotations

import html.parser
import re
import time
from urllib.parse import quote

import confluent_kafka
import pytest

from barnabas.console import records_read
from barnabas.console.pages import messages
from barnabas.testing import KafkaCluster
from tests.support.running_console import PACE, RunningConsole
from tests.unit.console.conftest import EVIL, GROUP

GROUP_PATH = f"/groups/{quote(GROUP, safe='')}"
PAGES = (
    "/",
    "/brokers",
    "/brokers/1",
    "/topics",
    "/topics/flights",
    "/topics/flights/0",
    "/controller",
    "/groups",
    GROUP_PATH,
    "/reassignments",
    "/transactions",
    "/configs",
    "/pipelines",
    "/alerts",
    "/alerts/under-replicated",
    "/messages",
    "/messages?topic=flights",
    "/messages?topic=flights&key=UA7",
    "/messages?topic=flights&partition=1",
)
VOID = {"meta", "link", "input", "br"}


class _Checked(html.parser.HTMLParser):
    """Elements that are opened and closed in order, and what would run or come from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.wrong: list[str] = []
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.wrong.append(f"{name} of {tag}")
            if name in {"src", "href", "action"} and not (value or "").startswith(("/", "#")):
                self.wrong.append(f"{name}={value}")
            if name == "id":
                self.ids.append(value or "")
            if name == "href" and tag == "a":
                self.links.add(value or "")
        if tag == "script" and ("src", "/static/console.js") not in attrs:
            self.wrong.append("a script")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")


def checked(text: str) -> _Checked:
    """A page, which is well-formed, and runs nothing of others."""
    found = _Checked()
    found.feed(text)
    assert found.wrong == []
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    return found


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_well_formed_and_runs_nothing_of_others(console: RunningConsole, path: str) -> None:
    answer = console.get(path)
    assert answer.status == 200
    checked(answer.text)
    assert EVIL not in answer.text
    assert "only reads" in answer.text
    assert "stale" not in answer.text


def test_every_link_of_every_page_leads_somewhere(console: RunningConsole) -> None:
    links = set().union(*(checked(console.get(path).text).links for path in PAGES))
    assert {"/topics/flights/1", "/brokers/3", GROUP_PATH} <= links
    wrong = [each for each in sorted(links) if not each.startswith("#") and console.get(each).status != 200]
    assert wrong == []


@pytest.mark.parametrize(
    "path",
    [
        "/nope", "/brokers/9", "/brokers/x", "/topics/none", "/topics/flights/2", "/topics/flights/-1", "/groups/none",
        "/messages?topic=none", "/messages?topic=flights&partition=7", "/static/nope.css", "/static/../http.py",
        "/messages/flights", "/write", "/change/do", "/login", f"/topics/{quote(EVIL, safe='')}",
    ],
)  # fmt: skip
def test_what_is_not_there(console: RunningConsole, path: str) -> None:
    answer = console.get(path)
    assert answer.status == 404
    assert EVIL not in answer.text


def test_the_overview_has_the_figures(console: RunningConsole) -> None:
    said = console.get("/").words
    assert "Brokers 3" in said
    assert re.search(r"Topics [45] ", said)
    assert "Under-replicated 0 partitions" in said
    assert "Lag of groups 20 records" in said
    assert "What the console asks the brokers" in said


def test_a_group_has_its_lag(console: RunningConsole) -> None:
    said = console.get(GROUP_PATH).words
    assert "Lag 20 records" in said
    assert "flights 0 100 120 20 -" in said


def test_a_transaction_that_is_open(console: RunningConsole) -> None:
    said = console.get("/transactions").words
    assert "Ongoing" in said
    assert "money-0" in said


def test_the_controller_says_what_it_did(console: RunningConsole) -> None:
    said = console.get("/controller").words
    assert "State changes, the newest first" in said
    assert "flights-0" in said
    assert "ActiveControllerCount 1" in said
    assert re.search(r"Since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, ", said)


def test_topics_are_found_by_a_part_of_their_name(console: RunningConsole) -> None:
    said = console.get("/topics?q=FLI").words
    assert "1 topic with FLI in the name" in said
    assert "money" not in said


@pytest.mark.parametrize(
    ("query", "first", "last", "count"),
    [
        ("", "119", "70", 50),
        ("count=2", "119", "118", 2),
        ("from=oldest&count=3", "0", "2", 3),
        ("from=offset&at=50&count=2", "50", "51", 2),
        ("from=offset&at=1000", None, None, 0),
        ("from=time&at=2020-01-01&count=1", "0", "0", 1),
        ("from=time&at=2999-01-01T00:00:00Z", None, None, 0),
        ("q=VALUE+11", "119", "11", 11),
        ("from=oldest&q=UA7&count=100", "7", "79", 11),
        ("q=nothing+has+this", None, None, 0),
        ("count=0", "119", "119", 1),
    ],
)
def test_records_from_where_the_address_says(
    console: RunningConsole, query: str, first: str | None, last: str | None, count: int
) -> None:
    answer = console.get(f"/messages?topic=flights&partition=0&{query}")
    assert answer.status == 200
    offsets = re.findall(r'data-label="Offset" class="number"><a [^>]*>([\d,]+)</a>', answer.text)
    assert len(offsets) == count
    assert (offsets[0] if offsets else None) == first
    assert (offsets[-1] if offsets else None) == last


@pytest.mark.parametrize(
    ("query", "places"),
    [
        ("key=UA7", [("0", "7")]),
        ("key=tombstone", [("1", "1")]),
        ("key=0xff0001", [("1", "0")]),
        ("key=ua7", []),
        ("key=UA7&partition=1", []),
        ("key=UA7&partition=0&from=oldest", [("0", "7")]),
        ("key=UA7&q=value+7", [("0", "7")]),
        ("key=UA7&q=value+8", []),
        ("count=500", 125),
        ("from=oldest&count=1", [("0", "0")]),
        ("from=time&at=2020-01-01&count=122", 122),
        ("q=value+11", 11),
    ],
)
def test_records_of_all_partitions(console: RunningConsole, query: str, places: list[tuple[str, str]] | int) -> None:
    answer = console.get(f"/messages?topic=flights&{query}")
    assert answer.status == 200, answer.words
    found = [
        (partition or "0", offset.replace(",", ""))
        for partition, offset in re.findall(
            r'(?:data-label="Partition" class="number"><a [^>]*>(\d+)</a></td>)?'
            r'<td data-label="Offset" class="number"><a [^>]*>([\d,]+)</a>',
            answer.text,
        )
    ]
    assert len(found) == places if isinstance(places, int) else found == places
    assert "Not to the end" not in answer.words


def test_records_of_all_partitions_come_in_the_order_of_time_and_the_newest_first(
    cluster: KafkaCluster, console: RunningConsole
) -> None:
    topic = cluster.create_topic("timed", partitions=3)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for number in range(30):
        producer.produce(topic, f"v{number}", key=f"k{number % 4}", partition=number % 3, timestamp=1_000 + number)
    assert producer.flush(30) == 0
    console.wait_for("/topics", topic)

    def values(query: str) -> list[str]:
        return re.findall(r">(v\d+)<", console.get(f"/messages?topic={topic}&{query}").text)

    assert values("count=7") == [f"v{number}" for number in range(29, 22, -1)]
    assert values("from=oldest&count=7") == [f"v{number}" for number in range(7)]
    assert values("from=time&at=1012&count=5") == [f"v{number}" for number in range(12, 17)]
    assert values("key=k1&count=3") == ["v29", "v25", "v21"]
    said = console.get(f"/messages?topic={topic}&key=k1").words
    assert "timed has 3 partitions. 30 records looked through. The topic Partition" in said
    assert values("key=0x6b31&count=1") == ["v29"]
    assert console.get(f"/messages?topic={topic}&from=offset&at=3").status == 400
    assert values("from=offset&at=3&partition=1&count=1") == ["v10"]
    cluster.delete_topic(topic)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("k1", ["Partition 1, where Kafka's partitioner puts that key"]),
        (
            "0x6b31",
            [
                "Partition 0, where Kafka's partitioner puts that text",
                "Partition 1, where Kafka's partitioner puts those bytes",
            ],
        ),
        ("0x6", ["Partition 0, where Kafka's partitioner puts that key"]),
    ],
)
def test_the_partition_of_a_key_is_named_also_where_its_bytes_are_given(
    console: RunningConsole, key: str, said: list[str]
) -> None:
    answer = console.get(f"/messages?topic=flights&key={key}")
    assert [html.unescape(found) for found in re.findall(r">(Partition \d+, where [^<]+)<", answer.text)] == said


def test_each_partition_has_the_same_part_of_what_a_search_looks_through(
    monkeypatch: pytest.MonkeyPatch, console: RunningConsole
) -> None:
    monkeypatch.setattr(records_read, "SEARCHED_MAX", 8)
    said = console.get("/messages?topic=flights&key=nobody").words
    assert "8 records looked through. Of each the newest 4." in said
    assert "Give a partition to look through more." in said
    said = console.get("/messages?topic=flights&key=nobody&from=oldest").words
    assert "Not to the end: 4 records of each partition were looked through." in said


def test_a_search_goes_through_a_whole_partition_step_by_step(
    monkeypatch: pytest.MonkeyPatch, console: RunningConsole
) -> None:
    monkeypatch.setattr(records_read, "SEARCHED_MAX", 50)
    address = "/messages?topic=flights&partition=0&key=UA7"
    words = ""
    for first in (70, 20, 0):
        answer = console.get(address)
        words = answer.words
        assert f"50 records looked through, from offset {first} on." in words
        addresses = re.findall(r'<a href="([^"]*)">Before</a>', answer.text)
        address = html.unescape(addresses[0]) if addresses else ""
    assert "1 record" in words
    assert address == ""


def test_a_place_that_is_not_used_is_told_of(console: RunningConsole) -> None:
    unused = "What is given as `at` is not used"
    assert unused in console.get("/messages?topic=flights&at=2020-01-01").words
    assert unused in console.get("/messages?topic=flights&from=oldest&at=5").words
    assert unused not in console.get("/messages?topic=flights&from=time&at=2020-01-01").words
    assert unused not in console.get("/messages?topic=flights&at=").words


def test_a_topic_of_too_many_partitions_is_read_by_partition(
    monkeypatch: pytest.MonkeyPatch, console: RunningConsole
) -> None:
    monkeypatch.setattr(messages, "PARTITIONS_MAX", 1)
    answer = console.get("/messages?topic=flights")
    assert (answer.status, "more than 1 partitions: give one of them" in answer.words) == (400, True)
    assert console.get("/messages?topic=flights&partition=0").status == 200


@pytest.mark.parametrize(
    "query",
    [
        "from=offset&at=x", "from=offset", "from=time&at=yesterday", "from=elsewhere", "partition=x", "partition=-1",
        "partition=1.5",
    ],
)  # fmt: skip
def test_an_address_that_makes_no_sense(console: RunningConsole, query: str) -> None:
    assert console.get(f"/messages?topic=flights&{query}").status == 400


def test_records_of_all_kinds_are_shown_as_what_they_are(console: RunningConsole) -> None:
    answer = console.get("/messages?topic=flights&partition=1")
    assert "0000  ff 00 01" in answer.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m\\u202e" in answer.text
    assert '<span class="faint">null</span>' in answer.text
    assert '<span class="faint">empty</span>' in answer.text
    assert "10,000 bytes in all" in answer.text
    assert "00f0  f0 f1" in answer.text
    assert "1,024 bytes in all" in answer.text


def test_markers_of_transactions_are_no_records_and_keep_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, console: RunningConsole
) -> None:
    monkeypatch.setattr(records_read, "SECONDS_MAX", 50.0)  # whoever waits for more records waits for so long
    began = time.monotonic()
    said = console.get("/messages?topic=spent").words
    assert "spent-0 has offsets 0 to 6." in said
    assert "3 records" in said
    assert "Not to the end" not in said
    assert "Next" not in said
    assert time.monotonic() - began < 40.0


def test_rebinding_and_other_methods_get_nothing(console: RunningConsole) -> None:
    assert console.get("/", headers={"Host": "evil.example"}).status == 421
    assert console.get("/topics", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}).status == 403
    assert console.get("/", method="POST").status == 405
    assert console.get("/static/console.js").status == 200


def test_viewers_cost_the_brokers_nothing(cluster: KafkaCluster, console: RunningConsole) -> None:
    """However many look, each broker is asked for its groups once in an interval."""
    visits, each = 0, 10_000
    cluster.delay_requests("ListGroups", 0.001, count=each, client_id="barnabas-console")
    began = time.monotonic()
    while visits < 200 or (cluster.requests_to_fail("ListGroups") == 3 * each and time.monotonic() - began < 30):
        assert console.get("/groups").status == 200
        visits += 1
    passed = time.monotonic() - began
    asked = 3 * each - cluster.requests_to_fail("ListGroups")
    cluster.clear_faults()
    assert 0 < asked <= 3 * (passed * PACE / 5 + 2) < 3 * visits
