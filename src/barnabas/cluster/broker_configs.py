"""The configs in force on one broker: `server.properties`, and above it the dynamic configs of `/config/brokers`.

Source: KIP-226. A dynamic config that cannot hold (unknown to be dynamic, unreadable, in conflict with another) is
logged and left out, whoever wrote it; what a client asks for is checked before it is written. Passwords are in the
clear here: they are encrypted in ZooKeeper (`security.stored_passwords`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from barnabas.config.broker_config import BrokerConfig, BrokerConfigError, base_name, check_broker_config
from barnabas.config.derived import Values
from barnabas.config.describing import BrokerLayers, check_dynamic_configs, fixed_changes
from barnabas.config.key_table import broker_keys, dynamic_keys
from barnabas.config.keys import ConfigError, ConfigKey, Support
from barnabas.wire.errors import ErrorCode, KafkaError

Texts = Mapping[str, str]
_CLEANER_THREADS: Final = "log.cleaner.threads"
_OF_A_LISTENER: Final = "at run time for a listener that is there; set it in server.properties and start again"
_SOURCE: Final = "The dynamic configuration"


@dataclass(frozen=True, slots=True)
class _Listener:
    names: frozenset[str]
    call: Callable[[Values], None]


class ConfigFollower(Protocol):
    """Who takes a configuration as a whole, with the keys of single listeners, and with the files that it names."""

    async def check(self, config: BrokerConfig) -> None:
        """Called before it is written. Raises ValueError for one that cannot be."""
        ...

    def take(self, config: BrokerConfig) -> None:
        """Called whenever it was read, changed or not: a file that it names may have changed. It may be taken later."""
        ...


class BrokerConfigs:
    """The configuration of one broker, which changes while it runs.

    `config`, `values` and `layers` are replaced as a whole by every change. Rooms that take new values at run time
    follow their keys; a room that does not is made of what holds when the broker starts (`for_rooms`).
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        broker_id: int,
        logger: logging.Logger,
        own_keys: Iterable[ConfigKey[Any]] = (),
    ) -> None:
        self.broker_id = broker_id
        self._logger = logger
        self._own_keys = tuple(own_keys)
        self._known = {**broker_keys(), **{key.name: key for key in self._own_keys}}
        self._config = config
        self._layers = BrokerLayers(config.given, known=self._known)
        self._wanted: dict[bool, Texts] = {False: {}, True: {}}
        """The last dynamic configs of all brokers and of this one, valid or not."""
        self._listeners: list[_Listener] = []
        self._throttles: list[tuple[str, Callable[[int], None]]] = []
        self._followers: list[ConfigFollower] = []
        self._said_without_effect: set[str] = set()
        self._rooms_are_made = False

    @property
    def config(self) -> BrokerConfig:
        """What holds now."""
        return self._config

    @property
    def values(self) -> Values:
        """The present value of every key."""
        return self._config.values

    @property
    def layers(self) -> BrokerLayers:
        """The source of each present value."""
        return self._layers

    def add_listener(self, names: Iterable[str], listener: Callable[[Values], None]) -> None:
        """Calls `listener` with the new values after every change of one of these keys."""
        self._listeners.append(_Listener(frozenset(names), listener))

    def follow(self, names: Iterable[str], listener: Callable[[Values], None]) -> None:
        """Calls `listener` with the present values, and after every change of one of these keys, so it does not matter
        whether the dynamic configs were read before or after.
        """
        self.add_listener(names, listener)
        listener(self.values)

    def follow_throttle(self, name: str, listener: Callable[[int], None]) -> None:
        """As `follow`, of one of the keys that `server.properties` does not have and `values` neither (`dynamic_keys`);
        called with its value."""
        self._throttles.append((name, listener))
        listener(self._throttle(self._layers, name))

    def follow_whole(self, follower: ConfigFollower) -> None:
        """Has whatever is read from now on taken by `follower`."""
        self._followers.append(follower)

    @staticmethod
    def _throttle(layers: BrokerLayers, name: str) -> int:
        key = dynamic_keys()[name]
        text = layers.broker.get(name, layers.cluster_default.get(name))
        value = key.default if text is None else key.parse(text)
        if not isinstance(value, int):
            raise TypeError(f"{name} is no number of bytes")
        return value

    def for_rooms(self) -> BrokerConfig:
        """What holds now, for the rooms to be made of: from here on a change of a key that nobody follows is too late
        for this start, and that is said.
        """
        self._rooms_are_made = True
        return self._config

    def check(self, texts: Texts, *, of_one_broker: bool) -> None:
        """Whether the broker's dynamic configs, or those of all brokers, may be `texts` and nothing else.

        Raises `KafkaError` (INVALID_REQUEST) for what Kafka refuses too.
        """
        problems = check_dynamic_configs(texts, of_one_broker=of_one_broker)
        for name, text in texts.items():
            key = dynamic_keys().get(name)
            if key is not None:
                problems += unreadable(key, text)
        if problems:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "; ".join(problems))
        read = self._read(self._with(texts, of_one_broker=of_one_broker))
        if isinstance(read, BrokerConfigError):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "; ".join(read.problems))
        fixed = fixed_changes(self._config, read, self._known)
        if fixed:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{', '.join(fixed)} cannot be changed {_OF_A_LISTENER}")
        threads, current = read.values[_CLEANER_THREADS], self.values[_CLEANER_THREADS]
        if not current // 2 <= threads <= 2 * current:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{_CLEANER_THREADS} is {current}: it can be {max(current // 2, 1)} at the least and {2 * current} at "
                f"the most, not {threads}; a start of the broker takes any",
            )

    async def check_whole(self, texts: Texts, *, of_one_broker: bool) -> None:
        """Whether those who take a configuration as a whole could, where `check` has found nothing wrong with it.

        Raises `KafkaError` (INVALID_REQUEST).
        """
        read = self._read(self._with(texts, of_one_broker=of_one_broker)) if self._followers else None
        if not isinstance(read, BrokerConfig):
            return
        for follower in self._followers:
            try:
                await follower.check(read)
            except ValueError as error:
                raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None

    def set_cluster_default(self, texts: Texts) -> None:
        """Applies the data of `/config/brokers/<default>`."""
        self._set(texts, of_one_broker=False)

    def set_broker(self, texts: Texts) -> None:
        """Applies the data of the broker's own znode under `/config/brokers`."""
        self._set(texts, of_one_broker=True)

    def _set(self, texts: Texts, *, of_one_broker: bool) -> None:
        place = f"broker {self.broker_id}" if of_one_broker else "all brokers"
        usable: dict[str, str] = {}
        for name, text in texts.items():
            problems = self._problems_of(name, text, of_one_broker=of_one_broker)
            if problems:
                self._logger.error("Dynamic config %s of %s is ignored: %s", name, place, "; ".join(problems))
            else:
                usable[name] = text
        self._wanted[of_one_broker] = usable
        # What both places say may hold only together: a start reads one of them first, in whatever order they were set.
        layers = BrokerLayers(self._layers.static, self._wanted[False], self._wanted[True], self._known)
        config = self._read(layers)
        if isinstance(config, BrokerConfigError):
            layers = self._with(usable, of_one_broker=of_one_broker)
            config = self._read(layers)
        if isinstance(config, BrokerConfigError):
            self._logger.error("The dynamic configs of %s are ignored: %s", place, "; ".join(config.problems))
            return
        before, layers_before = self._config, self._layers
        self._layers, self._config = layers, config
        for name, listener in self._throttles:
            value = self._throttle(layers, name)
            if value != self._throttle(layers_before, name):
                self._logger.info("The dynamic config %s is %d now", name, value)
                listener(value)
        changed = {name for name, value in config.values.items() if value != before.values[name]}
        changed |= self._changed_of_listeners(before.listener_values, config.listener_values)
        if changed:
            self._logger.info("Dynamic configs of %s changed: %s", place, ", ".join(sorted(changed)))
            self._tell(changed)
        for follower in self._followers:
            follower.take(config)

    def _changed_of_listeners(self, before: Values, after: Values) -> frozenset[str]:
        """The keys of which the value for some listener is another now, and that somebody follows."""
        heard = frozenset().union(*(listener.names for listener in self._listeners))
        names = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        return heard & {base_name(name, self._known) for name in names}

    def _problems_of(self, name: str, text: str, *, of_one_broker: bool) -> list[str]:
        """The reason why a dynamic config is not allowed by itself."""
        problems = check_dynamic_configs({name: text}, of_one_broker=of_one_broker)
        key = dynamic_keys().get(name) or self._known.get(base_name(name, self._known))
        if key is not None:
            problems += unreadable(key, text)
        return problems

    def _tell(self, changed: set[str]) -> None:
        self._say_without_effect(changed)
        for listener in self._listeners:
            if not listener.names.isdisjoint(changed):
                listener.call(self.values)

    def _say_without_effect(self, changed: set[str]) -> None:
        """Logs once for every key that it has no effect, or not yet."""
        heard = frozenset().union(*(listener.names for listener in self._listeners))
        silent = sorted(changed - heard - self._said_without_effect)
        self._said_without_effect.update(silent)
        never = [name for name in silent if self._known_support(name) is not Support.ACTIVE]
        later = [name for name in silent if name not in never and self._rooms_are_made]
        if never:
            self._logger.warning("Dynamic configs that are known but without effect: %s", ", ".join(never))
        if later:
            self._logger.warning("Dynamic configs that take effect at the broker's next start: %s", ", ".join(later))

    def _known_support(self, name: str) -> Support | None:
        key = self._known.get(name)
        return None if key is None else key.support

    def _with(self, texts: Texts, *, of_one_broker: bool) -> BrokerLayers:
        """The layers with one of the dynamic ones replaced."""
        default, broker = self._layers.cluster_default, self._layers.broker
        if of_one_broker:
            return BrokerLayers(self._layers.static, default, dict(texts), self._known)
        return BrokerLayers(self._layers.static, dict(texts), broker, self._known)

    def _read(self, layers: BrokerLayers) -> BrokerConfig | BrokerConfigError:
        try:
            return check_broker_config(layers.merged(), _SOURCE, own_keys=self._own_keys)
        except BrokerConfigError as error:
            return error


def unreadable(key: ConfigKey[Any], text: str) -> list[str]:
    """Why a value is invalid; empty when it is valid."""
    try:
        key.parse(text)
    except ConfigError as error:
        return [str(error)]
    return []
