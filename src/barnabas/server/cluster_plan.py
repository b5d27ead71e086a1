"""The plan of `barnabas up`: the number of brokers, their data directories, and the `server.properties` of each."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.server.cluster_security import PROTOCOL, SecurityPaths, keeps_closed

BROKERS_MAX: Final = 100
REPLICAS_MAX: Final = 3

_TAKEN: Final[Mapping[str, str]] = {
    "broker.id": "the brokers are numbered from 1 on",
    "node.id": "the brokers are numbered from 1 on",
    "zookeeper.connect": "the brokers have a coordinator of their own; barnabas broker runs one beside another",
    "listeners": "give --host and --port instead",
}
"""Configs that must not be overridden, and why."""
_OF_ONE_BROKER: Final = (
    "log.dirs",
    "log.dir",
    "advertised.listeners",
    "barnabas.logs.directory",
    "barnabas.metrics.port",
)
"""Configs that no two brokers may share."""
_LISTS_OF_PATHS: Final = ("log.dirs", "log.dir")
_PATHS: Final = ("barnabas.logs.directory",)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A coordinator and brokers 1 to `brokers` on this machine, with everything they keep under `data_directory`.

    The first broker listens on `port`, each other on the next; 0 takes free ports, and 0 is the coordinator's default.
    `metrics_port` counts up likewise; None opens no endpoint. With a `console_port`, 0 for a free one, there is a
    console on loopback too, which gets `console_options` from its command line. `overrides` are broker configs for all
    of them. A `secure` cluster has certificates, users and ACLs of its own (`cluster_security`), for hosts of these
    `names` too. Raises ValueError for what cannot be.
    """

    brokers: int = 1
    data_directory: str = "barnabas-data"
    port: int = 9092
    host: str = "127.0.0.1"
    coordinator_port: int = 0
    metrics_port: int | None = None
    console_port: int | None = None
    console_options: tuple[str, ...] = ()
    session_timeout_ms: int = 6_000
    overrides: Mapping[str, str] = field(default_factory=dict)
    secure: bool = False
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.brokers <= BROKERS_MAX:
            raise ValueError(f"there can be 1 to {BROKERS_MAX} brokers, not {self.brokers}")
        for name, port in (("port", self.port), ("metrics port", self.metrics_port or 0)):
            last = port + self.brokers - 1 if port else 0
            if not 0 <= port <= last <= 65_535:
                raise ValueError(f"{self.brokers} brokers need the {name}s {port} to {last}, which exceed 65535")
        if "," in self.data_directory:
            raise ValueError(
                f"the data directory {self.data_directory} has a comma, which separates directories in log.dirs"
            )
        for name in self.overrides:
            if name in _TAKEN:
                raise ValueError(f"{name} cannot be overridden: {_TAKEN[name]}")
            if name in _OF_ONE_BROKER and self.brokers > 1:
                raise ValueError(f"{name} cannot be overridden for {self.brokers} brokers, as each needs its own")
            if self.secure and keeps_closed(name):
                raise ValueError(f"{name} cannot be overridden with --secure: it is what keeps the cluster closed")

    def at(self, directory: str) -> ClusterPlan:
        """The same with absolute paths: those that are relative lie in `directory`. A written path must mean the same
        wherever it is read.
        """

        def absolute(path: str) -> str:
            return os.path.normpath(os.path.join(directory, path.strip())) if path.strip() else ""

        overrides = dict(self.overrides)
        for name, text in self.overrides.items():
            if name in _PATHS:
                overrides[name] = absolute(text)
            elif name in _LISTS_OF_PATHS:
                overrides[name] = ",".join(filter(None, map(absolute, text.split(","))))
        data_directory = os.path.normpath(os.path.join(directory, self.data_directory))
        return dataclasses.replace(self, data_directory=data_directory, overrides=overrides)

    def refusal(self, exists: Callable[[str], bool]) -> str | None:
        """Why the data directory, of which `exists` knows what is there, is not for this plan: a cluster stays as
        closed, or as open, as it was made.
        """
        is_secure = exists(self.security_directory)
        if is_secure and not self.secure:
            return (
                f"{self.data_directory} has a cluster that was made with --secure: give that again, or another --data"
            )
        if self.secure and not is_secure and exists(self.coordinator_directory):
            return (
                f"{self.data_directory} has a cluster that was made without --secure, whose znodes are anybody's: give"
                " another --data, and copy what is to be kept (barnabas topic copy)"
            )
        return None

    @property
    def broker_ids(self) -> range:
        return range(1, self.brokers + 1)

    @property
    def coordinator_directory(self) -> str:
        return f"{self.data_directory}/coordinator"

    @property
    def console_directory(self) -> str:
        return f"{self.data_directory}/console"

    @property
    def security_directory(self) -> str:
        """There where the cluster was made with `secure`."""
        return f"{self.data_directory}/security"

    @property
    def security(self) -> SecurityPaths | None:
        """None for a cluster that is open."""
        return SecurityPaths(self.security_directory) if self.secure else None

    def broker_directory(self, broker_id: int) -> str:
        return f"{self.data_directory}/broker-{broker_id}"

    def properties_path(self, broker_id: int) -> str:
        return f"{self.broker_directory(broker_id)}/server.properties"

    def logs_directory(self, broker_id: int) -> str:
        return f"{self.broker_directory(broker_id)}/logs"

    def port_of(self, broker_id: int) -> int:
        """The port that broker is to listen on; 0 for any."""
        return self.port and self.port + broker_id - 1

    def properties(self, broker_id: int, zookeeper_connect: str, port: int) -> dict[str, str]:
        """The configs of one broker. Replication is what so many brokers allow, three at most, and an
        acknowledged record then outlives one broker."""
        replicas = str(min(self.brokers, REPLICAS_MAX))
        in_sync = "2" if self.brokers >= REPLICAS_MAX else "1"
        found = {
            "broker.id": str(broker_id),
            "listeners": f"{PROTOCOL if self.secure else 'PLAINTEXT'}://{self.host}:{port}",
            "zookeeper.connect": zookeeper_connect,
            "zookeeper.session.timeout.ms": str(self.session_timeout_ms),
            "log.dirs": f"{self.broker_directory(broker_id)}/data",
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "group.initial.rebalance.delay.ms": "0",
            "controlled.shutdown.retry.backoff.ms": "500",
            "barnabas.logs.directory": self.logs_directory(broker_id),
        }
        if "log.dir" in self.overrides:
            del found["log.dirs"]  # it would go before the user's
        if self.metrics_port is not None:
            found["barnabas.metrics.port"] = str(self.metrics_port and self.metrics_port + broker_id - 1)
        if self.security is not None:
            found |= self.security.broker_properties(broker_id)
        return {**found, **self.overrides}
