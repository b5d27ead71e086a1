"""What is bound, and what others are told."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.config.broker_config import BrokerConfig
from barnabas.kernel.host import Host
from barnabas.server.config import read_server_config
from barnabas.server.errors import BrokerStartError
from barnabas.server.listeners import (
    advertised_endpoints,
    broker_registration,
    link_limits,
    listener_configs,
    network_config,
    outgoing_settings,
)
from barnabas.testing.simulation import Simulation


def config(*lines: str) -> BrokerConfig:
    return read_server_config("\n".join(["zookeeper.connect=z:2181", *lines]), "test")


def test_free_ports_and_nameless_hosts_are_filled_in() -> None:
    read = config(
        "listeners=PLAINTEXT://:0,OTHER://127.0.0.1:9094",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
    )
    found = advertised_endpoints(read, {"PLAINTEXT": 5555, "OTHER": 9094}, "here")
    assert [endpoint.connection_string for endpoint in found] == ["PLAINTEXT://here:5555", "OTHER://127.0.0.1:9094"]


def test_what_is_advertised_goes_before_what_is_bound() -> None:
    read = config("listeners=PLAINTEXT://0.0.0.0:0", "advertised.listeners=PLAINTEXT://outside:19092")
    assert [each.connection_string for each in advertised_endpoints(read, {"PLAINTEXT": 1}, "h")] == [
        "PLAINTEXT://outside:19092"
    ]


@pytest.mark.parametrize(
    ("protocol", "version"), [("3.9", 5), ("2.7-IV0", 5), ("2.6", 4), ("0.10.0-IV1", 4), ("0.9.0", 2)]
)
def test_the_version_of_the_registration_follows_the_protocol_between_brokers(protocol: str, version: int) -> None:
    extra = [] if protocol >= "2" else ["log.message.format.version=0.9.0"]
    read = config(f"inter.broker.protocol.version={protocol}", "broker.rack=r1", *extra)
    registration = broker_registration(read, advertised_endpoints(read, {}, "h"), 7)
    assert (registration.version, registration.rack, registration.timestamp_ms) == (version, "r1", 7)


def test_listeners_have_their_own_limits_and_the_control_plane_is_known() -> None:
    read = config(
        "listeners=PLAINTEXT://:9092,CONTROL://:9093",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROL:PLAINTEXT",
        "control.plane.listener.name=CONTROL",
        "listener.name.plaintext.max.connections=10",
        "max.connections=100",
        "socket.listen.backlog.size=77",
    )
    plain, control = listener_configs(read, {})
    assert (plain.name, plain.host, plain.port, plain.connections_max, plain.is_control_plane) == (
        "PLAINTEXT",
        None,
        9092,
        10,
        False,
    )
    assert (control.is_control_plane, control.connections_max, control.backlog) == (True, 100, 77)


def test_a_listener_with_tls_is_never_plain() -> None:
    read = config("listeners=SSL://:9092,PLAINTEXT://:9093", "security.inter.broker.protocol=SSL")
    with pytest.raises(KeyError):
        listener_configs(read, {})
    end: Any = object()
    assert [each.tls for each in listener_configs(read, {"SSL": end, "PLAINTEXT": end})] == [end, None]


def test_bounds_come_from_kafkas_keys() -> None:
    read = config(
        "socket.request.max.bytes=1000", "connections.max.idle.ms=-1", "socket.connection.setup.timeout.ms=11"
    )
    assert link_limits(read).frame_bytes_max == 1000
    assert link_limits(read).idle_ms_max > 10**12
    assert outgoing_settings(read).connect_timeout_ms == 11


def test_limits_by_host_are_looked_up() -> None:
    async def look(host: Host) -> dict[str, int]:
        read = config("max.connections.per.ip.overrides=one:5,other:6")
        return dict((await network_config(read, host)).connections_per_ip_overrides)

    async def look_in_vain(host: Host) -> None:
        await network_config(config("max.connections.per.ip.overrides=nowhere:5"), host)

    with Simulation(1) as simulation:
        one, other = simulation.machine("one"), simulation.machine("other")
        machine = simulation.machine("broker")
        assert simulation.run_on(machine, look) == {one.address: 5, other.address: 6}
        with pytest.raises(BrokerStartError, match="nowhere"):
            simulation.run_on(machine, look_in_vain)
