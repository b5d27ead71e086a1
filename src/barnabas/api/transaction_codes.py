"""What older clients are told in place of codes that they do not know (KIP-588)."""

from __future__ import annotations

from barnabas.wire.errors import ErrorCode


def fenced_code(code: ErrorCode, api_version: int, *, known_since: int) -> ErrorCode:
    """PRODUCER_FENCED is INVALID_PRODUCER_EPOCH before that version."""
    is_unknown = code is ErrorCode.PRODUCER_FENCED and api_version < known_since
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_unknown else code
