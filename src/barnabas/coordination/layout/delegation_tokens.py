"""`/delegation_token`: tokens (KIP-48) and the announcements of their changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from barnabas.coordination.layout.configs import desanitize, sanitize
from barnabas.coordination.layout.payload import NO_EXTRA, Fields, LayoutError, decode_text, encode_json
from barnabas.kernel.steps import Steps, at_once

DELEGATION_TOKEN_PATH = "/delegation_token"  # noqa: S105 - a path
TOKENS_PATH = "/delegation_token/tokens"
TOKEN_CHANGES_PATH = "/delegation_token/token_changes"  # noqa: S105 - a path
TOKEN_CHANGE_PREFIX = "token_change_"  # noqa: S105 - a path
VERSION = 3
_CHARACTERS_PER_STEP: Final = 32_768
_CHARACTERS_OF_A_NAME: Final = 32
"""As many as take as long as whatever is done for each name."""


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
        return at_once(self.encode_in_steps())

    def encode_in_steps(self) -> Steps[bytes]:
        """See `decode_in_steps`."""
        renewers = yield from _each_name(sanitize, self.renewers)
        fields = {
            "owner": sanitize(self.owner),
            "tokenRequester": sanitize(self.requester),
            "renewers": renewers,
            "issueTimestamp": self.issue_timestamp_ms,
            "maxTimestamp": self.max_timestamp_ms,
            "expiryTimestamp": self.expiry_timestamp_ms,
            "tokenId": self.token_id,
            "version": VERSION,
        }
        return encode_json(fields, self.extra)

    @classmethod
    def decode(cls, data: bytes | None, path: str) -> DelegationToken:
        return at_once(cls.decode_in_steps(data, path))

    @classmethod
    def decode_in_steps(cls, data: bytes | None, path: str) -> Steps[DelegationToken]:
        """A token that a broker of Apache Kafka has made may have tens of thousands of renewers."""
        fields = Fields.decode(data, path)
        yield
        version = fields.integer("version")
        if not 1 <= version <= VERSION:
            raise fields.wrong("version", f"from 1 to {VERSION}", version)

        def principal(sanitized: str) -> str:
            name = desanitize(sanitized)
            if ":" not in name:
                raise LayoutError(path, f"a principal is TYPE:NAME, and not {name!r:.80}")
            return name

        owner = principal(fields.text("owner"))
        requester = principal(fields.text("tokenRequester")) if version >= 3 else owner
        renewers = yield from _each_name(principal, fields.texts("renewers"))
        return cls(
            token_id=fields.text("tokenId"),
            owner=owner,
            requester=requester,
            renewers=tuple(renewers),
            issue_timestamp_ms=fields.long("issueTimestamp"),
            max_timestamp_ms=fields.long("maxTimestamp"),
            expiry_timestamp_ms=fields.long("expiryTimestamp"),
            extra=fields.rest(),
        )


def _each_name(function: Callable[[str], str], names: Iterable[str]) -> Steps[list[str]]:
    results: list[str] = []
    left = _CHARACTERS_PER_STEP
    for name in names:
        results.append(function(name))
        left -= _CHARACTERS_OF_A_NAME + len(name)
        if left < 0:
            yield
            left = _CHARACTERS_PER_STEP
    return results


def encode_token_change(token_id: str) -> bytes:
    """Payload of a sequential `/delegation_token/token_changes/token_change_*`."""
    return token_id.encode()


def decode_token_change(data: bytes | None, path: str) -> str:
    return decode_text(data, path)
