"""Faults put into what keeps a cluster closed, one at a time: the plan `secured` has to find each."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.api.authentication import ClientLogin
from barnabas.api.fetch_access import ConsumerAccess
from barnabas.api.produce_access import AuthorizedAccess
from barnabas.coordination.embedded.tree import ZnodeTree
from barnabas.network.connection import ServerConnection
from barnabas.security.acl_rules import AclRules
from barnabas.security.acls import ResourceType
from barnabas.server.coordination_session import CoordinationSession
from barnabas.testing.user_plans import SECURED
from barnabas.wire import headers
from barnabas.wire.api_keys import ApiKey
from tests.simulation.mutants import Mutant


def ask_nobody_about_the_cluster(patch: pytest.MonkeyPatch) -> None:
    """What is the brokers' and the administrators' is everybody's."""
    authorize = AclRules.authorize

    def authorized(self: AclRules, principal: str, host: str, operation: Any, kind: ResourceType, name: str) -> bool:
        return kind is ResourceType.CLUSTER or authorize(self, principal, host, operation, kind, name)

    patch.setattr(AclRules, "authorize", authorized)


def leave_znodes_open(patch: pytest.MonkeyPatch) -> None:
    """As if `zookeeper.set.acl` were of no effect for what is made later."""
    patch.setattr(CoordinationSession, "_owned", lambda _self, operation: operation)


def take_whoever_comes(patch: pytest.MonkeyPatch) -> None:
    """What comes ahead of a login is handled as what comes behind it; who logs in does so as before."""
    handle = ClientLogin.handle

    def handled(self: ClientLogin, connection: ServerConnection, buffer: Any, start: int, end: int) -> Any:
        if not self._login.expects_token:
            api_key, *_ = headers.read_request_header(buffer, start, end)
            if api_key not in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE):
                return self._handle(connection, buffer, start, end)
        return handle(self, connection, buffer, start, end)

    patch.setattr(ClientLogin, "handle", handled)


def forget_rights_in_the_log(patch: pytest.MonkeyPatch) -> None:
    """The coordinator makes znodes with the list that new ones have by default."""
    create = ZnodeTree.create

    def created(self: ZnodeTree, path: str, data: bytes | None, acl: bytes, *rest: Any, **named: Any) -> Any:
        from barnabas.coordination.embedded.access import OPEN

        return create(self, path, data, OPEN if path.startswith("/brokers/topics/") else acl, *rest, **named)

    patch.setattr(ZnodeTree, "create", created)


def take_records_of_whoever_logs_in(patch: pytest.MonkeyPatch) -> None:
    """Produce asks nobody."""
    patch.setattr(AuthorizedAccess, "may_write", lambda *_: True)


def give_records_to_whoever_logs_in(patch: pytest.MonkeyPatch) -> None:
    """Fetch asks nobody, but where a follower fetches."""
    patch.setattr(ConsumerAccess, "may_fetch", lambda *_: True)


SECURED_MUTANTS = (
    Mutant("asks nobody about the cluster", SECURED, ask_nobody_about_the_cluster),
    Mutant("leaves znodes open", SECURED, leave_znodes_open),
    Mutant("takes whoever comes", SECURED, take_whoever_comes),
    Mutant("forgets whose a znode is", SECURED, forget_rights_in_the_log),
    Mutant("takes records of whoever logs in", SECURED, take_records_of_whoever_logs_in),
    Mutant("gives records to whoever logs in", SECURED, give_records_to_whoever_logs_in),
)
