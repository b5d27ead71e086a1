"""The configs of topics, in memory: what `/config/topics` says, above what the broker says for all topics.

Looking up is synchronous, so that requests of the controller can be applied at once. `server.dynamic_configs` fills it:
with all topics at the start, with topics that are new to the broker before a request that creates their logs is
applied, and with every announced change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Final

from barnabas.cluster.broker_configs import BrokerConfigs, unreadable
from barnabas.config.derived import Values
from barnabas.config.key_table import topic_keys
from barnabas.config.keys import Support
from barnabas.config.topic_config import topic_config

Listener = Callable[[str, Values], None]
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_NEVER: Final = -1
TOPICS_TOLD_AT_ONCE: Final = 50


@dataclass(slots=True)
class _Known:
    """One topic. `modified` is the zxid of the write that `overrides` come from; `values` are computed when asked for
    first.
    """

    overrides: Mapping[str, str]
    modified: int
    values: Values | None = None


class TopicConfigs:
    """By topic: its own configs as text (`overrides`), and the values that follow (`values`).

    A topic that is not known has the broker's defaults. One entry for each topic of the cluster that has been read.
    """

    def __init__(self, broker_configs: BrokerConfigs, logger: logging.Logger, *, tells_in_pieces: bool = False) -> None:
        """With `tells_in_pieces` a change of the broker's defaults is told by calls of `tell_some`, else at once."""
        self._broker_configs = broker_configs
        self._logger = logger
        self._topics: dict[str, _Known] = {}
        self._defaults: Values | None = None
        self._listeners: list[Listener] = []
        self._said_without_effect: set[str] = set()
        self._tells_in_pieces = tells_in_pieces
        self._untold: dict[str, None] = {}
        broker_configs.add_listener(
            {name for key in topic_keys().values() for name in key.synonyms}, self._defaults_changed
        )

    def overrides(self, topic: str) -> Mapping[str, str]:
        """The topic's own configs; empty for a topic that is not known."""
        known = self._topics.get(topic)
        return _NOTHING if known is None else known.overrides

    def values(self, topic: str) -> Values:
        """All configs of the topic, by name. Raises nothing: what cannot be read has been logged and left out."""
        known = self._topics.get(topic)
        if known is None or not known.overrides:
            if self._defaults is None:
                self._defaults = topic_config(_NOTHING, self._broker_configs.values)
            return self._defaults
        if known.values is None:
            known.values = topic_config(known.overrides, self._broker_configs.values)
        return known.values

    def knows(self, topic: str) -> bool:
        return topic in self._topics

    def set(self, topic: str, overrides: Mapping[str, str], modified: int) -> bool:
        """Takes what the topic's znode said at the zxid `modified`; False when something newer is known."""
        known = self._topics.get(topic)
        if known is not None and modified < known.modified:
            return False
        before = self.overrides(topic)
        readable = self._readable(topic, overrides)
        self._topics[topic] = _Known(readable, modified)
        if readable != before:
            self._tell(topic)
        return True

    def topics_with(self, name: str, text: str) -> list[str]:
        """The topics that set a config of their own to this, in whichever case of letters."""
        return [topic for topic, known in self._topics.items() if known.overrides.get(name, "").strip().lower() == text]

    def set_missing(self, topic: str) -> None:
        """Notes that the topic has no znode for configs, so that it has none of its own."""
        before = self.overrides(topic)
        self._topics[topic] = _Known(_NOTHING, _NEVER)
        if before:
            self._tell(topic)

    def forget(self, topics: Iterable[str]) -> None:
        """Drops topics that were deleted."""
        for topic in topics:
            self._topics.pop(topic, None)

    def add_listener(self, listener: Listener) -> None:
        """Calls `listener` with a topic and its new values whenever they change."""
        self._listeners.append(listener)

    def _readable(self, topic: str, overrides: Mapping[str, str]) -> Mapping[str, str]:
        """Leaves out and logs invalid values: another client may have written anything."""
        keys = topic_keys()
        readable: dict[str, str] = {}
        for name, text in overrides.items():
            problems = unreadable(keys[name], text) if name in keys else []
            if problems:
                self._logger.error("Config of topic %s is ignored: %s", topic, "; ".join(problems))
            else:
                readable[name] = text
        self._say_without_effect(readable)
        return MappingProxyType(readable)

    def _say_without_effect(self, overrides: Mapping[str, str]) -> None:
        """Logs once for every config of topics that is not supported yet."""
        keys = topic_keys()
        silent = sorted(
            name
            for name in overrides
            if name in keys and keys[name].support is Support.NOT_YET and name not in self._said_without_effect
        )
        if silent:
            self._said_without_effect.update(silent)
            self._logger.warning("Configs of topics that are known but not supported yet: %s", ", ".join(silent))

    def _defaults_changed(self, _values: Values) -> None:
        self._defaults = None
        for known in self._topics.values():
            known.values = None
        self._untold = dict.fromkeys(self._topics)
        while not self._tells_in_pieces and self.tell_some():
            pass

    def tell_some(self) -> bool:
        """Reports some of the topics that changed defaults affect; False when there are no more of them."""
        for topic in list(islice(self._untold, TOPICS_TOLD_AT_ONCE)):
            del self._untold[topic]
            self._tell(topic)
        return bool(self._untold)

    def _tell(self, topic: str) -> None:
        values = self.values(topic)
        for listener in self._listeners:
            listener(topic, values)
