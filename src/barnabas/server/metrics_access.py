"""Who may read the metrics of a broker, by HTTP's basic authentication, and how the endpoint is secured.

Those who may are in a file of their own and not the cluster's users: the endpoint answers before the broker has reached
ZooKeeper, and while it cannot; and whoever scrapes is given a password that opens nothing else. A password that was
right once is known again by an HMAC with a secret of the process, so that a scrape costs no hash of 50 ms; one that is
wrong costs as much as at the console (`security.password_checks`). All files may be exchanged while the broker runs
(`metrics_files`).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.kernel.host import HostClosedError, OffloadFullError
from barnabas.kernel.metrics import MetricName
from barnabas.kernel.real_key_files import load_chain
from barnabas.link.oauth_documents import read_file
from barnabas.link.places import COME_MAX
from barnabas.sasl.hashes import hmac_of, is_same
from barnabas.security.login_files import LOGIN_FILE_BYTES_MAX, User, read_users
from barnabas.security.password_checks import PasswordChecks, TooManyError
from barnabas.server.config import METRICS_LOGIN_FILE, METRICS_TLS_CERTIFICATE, METRICS_TLS_KEY, MetricsSettings
from barnabas.server.errors import BrokerStartError
from barnabas.server.metrics_files import ExchangedFiles
from barnabas.tls.contexts import server_context
from barnabas.tls.errors import TlsConfigError
from barnabas.tls.settings import TlsSettings
from barnabas.tls.stores import read_stores

if TYPE_CHECKING:
    import ssl

    from barnabas.kernel.host import Files, Host
    from barnabas.link.clear import BeginningPlain
    from barnabas.link.tls_end import TlsEnd
    from barnabas.server.shared_services import SharedServices

_HEADER: Final = b"authorization"
_SCHEME: Final = b"basic "
_PEM_BYTES_MAX: Final = 1024 * 1024
_BUFFER_BYTES: Final = 16 * 1024
_REALM: Final = b"Log in with a name and a password of barnabas.metrics.login.file\n"
_BUSY: Final = b"Too many log in at the same time\n"


def metrics_access(settings: MetricsSettings, shared: SharedServices) -> MetricsAccess | None:
    """What the keys say; None where all may read the metrics, in clear. Raises BrokerStartError."""
    if settings.tls_key is not None and settings.tls_certificate is None:
        raise BrokerStartError(f"{METRICS_TLS_KEY.name} goes with {METRICS_TLS_CERTIFICATE.name}")
    if settings.login_file is None and settings.tls_certificate is None:
        return None
    return MetricsAccess(shared, settings)


class MetricsAccess:
    """Decides on each request, and secures each connection."""

    def __init__(self, shared: SharedServices, settings: MetricsSettings) -> None:
        """Raises BrokerStartError."""
        self._logins: MetricsLogins | None = None
        self._tls: _Tls | None = None
        logger, files = shared.logs.logger("barnabas.metrics"), shared.host.files
        if settings.login_file is not None:
            self._logins = logins = MetricsLogins(shared.host, partial(_users, files, settings.login_file), logger)
            name = MetricName("barnabas.server", "MetricsEndpoint", "FailedLogins")
            shared.metrics.gauge(name, lambda: logins.failed)
        if settings.tls_certificate is not None:
            certificate, key = settings.tls_certificate, settings.tls_key or settings.tls_certificate
            self._tls = _Tls(shared, partial(_key_store, files, certificate, key), logger)

    @property
    def uses_tls(self) -> bool:
        return self._tls is not None

    def secured(self, plain: BeginningPlain) -> asyncio.BaseProtocol:
        """The protocol of a new connection."""
        if self._tls is None:
            assert isinstance(plain, asyncio.BaseProtocol)
            return plain
        return self._tls.secured(plain)

    async def refusal(self, request: bytes, peer: str) -> tuple[int, bytes] | None:
        """Status and text for a request that may not have the metrics, after a while; None for one that may."""
        return None if self._logins is None else await self._logins.refusal(request, peer)

    def stop(self) -> None:
        """Nobody asks any more."""
        for part in (self._logins, self._tls):
            if part is not None:
                part.files.stop()


class MetricsLogins:
    """Who may read them."""

    def __init__(self, host: Host, read: Callable[[], Mapping[str, User]], logger: logging.Logger) -> None:
        """`read` gives those who may. Raises what it raises."""
        self.files = ExchangedFiles(host, "login file", read, self._take, logger)
        self._checks = PasswordChecks(host, self.files.content)
        self._logger = logger
        self._secret = host.entropy(32)
        self._known: dict[str, bytes] = {}
        """By user, of the password that was right last."""

    @property
    def failed(self) -> int:
        return self._checks.failed

    async def refusal(self, request: bytes, peer: str) -> tuple[int, bytes] | None:
        """As `MetricsAccess.refusal`. A request without a password is no failed login: browsers begin so."""
        self.files.look()
        given = credentials(request)
        if given is None:
            return 401, _REALM
        await self.files.looked()
        name, password = given
        shown = hmac_of(self._secret, password.encode("utf-8", "surrogatepass"), "sha256")
        if is_same(shown, self._known.get(name, b"\0" * len(shown))):
            return None
        try:
            user = await self._checks.check(name, password)
        except (TooManyError, OffloadFullError, HostClosedError):
            return 503, _BUSY
        if user is None:
            self._logger.warning("A login at the metrics failed, of a client at %s", peer)
            return 401, _REALM
        if user == self.files.content.get(name):  # nothing else was exchanged meanwhile
            self._known[name] = shown
        return None

    def _take(self, users: Mapping[str, User]) -> None:
        # Whoever has another password now, or is not there any more, has to show that he may.
        self._known.clear()
        self._checks.take(users)


def credentials(request: bytes) -> tuple[str, str] | None:
    """Name and password of a request's head; None where it has none, or several."""
    found: list[bytes] = []
    for line in request.split(b"\n")[1:]:
        if not line.strip():
            break
        header, colon, value = line.partition(b":")
        if colon and header.lower() == _HEADER:
            found.append(value.strip())
    if len(found) != 1 or not found[0].lower().startswith(_SCHEME):
        return None
    try:
        text = base64.b64decode(found[0][len(_SCHEME) :].strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    name, colon_found, password = text.partition(":")
    return (name, password) if colon_found else None


class _Tls:
    """TLS of all connections: `link.tls`, with its threads for handshakes and its bounds (decision 0032)."""

    def __init__(self, shared: SharedServices, read: Callable[[], _KeyStore], logger: logging.Logger) -> None:
        """`read` gives key and certificate. Raises what it raises."""
        # Which a broker without TLS does not load.
        from barnabas.link.clear import begin
        from barnabas.link.connection import LinkContext
        from barnabas.link.handshakes import Handshakes
        from barnabas.link.limits import LinkLimits
        from barnabas.link.tls_end import TlsEnd

        host = shared.host
        self.files = ExchangedFiles(host, "key and certificate", read, self._take, logger)
        self._context = LinkContext.of(host.loop, shared.timers, LinkLimits(), logger)
        handshakes = Handshakes(host.loop, shared.timers, host.offload, of_one_owner=COME_MAX)
        self._end: TlsEnd = TlsEnd(self.files.content.context, handshakes, is_server=True, when_secured=begin)
        self._received = memoryview(bytearray(_BUFFER_BYTES))

    def secured(self, plain: BeginningPlain) -> asyncio.BaseProtocol:
        from barnabas.link.clear import clear
        from barnabas.link.tls import TlsConnection

        self.files.look()
        return TlsConnection(self._context, clear(plain, self._received), self._end)

    def _take(self, store: _KeyStore) -> None:
        self._end.context = store.context  # of connections from now on


@dataclass(frozen=True, slots=True)
class _KeyStore:
    """Key and certificate as they stand in their files, by which two are the same."""

    data: bytes = field(repr=False)
    context: ssl.SSLContext = field(compare=False)


def _users(files: Files, path: str) -> dict[str, User]:
    try:
        return read_users(read_file(files, path, LOGIN_FILE_BYTES_MAX).decode())
    except UnicodeDecodeError:
        raise BrokerStartError(f"{METRICS_LOGIN_FILE.name}={path}: it is no text") from None
    except ValueError as error:
        raise BrokerStartError(f"{METRICS_LOGIN_FILE.name}={path}: {error}") from None
    except OSError as error:
        raise BrokerStartError(f"{METRICS_LOGIN_FILE.name}={path}: {error.strerror or error}") from None


def _key_store(files: Files, certificate: str, key: str) -> _KeyStore:
    paths = dict.fromkeys((certificate, key))
    try:
        data = b"\n".join(read_file(files, path, _PEM_BYTES_MAX) for path in paths)
        settings = TlsSettings(keystore_type="PEM", keystore_location=" and ".join(paths))
        return _KeyStore(data, server_context(settings, read_stores(settings, lambda _path: data), load_chain))
    except OSError as error:
        place, why = error.filename or certificate, error.strerror or error
        raise BrokerStartError(f"{METRICS_TLS_CERTIFICATE.name}: {place} cannot be read: {why}") from None
    except TlsConfigError as error:
        why = str(error).replace("ssl.keystore.location=", "")
        raise BrokerStartError(f"{METRICS_TLS_CERTIFICATE.name}: {why}") from None
