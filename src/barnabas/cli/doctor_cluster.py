"""What `barnabas doctor` looks at in a cluster, from here: its addresses, its brokers, and what they say is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.cli.connection import CommandError
from barnabas.cli.doctor_aside import ANSWER_SECONDS, aside
from barnabas.cli.doctor_findings import Finding, State
from barnabas.cli.doctor_machine import is_loopback, look_up
from barnabas.cli.output import counted, printable

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.cluster import BrokerNode
    from barnabas.client.log_directories import LogDirectory

_CONNECT_SECONDS: Final = 5.0
_SLOW_MS: Final = 250.0
_AT_ONCE: Final = 50
_HOSTS: Final = "add the name to DNS or /etc/hosts of this machine, or change advertised.listeners of the broker"


async def check_servers(servers: list[str]) -> list[Finding]:
    """Why none of these addresses gives a cluster: what each of them does."""
    return list(await asyncio.gather(*map(_check_server, servers)))


async def check_brokers(client: Client, servers: list[str]) -> list[Finding]:
    """Whether each broker of the cluster can be reached from here at the address that it tells clients."""
    limit = asyncio.Semaphore(_AT_ONCE)
    is_local = all(await asyncio.gather(*(_is_loopback_host(server.rpartition(":")[0]) for server in servers)))

    async def one(node: BrokerNode) -> list[Finding]:
        async with limit:
            return await _check_broker(client, node, is_local=is_local)

    nodes = [client.cluster.brokers[node_id] for node_id in sorted(client.cluster.brokers)]
    found = [finding for part in await asyncio.gather(*map(one, nodes)) for finding in part]
    return [*found, *await _check_versions(client, nodes)]


async def check_health(client: Client) -> list[Finding]:
    """What `barnabas cluster health` finds, or the error by which that ends."""
    from barnabas.cli.cluster import observe
    from barnabas.client import cluster_health
    from barnabas.client.errors import ClientError
    from barnabas.link.errors import RequestTimeoutError, UnsupportedVersionError
    from barnabas.wire.primitives import ProtocolError

    try:
        observed = await observe(client)
    except (CommandError, ClientError, OSError, RequestTimeoutError, UnsupportedVersionError, ProtocolError) as error:
        return [Finding("cluster_health", State.CRITICAL, str(error), "see barnabas cluster health")]
    problems = [
        Finding(problem.kind, State(problem.severity.value), problem.what, problem.advice)
        for problem in cluster_health.diagnose(observed)
    ]
    partitions = sum(len(topic.partitions) for topic in observed.topics.values())
    what = f"{counted(len(observed.alive), 'broker')}, {counted(partitions, 'partition')}"
    return problems or [Finding("cluster_health", State.OK, what)]


async def local_directories(client: Client) -> dict[int, tuple[LogDirectory, ...]]:
    """The log directories of brokers that run on this machine, by broker."""
    from barnabas.client.admin import Admin
    from barnabas.client.log_directories import log_directories_of

    nodes = list(client.cluster.brokers.values())
    are_here = await asyncio.gather(*(_is_loopback_host(node.host) for node in nodes))
    here = [node.node_id for node, is_here in zip(nodes, are_here, strict=True) if is_here]
    async with Admin(client) as admin:
        found = await log_directories_of(admin, here)
    return {node_id: directories or () for node_id, directories in found.items()}


# Inside.


async def _check_server(server: str) -> Finding:
    host, _, port = server.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    shown = printable(server)
    addresses = await _resolve(host)
    if isinstance(addresses, OSError):
        what = f"{shown}: the name {printable(host)} has no address here ({addresses.strerror or addresses})"
        return Finding("bootstrap_server", State.CRITICAL, what, "check the name, DNS and /etc/hosts")
    failure, _ = await _connect(host, int(port))
    if failure is None:
        what = f"{shown}: something listens there, and does not answer as a broker that this client can talk to"
        advice = "check that it is a broker's port, and whether it wants TLS, or a login (--command-config)"
        return Finding("bootstrap_server", State.CRITICAL, what, advice)
    if isinstance(failure, ConnectionRefusedError):
        what = f"{shown}: nothing listens there"
        return Finding("bootstrap_server", State.CRITICAL, what, "start the broker, or check the port in listeners")
    if isinstance(failure, TimeoutError):
        what = f"{shown}: no answer within {_CONNECT_SECONDS:.0f} s"
        return Finding("bootstrap_server", State.CRITICAL, what, "check the firewall, and whether the machine is up")
    what = f"{shown}: {failure.strerror or failure}"
    return Finding("bootstrap_server", State.CRITICAL, what, "check the address and the network")


async def _check_broker(client: Client, node: BrokerNode, *, is_local: bool) -> list[Finding]:
    where = f"broker {node.node_id} at {printable(node.host)}:{node.port}"
    addresses = await _resolve(node.host)
    if isinstance(addresses, OSError):
        what = f"{where}: its name has no address here, so that no client here can use it"
        return [Finding("advertised_listener", State.CRITICAL, what, _HOSTS)]
    found: list[Finding] = []
    if not is_local and all(map(is_loopback, addresses)):
        what = f"{where} tells clients an address that means their own machine ({', '.join(addresses)})"
        advice = "set advertised.listeners of the broker to an address that clients reach, and restart it"
        found.append(Finding("advertised_listener", State.CRITICAL, what, advice))
    loop = client.host.loop
    failure, took_ms = await _connect(node.host, node.port, loop)
    if failure is not None:
        reason = f"no answer within {_CONNECT_SECONDS:.0f} s" if isinstance(failure, TimeoutError) else str(failure)
        what = f"{where} cannot be reached from here: {reason}"
        advice = "check that it runs, its advertised.listeners, and firewalls between here and there"
        return [*found, Finding("reachability", State.CRITICAL, what, advice)]
    state = State.NOTE if took_ms > _SLOW_MS else State.OK
    advice = "" if state is State.OK else "the network is slow, or the broker's machine is busy"
    return [*found, Finding("reachability", state, f"{where}: connected in {took_ms:.0f} ms", advice)]


async def _check_versions(client: Client, nodes: list[BrokerNode]) -> list[Finding]:
    """Brokers of different versions, as far as the APIs tell that they answer."""
    from barnabas.client.broker_views import BrokerViews
    from barnabas.link.errors import RequestTimeoutError
    from barnabas.wire.api_keys import OWN_APIS

    async def ask(views: BrokerViews, node: BrokerNode) -> Mapping[int, tuple[int, int]] | None:
        try:
            return await views.api_versions(node)
        except (ConnectionError, RequestTimeoutError):
            return None

    async with BrokerViews(client) as views:
        told = await asyncio.gather(*(ask(views, node) for node in nodes))
    kinds: dict[tuple[bool, frozenset[tuple[int, tuple[int, int]]]], list[int]] = {}
    for node, versions in zip(nodes, told, strict=True):
        if versions is not None:
            is_ours = any(key in versions for key in OWN_APIS)
            theirs = frozenset(item for item in versions.items() if item[0] not in OWN_APIS)
            kinds.setdefault((is_ours, theirs), []).append(node.node_id)
    silent = [node.node_id for node, versions in zip(nodes, told, strict=True) if versions is None]
    found = []
    if silent:
        what = f"brokers {', '.join(map(str, silent))} take connections and do not say what they can"
        found.append(Finding("versions", State.CRITICAL, what, "look at their logs; they may be starting or stuck"))
    if len(kinds) > 1:
        parts = [
            f"{'Barnabas' if is_ours else 'Apache Kafka or other'} on {', '.join(map(str, ids))}"
            for (is_ours, _), ids in kinds.items()
        ]
        what = f"brokers of {len(kinds)} versions: {'; '.join(parts)}"
        advice = "fine while brokers are replaced one by one; otherwise bring all to one version"
        found.append(Finding("versions", State.NOTE, what, advice))
    elif kinds:
        found.append(Finding("versions", State.OK, "all brokers answer the same APIs in the same versions"))
    return found


async def _resolve(host: str) -> list[str] | OSError:
    try:
        return await aside(partial(look_up, host))
    except TimeoutError:
        return OSError(f"nobody has answered within {ANSWER_SECONDS:.0f} s")
    except OSError as error:
        return error
    except UnicodeError:
        return OSError(f"{host!r} is no name")


async def _is_loopback_host(host: str) -> bool:
    addresses = await _resolve(host.removeprefix("[").removesuffix("]"))
    return not isinstance(addresses, OSError) and bool(addresses) and all(map(is_loopback, addresses))


async def _connect(host: str, port: int, loop: asyncio.AbstractEventLoop | None = None) -> tuple[OSError | None, float]:
    """Why no connection can be made, or None, and how long it took in ms."""
    clock = loop or asyncio.get_running_loop()
    began = clock.time()
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        return error, 0.0
    took_ms = (clock.time() - began) * 1_000
    writer.close()
    return None, took_ms
