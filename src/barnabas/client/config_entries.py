"""Configurations as brokers tell of them; users import this from `barnabas.client.admin`."""

from __future__ import annotations

from barnabas.kernel.facts import fact


@fact
class ConfigSynonym:
    """A place and a name that could set a configuration; `value` is None where it is secret or unset."""

    name: str
    value: str | None
    source: int


@fact
class ConfigEntry:
    """One configuration of a resource; `source` is the protocol's number, `value` None where it is secret or unset."""

    name: str
    value: str | None
    source: int
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[ConfigSynonym, ...] = ()
    """All places that could set it, the strongest first; only where it was asked for."""
