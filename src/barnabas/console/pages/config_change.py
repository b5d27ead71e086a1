"""The form by which a config is changed, on the page of its topic or broker, and what of it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from barnabas.client.config_admin import ResourceType
from barnabas.client.config_entries import ConfigEntry
from barnabas.console.config_changes import ConfigPlace, fields
from barnabas.console.configs import BROKER, BROKERS, TOPIC
from barnabas.console.html import Content, Html, href, link, tag
from barnabas.console.pages.page import Visit, hidden, int_of

if TYPE_CHECKING:
    from barnabas.client.cluster import Cluster

VALUE_MAX: Final = 32_768
"""Characters of a value: as long as Kafka's strings."""


def place_of(cluster: Cluster, form: Mapping[str, str]) -> ConfigPlace | None:
    """The topic or the broker of a form; None where there is none such."""
    topic = form.get("topic")
    if topic is not None:
        return ConfigPlace(ResourceType.TOPIC, topic) if topic in cluster.topics else None
    node_id = int_of(form.get("broker"), -1)
    if node_id not in cluster.brokers:
        return None
    return ConfigPlace(ResourceType.BROKER, str(node_id), all_brokers="all" in form)


def may_be_changed(entry: ConfigEntry) -> bool:
    """Whether a page may have a form for it: it is neither a secret, nor read at the start only."""
    shown = entry.value or ""
    return not entry.is_sensitive and not entry.is_read_only and (not shown or shown.isprintable())


def change_link(visit: Visit, entry: ConfigEntry) -> Html | None:
    """A link to the form; nothing for who may not, and for what may not."""
    if not visit.visitor.may_change or not may_be_changed(entry):
        return None
    label = [tag("span", "Change", aria_label=f"Change {entry.name}"), " ..."]
    return link(label, "configs", *visit.segments, query={"change": entry.name})


def change_form(visit: Visit, place: ConfigPlace, entries: Mapping[str, ConfigEntry]) -> Content:
    """The form for the config that the address names in `change`; nothing where it names none."""
    entry = entries.get(visit.query.get("change", ""))
    if entry is None or not visit.visitor.may_change or not may_be_changed(entry):
        return None
    places = [place]
    if place.resource_type is ResourceType.BROKER:
        places.append(ConfigPlace(place.resource_type, place.name, all_brokers=True))
    set_at = {
        each.source for each in entry.synonyms if each.source in {TOPIC, BROKER, BROKERS} and each.name == entry.name
    }
    return tag(
        "section",
        tag("h2", f"Change {entry.name}"),
        [_setting(visit, each, entry) for each in places],
        [_taking_away(visit, each, entry) for each in places if each.source in set_at],
        tag("p", tag("a", "No, leave it", href=href("configs", *visit.segments)), class_="faint"),
        id="change",
    )


# Inside.


def _setting(visit: Visit, place: ConfigPlace, entry: ConfigEntry) -> Html:
    own = place.own_value(entry)
    value = (entry.value or "") if own is None else own
    asked = {name: text for name, text in fields(place, entry.name, "").items() if name != "value"}
    return tag(
        "form",
        hidden(token=visit.visitor.token, **asked),
        tag("label", f"Value for {place} ", tag("input", name="value", value=value, size=40, maxlength=VALUE_MAX)),
        tag("button", "Look at it first", type="submit"),
        method="post",
        action="/change/config",
    )


def _taking_away(visit: Visit, place: ConfigPlace, entry: ConfigEntry) -> Html:
    return tag(
        "form",
        hidden(token=visit.visitor.token, **fields(place, entry.name, None)),
        tag("button", f"Take it away from {place} ...", type="submit"),
        method="post",
        action="/change/config",
        class_="inline",
    )
