"""Faults put into how certificates, tokens and passwords are kept and exchanged, one at a time: the plan `credentials`
has to find each (0032, 0045, 0052).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from barnabas.api.authentication import ClientLogin
from barnabas.link.handshakes import Handshakes
from barnabas.link.places import Held, Places, Step
from barnabas.link.tls import TlsConnection
from barnabas.sasl.bearer_tokens import json_object, parts_of
from barnabas.sasl.signed_tokens import SignedTokens
from barnabas.security.stored_passwords import Opened, StoredPasswords, Texts
from barnabas.server.signing_keys import SigningKeys
from barnabas.server.tls import BrokerTls
from barnabas.testing.user_plans import CREDENTIALS
from tests.simulation.mutants import Mutant


def take_tokens_that_have_expired(patch: pytest.MonkeyPatch) -> None:
    """As if no time went by."""
    make = SignedTokens.__init__

    def made(self: SignedTokens, rules: Any, find_key: Any, _time_ms: Any) -> None:
        make(self, rules, find_key, int)

    patch.setattr(SignedTokens, "__init__", made)


def look_at_no_signature(patch: pytest.MonkeyPatch) -> None:
    """A key of the name that a token says is enough."""

    def claims(self: SignedTokens, text: str) -> dict[str, Any]:
        head, body, _ = parts_of(text)
        header = json_object(head, "header")
        if self._find_key(header["alg"], header.get("kid")) is None:
            raise ValueError("no key of that name")
        return json_object(body, "claims")

    patch.setattr(SignedTokens, "_signed_claims", claims)


def serve_on_when_a_token_is_over(patch: pytest.MonkeyPatch) -> None:
    """A session does not end."""
    patch.setattr(ClientLogin, "_expire", lambda *_: None)


def keep_keys_that_were_withdrawn(patch: pytest.MonkeyPatch) -> None:
    """Keys are added to those of before."""
    find = SigningKeys.find
    had: dict[tuple[str, str | None], Any] = {}

    def found(self: SigningKeys, algorithm: str, key_id: str | None) -> Any:
        key = find(self, algorithm, key_id)
        return had.setdefault((algorithm, key_id), key) if key is not None else had.get((algorithm, key_id))

    patch.setattr(SigningKeys, "find", found)


def exchange_no_certificates(patch: pytest.MonkeyPatch) -> None:
    """What was set is stored, and new connections have what old ones have."""
    patch.setattr(BrokerTls, "adopt", lambda *_: None)


def take_any_certificate(patch: pytest.MonkeyPatch) -> None:
    """Nobody tries it before it is stored."""
    patch.setattr(BrokerTls, "check", lambda *_: None)


def drop_what_cannot_be_decoded(patch: pytest.MonkeyPatch) -> None:
    """With the next change, as Kafka does."""
    opened = StoredPasswords.opened

    async def opened_only(self: StoredPasswords, texts: Texts) -> Opened:
        return dataclasses.replace(await opened(self, texts), sealed={})

    patch.setattr(StoredPasswords, "opened", opened_only)


def forget_the_old_secret(patch: pytest.MonkeyPatch) -> None:
    """It is of no effect."""
    make = StoredPasswords.__init__

    def made(self: StoredPasswords, *arguments: Any) -> None:
        make(self, *arguments)
        self._old = None

    patch.setattr(StoredPasswords, "__init__", made)


def hold_places_of_who_has_gone(patch: pytest.MonkeyPatch) -> None:
    """A handshake that breaks off holds its place."""
    leave = Handshakes.leave

    def left(self: Handshakes, connection: Any) -> bool:
        return leave(self, connection) if connection.secured.done() else False

    patch.setattr(Handshakes, "leave", left)


def hear_of_no_end(patch: pytest.MonkeyPatch) -> None:
    """A connection whose other end stops amid a record is kept."""
    patch.setattr(TlsConnection, "eof_received", lambda _self: True)


def let_nobody_in_when_full(patch: pytest.MonkeyPatch) -> None:
    """A server of HTTP keeps those that came first."""
    take = Places._take

    def taken(self: Places, connection: Held, step: Step) -> bool:
        if self._counts[step] >= self._bounds[step]:
            connection.abort()
            return False
        return take(self, connection, step)

    patch.setattr(Places, "_take", taken)


CREDENTIAL_MUTANTS = (
    Mutant("takes tokens that have expired", CREDENTIALS, take_tokens_that_have_expired),
    Mutant("looks at no signature", CREDENTIALS, look_at_no_signature),
    Mutant("serves on when a token is over", CREDENTIALS, serve_on_when_a_token_is_over),
    Mutant("keeps keys that were withdrawn", CREDENTIALS, keep_keys_that_were_withdrawn),
    Mutant("exchanges no certificates", CREDENTIALS, exchange_no_certificates),
    Mutant("takes any certificate", CREDENTIALS, take_any_certificate),
    Mutant("drops what cannot be decoded", CREDENTIALS, drop_what_cannot_be_decoded),
    Mutant("forgets the old secret", CREDENTIALS, forget_the_old_secret),
    Mutant("holds places of who has gone", CREDENTIALS, hold_places_of_who_has_gone),
    Mutant("hears of no end", CREDENTIALS, hear_of_no_end),
    Mutant("lets nobody in when full", CREDENTIALS, let_nobody_in_when_full),
)
