"""Faults put into the keeping of delegation tokens, one at a time: the plan `tokens` has to find each (0033)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from barnabas.coordination.errors import MultiFailedError
from barnabas.coordination.layout.delegation_tokens import DelegationToken, token_path
from barnabas.coordination.operations import Create, Delete, SetData
from barnabas.security.acl_changes import AclChanges
from barnabas.security.delegation_tokens import has_expired
from barnabas.security.token_changes import TokenChanges
from barnabas.security.token_store import TokenStore
from barnabas.server.credential_configs import CredentialConfigs
from barnabas.testing.user_plans import TOKENS
from tests.simulation.mutants import Mutant

_Change = Callable[[DelegationToken], DelegationToken | None]


def go_by_what_is_held(patch: pytest.MonkeyPatch) -> None:
    """As Kafka's brokers: what a broker has heard of a token is changed, and put where it is missing."""

    async def change_held(self: TokenStore, token_id: str, change: _Change) -> DelegationToken | None:
        path, held = token_path(token_id), self.tokens.find(token_id)
        after = None if held is None else change(held)
        if after is None:
            await self._write(Delete(path), token_id)
            self.tokens.remove(token_id)
            return None
        try:
            await self._write(SetData(path, after.encode()), token_id)
        except MultiFailedError:
            await self._store.multi([Create(path, after.encode()), self._announcement(token_id)])
        self.tokens.put(after)
        return after

    patch.setattr(TokenStore, "_change", change_held)


def delete_what_had_expired_when_it_was_heard_of(patch: pytest.MonkeyPatch) -> None:
    """The controller does not look whether somebody has renewed it."""

    async def remove_expired(self: TokenStore, _is_due: Callable[[], bool] = lambda: True) -> None:
        for token in self.tokens.every():
            if has_expired(token, self._host.clock.time_ms()):
                await self._change(token.token_id, lambda _: None)

    patch.setattr(TokenStore, "remove_expired", remove_expired)


def hear_nothing_after_a_session(patch: pytest.MonkeyPatch) -> None:
    """A broker with a new session sets no watch, and does not read what it has missed."""

    async def after_new_session(_self: TokenChanges) -> None:
        return

    patch.setattr(TokenChanges, "after_new_session", after_new_session)


def keep_what_others_let_go(patch: pytest.MonkeyPatch) -> None:
    """A token that was announced, and is gone, stays."""

    async def refresh(self: TokenStore, token_ids: Iterable[str]) -> None:
        await self._take(list(token_ids))

    patch.setattr(TokenStore, "refresh", refresh)


def hear_of_no_acls_after_a_session(patch: pytest.MonkeyPatch) -> None:
    """The same of ACLs."""

    async def after_new_session(_self: AclChanges) -> None:
        return

    patch.setattr(AclChanges, "after_new_session", after_new_session)


def read_passwords_once(patch: pytest.MonkeyPatch) -> None:
    """What a broker has missed of them while it had no session, it never hears of."""
    reload = CredentialConfigs.reload
    have_read: list[CredentialConfigs] = []

    async def reload_once(self: CredentialConfigs) -> None:
        if self not in have_read:
            have_read.append(self)
            await reload(self)

    patch.setattr(CredentialConfigs, "reload", reload_once)


TOKEN_MUTANTS = (
    Mutant("goes by the token that it holds", TOKENS, go_by_what_is_held),
    Mutant("deletes a token that was renewed elsewhere", TOKENS, delete_what_had_expired_when_it_was_heard_of),
    Mutant("deaf to tokens after a session", TOKENS, hear_nothing_after_a_session),
    Mutant("keeps tokens that others let go", TOKENS, keep_what_others_let_go),
    Mutant("deaf to ACLs after a session", TOKENS, hear_of_no_acls_after_a_session),
    Mutant("deaf to passwords after a session", TOKENS, read_passwords_once),
)
