"""The configuration of a whole broker: every room's keys, and those that are Barnabas's own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from barnabas.config.broker_config import BrokerConfig, read_broker_config
from barnabas.config.keys import Between, ConfigKey, ConfigType, Importance
from barnabas.config.settings import own_setting, setting
from barnabas.log.partition.log_keys import DIRECTORY_PATIENCE, DIRECTORY_WRITES
from barnabas.server.zookeeper_access import LOGIN_CONFIG
from barnabas.tiered.settings import TIERED_KEYS


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """An address of http or https, or nothing."""

    def allows(self, value: str, /) -> bool:
        scheme, separator, rest = value.partition("://")
        return not value or (scheme in {"http", "https"} and bool(separator and rest.strip("/")))

    def describe(self) -> str:
        return "it must be an address, http://... or https://..., or empty"

    def refusal(self, value: str, /) -> tuple[object, str]:
        return value, self.describe()


METRICS_PORT: Final[ConfigKey[int]] = ConfigKey(
    name="barnabas.metrics.port",
    type=ConfigType.INT,
    default=-1,
    documentation="Port of the Prometheus endpoint, http://HOST:PORT/metrics; 0 takes a free port, -1 opens none.",
    importance=Importance.MEDIUM,
    validator=Between(-1, 65_535),
)
METRICS_HOST: Final[ConfigKey[str]] = ConfigKey(
    name="barnabas.metrics.host",
    type=ConfigType.STRING,
    default="127.0.0.1",
    documentation=(
        "Address that the Prometheus endpoint listens on; whoever reaches it reads the metrics, unless"
        " barnabas.metrics.login.file says who may."
    ),
    importance=Importance.LOW,
)
METRICS_LOGIN_FILE: Final[ConfigKey[str | None]] = ConfigKey(
    name="barnabas.metrics.login.file",
    type=ConfigType.STRING,
    default=None,
    documentation=(
        "File of those who may read the metrics, by HTTP's basic authentication: lines NAME:ROLE:HASH, as"
        " barnabas console --new-login NAME prints them; of any role. /livez and /readyz want no login."
    ),
    importance=Importance.LOW,
)
METRICS_TLS_CERTIFICATE: Final[ConfigKey[str | None]] = ConfigKey(
    name="barnabas.metrics.tls.certificate",
    type=ConfigType.STRING,
    default=None,
    documentation=(
        "Certificate of the Prometheus endpoint, and those between it and its authority, PEM: it speaks TLS alone then,"
        " https://HOST:PORT/metrics."
    ),
    importance=Importance.LOW,
)
METRICS_TLS_KEY: Final[ConfigKey[str | None]] = ConfigKey(
    name="barnabas.metrics.tls.key",
    type=ConfigType.STRING,
    default=None,
    documentation="Private key of barnabas.metrics.tls.certificate, PEM; without it the same file has it.",
    importance=Importance.LOW,
)
LOGS_DIRECTORY: Final[ConfigKey[str | None]] = ConfigKey(
    name="barnabas.logs.directory",
    type=ConfigType.STRING,
    default=None,
    documentation=(
        "Directory of server.log and state-change.log. Without it lines go to standard error, those of state changes"
        " only from warnings on."
    ),
    importance=Importance.MEDIUM,
)
LOGS_LEVELS: Final[ConfigKey[tuple[str, ...]]] = ConfigKey(
    name="barnabas.logs.levels",
    type=ConfigType.LIST,
    default=(),
    documentation="Levels of loggers, as LOGGER=LEVEL pairs, such as root=INFO,kafka.controller=DEBUG.",
    importance=Importance.LOW,
)
TRACES_ENDPOINT: Final[ConfigKey[str]] = ConfigKey(
    name="barnabas.traces.endpoint",
    type=ConfigType.STRING,
    default="",
    documentation=(
        "Where traces go, by OTLP over HTTP: http://HOST:4318/v1/traces of an OpenTelemetry collector. Empty: nothing"
        " is traced. Needs pip install 'barnabas[otel]'; headers and certificates come from OTEL_EXPORTER_OTLP_..."
    ),
    importance=Importance.LOW,
    validator=HttpAddress(),
)
TRACES_REQUESTS: Final[ConfigKey[float]] = ConfigKey(
    name="barnabas.traces.requests.per.second",
    type=ConfigType.DOUBLE,
    default=1.0,
    documentation=(
        "Spans of requests in a second, of each kind (Produce, FetchConsumer, FetchFollower, Metadata ...), at most."
        " Events of the controller are all traced."
    ),
    importance=Importance.LOW,
    validator=Between(0.001, 1000),
)

OWN_KEYS: Final[tuple[ConfigKey[Any], ...]] = (
    METRICS_PORT,
    METRICS_HOST,
    METRICS_LOGIN_FILE,
    METRICS_TLS_CERTIFICATE,
    METRICS_TLS_KEY,
    LOGS_DIRECTORY,
    LOGS_LEVELS,
    TRACES_ENDPOINT,
    TRACES_REQUESTS,
    DIRECTORY_PATIENCE,
    DIRECTORY_WRITES,
    LOGIN_CONFIG,
    *TIERED_KEYS,
)
"""Every broker key that Kafka does not have."""


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Where metrics are scraped, by whom, and how that is secured; a port of -1 is nowhere."""

    host: str = own_setting(METRICS_HOST)
    port: int = own_setting(METRICS_PORT)
    login_file: str | None = own_setting(METRICS_LOGIN_FILE)
    tls_certificate: str | None = own_setting(METRICS_TLS_CERTIFICATE)
    tls_key: str | None = own_setting(METRICS_TLS_KEY)


@dataclass(frozen=True, slots=True)
class TracesSettings:
    """Where traces go, and how many of requests; an empty endpoint is nowhere."""

    endpoint: str = own_setting(TRACES_ENDPOINT)
    requests_per_second: float = own_setting(TRACES_REQUESTS)


@dataclass(frozen=True, slots=True)
class LifecycleSettings:
    """Configs of a broker's start and stop."""

    reserved_broker_id_max: int = setting("reserved.broker.max.id", int)
    controlled_shutdown_enable: bool = setting("controlled.shutdown.enable", bool)
    controlled_shutdown_retries_max: int = setting("controlled.shutdown.max.retries", int)
    controlled_shutdown_retry_backoff_ms: int = setting("controlled.shutdown.retry.backoff.ms", int)
    request_timeout_ms: int = setting("request.timeout.ms", int)


def read_server_config(text: str | bytes, source: str, overrides: Iterable[str] = ()) -> BrokerConfig:
    """Reads a `server.properties`; `overrides` are `key=value` and go before it. Raises BrokerConfigError."""
    return read_broker_config(text, source, overrides, OWN_KEYS)


def log_levels(pairs: Iterable[str]) -> dict[str, str]:
    """`barnabas.logs.levels` as a mapping. Raises ValueError for an entry that is not a pair."""
    levels: dict[str, str] = {}
    for pair in pairs:
        name, equals, level = pair.partition("=")
        if not equals or not name.strip() or not level.strip():
            raise ValueError(f"{LOGS_LEVELS.name}: {pair!r} must be a pair LOGGER=LEVEL")
        levels[name.strip()] = level.strip()
    return levels
