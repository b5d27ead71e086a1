"""Certificates for tests, made by the command `openssl`: an authority, keys that it signs, stores of them."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

ELLIPTIC = ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")


def rsa(bits: int) -> tuple[str, ...]:
    """The kind of an RSA key; some take a second to be made."""
    return (f"rsa:{bits}",)


def openssl(*arguments: str | Path, password: str | None = None) -> None:
    subprocess.run(
        ["openssl", *map(str, arguments)],
        check=True,
        capture_output=True,
        timeout=240,
        input=None if password is None else password.encode(),
    )


@dataclass(frozen=True, slots=True)
class Certified:
    """A key and its certificate, PEM; `both` has the two in one file, as Kafka's key stores of type PEM."""

    key: Path
    certificate: Path
    both: Path


class Authority:
    """Signs certificates, in a directory of its own."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._key = directory / "authority.key"
        self.certificate = directory / "authority.crt"
        # Python 3.13 trusts no authority without the usage of its key, as strict X.509 has it.
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        subject = ("-subj", f"/CN={name}", "-days", "2", *usage)
        openssl(
            "req", "-x509", "-newkey", *ELLIPTIC, "-nodes", "-keyout", self._key, "-out", self.certificate, *subject
        )
        self._signed = 0

    def sign(
        self,
        subject: str = "/CN=localhost",
        names: str = "DNS:localhost,IP:127.0.0.1",
        kind: tuple[str, ...] = ELLIPTIC,
        days: int = 2,
    ) -> Certified:
        """With 0 days it has expired at once."""
        self._signed += 1
        stem = self.directory / str(self._signed)
        key, request, extensions, certificate, both = (
            stem.with_suffix(suffix) for suffix in (".key", ".csr", ".ext", ".crt", ".pem")
        )
        openssl("req", "-newkey", *kind, "-nodes", "-utf8", "-keyout", key, "-out", request, "-subj", subject)
        identifiers = "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        extensions.write_text(identifiers + (f"subjectAltName={names}\n" if names else ""))
        signing = ("-CA", self.certificate, "-CAkey", self._key, "-set_serial", str(self._signed))
        openssl(
            "x509", "-req", "-in", request, *signing, "-days", str(days), "-extfile", extensions, "-out", certificate
        )
        both.write_bytes(key.read_bytes() + certificate.read_bytes())
        return Certified(key, certificate, both)

    def pkcs12(self, certified: Certified, password: str) -> Path:
        """A key store as Java's."""
        path = certified.key.with_suffix(".p12")
        parts = ("-inkey", certified.key, "-in", certified.certificate, "-certfile", self.certificate)
        openssl("pkcs12", "-export", *parts, "-out", path, "-passout", f"pass:{password}")
        return path

    def encrypted_key(self, certified: Certified, password: str) -> str:
        """The key in PKCS #8, encrypted."""
        path = certified.key.with_suffix(".enc")
        openssl("pkcs8", "-topk8", "-in", certified.key, "-out", path, "-passout", f"pass:{password}")
        return path.read_text()


@functools.cache
def shared_authority() -> Authority:
    """One for all tests of a process: to make it takes a while."""
    return Authority(_directory())


@functools.cache
def other_authority() -> Authority:
    """One that nobody trusts."""
    return Authority(_directory(), "other authority")


def _directory() -> Path:
    """One that goes when the process ends."""
    made = tempfile.mkdtemp(prefix="barnabas-certificates-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


@functools.cache
def broker_certificate() -> Certified:
    return shared_authority().sign()


@functools.cache
def client_certificate() -> Certified:
    return shared_authority().sign("/C=DE/O=Castle, Inc./OU=Service/CN=alice", "DNS:alice")
