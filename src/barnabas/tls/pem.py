"""PEM: certificates and keys as text, in a file or, with any white space between, in a config (KIP-651)."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import Final

from barnabas.tls.errors import TlsConfigError

PEM_BYTES_MAX: Final = 16 * 1024 * 1024
"""More than all public authorities of the world take."""
_LINE: Final = 64
_MARK: Final = re.compile(r"(?=(-----(BEGIN|END) ([A-Z0-9 ]+)-----))")
_CERTIFICATES: Final = ("CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE")


@dataclass(frozen=True, slots=True)
class PemBlock:
    """One block; `body` is what stands between its lines, which may be secret."""

    label: str
    body: str = field(repr=False)

    @property
    def is_certificate(self) -> bool:
        return self.label in _CERTIFICATES

    @property
    def is_private_key(self) -> bool:
        return self.label.endswith("PRIVATE KEY")

    @property
    def is_encrypted(self) -> bool:
        """A private key that needs a password."""
        return self.label.startswith("ENCRYPTED") or "ENCRYPTED" in self.body.partition("\n\n")[0]

    def text(self) -> str:
        """As OpenSSL reads it, in lines."""
        body = self.body.strip()
        if ":" not in body:  # a key in the old encrypted form begins with headers, whose lines matter
            body = "".join(body.split())
            body = "\n".join(body[start : start + _LINE] for start in range(0, len(body), _LINE))
        return f"-----BEGIN {self.label}-----\n{body}\n-----END {self.label}-----\n"

    def der(self) -> bytes:
        """The bytes of a certificate. Raises TlsConfigError."""
        try:
            return base64.b64decode("".join(self.body.split()), validate=True)
        except ValueError:  # of letters that ASCII has not, too
            raise TlsConfigError(f"a block BEGIN {self.label} is no base64") from None


def blocks(text: str) -> list[PemBlock]:
    """All blocks, in their order: from a BEGIN to the next END of the same label, whatever stands between."""
    # In one pass: a search for the END of each BEGIN would take minutes for a megabyte of them.
    marks = list(_MARK.finditer(text))
    ends: dict[str, tuple[re.Match[str], ...]] = {}
    """The next two of each label: the first may share its dashes with the BEGIN before it."""
    pairs: list[tuple[re.Match[str], re.Match[str]]] = []
    for mark in reversed(marks):
        following = ends.get(mark[3], ())
        if mark[2] == "END":
            ends[mark[3]] = (mark, *following[:1])
            continue
        end = next((end for end in following if end.start() >= mark.end(1)), None)
        if end is not None:
            pairs.append((mark, end))
    found: list[PemBlock] = []
    position = 0
    for begin, end in reversed(pairs):
        if begin.start() >= position:
            found.append(PemBlock(begin[3], text[begin.end(1) : end.start()]))
            position = end.end(1)
    return found


def certificate(der: bytes) -> PemBlock:
    """The block of a certificate."""
    return PemBlock("CERTIFICATE", base64.b64encode(der).decode())


def private_key(der: bytes) -> PemBlock:
    """The block of a key in PKCS #8 that is not encrypted."""
    return PemBlock("PRIVATE KEY", base64.b64encode(der).decode())
