"""Faults put into what keeps a cluster closed, one at a time: the plan `secured` has to find each."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.api import authentication
from barnabas.coordination.embedded.tree import ZnodeTree
from barnabas.network.connection import ServerConnection
from barnabas.security.acl_rules import AclRules
from barnabas.security.acls import ResourceType
from barnabas.server.coordination_session import CoordinationSession
from barnabas.testing.user_plans import SECURED
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
    """A connection that has not logged in is handled as one that has."""
    begin = ServerConnection.__init__

    def init(self: ServerConnection, context: Any, owner: Any, listener: Any) -> None:
        begin(self, context, owner, listener)
        self._handle = owner.handler.handle

    patch.setattr(ServerConnection, "__init__", init)
    patch.setattr(authentication.Authentication, "opened", lambda *_: None)


def forget_rights_in_the_log(patch: pytest.MonkeyPatch) -> None:
    """The coordinator makes znodes with the list that new ones have by default."""
    create = ZnodeTree.create

    def created(self: ZnodeTree, path: str, data: bytes | None, acl: bytes, *rest: Any, **named: Any) -> Any:
        from barnabas.coordination.embedded.access import OPEN

        return create(self, path, data, OPEN if path.startswith("/brokers/topics/") else acl, *rest, **named)

    patch.setattr(ZnodeTree, "create", created)


SECURED_MUTANTS = (
    Mutant("asks nobody about the cluster", SECURED, ask_nobody_about_the_cluster),
    Mutant("leaves znodes open", SECURED, leave_znodes_open),
    Mutant("takes whoever comes", SECURED, take_whoever_comes),
    Mutant("forgets whose a znode is", SECURED, forget_rights_in_the_log),
)
