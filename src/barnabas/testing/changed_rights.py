"""Passwords and ACLs of a simulated cluster, that an administrator changes all the time.

At the end each broker goes by just those that ZooKeeper has; and ZooKeeper has what was acknowledged last of each user
and each ACL, unless a change of it was ever in doubt: that may come about late.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from barnabas.client.acl_admin import Acl, AclAdmin
from barnabas.client.errors import ClientError
from barnabas.client.user_admin import NewCredential, UserAdmin
from barnabas.coordination.layout.acls import acls_path
from barnabas.coordination.layout.configs import ConfigEntityType, EntityConfig, config_path
from barnabas.sasl.scram_mechanisms import ITERATIONS_MIN, ScramCredential, ScramMechanism
from barnabas.security.acl_znodes import read_entries, resource_of
from barnabas.security.acls import (
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from barnabas.wire.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from barnabas.coordination.embedded.tree import ZnodeTree
    from barnabas.kernel.host import Host
    from barnabas.server.broker import Broker
    from barnabas.testing.cluster_load import Users

PROPERTIES: Final = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:ANONYMOUS",
}
COVERAGE: Final = ("rights: passwords set", "rights: passwords deleted", "rights: ACLs created", "rights: ACLs deleted")
"""What must have happened."""
_MECHANISM: Final = ScramMechanism.SHA_256
_MECHANISM_NUMBER: Final = 1
_USERS: Final = tuple(f"user-{number}" for number in range(16))
"""So many that a change is hardly ever followed by another one, of which a broker would hear."""
_PATTERNS: Final = tuple(
    ResourcePattern(ResourceType.TOPIC, name, pattern_type)
    for name in ("books", "maps")
    for pattern_type in (PatternType.LITERAL, PatternType.PREFIXED)
)
_PAUSE_MS: Final = 300.0
_CHANGE_MS: Final = 8_000
_KEY_BYTES: Final = 32

_Right = str | tuple[ResourcePattern, str]
"""A user's password, or what a user may do to a pattern."""


class ChangedRights:
    """Who changes them, and what has become of that."""

    def __init__(self, users: Users) -> None:
        self.counts: Counter[str] = Counter()
        self._users = users
        self._last: dict[_Right, bytes | bool] = {}
        """What was acknowledged last: the salt of a password, or whether there is an ACL; False for none."""
        self._in_doubt: set[_Right] = set()

    async def administer(self, host: Host) -> None:
        """Changes one after another, until the users are to stop."""
        async with self._users.client(host) as client, UserAdmin(client) as users, AclAdmin(client) as acls:
            random = host.random
            while self._users.goes_on():
                await client.timers.sleep(random.expovariate(1 / _PAUSE_MS))
                user = random.choice(_USERS)
                if random.random() < 0.5:
                    await self._change_password(host, users, user)
                    continue
                pattern = random.choice(_PATTERNS)
                await self._change_acl(acls, pattern, user)

    async def _change_acl(self, acls: AclAdmin, pattern: ResourcePattern, user: str) -> None:
        right, each = (pattern, user), [_acl(pattern, user)]
        if self._last.get(right):
            await self._do(right, False, "ACLs deleted", lambda: acls.delete_acls(each, _CHANGE_MS))
        else:
            await self._do(right, True, "ACLs created", lambda: acls.create_acls(each, _CHANGE_MS))

    async def _change_password(self, host: Host, users: UserAdmin, user: str) -> None:
        if self._last.get(user) and host.random.random() < 0.5:
            gone = [(user, _MECHANISM_NUMBER)]
            await self._do(user, False, "passwords deleted", lambda: users.delete_credentials(gone, _CHANGE_MS))
            return
        salt = host.entropy(_KEY_BYTES)
        made = NewCredential(user, _MECHANISM_NUMBER, ITERATIONS_MIN, salt, host.entropy(_KEY_BYTES))
        await self._do(user, salt, "passwords set", lambda: users.set_credentials([made], _CHANGE_MS))

    async def _do(
        self, right: _Right, wanted: bytes | bool, what: str, change: Callable[[], Awaitable[object]]
    ) -> None:
        try:
            await change()
        except (ClientError, KafkaError):
            self._in_doubt.add(right)
        else:
            self._last[right] = wanted
            self.counts[f"rights: {what}"] += 1

    # At rest.

    def are_known(self, brokers: list[Broker], tree: ZnodeTree | None) -> bool:
        """Whether all brokers go by what ZooKeeper has."""
        if tree is None:
            return False
        for broker in brokers:
            components = broker.components
            if components.authorization is None:
                return False
            for user in _USERS:
                if components.storage.scram_credentials.find(_MECHANISM, user) != _credential(tree, user):
                    return False
            for pattern in _PATTERNS:
                if components.authorization.rules.entries(pattern) != _entries(tree, pattern):
                    return False
        return True

    def judge(self, tree: ZnodeTree | None) -> None:
        """Notes what was acknowledged, and is not there; call it when the cluster is at rest."""
        if tree is not None:
            self._users.history.mistaken += self._findings(tree)

    def _findings(self, tree: ZnodeTree) -> Iterator[str]:
        for right, last in self._last.items():
            if right in self._in_doubt:
                continue
            if isinstance(right, str):
                credential = _credential(tree, right)
                found: bytes | bool = False if credential is None else credential.salt
            else:
                pattern, user = right
                found = f"User:{user}" in {entry.principal for entry in _entries(tree, pattern)}
            if found != last:
                yield f"what was acknowledged last of {right} is {last!r}, and ZooKeeper has {found!r}"


def _acl(pattern: ResourcePattern, user: str) -> Acl:
    return Acl(
        pattern.resource_type,
        pattern.name,
        pattern.pattern_type,
        f"User:{user}",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )


def _credential(tree: ZnodeTree, user: str) -> ScramCredential | None:
    path = config_path(ConfigEntityType.USERS, user)
    node = tree.find(path)
    text = None if node is None else EntityConfig.decode(node[0], path).config.get(_MECHANISM.value)
    return None if text is None else ScramCredential.decode(_MECHANISM, text)


def _entries(tree: ZnodeTree, pattern: ResourcePattern) -> frozenset[AccessControlEntry]:
    path = acls_path(resource_of(pattern))
    node = tree.find(path)
    return frozenset() if node is None else frozenset(read_entries(node[0], path).entries)
