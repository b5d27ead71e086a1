"""What producers with a transactional id are told, until there are transactions."""

from __future__ import annotations

from typing import Final

from barnabas.wire.errors import ErrorCode

REFUSAL: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
"""Of all errors that may answer FindCoordinator and InitProducerId the one that every client takes as final: those that
say that there is no coordinator have it ask again until its time-out.
"""
REASON: Final = (
    "There are no transactions on this cluster yet: take transactional.id out of the producer's configuration, and set "
    "enable.idempotence where records must not be written twice."
)
