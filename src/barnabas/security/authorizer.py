"""Decides by `AclRules`, and logs what it decides where Kafka's `AclAuthorizer` does (`kafka.authorizer.logger`)."""

from __future__ import annotations

import functools
import logging
from typing import Final

from barnabas.security.acl_rules import AclRules
from barnabas.security.acls import AclOperation, ResourceType

_HOSTS_KEPT: Final = 4096


class Authorizer:
    """Answers whether a principal may do something. Without one, everybody may do everything."""

    def __init__(self, rules: AclRules, logger: logging.Logger) -> None:
        self.rules = rules
        self._logger = logger

    @property
    def epoch(self) -> int:
        """Another number after each change of the rules: what was decided holds as long as it is the same."""
        return self.rules.epoch

    def authorize(
        self,
        principal: str,
        address: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        quietly: bool = False,
    ) -> bool:
        """Whether `principal` at the IP address may do it with the resource. A denial is logged, unless it is found
        out `quietly`: where the client has not asked for the resource by its name, or needs not be allowed this.
        """
        is_allowed = self.rules.authorize(principal, acl_host(address), operation, resource_type, name)
        if not is_allowed and not quietly:
            self._logger.info(
                "Principal = %s is Denied Operation = %s from host = %s on resource = %s:LITERAL:%r",
                *(principal, operation.spelling, address, resource_type.spelling, name),
            )
        return is_allowed

    def authorize_by_resource_type(
        self, principal: str, address: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Whether `principal` may do it with at least one resource of the type."""
        is_allowed = self.rules.authorize_by_resource_type(principal, acl_host(address), operation, resource_type)
        if not is_allowed:
            self._logger.info(
                "Principal = %s is Denied Operation = %s from host = %s on resource = %s with any name",
                *(principal, operation.spelling, address, resource_type.spelling),
            )
        return is_allowed


def acl_host(address: str) -> str:
    """An IP address in the form that ACLs have it, which is Java's: every group of IPv6 written out, and IPv4 as such
    where it is mapped into IPv6.
    """
    return _of_ipv6(address) if ":" in address else address


@functools.lru_cache(_HOSTS_KEPT)
def _of_ipv6(address: str) -> str:
    import ipaddress  # few brokers have such clients

    text, percent, scope = address.partition("%")
    try:
        parsed = ipaddress.IPv6Address(text)
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return ":".join(f"{int(group, 16):x}" for group in parsed.exploded.split(":")) + percent + scope
