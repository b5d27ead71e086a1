"""`/write`, and what is posted to `/change/...`: first what will happen, then it happens, then how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from barnabas.client.errors import ClientError
from barnabas.client.records import ProducerRecord
from barnabas.console.changes import BusyError, CancelMoves, Change, ElectPreferred, Ended, WriteRecord, told
from barnabas.console.config_changes import ChangeConfig, NotPossibleError, prepared
from barnabas.console.html import Content, Html, link, table, tag
from barnabas.console.pages.config_change import VALUE_MAX, place_of
from barnabas.console.pages.messages import shown_bytes, shown_headers
from barnabas.console.pages.page import ONLY_LOOKS, Page, Visit, hidden, int_of, missing, posting
from barnabas.link.errors import UnsupportedVersionError
from barnabas.wire.errors import KafkaError
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.cluster import Cluster
    from barnabas.console.changes import Changes

HEADERS_MAX: Final = 100
_FORMS: Final = {"text": "text", "hex": "hexadecimal", "null": "null"}
_KEY_FORMS: Final = {"some": "text, or null where it is empty", **_FORMS}


class WrongFieldError(Exception):
    """A form that makes no sense; the message is for who sent it."""


def write(visit: Visit) -> Page:
    """The form for a record."""
    cluster = visit.poller.cluster.value
    if not visit.visitor.may_change:
        why = (
            ONLY_LOOKS
            if visit.visitor.is_viewer
            else "This console writes no records: it was started without --allow-changes."
        )
        return missing(why)
    if cluster is None:
        return Page("Write a record", None)
    return Page("Write a record", _write_form(visit, cluster, visit.query), is_live=False)


async def change(visit: Visit, changes: Changes, form: Mapping[str, str]) -> Page:
    """What was posted."""
    kind = visit.segments[0] if len(visit.segments) == 1 else ""
    cluster = visit.poller.cluster.value
    if kind == "do":
        return await _done(visit, changes, form)
    if cluster is None or kind not in {"write", "cancel", "elect", "config"}:
        return missing("There is no such change, or no broker has answered yet.")
    try:
        if kind == "config":
            return _asked(visit, changes, await _configured(visit, cluster, form))
        wanted = {"write": _written, "cancel": _cancelled, "elect": _elected}[kind](visit, cluster, form)
    except WrongFieldError as error:
        note = tag("p", f"{error}.", class_="note warning", role="alert")
        body = [note, _write_form(visit, cluster, form) if kind == "write" else None]
        return Page("Write a record" if kind == "write" else "Not possible", body, is_live=False, status=400)
    return _asked(visit, changes, wanted)


# Inside: asking, and doing.


def _asked(visit: Visit, changes: Changes, wanted: Change) -> Page:
    number = changes.prepare(wanted, visit.visitor.session_id)
    record = wanted.record if isinstance(wanted, WriteRecord) else None
    return Page(
        f"{wanted.title}?",
        [
            tag("p", "Nothing was done yet. This will happen:", class_="note"),
            tag("section", tag("ul", [tag("li", each) for each in wanted.sentences])),
            _shown(record) if record is not None else None,
            _confirming(visit, number, wanted.title, link("No, go back", *wanted.back)),
        ],
        is_live=False,
    )


async def _done(visit: Visit, changes: Changes, form: Mapping[str, str]) -> Page:
    number = form.get("number", "")
    try:
        ended = await changes.carry_out(number, visit.visitor.session_id, visit.visitor.user)
    except BusyError as error:
        note = tag("p", f"{error}.", class_="note warning", role="alert")
        return Page("Not done", [note, _confirming(visit, number, "Try again")], is_live=False, status=503)
    visit.configs.renew()
    if ended is None:
        said = "This was asked for too long ago, or confirmed long since: nothing was done now."
        return Page("Not done", tag("p", said, class_="note warning", role="alert"), is_live=False, status=409)
    return _ended(visit, ended)


def _confirming(visit: Visit, number: str, label: str, *others: Content) -> Html:
    return tag(
        "form",
        hidden(token=visit.visitor.token, number=number),
        tag("button", label, type="submit", class_="does"),
        others,
        method="post",
        action="/change/do",
    )


def _ended(visit: Visit, ended: Ended) -> Page:
    wanted, outcome = ended.change, ended.outcome
    kind = "good" if outcome.is_done else "bad"
    role = "status" if outcome.is_done else "alert"
    again = "This form came before: what it asks for was tried once, and this is how that ended."
    return Page(
        f"{wanted.title}: {'done' if outcome.is_done else 'failed'}",
        [
            tag("div", [tag("p", each) for each in outcome.said], class_=f"note {kind}", role=role),
            tag("p", again, class_="faint") if ended.is_repeated else None,
            tag("p", link("Go on", *wanted.back), " ", _another(wanted)),
            posting(visit.visitor, "Undo ...", "change", "config", **wanted.undone)
            if isinstance(wanted, ChangeConfig) and outcome.is_done
            else None,
        ],
        is_live=False,
    )


def _another(wanted: Change) -> Html | None:
    if not isinstance(wanted, WriteRecord):
        return None
    return link("Write another", "write", query={"topic": wanted.record.topic})


# Inside: what is wanted.


async def _configured(visit: Visit, cluster: Cluster, form: Mapping[str, str]) -> Change:
    place, key = place_of(cluster, form), form.get("key", "")
    if place is None:
        raise WrongFieldError("There is no such topic or broker, or not any more")
    value = None if "away" in form else form.get("value", "")
    if value is not None and (len(value) > VALUE_MAX or not (value.isprintable() or not value)):
        raise WrongFieldError(f"A value has up to {VALUE_MAX:,} characters, all of which can be shown")
    try:
        return await prepared(visit.poller.client, place, key, value)
    except NotPossibleError as error:
        raise WrongFieldError(str(error)) from None
    except KafkaError as error:
        raise WrongFieldError(f"The broker would refuse {key}={value or ''}: {told(error)}") from None
    except (ClientError, ConnectionError, TimeoutError, UnsupportedVersionError, ProtocolError) as error:
        raise WrongFieldError(f"No broker has looked at it: {str(error) or 'no answer in time'}") from None


def _cancelled(visit: Visit, _cluster: Cluster, form: Mapping[str, str]) -> Change:
    found = visit.poller.reassignments.value or {}
    partition = _partition(form)
    if partition is not None and partition not in found:
        raise WrongFieldError(f"{partition} is not being moved, or not any more")
    moves = tuple(sorted(found.items())) if partition is None else ((partition, found[partition]),)
    if not moves:
        raise WrongFieldError("Nothing is being moved any more")
    return CancelMoves(moves)


def _elected(_visit: Visit, cluster: Cluster, form: Mapping[str, str]) -> Change:
    topic, partition = form.get("topic", ""), _partition(form)
    if topic and topic not in cluster.topics:
        raise WrongFieldError(f"There is no topic {topic}")
    elections = tuple(
        (TopicPartition(name, number), info.leader_id, info.replicas[0])
        for name in ([topic] if topic else sorted(cluster.topics))
        for number, info in sorted(cluster.topics[name].partitions.items())
        if info.replicas
        and info.leader_id != info.replicas[0]
        and info.replicas[0] in info.isr
        and info.replicas[0] in cluster.brokers
        and (partition is None or partition.partition == number)
    )
    if not elections:
        raise WrongFieldError(
            "There is nothing to elect: each partition is led by its first replica, or that one is not in sync"
        )
    return ElectPreferred(elections, ("topics", topic) if topic else ("brokers",))


def _written(_visit: Visit, cluster: Cluster, form: Mapping[str, str]) -> Change:
    name = form.get("topic", "").strip()
    topic = cluster.topics.get(name)
    if topic is None:
        raise WrongFieldError(f"There is no topic {name}" if name else "Name a topic")
    if topic.is_internal:
        raise WrongFieldError(f"{name} belongs to the brokers: a record of ours there would harm them")
    number = form.get("partition", "").strip()
    partition = int_of(number, -1) if number else None
    if partition is not None and partition not in topic.partitions:
        raise WrongFieldError(f"{name} has no partition {number}")
    key = _data(form, "key")
    return WriteRecord(ProducerRecord(name, _data(form, "value"), key, _headers(form.get("headers", "")), partition))


def _partition(form: Mapping[str, str]) -> TopicPartition | None:
    if not form.get("partition"):
        return None
    return TopicPartition(form.get("topic", ""), int_of(form["partition"], -1))


def _data(form: Mapping[str, str], name: str) -> bytes | None:
    """A key or a value; line breaks are \\n, whatever a browser makes of them."""
    text, kind = form.get(name, "").replace("\r\n", "\n"), form.get(f"{name}-as", "text")
    if kind == "null" or (kind == "some" and not text):
        if text:
            raise WrongFieldError(f"The {name} is null, and there is a text for it: take one or the other away")
        return None
    if kind == "hex":
        try:
            return bytes.fromhex(text)
        except ValueError:
            raise WrongFieldError(f"The {name} is not hexadecimal: pairs of 0 to 9 and a to f, such as 00 ff") from None
    return text.encode()


def _headers(text: str) -> tuple[tuple[bytes, bytes | None], ...]:
    found: list[tuple[bytes, bytes | None]] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise WrongFieldError("Each header is a line NAME=VALUE")
        found.append((name.strip().encode(), value.encode()))
    if len(found) > HEADERS_MAX:
        raise WrongFieldError(f"There are {len(found)} headers: {HEADERS_MAX} a form may have")
    return tuple(found)


# Inside: forms.


def _write_form(visit: Visit, cluster: Cluster, given: Mapping[str, str]) -> Html:
    def field(label: str, **attributes: str | int | None) -> Html:
        return tag("label", label, " ", tag("input", **attributes))

    def data(label: str, name: str, rows: int, forms: Mapping[str, str]) -> Html:
        chosen = given.get(f"{name}-as", next(iter(forms)))
        options = [tag("option", word, value=kind, selected=kind == chosen) for kind, word in forms.items()]
        # A line break at the beginning of a text area is not part of it.
        area = tag("textarea", Html("\n"), given.get(name, ""), name=name, id=name, rows=rows, spellcheck="false")
        kind = tag("select", options, name=f"{name}-as", aria_label=f"{label} as")
        return tag("div", tag("label", label, " ", for_=name), kind, area, class_="area")

    topic = cluster.topics.get(given.get("topic", ""))
    last = len(topic.partitions) - 1 if topic is not None else None
    names = [tag("option", value=name) for name in sorted(cluster.topics)[:500]]
    header_lines = tag(
        "div",
        tag("label", "Headers, a line NAME=VALUE for each", for_="headers"),
        tag("textarea", Html("\n"), given.get("headers", ""), name="headers", id="headers", rows=2, spellcheck="false"),
        class_="area",
    )
    return tag(
        "form",
        hidden(token=visit.visitor.token),
        field("Topic", name="topic", value=given.get("topic", ""), list="topic-names", required=True, size=20),
        tag("datalist", names, id="topic-names"),
        field("Partition", type="number", name="partition", value=given.get("partition", ""), min=0, max=last),
        tag("p", "Without a partition the key chooses it, and without a key the console.", class_="faint"),
        data("Key", "key", 1, _KEY_FORMS),
        data("Value", "value", 6, _FORMS),
        header_lines,
        tag("button", "Look at it first", type="submit"),
        method="post",
        action="/change/write",
        class_="write",
    )


def _shown(record: ProducerRecord) -> Html:
    row: list[Content] = [shown_bytes(record.key), shown_bytes(record.value), shown_headers(record.headers) or None]
    return table("The record", ["Key", "Value", "Headers"], [row])
