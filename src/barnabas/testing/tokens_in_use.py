"""Delegation tokens of a simulated cluster: made, renewed, used and let go at any of its brokers while these fall.

Invariants, seen in the coordinator with each change: a token that is gone does not come back; none is deleted but by
who may have it go, or once it had expired by some broker's clock. Of each acknowledgement: what it says has been
written, and a token that was to go at once is gone; who neither owns a token nor may renew it changes nothing. At the
end all brokers hold the tokens that ZooKeeper has, none of which has expired by the controller's clock, and at each
broker those that hold log in and those that are gone do not.

Short tokens live for seconds, long ones beyond the run, whatever the clocks are set to; kept ones are always about to
expire, and are renewed just before.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from barnabas.coordination.embedded.tree import ZnodeTree, child_names
from barnabas.coordination.layout.delegation_tokens import TOKENS_PATH, DelegationToken, token_path
from barnabas.link.errors import AuthenticationFailedError
from barnabas.sasl.mechanisms import Login
from barnabas.sasl.plain import PLAIN
from barnabas.testing.asking_user import AskingUser
from barnabas.testing.probes import before
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    MetadataRequest,
    RenewDelegationTokenRequest,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from barnabas.kernel.host import Host
    from barnabas.server.broker import Broker
    from barnabas.testing.cluster_load import Users
    from barnabas.testing.simulated_host import SimulatedMachine

LOGIN_PORT: Final = 9093
_MECHANISM: Final = "SCRAM-SHA-256"
OWNER, RENEWER, OTHER = "alice", "bob", "carol"
PROPERTIES: Final = {
    "listeners": f"PLAINTEXT://:9092,LOGIN://:{LOGIN_PORT}",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": f"PLAIN,{_MECHANISM}",
    "listener.name.login.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        + " ".join(f'user_{user}="of {user}"' for user in (OWNER, RENEWER, OTHER))
        + ";"
    ),
    "listener.name.login.scram-sha-256.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "delegation.token.secret.key": "what all brokers share",
    "delegation.token.expiry.check.interval.ms": "1000",
}
COVERAGE: Final = (
    "tokens: made",
    "tokens: renewed",
    "tokens: kept",
    "tokens: let go",
    "tokens: deleted as expired",
    "tokens: used",
    "tokens: refused to others",
    "tokens: changed at several brokers",
)
"""What must have happened."""
_PAUSE_MS: Final = 150.0
_SHORT_MS: Final = (1_500, 3_000, 6_000)
_LONG_MS: Final = 3_600_000
_CLOCK_SLACK_MS: Final = 100
"""Between two looks at the clocks one may be set back."""
_LOGINS_AT_REST: Final = 4
_KEPT: Final = 4
_KEPT_MS: Final = 1_500
_KEEPING_MS: Final = (300, 1_300)
_MISSES_MAX: Final = 3
"""A broker may not have heard of a token."""


@dataclass(slots=True)
class _Known:
    """A token that its owner was told of."""

    token_id: str
    hmac: bytes
    is_long: bool
    changed_at: set[int] = field(default_factory=set)
    """By which brokers."""
    may_go: bool = False
    """Somebody has asked for its end."""
    is_kept: bool = False
    is_gone: bool = False
    """And was told that it has come."""


class TokensInUse:
    """Who makes tokens and uses them, and what has become of these."""

    def __init__(self, users: Users, brokers: Mapping[int, SimulatedMachine]) -> None:
        self.counts: Counter[str] = Counter()
        self._users = users
        self._brokers = brokers
        self._known: dict[str, _Known] = {}
        self._ends: dict[str, set[int]] = {}
        """Until when each token was to hold, of all that was ever written of it, by its id."""
        self._gone: set[str] = set()
        self._tree: ZnodeTree | None = None
        self._changes: set[tuple[int, str]] = set()
        self._highest_ms = 0

    # What the users do.

    async def work(self, host: Host) -> None:
        """All of them, at any broker, until the users are to stop."""
        users = [AskingUser(host, Login(PLAIN, name, f"of {name}"), LOGIN_PORT) for name in (OWNER, RENEWER, OTHER)]
        try:
            keepers = [self._keep(users[0], users[1]) for _ in range(_KEPT)]
            await asyncio.gather(self._make(users[0]), *keepers, *map(self._change, users))
        finally:
            for user in users:
                await user.client.close()

    async def _make(self, user: AskingUser) -> None:
        client, random = user.client, user.client.host.random
        while self._users.goes_on():
            await client.timers.sleep(random.expovariate(1 / _PAUSE_MS))
            is_long = random.random() < 0.5
            await self._made(user, is_long, _LONG_MS if is_long else random.choice(_SHORT_MS))

    async def _made(self, user: AskingUser, is_long: bool, lifetime_ms: int) -> _Known | None:
        broker_id = user.client.host.random.choice(list(self._brokers))
        renewer = CreateDelegationTokenRequest.CreatableRenewers(principal_type="User", principal_name=RENEWER)
        request = CreateDelegationTokenRequest(renewers=[renewer], max_lifetime_ms=lifetime_ms)
        made = await user.ask(broker_id, request, 3)
        if made is None or made.error_code != ErrorCode.NONE:
            return None
        self.counts["tokens: made"] += 1
        token = self._known[made.token_id] = _Known(made.token_id, bytes(made.hmac), is_long, {broker_id})
        self._check_written(made.token_id, made.expiry_timestamp_ms)
        return token

    async def _keep(self, owner: AskingUser, renewer: AskingUser) -> None:
        client, random = renewer.client, renewer.client.host.random
        while self._users.goes_on():
            await client.timers.sleep(random.expovariate(1 / _PAUSE_MS))
            token = await self._made(owner, False, _LONG_MS)
            if token is None:
                continue
            token.is_kept = True
            misses = 0
            while misses <= _MISSES_MAX and self._users.goes_on():
                broker_id = random.choice(list(self._brokers))
                renewal = RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=_KEPT_MS)
                answer = await renewer.ask(broker_id, renewal, 2)
                self._note_change(renewer, token, broker_id, answer, "tokens: kept")
                if answer is not None:
                    misses = 0 if answer.error_code == ErrorCode.NONE else misses + 1
                await client.timers.sleep(random.uniform(*_KEEPING_MS))

    async def _change(self, user: AskingUser) -> None:
        client, random = user.client, user.client.host.random
        while self._users.goes_on():
            await client.timers.sleep(random.expovariate(1 / _PAUSE_MS))
            known = [each for each in self._known.values() if not each.is_gone and not each.is_kept]
            if not known:
                continue
            token, broker_id = random.choice(known[-20:]), random.choice(list(self._brokers))
            match random.choice(("renew", "renew", "shorten", "let go", "describe", "log in")):
                case "renew":
                    period_ms = -1 if token.is_long else random.choice((-1, *_SHORT_MS))
                    renewal = RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=period_ms)
                    answer = await user.ask(broker_id, renewal, 2)
                    self._note_change(user, token, broker_id, answer, "tokens: renewed")
                case "shorten" if not token.is_long:
                    period_ms = random.choice(_SHORT_MS)
                    end = ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=period_ms)
                    answer = await user.ask(broker_id, end, 2)
                    self._note_change(user, token, broker_id, answer, "tokens: shortened")
                case "let go":
                    await self._let_go(user, token, broker_id)
                case "describe":
                    answer = await user.ask(broker_id, DescribeDelegationTokenRequest(owners=None), 3)
                    for told in [] if answer is None else answer.tokens:
                        self._check_written(told.token_id, told.expiry_timestamp)
                case "log in":
                    self.counts["tokens: used"] += await self._log_in(client.host, token, broker_id) is True
                case _:
                    pass

    async def _let_go(self, user: AskingUser, token: _Known, broker_id: int) -> None:
        if user.name != OTHER:
            token.may_go = True
        request = ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1)
        if not self._is_done(user, token, await user.ask(broker_id, request, 2)):
            return
        self.counts["tokens: let go"] += 1
        token.is_gone = True
        if self._tree is not None and self._tree.find(token_path(token.token_id)) is not None:
            self._note(f"the token {token.token_id} is there when its end is acknowledged")

    def _note_change(self, user: AskingUser, token: _Known, broker_id: int, answer: Any, what: str) -> None:
        if not self._is_done(user, token, answer):
            return
        self.counts[what] += 1
        token.changed_at.add(broker_id)
        self.counts["tokens: changed at several brokers"] += len(token.changed_at) == 2
        self._check_written(token.token_id, answer.expiry_timestamp_ms)

    def _is_done(self, user: AskingUser, token: _Known, answer: Any) -> bool:
        if answer is None:
            return False
        is_done: bool = answer.error_code == ErrorCode.NONE
        if user.name == OTHER:
            self.counts["tokens: refused to others"] += answer.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
            if is_done:
                self._note(f"{user.name} has changed the token {token.token_id}")
        return is_done and user.name != OTHER

    def _check_written(self, token_id: str, end_ms: int) -> None:
        if end_ms not in self._ends.get(token_id, ()):
            self._note(f"a broker tells that the token {token_id} holds until {end_ms}, which was never written")

    async def _log_in(self, host: Host, token: _Known, broker_id: int) -> bool | None:
        """Whether the token lets a client in; None where that cannot be told."""
        password = base64.b64encode(token.hmac).decode()
        user = AskingUser(host, Login(_MECHANISM, token.token_id, password, is_token=True), LOGIN_PORT)
        try:
            return None if await user.ask(broker_id, MetadataRequest(topics=[]), 9) is None else True
        except AuthenticationFailedError:
            return False
        finally:
            await user.client.close()

    # What is seen of the tokens.

    @contextmanager
    def probes(self) -> Iterator[None]:
        """Looks at what the coordinator has of them while this lasts."""
        with ExitStack() as stack:
            stack.enter_context(before(ZnodeTree, "create", self._creating))
            stack.enter_context(before(ZnodeTree, "set_data", self._setting))
            stack.enter_context(before(ZnodeTree, "delete", self._deleting))
            yield

    def look(self) -> None:
        """Looks at the clocks."""
        self._highest_ms = max(self._highest_ms, *(each.clock.time_ms() for each in self._brokers.values()))

    def _creating(self, tree: ZnodeTree, path: str, data: bytes | None, _acl: bytes, zxid: int, *_: object) -> None:
        self._written(tree, path, data, zxid)

    def _setting(self, tree: ZnodeTree, path: str, data: bytes | None, zxid: int, *_: object) -> None:
        self._written(tree, path, data, zxid)

    def _written(self, tree: ZnodeTree, path: str, data: bytes | None, zxid: int) -> None:
        if not self._is_change(tree, path, zxid):
            return
        token = DelegationToken.decode(data, path)
        self._ends.setdefault(token.token_id, set()).add(token.expiry_timestamp_ms)
        if token.token_id in self._gone:
            self._note(f"the token {token.token_id} has come back")

    def _deleting(self, tree: ZnodeTree, path: str, zxid: int) -> None:
        if not self._is_change(tree, path, zxid):
            return
        self.look()
        token = DelegationToken.decode(tree.get(path)[0], path)
        self._gone.add(token.token_id)
        known = self._known.get(token.token_id)
        if known is not None and known.may_go:
            return
        self.counts["tokens: deleted as expired"] += 1
        if token.expiry_timestamp_ms >= self._highest_ms + _CLOCK_SLACK_MS:
            self._note(
                f"the token {token.token_id} was deleted {token.expiry_timestamp_ms - self._highest_ms} ms before its "
                "end, and nobody had asked for that"
            )

    def _is_change(self, tree: ZnodeTree, path: str, zxid: int) -> bool:
        """Whether it is one of a token, and not only read from the log of a coordinator that starts again."""
        if not path.startswith(f"{TOKENS_PATH}/") or (zxid, path) in self._changes:
            return False
        self._changes.add((zxid, path))
        if tree is not self._tree:
            self._tree = tree
            # What was lost with the coordinator has not happened.
            self._gone = {token_id for token_id in self._gone if tree.find(token_path(token_id)) is None}
        return True

    # At rest.

    def are_known(self, brokers: list[Broker], tree: ZnodeTree | None) -> bool:
        """Whether all brokers hold what ZooKeeper has, and nothing of it has expired."""
        if tree is None or tree.find(TOKENS_PATH) is None:
            return False
        stored = {name: self._stored(tree, name) for name in child_names(tree.get(TOKENS_PATH))}
        for broker in brokers:
            tokens = broker.components.tokens
            if tokens is None or {each.token_id: each for each in tokens.tokens.every()} != stored:
                return False
            if broker.components.controller.is_active:
                now_ms = self._brokers[broker.broker_id].clock.time_ms()
                if any(token.expiry_timestamp_ms < now_ms for token in stored.values()):
                    return False
        return True

    async def finish(self, host: Host) -> None:
        """Logs in by some of the tokens at each broker of a cluster at rest."""
        tree = self._tree
        if tree is None:
            return
        there = [each for each in self._known.values() if tree.find(token_path(each.token_id)) is not None]
        for token in there:
            if token.is_gone:
                self._note(f"the token {token.token_id} is there, and its end was acknowledged")
        lasting = [each for each in there if each.is_long]
        lost = [each for each in self._known.values() if each.is_long and not each.may_go and each not in there]
        for token in lost:
            self._note(f"the token {token.token_id} is gone, and nobody has asked for that")
        gone = [each for each in self._known.values() if each not in there]
        for broker_id in self._brokers:
            for tokens, may_enter in ((lasting, True), (gone, False)):
                for token in tokens[-_LOGINS_AT_REST:]:
                    found = await self._log_in(host, token, broker_id)
                    self.counts[f"tokens: at rest {'used' if found else 'refused'}"] += 1
                    if found is not may_enter:
                        self._note(f"broker {broker_id}: the login by the token {token.token_id} is {found}")

    def _stored(self, tree: ZnodeTree, name: str) -> DelegationToken:
        path = token_path(name)
        return DelegationToken.decode(tree.get(path)[0], path)

    def _note(self, finding: str) -> None:
        self._users.history.mistaken.append(f"at {self._users.now():.3f} s: {finding}")
