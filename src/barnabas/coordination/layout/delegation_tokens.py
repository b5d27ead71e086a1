"""`/delegation_token`: tokens (KIP-48) and the announcements of their changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from barnabas.coordination.layout.configs import desanitize, sanitize
from barnabas.coordination.layout.payload import NO_EXTRA, Fields, decode_text, encode_json

DELEGATION_TOKEN_PATH = "/delegation_token"  # noqa: S105 - a path
TOKENS_PATH = "/delegation_token/tokens"
TOKEN_CHANGES_PATH = "/delegation_token/token_changes"  # noqa: S105 - a path
TOKEN_CHANGE_PREFIX = "token_change_"  # noqa: S105 - a path
VERSION = 3


def token_path(token_id: str) -> str:
    return f"{TOKENS_PATH}/{token_id}"


def token_change_path() -> str:
    """The path to create a sequential announcement at."""
    return f"{TOKEN_CHANGES_PATH}/{TOKEN_CHANGE_PREFIX}"


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """Payload of `/delegation_token/tokens/ID`, version 3. Principals are `User:alice`; times are milliseconds
    since 1970.

    `requester` is who asked for the token on behalf of `owner` (KIP-373); before version 3 the owner itself.
    """

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp_ms: int
    max_timestamp_ms: int
    expiry_timestamp_ms: int
    extra: Mapping[str, Any] = NO_EXTRA

    def encode(self) -> bytes:
        fields = {
            "owner": sanitize(self.owner),
            "tokenRequester": sanitize(self.requester),
            "renewers": [sanitize(renewer) for renewer in self.renewers],
            "issueTimestamp": self.issue_timestamp_ms,
            "maxTimestamp": self.max_timestamp_ms,
            "expiryTimestamp": self.expiry_timestamp_ms,
            "tokenId": self.token_id,
            "version": VERSION,
        }
        return encode_json(fields, self.extra)

    @classmethod
    def decode(cls, data: bytes | None, path: str) -> DelegationToken:
        fields = Fields.decode(data, path)
        version = fields.integer("version")
        if not 1 <= version <= VERSION:
            raise fields.wrong("version", f"from 1 to {VERSION}", version)
        owner = desanitize(fields.text("owner"))
        return cls(
            token_id=fields.text("tokenId"),
            owner=owner,
            requester=desanitize(fields.text("tokenRequester")) if version >= 3 else owner,
            renewers=tuple([desanitize(renewer) for renewer in fields.texts("renewers")]),
            issue_timestamp_ms=fields.long("issueTimestamp"),
            max_timestamp_ms=fields.long("maxTimestamp"),
            expiry_timestamp_ms=fields.long("expiryTimestamp"),
            extra=fields.rest(),
        )


def encode_token_change(token_id: str) -> bytes:
    """Payload of a sequential `/delegation_token/token_changes/token_change_*`."""
    return token_id.encode()


def decode_token_change(data: bytes | None, path: str) -> str:
    return decode_text(data, path)
