"""SCRAM, the client's end. It shows that it knows the password, and wants to be shown that the server does.

Invariant: `is_complete` is true only after the server's signature was compared: so nobody who lacks the credential can
stand in for the server.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from barnabas.kernel.host import Entropy
from barnabas.kernel.transitions import TransitionTable
from barnabas.sasl.errors import SaslError
from barnabas.sasl.hashes import is_same
from barnabas.sasl.scram_mechanisms import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism
from barnabas.sasl.scram_messages import (
    BY_TOKEN,
    GS2_HEADER,
    ServerFirst,
    client_final_without_proof,
    decode_server_final,
    sasl_name,
    with_proof,
)

if TYPE_CHECKING:
    from barnabas.kernel.steps import Steps

_NONCE_BYTES: Final = 18


class ScramClientState(enum.Enum):
    """How far the client is."""

    NEW = "new"
    EXPECTS_SALT = "expects salt"
    EXPECTS_SIGNATURE = "expects signature"
    COMPLETE = "complete"
    FAILED = "failed"


class ScramClientEvent(enum.Enum):
    """What moves the client on."""

    BEGUN = "begun"
    SALTED = "salted"
    SIGNED = "signed"
    FAILED = "failed"


SCRAM_CLIENT = TransitionTable(
    "SCRAM client",
    start=ScramClientState.NEW,
    transitions={
        (ScramClientState.NEW, ScramClientEvent.BEGUN): ScramClientState.EXPECTS_SALT,
        (ScramClientState.NEW, ScramClientEvent.FAILED): ScramClientState.FAILED,
        (ScramClientState.EXPECTS_SALT, ScramClientEvent.SALTED): ScramClientState.EXPECTS_SIGNATURE,
        (ScramClientState.EXPECTS_SALT, ScramClientEvent.FAILED): ScramClientState.FAILED,
        (ScramClientState.EXPECTS_SIGNATURE, ScramClientEvent.SIGNED): ScramClientState.COMPLETE,
        (ScramClientState.EXPECTS_SIGNATURE, ScramClientEvent.FAILED): ScramClientState.FAILED,
        # A message too many.
        (ScramClientState.COMPLETE, ScramClientEvent.FAILED): ScramClientState.FAILED,
    },
    final=(ScramClientState.FAILED,),
)


class ScramClient:
    """One exchange."""

    __slots__ = ("_added", "_bare", "_entropy", "_mechanism", "_nonce", "_password", "_signature", "_username", "state")

    def __init__(
        self, mechanism: ScramMechanism, username: str, password: str, entropy: Entropy, *, is_token: bool = False
    ) -> None:
        """`is_token`: the name is a delegation token's id, and the password its HMAC in base64."""
        self._mechanism = mechanism
        self._username = username
        self._password = password
        self._entropy = entropy
        self._added = BY_TOKEN if is_token else ""
        self._nonce = ""
        self._bare = ""
        self._signature = b""
        self.state = ScramClientState.NEW

    @property
    def is_complete(self) -> bool:
        return self.state is ScramClientState.COMPLETE

    def begin(self) -> bytes:
        self._move(ScramClientEvent.BEGUN)
        self._nonce = self._entropy(_NONCE_BYTES).hex()
        self._bare = f"n={sasl_name(self._username)},r={self._nonce}{self._added}"
        return f"{GS2_HEADER}{self._bare}".encode()

    def answer(self, challenge: bytes) -> Steps[bytes | None]:
        answer: bytes | None = None
        try:
            if self.state is ScramClientState.EXPECTS_SALT:
                answer = yield from self._prove(challenge)
                event = ScramClientEvent.SALTED
            elif self.state is ScramClientState.EXPECTS_SIGNATURE:
                if not is_same(decode_server_final(challenge), self._signature):
                    raise SaslError("the server does not know the user's credential: its signature is wrong")
                event = ScramClientEvent.SIGNED
            else:
                raise SaslError("the server says more than SCRAM has")
        except SaslError:
            if self.state is not ScramClientState.FAILED:
                self._move(ScramClientEvent.FAILED)
            raise
        self._move(event)
        return answer

    def _move(self, event: ScramClientEvent) -> None:
        self.state = SCRAM_CLIENT.advance(self._mechanism.value, self.state, event)

    def _prove(self, challenge: bytes) -> Steps[bytes]:
        mechanism = self._mechanism
        first = ServerFirst.decode(challenge)
        if not first.nonce.startswith(self._nonce) or first.nonce == self._nonce:
            raise SaslError("the server's nonce does not go on from ours")
        if not ITERATIONS_MIN <= first.iterations <= ITERATIONS_MAX:
            raise SaslError(
                f"the server asks for {first.iterations} iterations; they must be {ITERATIONS_MIN} to {ITERATIONS_MAX}"
            )
        salted = yield from mechanism.salted_password_in_steps(self._password, first.salt, first.iterations)
        without_proof = client_final_without_proof(first.nonce)
        signed = f"{self._bare},{first.text},{without_proof}".encode()
        self._signature = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), signed)
        client_key = mechanism.hmac(salted, b"Client Key")
        mask = mechanism.hmac(mechanism.hash(client_key), signed)
        return with_proof(without_proof, bytes(one ^ other for one, other in zip(client_key, mask, strict=True)))
