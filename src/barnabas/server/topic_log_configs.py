"""The configs of topics as their logs take them, one object per topic, or one for all that have none of their own."""

from __future__ import annotations

from collections.abc import Iterable

from barnabas.cluster.topic_configs import TopicConfigs
from barnabas.config.derived import Values
from barnabas.config.settings import take
from barnabas.log.manager.log_manager import LogManager
from barnabas.log.partition.log_config import LogConfig

# No topic has an empty name: what is looked up under it are the broker's defaults.
_NO_TOPIC = ""


class TopicLogConfigs:
    """Gives each topic's logs their config, and hands every change on to the logs that are there."""

    def __init__(self, topic_configs: TopicConfigs, log_manager: LogManager) -> None:
        self._topic_configs = topic_configs
        self._log_manager = log_manager
        self._taken: dict[str, tuple[Values, LogConfig]] = {}
        topic_configs.add_listener(self._changed)

    def log_config(self, topic: str) -> LogConfig:
        """The config of a topic's logs, the broker's defaults below the topic's own."""
        values = self._topic_configs.values(topic)
        # Values are replaced as a whole, and topics without configs of their own have the same ones.
        name = topic if self._topic_configs.overrides(topic) else _NO_TOPIC
        found = self._taken.get(name)
        if found is None or found[0] is not values:
            found = self._taken[name] = (values, take(LogConfig, values))
        return found[1]

    def default(self) -> LogConfig:
        """What holds for a topic without configs of its own."""
        return self.log_config(_NO_TOPIC)

    def forget(self, topics: Iterable[str]) -> None:
        """Drops topics that were deleted."""
        names = list(topics)
        self._topic_configs.forget(names)
        for name in names:
            self._taken.pop(name, None)

    def _changed(self, topic: str, _values: Values) -> None:
        self._log_manager.default_config = self.default()
        self._log_manager.reconfigure(topic, self.log_config(topic))
