"""The authorizer of a broker, with what keeps its rules: made where `authorizer.class.name` says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from barnabas.config.derived import super_users
from barnabas.config.kafka_versions import is_at_least
from barnabas.security.acl_changes import AclChanges
from barnabas.security.acl_rules import AclRules
from barnabas.security.acl_store import AclStore
from barnabas.security.authorizer import Authorizer

if TYPE_CHECKING:
    from barnabas.config.broker_config import BrokerConfig
    from barnabas.server.coordination_session import CoordinationSession
    from barnabas.server.shared_services import SharedServices


@dataclass(frozen=True, slots=True)
class Authorization:
    """Rules, who keeps them as ZooKeeper has them, and who decides by them."""

    rules: AclRules
    store: AclStore
    changes: AclChanges
    authorizer: Authorizer

    @classmethod
    def of(cls, shared: SharedServices, config: BrokerConfig, session: CoordinationSession) -> Authorization | None:
        """None where everybody may do everything. `changes` is to be a listener of the session, and to be started
        before any request is handled.
        """
        values = config.values
        if not values["authorizer.class.name"]:
            return None
        rules = AclRules(
            super_users=super_users(values),
            allow_everyone_if_no_acl_found=values["allow.everyone.if.no.acl.found"],
        )
        logger = shared.logs.logger("kafka.security.authorizer.AclAuthorizer")
        store = AclStore(
            shared.host,
            session,
            rules,
            timers=shared.timers,
            logger=logger,
            takes_prefixed=is_at_least(values["inter.broker.protocol.version"], "2.0-IV1"),
        )
        return cls(
            rules,
            store,
            AclChanges(shared.host, session, store, timers=shared.timers, logger=logger),
            Authorizer(rules, shared.logs.logger("kafka.authorizer.logger")),
        )
