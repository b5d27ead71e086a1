"""What all pages share: how an address becomes one, its frame, and how they say that they are not up to date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from barnabas.console.history import SERIES_MAX
from barnabas.console.html import Content, Html, href, link, tag
from barnabas.console.question import Question
from barnabas.console.words import counted, moment, span

if TYPE_CHECKING:
    from barnabas.console.configs import ConfigReader
    from barnabas.console.history import Samples
    from barnabas.console.poller import Poller
    from barnabas.console.records_read import RecordReader

REFRESH_MS: Final = 3_000
ROWS_MAX: Final = 100
"""How many rows a page has."""
MENU: Final = (
    ("Overview", ""),
    ("Brokers", "brokers"),
    ("Topics", "topics"),
    ("Controller", "controller"),
    ("Groups", "groups"),
    ("Reassignments", "reassignments"),
    ("Transactions", "transactions"),
    ("Messages", "messages"),
    ("Configs", "configs"),
    ("Alerts", "alerts"),
    ("Pipelines", "pipelines"),
)
KEYS: Final = "1234567890a"[: len(MENU)]
ONLY_LOOKS: Final = "Your login only looks: it changes nothing in the cluster."
THEME_BUTTON: Final = tag(
    "button", "Theme", id="theme", type="button", hidden=True, title="Light, dark, or as the system (key t)"
)


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who looks: `user` and `session_id` are empty where the console has no login."""

    token: str = field(repr=False)
    """What forms bring back."""
    user: str = ""
    session_id: str = field(default="", repr=False)
    may_change: bool = False
    is_viewer: bool = False
    """Whether it is the login that may not, whatever the console may."""


@dataclass(frozen=True, slots=True)
class Visit:
    """What a page is made of."""

    poller: Poller
    reader: RecordReader
    now_ms: int
    segments: tuple[str, ...]
    """Of the path, behind the name of the section."""
    query: Mapping[str, str]
    bootstrap: str
    visitor: Visitor
    configs: ConfigReader


@dataclass(frozen=True, slots=True)
class Page:
    """A page before it is framed."""

    title: str
    body: Content
    is_live: bool = True
    """Whether a browser keeps it fresh."""
    status: int = 200


def framed(page: Page, visit: Visit, section: str) -> bytes:
    """The whole document."""
    cluster = visit.poller.cluster.value
    name = "unknown cluster" if cluster is None else f"cluster {cluster.cluster_id or 'without an id'}"
    menu = [
        tag(
            "a",
            label,
            href=href(*([path] if path else [])),
            aria_current="page" if path == section else None,
            title=f"Key {key}",
            data_key=key,
        )
        for key, (label, path) in zip(KEYS, MENU, strict=True)
    ]
    only_reads = "The console only reads: it changes nothing in the cluster."
    may_change = "This console may change the cluster, after it has said how."
    visitor = visit.visitor
    what_it_may = ONLY_LOOKS if visitor.is_viewer else may_change if visitor.may_change else only_reads
    body = tag(
        "body",
        tag("a", "Skip to the page", href="#main", class_="skip"),
        tag(
            "header",
            tag("a", "Barnabas", href="/", class_="brand"),
            tag("span", name, class_="cluster"),
            THEME_BUTTON,
            _log_out(visit.visitor),
        ),
        tag("nav", menu, aria_label="Pages"),
        tag("p", id="lost", role="status", hidden=True),
        tag("p", id="waits", role="status", class_="note warning", hidden=True),
        tag(
            "main",
            tag("h1", page.title),
            _not_up_to_date(visit.poller.cluster, visit),
            page.body,
            id="main",
            tabindex=-1,
            data_refresh=REFRESH_MS if page.is_live else None,
        ),
        tag(
            "footer",
            f"{what_it_may} Times are UTC. Asked of {visit.bootstrap}. ",
            "Keys: 1 to 9, 0 and a for the pages, / search, t theme.",
        ),
    )
    return document(page.title, body)


def document(title: str, body: Html) -> bytes:
    """A document with that body."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} - Barnabas console"),
        tag("link", rel="icon", href="/static/icon.svg", type="image/svg+xml"),
        tag("link", rel="stylesheet", href="/static/console.css"),
        tag("script", src="/static/console.js", defer=True),
    )
    return Html("<!DOCTYPE html>" + tag("html", head, body, lang="en")).encode()


def posting(visitor: Visitor, label: Content, *segments: str | int, **fields: str | int | None) -> Html | None:
    """A button that posts these fields; nothing for who may not. Fields that are None are left out."""
    if not visitor.may_change:
        return None
    return tag(
        "form",
        hidden(token=visitor.token, **fields),
        tag("button", label, type="submit"),
        method="post",
        action=href(*segments),
        class_="inline",
    )


def hidden(**fields: str | int | None) -> list[Html]:
    """Fields of a form that nobody sees."""
    return [tag("input", type="hidden", name=name, value=value) for name, value in fields.items() if value is not None]


def stale_note(question: Question[Any], visit: Visit) -> Html | None:
    """A line where what a page shows is not up to date, or was never known; nothing otherwise."""
    age_ms = question.age_ms(visit.now_ms)
    if age_ms is None:
        why = f"not known: {question.error}" if question.error else "not known yet: the console has just begun to ask"
        return tag("p", f"{question.name}: {why}.", class_="note warning" if question.error else "note", role="status")
    if not question.is_stale(visit.now_ms):
        return None
    at = moment(question.answered_ms or 0, visit.now_ms)
    why = f" No newer answer: {question.error}." if question.error else ""
    return tag(
        "p", f"{question.name}: stale, as of {at} UTC, {span(age_ms)} ago.{why}", class_="note warning", role="status"
    )


def failures_note(failed: Mapping[int, str]) -> Html | None:
    """A line where some brokers have not answered."""
    if not failed:
        return None
    reasons = "; ".join(f"broker {node_id}: {why}" for node_id, why in failed.items())
    return tag("p", f"Not complete: {reasons}.", class_="note warning", role="status")


def missing(what: str) -> Page:
    """A page for something that is not there."""
    return Page("Not there", tag("p", what, class_="note warning"), status=404)


def search_field(visit: Visit, label: str, *hidden: tuple[str, str]) -> Html:
    """A form that filters the page by `q`."""
    return tag(
        "form",
        tag("label", label, " ", tag("input", type="search", name="q", value=visit.query.get("q", ""), id="q")),
        [tag("input", type="hidden", name=name, value=value) for name, value in hidden],
        tag("button", "Filter", type="submit"),
        method="get",
        role="search",
    )


def paged(rows: Sequence[object], visit: Visit) -> tuple[int, int]:
    """From where to where the rows of this page are; `page` in the address counts from 1."""
    number = int_of(visit.query.get("page"), 1, least=1)
    first = min((number - 1) * ROWS_MAX, max(0, (len(rows) - 1) // ROWS_MAX * ROWS_MAX))
    return first, min(len(rows), first + ROWS_MAX)


def pager(count: int, bounds: tuple[int, int], visit: Visit, *segments: str | int) -> Html | None:
    """Links to the pages before and behind; nothing where all rows fit on one."""
    if count <= ROWS_MAX:
        return None
    first, last = bounds
    number = first // ROWS_MAX + 1
    others = {key: value for key, value in visit.query.items() if key != "page"}
    parts: list[Content] = [f"{first + 1:,} to {last:,} of {counted(count, 'row')} "]
    if first:
        parts += [link("Before", *segments, query={**others, "page": number - 1}), " "]
    if last < count:
        parts.append(link("Next", *segments, query={**others, "page": number + 1}))
    return tag("p", parts, class_="pager")


def no_samples(samples: Samples, name: str) -> str:
    """What a chart says that has no line: whether there will be one."""
    if samples.has_place(name):
        return "No samples yet: wait a moment."
    return f"Not kept over time: the console keeps that of {SERIES_MAX} at most, and of others the last figure."


def int_of(value: str | None, otherwise: int, *, least: int = 0, most: int = (1 << 63) - 1) -> int:
    """A number of an address, within bounds; `otherwise` where there is none."""
    if value is None or not value.isascii() or not value.isdigit() or len(value) > 19:
        return otherwise
    return min(most, max(least, int(value)))


def mark(kind: str, label: Content) -> Html:
    """A word with a sign that differs in shape and colour: `good`, `warning`, `bad`."""
    signs = {"good": "\u25cf", "warning": "\u25b2", "bad": "\u25a0"}
    return tag(
        "span", tag("span", signs[kind], class_="sign", aria_hidden="true"), "\u00a0", label, class_=f"mark {kind}"
    )


# Inside.


def _log_out(visitor: Visitor) -> Html | None:
    if not visitor.session_id:
        return None
    button = tag("button", f"Log out {visitor.user}", type="submit")
    return tag("form", hidden(token=visitor.token), button, method="post", action="/logout", class_="inline")


def _not_up_to_date(question: Question[Any], visit: Visit) -> Html | None:
    if question.value is None and question.error is not None:
        return tag(
            "p",
            "No broker answers at ",
            visit.bootstrap,
            f": {question.error}. The console goes on asking; start the brokers, or look whether they can be reached.",
            class_="note bad",
            role="alert",
        )
    return stale_note(question, visit)
