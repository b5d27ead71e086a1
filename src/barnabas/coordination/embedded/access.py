"""Access control: who may do what to a znode.

A list stays encoded as it travels; its decoded form is cached. Schemes are those that ZooKeeper has by default:
`world`, `auth` (in requests only: it stands for what the session has proved), `digest` and `ip` (IPv4, with an optional
prefix length); and, where the server has such logins, `sasl` and `x509`, whose ids are names that fit as they are.
There is no super user.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterable, Sequence

from barnabas.coordination.errors import InvalidAclError, MalformedFrameError
from barnabas.coordination.jute import Reader
from barnabas.coordination.protocol import ANYONE, OPEN_ACL, READ_ACL, Acl, Id, Permission, pack_acls

OPEN = pack_acls(OPEN_ACL)
READ_ONLY = pack_acls(READ_ACL)
READ_OR_ADMIN = int(Permission.READ | Permission.ADMIN)
_DECODED_LISTS_MAX = 4096
# Longer lists, up to the bound on requests, are neither cached nor shared, so that those who are gone leave no memory.
SHARED_LIST_BYTES_MAX = 4096
_ADDRESS_BYTES = 4


def digest_id(credentials: bytes) -> Id:
    """The identity that `user:password` proves: the user with the SHA-1 of the whole, in base 64."""
    text = credentials.decode(errors="replace")
    user = text.split(":", 1)[0]
    # The wire protocol's identity is defined by SHA-1; it is no choice of ours.
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).digest()
    return Id("digest", f"{user}:{base64.b64encode(digest).decode()}")


def allowed(acl: bytes, permission: int, identities: Iterable[Id]) -> bool:
    """Whether any of the identities has any bit of `permission`."""
    if acl is OPEN:
        return True
    entries = decode(acl)
    if not entries:
        return True
    for entry in entries:
        if entry.permissions & permission:
            if entry.id == ANYONE:
                return True
            for identity in identities:
                if identity.scheme == entry.id.scheme and _matches(identity, entry.id.id):
                    return True
    return False


def decode(acl: bytes) -> tuple[Acl, ...]:
    """The entries of an encoded list that this server made."""
    return _decode_cached(acl) if len(acl) <= SHARED_LIST_BYTES_MAX else _decode(acl)


def _decode(acl: bytes) -> tuple[Acl, ...]:
    reader = Reader(acl)
    count = reader.integer()
    return tuple([Acl(reader.integer(), Id(reader.string(), reader.string())) for _ in range(count)])


_decode_cached = functools.lru_cache(maxsize=_DECODED_LISTS_MAX)(_decode)


def read_requested(reader: Reader) -> list[tuple[int, str | None, str | None]]:
    """The list of a request: permissions, scheme and id of each entry, where null is kept."""
    count = reader.integer()
    if count * 12 > reader.remaining:
        raise MalformedFrameError(f"an access control list of {count} entries does not fit into its frame")
    return [(reader.integer(), _text(reader), _text(reader)) for _ in range(max(count, 0))]


def resolve(
    path: str,
    requested: Sequence[tuple[int, str | None, str | None]],
    identities: Sequence[Id],
    schemes: frozenset[str] = frozenset(),
) -> bytes:
    """The list to store for a request: duplicates dropped, `auth` replaced by the session's identities. `schemes` are
    those of logins that the server has.

    Raises `InvalidAclError` for an empty list, an unknown scheme or a malformed id.
    """
    entries: list[Acl] = []
    for permissions, scheme, name in dict.fromkeys(requested):
        if scheme is None:
            raise InvalidAclError(path)
        if scheme == "auth":
            proved = [Acl(permissions, identity) for identity in identities if identity.scheme != "ip"]
            if not proved:
                raise InvalidAclError(path)
            entries.extend(proved)
            continue
        if name is None:
            raise MalformedFrameError("an access control list names no id")
        if not (bool(name) if scheme in schemes else _is_valid(scheme, name)):
            raise InvalidAclError(path)
        entries.append(Acl(permissions, Id(scheme, name)))
    if not entries:
        raise InvalidAclError(path)
    encoded = pack_acls(entries)
    return OPEN if encoded == OPEN else encoded


def with_digests_hidden(acl: bytes) -> bytes:
    """The list as those see it who may read the znode but not administrate it."""
    return pack_acls(
        Acl(entry.permissions, Id("digest", entry.id.id.split(":", 1)[0] + ":x"))
        if entry.id.scheme == "digest" and ":" in entry.id.id
        else entry
        for entry in decode(acl)
    )


def _text(reader: Reader) -> str | None:
    data = reader.buffer()
    return None if data is None else data.decode(errors="replace")


def _is_valid(scheme: str, name: str) -> bool:
    if scheme == "world":
        return name == "anyone"
    if scheme == "digest":
        # Exactly two parts, where empty ones at the end do not count.
        return name.rstrip(":").count(":") == 1 and bool(name.rstrip(":"))
    return scheme == "ip" and _network(name) is not None


def _matches(identity: Id, expression: str) -> bool:
    if identity.scheme != "ip":
        return identity.id == expression
    network = _network(expression)
    address = _address(identity.id)
    if network is None or address is None:
        return False
    base, bits = network
    shift = 8 * _ADDRESS_BYTES - bits
    return base >> shift == address >> shift


def _network(expression: str) -> tuple[int, int] | None:
    """Address and prefix length of `a.b.c.d` or `a.b.c.d/bits`."""
    host, slash, length = expression.partition("/")
    address = _address(host)
    bits = _number(length, 8 * _ADDRESS_BYTES) if slash else 8 * _ADDRESS_BYTES
    return None if address is None or bits is None else (address, bits)


def _address(text: str) -> int | None:
    parts = [_number(part, 255) for part in text.split(".")]
    if len(parts) != _ADDRESS_BYTES:
        return None
    address = 0
    for part in parts:
        if part is None:
            return None
        address = address << 8 | part
    return address


def _number(text: str, maximum: int) -> int | None:
    if not text.isdecimal() or not text.isascii():
        return None
    value = int(text) if len(text) <= 9 else maximum + 1
    return value if value <= maximum else None
