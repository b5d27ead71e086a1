"""Who a member of a group is, as Apache Kafka writes it down."""

from __future__ import annotations

from barnabas.api.context import RequestContext
from barnabas.coordinators.group.member import Client


def client_of(context: RequestContext) -> Client:
    """The client id, empty where the client sends none, and the address in Java's form."""
    return Client(context.client_id or "", java_address(context.client_host))


def java_address(host: str) -> str:
    """An IP address as Java's `InetAddress.toString` gives it: a slash ahead, every group of IPv6 written out."""
    import ipaddress

    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return f"/{host}"
    if isinstance(address, ipaddress.IPv6Address):
        return "/" + ":".join(f"{int(group, 16):x}" for group in address.exploded.split(":"))
    return f"/{address}"
