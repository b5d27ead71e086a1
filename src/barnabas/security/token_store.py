"""The delegation tokens of a cluster in ZooKeeper, as Kafka's `DelegationTokenManagerZk` keeps them: read into
`DelegationTokens`, and changed by any broker.

Invariant: a change of a token and its announcement are one transaction, against the version that was read: so a token
that another broker has expired is not brought to life again by one who has not heard of that, as it can be by Kafka's
own brokers, and no broker is left with a token that it was not told of.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from barnabas.coordination.errors import (
    BadVersionError,
    ConnectionLossError,
    CoordinationError,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
)
from barnabas.coordination.layout.delegation_tokens import (
    TOKEN_CHANGES_PATH,
    TOKENS_PATH,
    DelegationToken,
    encode_token_change,
    token_change_path,
    token_path,
)
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import Create, Delete, GetData, SetData, ZnodeData
from barnabas.coordination.ports import Store
from barnabas.coordination.protocol import CreateMode
from barnabas.kernel.host import Host
from barnabas.kernel.ids import Uuid
from barnabas.kernel.timers import Timers
from barnabas.kernel.turns import in_turns, yield_to_loop
from barnabas.security.delegation_tokens import (
    DelegationTokens,
    TokenLifetimes,
    expiring,
    has_expired,
    new_token,
    renewed,
)
from barnabas.wire.errors import ErrorCode, KafkaError

UPDATES_MAX: Final = 11
"""How often a change is tried while others change the same token, or the connection breaks."""
_BACKOFF_MS: Final = 100
_JITTER_MS: Final = 50
_READ_AT_ONCE: Final = 32
"""Each may have a MiB, and a reply of the coordinator has a bound: any user could keep brokers from starting."""
_TOKEN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")
"""Kafka's are 22 characters of base64url."""
_Change = Callable[[DelegationToken], DelegationToken | None]
"""Makes of a token the one that is to be, or None for none. Raises KafkaError."""


class TokenStore:
    """Keeps `tokens` as ZooKeeper has them whenever it is told to read, and changes both.

    What changes tokens raises KafkaError where Kafka refuses, and CoordinationError.
    """

    def __init__(
        self,
        host: Host,
        store: Store,
        tokens: DelegationTokens,
        lifetimes: TokenLifetimes,
        *,
        timers: Timers,
        logger: logging.Logger,
    ) -> None:
        self.tokens = tokens
        self._host = host
        self._store = store
        self._lifetimes = lifetimes
        self._timers = timers
        self._logger = logger
        self._one_at_a_time = asyncio.Lock()

    async def create_paths(self) -> None:
        """Makes the znodes that all others are below, where they are missing. Raises `CoordinationError`."""
        parent = TOKENS_PATH.rpartition("/")[0]
        paths = (parent, TOKEN_CHANGES_PATH, TOKENS_PATH)
        creations = [Create(path, b"") for path in paths]
        for outcome in await self._store.submit(creations):
            if isinstance(outcome, CoordinationError) and not isinstance(outcome, NodeExistsError):
                raise outcome

    async def load(self) -> None:
        """Reads all tokens. Raises `CoordinationError`; what was read until then holds, and the rest as before."""
        async with self._one_at_a_time:
            gone = set(self.tokens.ids())
            (names,) = await self._store.get_children_names_of_many([TOKENS_PATH])
            if isinstance(names, CoordinationError):
                raise names
            for start in range(0, len(names), _READ_AT_ONCE):
                gone.difference_update(await self._take(names[start : start + _READ_AT_ONCE]))
            for token_id in gone:
                self.tokens.remove(token_id)

    async def refresh(self, token_ids: Iterable[str]) -> None:
        """Reads these tokens, as after their announcement. Raises `CoordinationError`."""
        every = list(dict.fromkeys(token_ids))
        for start in range(0, len(every), _READ_AT_ONCE):
            async with self._one_at_a_time:
                some = every[start : start + _READ_AT_ONCE]
                taken = await self._take(some)
                for token_id in some:
                    if token_id not in taken:
                        self.tokens.remove(token_id)

    async def create(self, owner: str, requester: str, renewers: tuple[str, ...], lifetime_ms: int) -> DelegationToken:
        """Makes a token."""

        def make() -> DelegationToken:
            return new_token(
                str(Uuid.generate(self._host.entropy)),
                owner,
                requester,
                renewers,
                lifetime_ms=lifetime_ms,
                now_ms=self._host.clock.time_ms(),
                lifetimes=self._lifetimes,
            )

        token = make()
        for attempt in range(UPDATES_MAX):
            if attempt:
                await self._pause()
            try:
                async with self._one_at_a_time:
                    if not attempt or await self._find(token_path(token.token_id)) is None:
                        if attempt:
                            # It may have been there, and be gone again: so it is another one that is tried.
                            token = make()
                        await self._create(token)
                    self.tokens.put(token)
                break
            except MultiFailedError as failure:
                raise failure.error from None
            except ConnectionLossError:
                if self._store.state.is_final or attempt + 1 == UPDATES_MAX:
                    raise
        self._logger.info("Created the delegation token %s of %s", token.token_id, owner)
        return token

    async def _create(self, token: DelegationToken) -> None:
        path = token_path(token.token_id)
        creation = Create(path, token.encode())
        await self._store.multi([creation, self._announcement(token.token_id)])

    async def renew(self, hmac: bytes, principal: str, period_ms: int) -> int:
        """Lets `principal` renew the token of that HMAC, for `period_ms` or, if that is negative, as long as is usual;
        returns until when it holds, in ms since 1970.
        """

        def change(token: DelegationToken) -> DelegationToken:
            return renewed(token, principal, period_ms, self._host.clock.time_ms(), self._lifetimes)

        token = await self._change(self._with_hmac(hmac), change)
        return self._host.clock.time_ms() if token is None else token.expiry_timestamp_ms

    async def expire(self, hmac: bytes, principal: str, period_ms: int) -> int:
        """Has `principal` let the token of that HMAC expire in `period_ms`, at once if that is negative; returns
        when.
        """

        def change(token: DelegationToken) -> DelegationToken | None:
            return expiring(token, principal, period_ms, self._host.clock.time_ms())

        token = await self._change(self._with_hmac(hmac), change)
        return self._host.clock.time_ms() if token is None else token.expiry_timestamp_ms

    async def remove_expired(self, is_due: Callable[[], bool] = lambda: True) -> None:
        """Deletes the tokens that have expired, as long as that is due; what cannot be is tried again the next time."""

        def change(token: DelegationToken) -> DelegationToken | None:
            return None if has_expired(token, self._host.clock.time_ms()) else token

        for token_id in list(self.tokens.ids()):
            await yield_to_loop()
            if not is_due():
                return
            token = self.tokens.find(token_id)
            if token is None or not has_expired(token, self._host.clock.time_ms()):
                continue
            try:
                await self._change(token_id, change)
            except (CoordinationError, KafkaError) as error:
                if self._store.state.is_final:
                    return
                self._logger.warning("The expired delegation token %s cannot be deleted now: %s", token_id, error)

    def _with_hmac(self, hmac: bytes) -> str:
        token = self.tokens.with_hmac(hmac)
        if token is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        return token.token_id

    async def _change(self, token_id: str, change: _Change) -> DelegationToken | None:
        """Puts what `change` makes of the token in its place; it is called anew for each attempt, between which others
        have their turn: who makes attempts fail must not keep a broker from hearing of other tokens.
        """
        path = token_path(token_id)
        was_to_go = False
        for attempt in range(UPDATES_MAX):
            if attempt:
                await self._pause()
            try:
                async with self._one_at_a_time:
                    found = await self._find(path)
                    if found is None:
                        self.tokens.remove(token_id)
                        if was_to_go:
                            return None  # before the connection broke
                        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
                    before = await _decoded(found, token_id, path)
                    after = change(before)
                    was_to_go = after is None
                    await self._replace(before, after, path, found.stat.version)
                    return after
            except MultiFailedError as failure:
                if failure.index or not isinstance(failure.error, BadVersionError | NoNodeError):
                    raise failure.error from None
            except ConnectionLossError:
                # Whether it happened shows when it is read again; its announcement happened with it.
                if self._store.state.is_final:
                    raise
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"The token could not be changed in {UPDATES_MAX} attempts; try again.",
        )

    async def _replace(self, before: DelegationToken, after: DelegationToken | None, path: str, version: int) -> None:
        token_id = before.token_id
        if after is None:
            await self._write(Delete(path, version), token_id)
            self.tokens.remove(token_id)
            self._logger.info("Deleted the delegation token %s of %s", token_id, before.owner)
            return
        if after != before:
            await self._write(SetData(path, await in_turns(after.encode_in_steps()), version), token_id)
        self.tokens.put(after)

    async def _write(self, change: SetData | Delete, token_id: str) -> None:
        await self._store.multi([change, self._announcement(token_id)])

    async def _find(self, path: str) -> ZnodeData | None:
        try:
            return await self._store.perform(GetData(path))
        except NoNodeError:
            return None

    async def _pause(self) -> None:
        await self._timers.sleep(_BACKOFF_MS + self._host.random.random() * _JITTER_MS)

    def _announcement(self, token_id: str) -> Create:
        path = token_change_path()
        return Create(path, encode_token_change(token_id), mode=CreateMode.PERSISTENT_SEQUENTIAL)

    async def _take(self, token_ids: Sequence[str]) -> set[str]:
        """Reads some tokens; returns the ids of those that there are."""
        taken: set[str] = set()
        good = [token_id for token_id in token_ids if _TOKEN_ID.fullmatch(token_id)]
        paths = [token_path(token_id) for token_id in good]
        for token_id, path, found in zip(good, paths, await self._store.get_many(paths), strict=True):
            if isinstance(found, NoNodeError):
                continue
            if isinstance(found, CoordinationError):
                raise found
            try:
                token = await _decoded(found, token_id, path)
            except LayoutError as error:
                # Not the last that was read: nobody knows what became of it.
                self._logger.error("A delegation token is none: %s", error)  # noqa: TRY400 - who wrote it is at fault
                continue
            self.tokens.put(token)
            taken.add(token_id)
        return taken


async def _decoded(found: ZnodeData, token_id: str, path: str) -> DelegationToken:
    """Raises LayoutError."""
    token = await in_turns(DelegationToken.decode_in_steps(found.data, path))
    if token.token_id != token_id:
        raise LayoutError(path, "it has the id of another token")
    return token
