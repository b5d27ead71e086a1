"""The users of a cluster of `barnabas up --secure`, as ZooKeeper has them: credentials and ACLs, written before the
first broker starts, since the brokers themselves log in by one of them.

What an operator changes afterwards stays: the ACLs, and users other than the brokers' own, are written for a cluster
that is new, or whose secrets are. The brokers' own user comes last and says that the rest is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Final

from barnabas.coordination.errors import CoordinationError, NodeExistsError, NoNodeError
from barnabas.coordination.layout.cluster import CONSUMERS_PATH
from barnabas.coordination.layout.configs import (
    CONFIG_PATH,
    ConfigEntityType,
    EntityConfig,
    config_path,
    config_type_path,
)
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import Create, GetChildren, GetData, SetAcl, SetData
from barnabas.coordination.protocol import CREATOR_ALL_ACL, OPEN_ACL, READ_ACL
from barnabas.coordination.session_settings import ClientSettings
from barnabas.kernel.host import Host, OffloadKind
from barnabas.kernel.timers import Timers
from barnabas.sasl.scram_mechanisms import ScramCredential, ScramMechanism
from barnabas.security.acl_rules import AclRules
from barnabas.security.acl_store import AclStore
from barnabas.security.acls import (
    AccessControlEntry,
    AclBinding,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from barnabas.server.cluster_security import BROKERS, CLIENT, ClusterSecurityError
from barnabas.server.coordination_session import CoordinationSession

_CONNECT_SECONDS_MAX: Final = 30.0
_MECHANISM: Final = ScramMechanism.SHA_512
_SALT_BYTES: Final = 24
_OURS: Final = CREATOR_ALL_ACL + READ_ACL
_OTHERWISE_OPEN: Final[Mapping[str, set[str]]] = {
    "/": {"zookeeper"},
    "/zookeeper": {"quota", "config"},
    "/zookeeper/quota": set(),
}
"""What a new ZooKeeper has, and what is below."""
_INTERNAL: Final = "__"
"""How names of internal topics begin."""
_ALLOWED: Final = (
    (ResourceType.TOPIC, AclOperation.READ),
    (ResourceType.TOPIC, AclOperation.WRITE),
    (ResourceType.TOPIC, AclOperation.CREATE),
    (ResourceType.TOPIC, AclOperation.DESCRIBE_CONFIGS),
    (ResourceType.GROUP, AclOperation.READ),
    (ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE),
)
"""What the first client may do with everything of a kind; reading and writing are describing too."""


def client_acls() -> list[AclBinding]:
    """Of the first client: all topics, groups and transactional ids, but no topic of the cluster's own."""
    principal = f"User:{CLIENT}"
    found = [
        AclBinding(ResourcePattern(kind, "*"), AccessControlEntry(principal, "*", operation, AclPermissionType.ALLOW))
        for kind, operation in _ALLOWED
    ]
    internal = ResourcePattern(ResourceType.TOPIC, _INTERNAL, PatternType.PREFIXED)
    found.append(AclBinding(internal, AccessControlEntry(principal, "*", AclOperation.ALL, AclPermissionType.DENY)))
    return found


async def close_coordinator(host: Host, settings: ClientSettings, logger: logging.Logger) -> None:
    """Makes the znodes that every new ZooKeeper has, and so all others, the brokers' own.

    Until then whoever reaches the coordinator makes znodes of his own, such as `/config` with an admin. Raises
    ClusterSecurityError where there are some; CoordinationError and OSError, and TimeoutError where nobody answers.
    """
    async with _session(host, settings, logger) as session:
        await _close(session)
        for path, has in _OTHERWISE_OPEN.items():
            names = set((await session.perform(GetChildren(path))).names) - has
            if names:
                made = f"{path.rstrip('/')}/{min(names)}"
                raise ClusterSecurityError(
                    f"the coordinator is new, and somebody has made {made!a} there before it was closed: remove its"
                    " directory, in which nothing else is, and start again"
                )


async def write_users(
    host: Host,
    settings: ClientSettings,
    brokers_password: str,
    passwords: Mapping[str, str],
    new: frozenset[str],
    logger: logging.Logger,
) -> None:
    """Has ZooKeeper know the users with these `passwords`, those that are `new` and, where the cluster is, all; and
    makes the root the brokers' own. Raises CoordinationError and OSError, and TimeoutError where nobody answers.
    """
    async with _session(host, settings, logger) as session:
        await _close(session)
        users = _Users(host, session)
        await users.create_paths()
        own = await users.read(BROKERS)
        is_new = _MECHANISM.value not in own
        if is_new:
            timers = Timers(host.loop)
            try:
                store = AclStore(host, session, AclRules(), timers=timers, logger=logger)
                await store.create_paths()
                for outcome in await store.create(client_acls()):
                    if outcome is not None:
                        raise outcome
            finally:
                timers.close()
        for user, password in passwords.items():
            if is_new or user in new:
                await users.write(user, password)
        if is_new or not await users.is_right(own, brokers_password):
            await users.write(BROKERS, brokers_password)


@contextlib.asynccontextmanager
async def _session(host: Host, settings: ClientSettings, logger: logging.Logger) -> AsyncIterator[CoordinationSession]:
    session = CoordinationSession(host, settings, logger)
    session.secure(settings, makes_secure=True)
    try:
        async with asyncio.timeout(_CONNECT_SECONDS_MAX):
            await session.connect()
            yield session
    finally:
        await session.close()


async def _close(session: CoordinationSession) -> None:
    """Or whoever reaches the coordinator could be the controller: a znode that is not there is anybody's."""
    for path in _OTHERWISE_OPEN:
        await session.perform(SetAcl(path, _OURS))


class _Users:
    def __init__(self, host: Host, session: CoordinationSession) -> None:
        self._host = host
        self._session = session

    async def create_paths(self) -> None:
        """Also that of old consumers, which brokers make for everybody to write below."""
        users = config_type_path(ConfigEntityType.USERS)
        for path, acl in ((CONSUMERS_PATH, _OURS), (CONFIG_PATH, OPEN_ACL), (users, OPEN_ACL)):
            (outcome,) = await self._session.submit([Create(path, None, acl)])
            if isinstance(outcome, CoordinationError) and not isinstance(outcome, NodeExistsError):
                raise outcome

    async def read(self, user: str) -> dict[str, str]:
        """The configs of a user; what cannot be read is none, and is written again."""
        path = config_path(ConfigEntityType.USERS, user)
        try:
            return dict(EntityConfig.decode((await self._session.perform(GetData(path))).data, path).config)
        except (NoNodeError, LayoutError):
            return {}

    async def write(self, user: str, password: str) -> None:
        """Gives a user this password; the other configs stay."""
        path = config_path(ConfigEntityType.USERS, user)
        salt = self._host.entropy(_SALT_BYTES)
        credential = await self._host.offload(OffloadKind.CPU, ScramCredential.of_password, _MECHANISM, password, salt)
        configs = await self.read(user) | {_MECHANISM.value: credential.encode()}
        data = EntityConfig(configs).encode()
        (outcome,) = await self._session.submit([Create(path, data, OPEN_ACL)])
        if isinstance(outcome, NodeExistsError):
            await self._session.perform(SetData(path, data))
        elif isinstance(outcome, CoordinationError):
            raise outcome

    async def is_right(self, configs: Mapping[str, str], password: str) -> bool:
        """Whether a user with these configs has that password."""
        try:
            kept = ScramCredential.decode(_MECHANISM, configs.get(_MECHANISM.value, ""))
        except ValueError:
            return False
        made = await self._host.offload(
            OffloadKind.CPU, ScramCredential.of_password, _MECHANISM, password, kept.salt, kept.iterations
        )
        return made == kept
