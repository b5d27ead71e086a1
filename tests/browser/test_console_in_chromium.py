"""The console in headless Chromium: each page in both widths and themes, while a broker dies, is replaced as a replica,
and comes back.

With BARNABAS_PICTURES set to a folder, the pictures of docs/console.md are put there.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import confluent_kafka
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from barnabas.cli.console_pipelines import reader_of
from barnabas.cli.main import main
from barnabas.console import app
from barnabas.security.login_files import PasswordHash, User
from barnabas.testing import KafkaCluster
from tests.support.browser import Browser, browser_path
from tests.support.running_console import RunningConsole
from tests.support.waiting import wait_until
from tests.unit.pipelines.pipeline_files import FLIGHTS

pytestmark = pytest.mark.skipif(
    browser_path() is None, reason="there is no Chromium: install it (Debian: apt-get install chromium)"
)

DESKTOP, PHONE = (1280, 860), (390, 844)
DRESSES = [(size, theme) for size in (DESKTOP, PHONE) for theme in ("light", "dark")]
PAGES = (
    "",
    "brokers",
    "brokers/2",
    "topics",
    "topics/flights",
    "topics/flights/0",
    "controller",
    "groups",
    "groups/delays",
    "reassignments",
    "transactions",
    "pipelines",
    "pipelines/delays",
    "alerts",
    "alerts/under-replicated",
    "configs",
    "configs/topics/flights",
    "configs/brokers/1",
    "messages?topic=flights&count=20",
    "messages?topic=airports",
    "messages?topic=airports&key=EWR",
)
ELSEWHERE = {"write", "change", "login"}
"""Pages that other tests here look at: they want rights, or a login."""
SECONDS_MAX = 2.0
# What is moved away from the broker that dies, and how fast: minutes, unless it is cancelled.
MOVED_BYTES, MOVE_RATE = 16 << 20, 20_000
PICTURES = os.environ.get("BARNABAS_PICTURES")
# The elements with text of their own whose contrast is below what WCAG 2 wants (4.5, or 3 for large text).
TOO_FAINT = """(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, place) => sum + c * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const found = rgb(getComputedStyle(each).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const each of document.querySelectorAll("body *")) {
    const own = [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !each.getClientRects().length || each.closest("option, .skip, datalist")) continue;
    const style = getComputedStyle(each);
    const ink = each.ownerSVGElement ? style.fill : style.color;
    const [a, b] = [light(rgb(ink)), light(behind(each))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 600);
    if (ratio < (isLarge ? 3 : 4.5)) found.push(each.tagName + "." + each.className + ": " + ratio.toFixed(2));
  }
  return [...new Set(found)];
})()"""

# Signs and words of a table, broken within a word where a column became too narrow.
BROKEN = """[...document.querySelectorAll("td .mark, td small")].filter((each) => {
  const text = each.lastChild;
  if (text.nodeType !== 3 || text.data.trim().includes(" ")) return false;
  const range = document.createRange();
  range.selectNodeContents(text);
  return new Set([...range.getClientRects()].map((line) => line.y)).size > 1;
}).map((each) => each.textContent)"""
# Texts of a chart over each other.
OVERLAPPING = """[...document.querySelectorAll("figure svg[role=img]")].flatMap((chart) => {
  const texts = [...chart.querySelectorAll("text.axis, text.tick")].map((each) => [each, each.getBoundingClientRect()]);
  return texts.filter(([one, a], place) => texts.slice(place + 1).some(([other, b]) =>
    a.left < b.right && b.left < a.right && a.top < b.bottom - 2 && b.top < a.bottom - 2))
    .map(([each]) => each.textContent);
})"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    """Three brokers; records of flights are written all the time, and group delays reads some of them."""
    with KafkaCluster(brokers=3, session_timeout_ms=4_000) as running:
        running.create_topic("flights", partitions=6, replication_factor=3, config={"retention.ms": "86400000"})
        running.create_topic("airports", partitions=3, replication_factor=3)
        _make_what_is_moved(running)
        stop = threading.Event()
        worker = threading.Thread(target=_work, args=(running.bootstrap_servers, stop))
        worker.start()
        try:
            yield running
        finally:
            stop.set()
            worker.join(30)


@pytest.fixture(scope="module")
def console(cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    """Its console, which was told of a pipeline's file."""
    directory, file = tmp_path_factory.mktemp("pipelines"), Path("delays.yaml")
    (directory / file).write_text(FLIGHTS)
    # As somebody would name it who has it before them, and as the pictures show it.
    with (
        contextlib.chdir(directory),
        RunningConsole(cluster.bootstrap_servers, read_files=reader_of([file])) as running,
    ):
        running.wait_for("/groups/delays", "Stable")
        running.wait_for("/pipelines/delays", "Lag", "topic delays.dlq")
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The browser that the tests share."""
    with Browser() as running:
        yield running


@pytest.fixture
def browser(chromium: Browser, console: RunningConsole) -> Iterator[Browser]:
    """The browser, which has complained of nothing, and asked nobody but the console."""
    chromium.complaints.clear()
    chromium.asked_for.clear()
    yield chromium
    assert chromium.complaints == []
    assert [url for url in chromium.asked_for if not url.startswith((console.url, "about:"))] == []
    chromium.ask("localStorage.clear()")
    chromium.go("about:blank")


def test_every_page_of_the_console_is_among_those_that_are_looked_at() -> None:
    looked_at = {page.partition("?")[0].partition("/")[0] for page in PAGES} | ELSEWHERE
    assert {*app._SECTIONS, "messages", "configs", "change", "login"} == looked_at


def test_every_page_while_a_broker_dies_is_reassigned_and_comes_back(
    cluster: KafkaCluster, console: RunningConsole, browser: Browser
) -> None:
    console.wait_for("/", "All is well.")
    _look_at_all(browser, console)
    # A page that is open sees the broker go, and come back.
    browser.dress(*DESKTOP, "light")
    browser.go(console.url)
    browser.ask("document.getElementById('questions').open = true")
    cluster.kill(2)
    cluster.expire_session(2)
    browser.wait_for("document.body.innerText.includes('broker 2 has 1')")
    assert browser.ask("document.getElementById('questions').open") is True
    console.wait_for("/groups", "delays")
    # Its replica goes to broker 3, and all pages are looked at while that copies.
    _reassign(cluster, "moved", [1, 3])
    console.wait_for("/reassignments", "1 partition being moved", "moved-0 1, 2 3 2")
    browser.go(console.url + "reassignments")
    browser.wait_for("!!document.querySelector('progress')")
    copied = browser.ask("document.querySelector('progress').value")
    assert copied < 100
    _look_at_all(browser, console)
    # An open page sees it go on; who only looks has nothing to cancel it with.
    browser.go(console.url + "reassignments")
    browser.wait_for(f"document.querySelector('progress').value > {copied}")
    assert browser.ask("document.querySelectorAll('main button').length") == 0
    _picture(browser, console, "reassignments", "console-reassignment.png", DESKTOP, "light")
    _picture(browser, console, "", "console-overview.png", DESKTOP, "light")
    _picture(browser, console, "", "console-phone.png", PHONE, "dark")
    _picture(browser, console, "alerts", "console-alerts.png", DESKTOP, "dark")
    browser.go(console.url + "topics/flights/0")
    cluster.start_broker(2)
    browser.wait_for("!document.querySelector('main dl .warning')", 30)
    _cancel_the_move(cluster, browser)
    console.wait_for("/", "Under-replicated 0 partitions")
    _look_at_all(browser, console)
    _picture(browser, console, "topics/flights/0", "console-partition.png", DESKTOP, "dark")
    _picture(browser, console, "groups/delays", "console-group.png", DESKTOP, "light")
    _picture(browser, console, "configs/topics/flights", "console-configs.png", DESKTOP, "light")
    _picture(browser, console, "messages?topic=airports", "console-messages.png", DESKTOP, "light")
    _picture(browser, console, "pipelines/delays", "console-pipeline.png", DESKTOP, "light")
    _picture(browser, console, "controller", "console-controller.png", DESKTOP, "dark")


def test_the_keyboard_is_enough(console: RunningConsole, browser: Browser) -> None:
    browser.dress(*DESKTOP, "light")
    browser.go(console.url)
    browser.press("3")
    browser.wait_for("location.pathname === '/topics' && document.readyState === 'complete'")
    browser.press("/")
    assert browser.ask("document.activeElement.name") == "q"
    assert browser.ask("document.activeElement.value") == ""
    browser.press("2")
    assert browser.ask("document.activeElement.value + location.pathname") == "2/topics"
    browser.go(console.url + "topics")
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert browser.ask("document.activeElement.className") == "skip"
    browser.call(
        "Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13
    )
    browser.wait_for("document.activeElement.id === 'main'")
    # The theme is remembered, and goes before the system's.
    background = "getComputedStyle(document.body).backgroundColor"
    light = browser.ask(background)
    browser.press("t")
    browser.press("t")
    assert browser.ask("document.documentElement.dataset.theme") == "dark"
    assert browser.ask(background) != light
    browser.go(console.url)
    assert browser.ask("document.getElementById('theme').textContent") == "Theme: dark"


def test_a_link_that_is_shared_shows_the_same(console: RunningConsole, browser: Browser) -> None:
    browser.dress(*DESKTOP, "light")
    browser.go(console.url + "messages?topic=airports")
    browser.ask("document.querySelector('select').value = 'oldest'")
    browser.ask("document.querySelector('input[name=count]').value = '1'")
    browser.ask("document.querySelector('form button').click()")
    browser.wait_for("location.search.includes('from=oldest') && document.readyState === 'complete'")
    address, said = browser.ask("location.href"), browser.text()
    browser.go(address)
    assert browser.text() == said
    assert "1 record" in said
    assert "EWR" in said
    browser.go(console.url + "messages")
    browser.ask("document.querySelector('input[name=topic]').value = 'airports'")
    browser.ask("document.querySelector('input[name=key]').value = 'JFK'")
    browser.ask("document.querySelector('form button').click()")
    browser.wait_for("location.search.includes('key=JFK') && document.readyState === 'complete'")
    address, said = browser.ask("location.href"), browser.text()
    browser.go(address)
    assert browser.text() == said
    assert "1 record" in said
    assert "JFK" in said
    assert "EWR" not in said


def test_nothing_moves_under_somebody_who_writes(console: RunningConsole, browser: Browser) -> None:
    browser.dress(*DESKTOP, "light")
    browser.go(console.url + "topics")
    browser.ask("document.getElementById('q').value = 'fli'")
    browser.ask("document.getElementById('q').focus()")
    asked = len(browser.asked_for)
    # It looks whether the page is seen each time before it fetches it again.
    browser.ask(
        "Object.defineProperty(document, 'visibilityState', {get() { window.looks = (window.looks || 0) + 1; "
        "return 'visible'; }})"
    )
    browser.wait_for("window.looks > 1")
    assert browser.asked_for[asked:] == []
    assert browser.ask("document.getElementById('q').value") == "fli"
    # Who stays there for long is told that the page stands still, and nothing moves for that.
    places = "JSON.stringify([...document.querySelectorAll('main *')].map((each) => each.getBoundingClientRect().y))"
    before = browser.ask(places)
    assert browser.ask("document.getElementById('waits').hidden") is True
    browser.wait_for("!document.getElementById('waits').hidden", 30)
    assert "Not kept fresh while you write or select: this is as of" in browser.text()
    assert browser.ask(places) == before
    _look_at(browser, "/topics while somebody writes")
    browser.ask("document.activeElement.blur()")
    browser.wait_for("document.getElementById('waits').hidden")


def test_a_click_on_a_page_that_would_be_fetched_meanwhile_is_one(console: RunningConsole, browser: Browser) -> None:
    browser.dress(*DESKTOP, "light")
    browser.go(console.url)
    link = "document.querySelector('main .tiles a[href=\"/controller\"]')"
    x, y = (browser.ask(f"{link}.getBoundingClientRect().{each}") + 5 for each in ("x", "y"))
    mouse: dict[str, object] = {"x": x, "y": y, "button": "left", "clickCount": 1}
    browser.call("Input.dispatchMouseEvent", type="mousePressed", buttons=1, **mouse)
    browser.ask(
        "Object.defineProperty(document, 'visibilityState', {get() { window.looks = (window.looks || 0) + 1; "
        "return 'visible'; }})"
    )
    browser.wait_for("window.looks > 2")
    browser.call("Input.dispatchMouseEvent", type="mouseReleased", buttons=0, **mouse)
    browser.wait_for("location.pathname === '/controller'")


def test_a_console_that_has_ended_is_told_of(cluster: KafkaCluster, chromium: Browser) -> None:
    chromium.complaints.clear()
    with RunningConsole(cluster.bootstrap_servers) as console:
        console.wait_for("/", "Topics")
        chromium.dress(*PHONE, "dark")
        chromium.go(console.url)
    chromium.wait_for("document.getElementById('lost').innerText.includes('does not answer')")
    assert "UTC" in chromium.text()
    assert chromium.complaints
    # Nothing else; a page that was being fetched when the console ended has its own words for it.
    lost = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")
    assert [each for each in chromium.complaints if not any(reason in each for reason in lost)] == []
    chromium.go("about:blank")


def test_a_change_by_keyboard_is_confirmed_first(cluster: KafkaCluster, chromium: Browser) -> None:
    chromium.complaints.clear()
    with RunningConsole(cluster.bootstrap_servers, may_change=True) as console:
        console.wait_for("/topics", "airports")
        for size, theme in DRESSES:
            chromium.dress(*size, theme)
            chromium.go(console.url + "write?topic=airports&partition=1")
            chromium.ask("document.getElementById('value').focus()")
            chromium.call("Input.insertText", text=f"{size[0]} <{theme}>\nsecond")
            # What is being written stays; so do keys that would be commands elsewhere.
            chromium.press("2")
            assert chromium.ask("location.pathname") == "/write"
            _look_at(chromium, "/write")
            chromium.ask("document.querySelector('form.write button').focus()")
            _enter(chromium)
            chromium.wait_for("!!document.querySelector('button.does')")
            assert f"{size[0]} <{theme}>\nsecond2" in chromium.text()
            _look_at(chromium, "the confirmation")
            if PICTURES is not None and size == DESKTOP and theme == "light":
                (Path(PICTURES) / "console-change.png").write_bytes(chromium.picture())
            chromium.ask("document.querySelector('button.does').focus()")
            _enter(chromium)
            chromium.wait_for("document.querySelector('h1').textContent.includes('done')")
            assert "The record is in airports-1 at offset" in chromium.text()
            _look_at(chromium, "the outcome")
        chromium.go(console.url + "brokers")
        chromium.ask("document.querySelector('form[action=\"/change/elect\"] button').focus()")
        # A page that is fetched again leaves the focus where it is.
        chromium.wait_for(
            "document.activeElement.textContent.startsWith('Elect') && (window.turns = (window.turns || 0) + 1) > 40"
        )
        chromium.go("about:blank")
    # Pages that say no have that status, which the browser notes.
    assert [each for each in chromium.complaints if "400" not in each] == []


def test_a_login_leads_to_the_page_that_was_asked_for(cluster: KafkaCluster, chromium: Browser) -> None:
    chromium.complaints.clear()
    users = {"ada": User(PasswordHash.of("correct horse", bytes(16)))}
    with RunningConsole(cluster.bootstrap_servers, users=users) as console:
        for size, theme in DRESSES:
            chromium.dress(*size, theme)
            chromium.go(console.url + "topics?q=air")
            assert chromium.ask("location.pathname") == "/login"
            _look_at(chromium, "/login")
            assert chromium.ask("document.activeElement.name") == "name"
            chromium.call("Input.insertText", text="ada")
            chromium.ask("document.querySelector('input[type=password]').focus()")
            chromium.call("Input.insertText", text="correct horse")
            _enter(chromium)
            chromium.wait_for("location.pathname === '/topics' && document.readyState === 'complete'")
            assert chromium.ask("location.search") == "?q=air"
            assert chromium.ask("document.cookie") == ""
            _look_at(chromium, "/topics")
            if (size, theme) == DRESSES[-1]:
                # An open page of a session that ends leads to the login.
                token = chromium.ask("document.querySelector('header input').value")
                chromium.ask(f"fetch('/logout', {{method: 'POST', body: new URLSearchParams({{token: '{token}'}})}})")
            else:
                chromium.ask("document.querySelector('header form button').click()")
            chromium.wait_for("location.pathname === '/login'")
        chromium.go("about:blank")
    assert chromium.complaints == []


# Inside.


def _cancel_the_move(cluster: KafkaCluster, browser: Browser) -> None:
    """By the buttons of a console that may change the cluster."""
    with RunningConsole(cluster.bootstrap_servers, may_change=True) as console:
        console.wait_for("/reassignments", "moved-0 1, 2 3 2", "Cancel all of them")
        for size, theme in DRESSES:
            browser.dress(*size, theme)
            browser.go(console.url + "reassignments")
            browser.wait_for("!!document.querySelector('progress')")
            assert browser.ask("document.querySelector('progress').value") < 100
            _look_at(browser, "/reassignments with buttons")
        browser.ask("document.querySelector('table form button').focus()")
        _enter(browser)
        browser.wait_for("!!document.querySelector('button.does')")
        assert "moved-0 stays on brokers 1, 2" in browser.text()
        _look_at(browser, "the confirmation")
        browser.ask("document.querySelector('button.does').focus()")
        _enter(browser)
        browser.wait_for("document.querySelector('h1').textContent.includes('done')")
        assert "1 move cancelled." in browser.text()
        wait_until(lambda: cluster.replicas("moved") == (1, 2), "it is where it was", 30)
        browser.go(console.url + "reassignments")
        browser.wait_for("document.body.innerText.includes('Nothing is being moved.')")
        browser.go("about:blank")
    # What the fixture looks for is who else was asked than a console.
    browser.asked_for[:] = [url for url in browser.asked_for if not url.startswith(console.url)]


def _make_what_is_moved(cluster: KafkaCluster) -> None:
    """A partition on brokers 1 and 2, which comes to broker 3 slowly."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    slow = {"follower.replication.throttled.replicas": "*"}
    rate = ConfigEntry(
        "follower.replication.throttled.rate", str(MOVE_RATE), incremental_operation=AlterConfigOpType.SET
    )
    asked = [
        *admin.create_topics([NewTopic("moved", 1, replica_assignment=[[1, 2]], config=slow)]).values(),
        *admin.incremental_alter_configs(
            [ConfigResource(ConfigResource.Type.BROKER, "3", incremental_configs=[rate])]
        ).values(),
    ]
    for each in asked:
        each.result(30)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for _ in range(MOVED_BYTES >> 16):
        producer.produce("moved", os.urandom(1 << 16))
    assert producer.flush(30) == 0


def _reassign(cluster: KafkaCluster, topic: str, replicas: Sequence[int]) -> None:
    """Begins to move its only partition, and returns."""
    place = {"topic": topic, "partition": 0, "replicas": list(replicas)}
    command = ["reassign", "execute", "-", "--no-wait", "--bootstrap-server", cluster.bootstrap_servers]
    done = CliRunner().invoke(main, command, input=json.dumps({"version": 1, "partitions": [place]}))
    assert done.exit_code == 0, done.output


def _enter(browser: Browser) -> None:
    key: dict[str, object] = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
    browser.call("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
    browser.call("Input.dispatchKeyEvent", type="keyUp", **key)


def _look_at(browser: Browser, where: str) -> None:
    assert browser.ask("document.documentElement.scrollWidth - innerWidth") <= 0, f"{where} is too wide"
    assert browser.ask(TOO_FAINT) == [], where
    assert browser.ask(BROKEN) == [], where
    assert browser.ask(OVERLAPPING) == [], where
    assert browser.ask("document.querySelectorAll('h1').length") == 1, where


def _look_at_all(browser: Browser, console: RunningConsole) -> None:
    for size, theme in DRESSES:
        browser.dress(*size, theme)
        for page in PAGES:
            where = f"/{page} at {size[0]} pixels, {theme}"
            # One that is slow because something else ran is quick the next time.
            assert any(browser.go(console.url + page) <= SECONDS_MAX for _ in range(3)), f"{where} is slow"
            _look_at(browser, where)
            assert browser.complaints == [], where


def _picture(
    browser: Browser, console: RunningConsole, page: str, name: str, size: tuple[int, int], theme: str
) -> None:
    if PICTURES is None:
        return
    browser.dress(*size, theme)
    browser.go(console.url + page)
    (Path(PICTURES) / name).write_bytes(browser.picture())


def _work(servers: str, stop: threading.Event) -> None:
    """Writes and reads until it is told to stop."""
    quiet = {"bootstrap.servers": servers, "log_level": 0}
    producer = confluent_kafka.Producer(quiet)
    for number, name in enumerate(("EWR", "JFK", "LGA")):
        value = f'{{"airport": "{name}", "city": "New York", "runways": {number + 2}}}'
        producer.produce("airports", value, key=name, partition=0, headers={"source": b"timetable"})
    producer.produce("airports", bytes(range(64)), key=b"\xff\x00\x01", partition=0)
    producer.produce("airports", None, key="IDL", partition=0)
    producer.flush(30)
    consumer = confluent_kafka.Consumer(
        {**quiet, "group.id": "delays", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 500}
    )
    consumer.subscribe(["flights"])
    for group in ("barnabas-pipeline-delays", "a-group-with-a-long-name-" * 9):
        other = confluent_kafka.Consumer({**quiet, "group.id": group})
        other.commit(offsets=[confluent_kafka.TopicPartition("flights", 0, 5)], asynchronous=False)
        other.close()
    turn = 0
    while not stop.wait(0.1):
        turn += 1
        for number in range(20 + 15 * (turn // 20 % 3)):
            producer.produce("flights", f'{{"carrier": "UA", "delay": {number}}}', key=f"UA{number}")
        producer.poll(0)
        for _ in range(20 + turn // 30 % 4 * 10):
            consumer.poll(0)
    producer.flush(10)
    consumer.close()
