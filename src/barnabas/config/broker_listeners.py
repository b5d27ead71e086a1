"""The listeners of one broker, as its keys name them, and what each is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from barnabas.config.derived import Values
from barnabas.config.kafka_versions import is_at_least
from barnabas.config.keys import ConfigError
from barnabas.config.listeners import Endpoint, SecurityProtocol, parse_listeners, parse_protocol_map

_VERSION_OF_SASL_HANDSHAKE: Final = "0.10.0-IV1"
_ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - it is refused, not bound


@dataclass(frozen=True, slots=True)
class Listeners:
    """Where a broker listens (`bound`), what it tells others (`advertised`), and which listeners serve what."""

    bound: tuple[Endpoint, ...]
    advertised: tuple[Endpoint, ...]
    inter_broker: str
    inter_broker_protocol: SecurityProtocol
    control_plane: str | None
    early_start: frozenset[str]

    @property
    def data_plane(self) -> tuple[Endpoint, ...]:
        """The bound listeners without that of the control plane."""
        return tuple(endpoint for endpoint in self.bound if endpoint.listener_name != self.control_plane)

    @property
    def for_controller(self) -> str:
        """The listener that the controller sends its requests to."""
        return self.control_plane or self.inter_broker


def resolve_listeners(
    values: Values, given: Mapping[str, str], listener_values: Values
) -> tuple[Listeners | None, list[str]]:
    """The listeners and no problem, or None and a line for each problem."""
    try:
        protocols = parse_protocol_map("listener.security.protocol.map", values["listener.security.protocol.map"])
        bound = parse_listeners("listeners", values["listeners"], protocols, distinct_ports=True)
        advertised = bound
        if values["advertised.listeners"] is not None:
            advertised = parse_listeners(
                "advertised.listeners", values["advertised.listeners"], protocols, distinct_ports=False
            )
        inter_broker = _inter_broker(values, given, protocols)
    except ConfigError as error:
        return None, [str(error)]
    control_plane = values["control.plane.listener.name"]
    found = Listeners(
        bound=bound,
        advertised=advertised,
        inter_broker=inter_broker,
        inter_broker_protocol=protocols.get(inter_broker, SecurityProtocol.PLAINTEXT),
        control_plane=None if control_plane is None else control_plane.upper(),
        early_start=frozenset(_names(values["early.start.listeners"])),
    )
    problems = [*_problems(found), *_sasl_problems(found, values, listener_values)]
    return (None, problems) if problems else (found, [])


def _inter_broker(values: Values, given: Mapping[str, str], protocols: Mapping[str, SecurityProtocol]) -> str:
    name, protocol = values["inter.broker.listener.name"], values["security.inter.broker.protocol"]
    if name is None:
        return str(protocol)
    if "security.inter.broker.protocol" in given:
        raise ConfigError("inter.broker.listener.name", name, "security.inter.broker.protocol is given too; give one")
    if name.upper() not in protocols:
        raise ConfigError("inter.broker.listener.name", name, "it must be among listener.security.protocol.map")
    return str(name.upper())


def _problems(listeners: Listeners) -> list[str]:
    bound = [endpoint.listener_name for endpoint in listeners.bound]
    advertised = [endpoint.listener_name for endpoint in listeners.advertised]
    choice = f"it must be one of the advertised listeners {', '.join(advertised)}"
    errors: list[ConfigError] = []
    if listeners.inter_broker not in advertised:
        errors.append(ConfigError("inter.broker.listener.name", listeners.inter_broker, choice))
    if listeners.control_plane is not None:
        if listeners.control_plane not in advertised:
            errors.append(ConfigError("control.plane.listener.name", listeners.control_plane, choice))
        elif listeners.control_plane == listeners.inter_broker:
            errors.append(
                ConfigError("control.plane.listener.name", listeners.control_plane, "the brokers' listener is another")
            )
    for endpoint in listeners.advertised:
        if endpoint.listener_name not in bound:
            allowed = f"only listeners can be advertised, which are {', '.join(bound)}"
            errors.append(ConfigError("advertised.listeners", str(endpoint), allowed))
        if endpoint.host == _ANY_ADDRESS:
            allowed = (
                f"{_ANY_ADDRESS} means all interfaces; set advertised.listeners to an address that clients can reach"
            )
            errors.append(ConfigError("advertised.listeners", str(endpoint), allowed))
    for name in sorted(listeners.early_start.difference(bound)):
        errors.append(ConfigError("early.start.listeners", name, f"it must be among {', '.join(bound)}"))
    return [str(error) for error in errors]


def _sasl_problems(listeners: Listeners, values: Values, listener_values: Values) -> list[str]:
    if not listeners.inter_broker_protocol.uses_sasl:
        return []
    key = "sasl.mechanism.inter.broker.protocol"
    mechanism = values[key]
    prefixed = f"listener.name.{listeners.inter_broker.lower()}.sasl.enabled.mechanisms"
    enabled: Any = listener_values.get(prefixed, values["sasl.enabled.mechanisms"])
    problems = []
    if mechanism not in enabled:
        allowed = f"it must be among sasl.enabled.mechanisms, which are {', '.join(enabled)}"
        problems.append(str(ConfigError(key, mechanism, allowed)))
    if mechanism != "GSSAPI" and not is_at_least(values["inter.broker.protocol.version"], _VERSION_OF_SASL_HANDSHAKE):
        allowed = "only GSSAPI is possible with an inter.broker.protocol.version before 0.10"
        problems.append(str(ConfigError(key, mechanism, allowed)))
    return problems


def _names(text: str | None) -> list[str]:
    return [name.strip().upper() for name in (text or "").split(",") if name.strip()]
