"""SCRAM, the server's end, as Kafka's has it: GS2 header `n`, no channel binding, no identity but the user's own.

Invariant: `username` is set only after the client's proof was compared, in constant time, with the stored key of the
credential that was looked up for that very name, or for the delegation token of that id.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from barnabas.kernel.host import Entropy
from barnabas.kernel.transitions import TransitionTable
from barnabas.sasl.errors import SaslAuthenticationError, SaslError
from barnabas.sasl.hashes import is_same
from barnabas.sasl.scram_mechanisms import ITERATIONS_MIN, ScramCredential, ScramMechanism
from barnabas.sasl.scram_messages import GS2_HEADER, ClientFinal, ClientFirst, ServerFirst, server_final

NONCE_BYTES: Final = 18
FindCredential = Callable[[ScramMechanism, str], ScramCredential | None]
"""The credential of a user for a mechanism, if there is one."""


@dataclass(frozen=True, slots=True)
class TokenLogin:
    """What a delegation token logs in with."""

    owner: str
    """The name of the user that the client is then."""
    credential: ScramCredential
    expiry_ms: int
    """In ms since 1970."""


FindToken = Callable[[ScramMechanism, str], TokenLogin | None]
"""What the delegation token of that id logs in with for a mechanism, if there is one."""


class ScramServerState(enum.Enum):
    """How far the server is."""

    EXPECTS_FIRST = "expects first"
    EXPECTS_PROOF = "expects proof"
    COMPLETE = "complete"
    FAILED = "failed"


class ScramServerEvent(enum.Enum):
    """What moves the server on."""

    USER_FOUND = "user found"
    PROVEN = "proven"
    REFUSED = "refused"


SCRAM_SERVER = TransitionTable(
    "SCRAM server",
    start=ScramServerState.EXPECTS_FIRST,
    transitions={
        (ScramServerState.EXPECTS_FIRST, ScramServerEvent.USER_FOUND): ScramServerState.EXPECTS_PROOF,
        (ScramServerState.EXPECTS_FIRST, ScramServerEvent.REFUSED): ScramServerState.FAILED,
        (ScramServerState.EXPECTS_PROOF, ScramServerEvent.PROVEN): ScramServerState.COMPLETE,
        (ScramServerState.EXPECTS_PROOF, ScramServerEvent.REFUSED): ScramServerState.FAILED,
        # A message too many.
        (ScramServerState.COMPLETE, ScramServerEvent.REFUSED): ScramServerState.FAILED,
    },
    final=(ScramServerState.FAILED,),
)


class ScramServer:
    """One exchange."""

    __slots__ = (
        "_credential",
        "_entropy",
        "_find",
        "_find_token",
        "_first",
        "_mechanism",
        "_server_first",
        "_token",
        "state",
    )

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: FindCredential,
        entropy: Entropy,
        find_token: FindToken = lambda _mechanism, _token_id: None,
    ) -> None:
        self._mechanism = mechanism
        self._find = find
        self._find_token = find_token
        self._token: TokenLogin | None = None
        self._entropy = entropy
        self._first: ClientFirst | None = None
        self._server_first: ServerFirst | None = None
        self._credential: ScramCredential | None = None
        self.state = ScramServerState.EXPECTS_FIRST

    @property
    def username(self) -> str | None:
        if self.state is not ScramServerState.COMPLETE or self._first is None:
            return None
        return self._first.username if self._token is None else self._token.owner

    @property
    def token_expiry_ms(self) -> int | None:
        return self._token.expiry_ms if self.state is ScramServerState.COMPLETE and self._token is not None else None

    @property
    def is_by_delegation_token(self) -> bool:
        return self._token is not None

    def respond(self, token: bytes) -> bytes:
        try:
            if self.state is ScramServerState.EXPECTS_FIRST:
                answer, event = self._begin(token), ScramServerEvent.USER_FOUND
            elif self.state is ScramServerState.EXPECTS_PROOF:
                answer, event = self._prove(token), ScramServerEvent.PROVEN
            else:
                raise SaslError("a message after the end of the exchange")
        except SaslError:
            if self.state is not ScramServerState.FAILED:
                self._move(ScramServerEvent.REFUSED)
            self._credential = None
            raise
        self._move(event)
        return answer

    def _move(self, event: ScramServerEvent) -> None:
        self.state = SCRAM_SERVER.advance(self._mechanism.value, self.state, event)

    def _begin(self, token: bytes) -> bytes:
        first = ClientFirst.decode(token)
        by_token: TokenLogin | None = None
        if first.is_by_token:
            by_token = self._find_token(self._mechanism, first.username)
            if by_token is None:
                raise SaslError("there is no delegation token of that id")
        credential = self._find(self._mechanism, first.username) if by_token is None else by_token.credential
        if credential is None:
            raise SaslError(f"the user has no credential for {self._mechanism.value}")
        if first.authorization_id not in ("", first.username):
            raise SaslAuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        if credential.iterations < ITERATIONS_MIN:
            raise SaslError(
                f"the user's credential has {credential.iterations} iterations, fewer than {ITERATIONS_MIN}"
            )
        nonce = first.nonce + self._entropy(NONCE_BYTES).hex()
        self._first, self._credential, self._token = first, credential, by_token
        self._server_first = ServerFirst.of(nonce, credential.salt, credential.iterations)
        return self._server_first.text.encode()

    def _prove(self, token: bytes) -> bytes:
        first, server_first, credential = self._first, self._server_first, self._credential
        if first is None or server_first is None or credential is None:
            raise SaslError("a proof before the first message")
        final = ClientFinal.decode(token)
        # As in Kafka: librdkafka before 2.6 puts its own part before the whole once more.
        if not final.nonce.endswith(server_first.nonce):
            raise SaslError("the client's proof has another nonce")
        # Kafka heeds no channel binding at all; clients write what they have sent, or that there is none.
        if final.channel not in (GS2_HEADER.encode(), first.header.encode()):
            raise SaslError("the client has bound its proof to a channel")
        mechanism = self._mechanism
        signed = f"{first.bare},{server_first.text},{final.without_proof}".encode()
        signature = mechanism.hmac(credential.stored_key, signed)
        if len(final.proof) != len(signature):
            raise SaslError("the client's proof has not the length of the mechanism's hash")
        client_key = bytes(one ^ other for one, other in zip(signature, final.proof, strict=True))
        if not is_same(mechanism.hash(client_key), credential.stored_key):
            raise SaslError("the client's proof is wrong")
        self._credential = None
        return server_final(mechanism.hmac(credential.server_key, signed))
