"""`/configs`, `/configs/topics/flights`, `/configs/brokers/1`: what is set, where, and what is not the default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from barnabas.client.config_admin import ResourceType
from barnabas.client.config_entries import ConfigEntry
from barnabas.console.config_changes import ConfigPlace
from barnabas.console.configs import BROKER, BROKERS, DEFAULT, SOURCES, TOPIC, Entries, Known
from barnabas.console.html import Content, Html, link, table, tag
from barnabas.console.pages.config_change import change_form, change_link
from barnabas.console.pages.page import Page, Visit, int_of, mark, missing, paged, pager, search_field
from barnabas.console.words import counted, moment, span

if TYPE_CHECKING:
    from barnabas.client.cluster import Cluster

_UNITS: Final = (".hours", ".minutes")
_SHOWN_MAX: Final = 300
"""Characters of a value."""
_STALE_MS: Final = 60_000


async def configs(visit: Visit) -> Page:
    """The page, or that of one resource."""
    cluster = visit.poller.cluster.value
    if cluster is None:
        return Page("Configs", None)
    if not visit.segments:
        return await _all(visit, cluster)
    kind, name = visit.segments[0], visit.segments[1] if len(visit.segments) == 2 else ""
    if kind == "topics" and len(visit.segments) == 2:
        if name not in cluster.topics:
            return missing(f"There is no topic {name}; perhaps it was deleted.")
        found = await visit.configs.of(ResourceType.TOPIC, name)
        links = [link("All configs", "configs"), " ", link(f"Topic {name}", "topics", name)]
        place = ConfigPlace(ResourceType.TOPIC, name)
        return _one(visit, f"Configs of topic {name}", found, links, f"topic:{name}", place)
    if kind == "brokers" and len(visit.segments) == 2:
        node_id = int_of(name, -1)
        if node_id not in cluster.brokers:
            return missing(f"Broker {name} is not in the cluster: only a broker itself tells its configs.")
        found = await visit.configs.of(ResourceType.BROKER, str(node_id))
        links = [link("All configs", "configs"), " ", link(f"Broker {node_id}", "brokers", node_id)]
        place = ConfigPlace(ResourceType.BROKER, str(node_id))
        return _one(visit, f"Configs of broker {node_id}", found, links, f"broker:{node_id}", place)
    return missing(f"There are no configs of {'/'.join(visit.segments)}: topics and brokers have some.")


def differs(entry: ConfigEntry) -> bool:
    """Whether a config is set to something else than its default, as far as the broker tells."""
    if entry.source == DEFAULT:
        return False
    default = next((each for each in entry.synonyms if each.source == DEFAULT), None)
    # `retention.ms` may have its default in hours.
    is_comparable = default is not None and default.name.endswith(_UNITS) == entry.name.endswith(_UNITS)
    return entry.is_sensitive or default is None or not is_comparable or default.value != entry.value


# Inside.


async def _all(visit: Visit, cluster: Cluster) -> Page:
    wanted = visit.query.get("q", "").strip()
    names = [name for name in sorted(cluster.topics) if wanted.lower() in name.lower()]
    bounds = paged(names, visit)
    shown = tuple(names[slice(*bounds)])
    found = await visit.configs.of_topics(shown) if shown else Known[Any]({})
    of_all = await visit.configs.of(ResourceType.BROKER, "")
    entries = found.value or {}
    topics: list[list[Content]] = [
        [link(name, "configs", "topics", name), _set_on_topic(entries.get(name), is_known=found.value is not None)]
        for name in shown
    ]
    brokers = [
        [link(f"Broker {node_id}", "configs", "brokers", node_id), f"{node.host}:{node.port}"]
        for node_id, node in sorted(cluster.brokers.items())
    ]
    dynamic = [entry for _, entry in sorted((of_all.value or {}).items()) if entry.source == BROKERS]
    return Page(
        "Configs",
        [
            table("Brokers", ["Its configs", "Address"], brokers),
            _note("What is set for all brokers while they run", of_all, visit),
            table(
                "Set for all brokers while they run",
                ["Config", "Value"],
                [[entry.name, _value(entry.value, entry)] for entry in dynamic],
                "Nothing." if of_all.value is not None else "Not known.",
            ),
            search_field(visit, "Topic"),
            _note("Configs of these topics", found, visit),
            table(counted(len(names), "topic"), ["Topic", "Set on the topic itself"], topics, "No topic."),
            pager(len(names), bounds, visit, "configs"),
        ],
    )


def _set_on_topic(entries: Entries | None, *, is_known: bool) -> Content:
    if entries is None:
        return tag("span", "the broker does not tell" if is_known else "not known yet", class_="faint")
    own = sorted(name for name, entry in entries.items() if entry.source == TOPIC)
    if not own:
        return tag("span", "nothing: as the brokers have it", class_="faint")
    return [tag("div", f"{name}=", _value(entries[name].value, entries[name])) for name in own]


def _one(visit: Visit, title: str, found: Known[Entries], links: Content, resource: str, place: ConfigPlace) -> Page:
    entries = found.value or {}
    wanted = visit.query.get("q", "").strip().lower()
    matching = [
        entry
        for _, entry in sorted(entries.items())
        if wanted in entry.name.lower() or wanted in (entry.value or "").lower()
    ]
    first = [entry for entry in matching if differs(entry)]
    others = [entry for entry in matching if not differs(entry)]
    columns = ["Config", "Value", "Set by", "Otherwise"]
    with_text = f" with {wanted}" if wanted else ""
    form = change_form(visit, place, entries)
    return Page(
        title,
        [
            tag("p", links),
            _note("These configs", found, visit),
            form,
            search_field(visit, "Name or value"),
            table(
                f"{counted(len(first), 'config')} other than the default{with_text}",
                columns,
                [_row(visit, entry, is_other=True) for entry in first],
                "None." if found.value is not None else "Not known.",
            ),
            tag(
                "details",
                tag("summary", f"{counted(len(others), 'config')} as the default{with_text}"),
                table("As the default", columns[:-1], [_row(visit, entry, is_other=False)[:-1] for entry in others]),
                id="defaults",
                open=bool(wanted),
            ),
            None
            if visit.visitor.may_change
            else tag("p", f"Set one with `barnabas config set {resource} NAME=VALUE`.", class_="faint"),
        ],
        is_live=form is None,
    )


def _row(visit: Visit, entry: ConfigEntry, *, is_other: bool) -> list[Content]:
    source = SOURCES.get(entry.source, "not told")
    change = change_link(visit, entry)
    return [
        [tag("b", entry.name) if is_other else entry.name, tag("small", " read only") if entry.is_read_only else None],
        [_value(entry.value, entry), " ", change] if change else _value(entry.value, entry),
        mark("warning", source) if is_other and entry.source in {BROKER, BROKERS} else source,
        _otherwise(entry),
    ]


def _otherwise(entry: ConfigEntry) -> Content:
    """What would hold without this value, and behind that, down to the default."""
    if entry.source == DEFAULT:
        return None
    weaker = [
        tag(
            "div",
            _value(each.value, entry),
            tag("small", f" {each.name}" if each.name != entry.name else "", f" {SOURCES.get(each.source, '')}"),
        )
        for each in entry.synonyms[1:]
    ]
    return weaker or tag("span", "not told", class_="faint")


def _value(value: str | None, entry: ConfigEntry) -> Content:
    if value is None:
        return tag("span", "hidden: it is a secret" if entry.is_sensitive else "null", class_="faint")
    return _shown(value)


def _shown(value: str) -> Content:
    if not value:
        return tag("span", "empty", class_="faint")
    return value if len(value) <= _SHOWN_MAX else f"{value[:_SHOWN_MAX]} ... {len(value):,} characters in all"


def _note(what: str, found: Known[Any], visit: Visit) -> Html | None:
    """A line where they are not known, or old."""
    if found.answered_ms is None:
        why = found.error or "the broker was just asked, the page has them soon"
        return tag("p", f"{what}: not known: {why}.", class_="note warning" if found.error else "note", role="status")
    age_ms = visit.now_ms - found.answered_ms
    if found.error is None and age_ms < _STALE_MS:
        return None
    why = f" No newer answer: {found.error}." if found.error else ""
    said = f"{what}: as of {moment(found.answered_ms, visit.now_ms)} UTC, {span(age_ms)} ago.{why}"
    return tag("p", said, class_="note warning" if found.error else "note", role="status")
