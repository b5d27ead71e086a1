"""Configs of topics and brokers that are set, or taken away: tried by a broker before it is confirmed, and done only
where the value is still the one that was shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.client.admin import Admin
from barnabas.client.config_admin import ConfigOperation, ResourceType
from barnabas.console.changes import CHANGE_MS_MAX, Outcome
from barnabas.console.configs import BROKER, BROKERS, SOURCES, TOPIC

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.config_entries import ConfigEntry

TRIAL_MS_MAX: Final = 5_000
"""How long a broker may look at a change before it is confirmed."""


class NotPossibleError(Exception):
    """A config that cannot be changed so; the message is for who asked for it."""


@dataclass(frozen=True, slots=True)
class ConfigPlace:
    """Where a config is set: a topic, a broker (by its id), or all brokers (`all_brokers`)."""

    resource_type: ResourceType
    name: str
    """Of the page: the topic, or the broker that is asked."""
    all_brokers: bool = False

    @property
    def resource(self) -> str:
        """The name that is sent: "" is all brokers."""
        return "" if self.all_brokers else self.name

    @property
    def source(self) -> int:
        """How DescribeConfigs calls what is set there."""
        if self.resource_type is ResourceType.TOPIC:
            return TOPIC
        return BROKERS if self.all_brokers else BROKER

    def __str__(self) -> str:
        if self.resource_type is ResourceType.TOPIC:
            return f"topic {self.name}"
        return "all brokers" if self.all_brokers else f"broker {self.name}"

    def own_value(self, entry: ConfigEntry | None) -> str | None:
        """What is set there itself; None where nothing is."""
        if entry is None:
            return None
        return next(
            (each.value for each in entry.synonyms if (each.source, each.name) == (self.source, entry.name)), None
        )


@dataclass(frozen=True, slots=True)
class ChangeConfig:
    """A config gets another value, or (`after` None) the one that it has without; `before` is what was set there."""

    place: ConfigPlace
    key: str
    before: str | None
    after: str | None
    otherwise: str
    """What holds where nothing is set there, in words."""

    @property
    def title(self) -> str:
        return f"Take {self.key} away" if self.after is None else f"Set {self.key}"

    @property
    def sentences(self) -> tuple[str, ...]:
        before = f"not set: {self.otherwise}" if self.before is None else shown_value(self.before)
        after = f"not set: {self.otherwise}" if self.after is None else shown_value(self.after)
        return (
            f"{self.key} of {self.place} was {before}; it becomes {after}.",
            "A broker has looked at it, and takes it; it holds at once, without a restart.",
        )

    @property
    def back(self) -> tuple[str | int, ...]:
        return ("configs", "topics" if self.place.resource_type is ResourceType.TOPIC else "brokers", self.place.name)

    @property
    def undone(self) -> dict[str, str]:
        """The fields of the form that takes it back."""
        return fields(self.place, self.key, self.before)

    async def carry_out(self, client: Client) -> Outcome:
        async with Admin(client) as admin:
            now = self.place.own_value(await _entry(admin, self.place, self.key, CHANGE_MS_MAX))
            if now != self.before:
                by_now = "not set" if now is None else shown_value(now)
                return Outcome(False, (f"Nothing was changed: {self.key} of {self.place} is {by_now} by now.",))
            await _alter(admin, self.place, self.key, self.after, CHANGE_MS_MAX, validate_only=False)
        return Outcome(True, (self.sentences[0].replace("; it becomes", "; it is now"),))


def fields(place: ConfigPlace, key: str, value: str | None) -> dict[str, str]:
    """The fields of a form that asks for a change; None takes the config away."""
    kind = "topic" if place.resource_type is ResourceType.TOPIC else "broker"
    found = {kind: place.name, "key": key}
    if place.all_brokers:
        found["all"] = "1"
    return {**found, "away": "1"} if value is None else {**found, "value": value}


async def prepared(client: Client, place: ConfigPlace, key: str, value: str | None) -> ChangeConfig:
    """The change, after a broker has said that it takes it (`validate_only`). Raises NotPossibleError, and what the
    client raises.
    """
    async with Admin(client) as admin:
        entry = await _entry(admin, place, key, TRIAL_MS_MAX)
        if entry is None:
            raise NotPossibleError(f"There is no config {key} of {place}")
        if entry.is_sensitive:
            raise NotPossibleError(f"{key} is a secret, which no page shows or takes: `barnabas config set` does")
        if entry.is_read_only:
            raise NotPossibleError(
                f"{key} is read when a broker starts, from server.properties, and cannot be changed here"
            )
        before = place.own_value(entry)
        if before == value:
            raise NotPossibleError(
                f"{key} is not set on {place}" if value is None else f"{key} of {place} is that already"
            )
        await _alter(admin, place, key, value, TRIAL_MS_MAX, validate_only=True)
    return ChangeConfig(place, key, before, value, _otherwise(place, entry))


def shown_value(value: str) -> str:
    """A value in a sentence: its beginning where it is long."""
    if not value:
        return "empty"
    return value if len(value) <= 200 else f"{value[:200]} ... ({len(value):,} characters)"


# Inside.


async def _entry(admin: Admin, place: ConfigPlace, key: str, timeout_ms: float) -> ConfigEntry | None:
    found = await admin.describe_configs(place.resource_type, place.name, timeout_ms, with_synonyms=True)
    return found.get(key)


async def _alter(
    admin: Admin, place: ConfigPlace, key: str, value: str | None, timeout_ms: float, *, validate_only: bool
) -> None:
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    changes = [(key, operation, value)]
    await admin.alter_configs(place.resource_type, place.resource, changes, timeout_ms, validate_only=validate_only)


def _otherwise(place: ConfigPlace, entry: ConfigEntry) -> str:
    """What holds without a value there: the strongest of the others."""
    for each in entry.synonyms:
        if each.source != place.source:
            named = "" if each.name == entry.name else f", {each.name}"
            value = "null" if each.value is None else shown_value(each.value)
            return f"{value} ({SOURCES.get(each.source, 'not told')}{named})"
    return "as the brokers have it"
