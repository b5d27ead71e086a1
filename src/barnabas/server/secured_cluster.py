"""What `barnabas up --secure` makes and keeps beside its processes: secrets, certificates, users, files for clients.

A secret is `NAME.password`, and `NAME.password.new` until the cluster knows it: who is killed in between has it written
again at the next start. All files are made before the first process that reads them. Decision 0047.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from barnabas.client.access import Access, access_of
from barnabas.coordination.digest_login import DigestUser
from barnabas.coordination.errors import CoordinationError
from barnabas.coordination.session_settings import ClientSettings
from barnabas.kernel.host import HostClosedError, OffloadFullError, OffloadKind
from barnabas.kernel.real_key_files import load_chain
from barnabas.log.directories.files import read_file
from barnabas.security.login_files import PasswordHash, Role
from barnabas.server.cluster_certificates import Certificates, check_library
from barnabas.server.cluster_security import (
    ADMIN,
    BROKERS,
    CLIENT,
    SCRAPER,
    ClusterSecurityError,
    SecurityPaths,
    broker_login,
    digest_login,
    digest_users,
)
from barnabas.server.cluster_users import close_coordinator, write_users
from barnabas.server.private_files import PrivateFiles
from barnabas.tls.contexts import client_context
from barnabas.tls.settings import TlsSettings
from barnabas.tls.stores import read_stores

if TYPE_CHECKING:
    from barnabas.kernel.host import Host
    from barnabas.kernel.timers import Timers
    from barnabas.server.cluster_plan import ClusterPlan

RENEWED_EVERY_MS: Final = 24 * 3_600_000
_SECRET_BYTES: Final = 32
_SALT_BYTES: Final = 16
_NEW: Final = ".new"
_CLOSED: Final = "What the coordinator has was made by the brokers' login: it was closed while it was empty.\n"
_COORDINATOR: Final = "coordinator"
_CONSOLE: Final = "console"
_WANTED: Final = "a password of a secured cluster has 16 letters and digits or more, or - _ . among them"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_PEOPLE: Final = (ADMIN, CLIENT)
"""Users that an operator may change: what he has set stays."""


class SecuredCluster:
    """Of one plan, which is `secure`."""

    def __init__(self, host: Host, plan: ClusterPlan, tell: Callable[[str], object]) -> None:
        """`tell` hears what a person should know."""
        self._host = host
        self._plan = plan
        self._tell = tell
        self._paths = SecurityPaths(plan.security_directory)
        self._files = PrivateFiles(host.files)
        self._closed_path = f"{plan.coordinator_directory}/closed"
        """Gone with the coordinator's data, and before there is anything of the cluster's in them."""
        self._passwords: dict[str, str] = {}
        self._new: set[str] = set()

    async def prepare(self) -> None:
        """Makes the files that processes read. Raises ClusterSecurityError and OSError."""
        check_library()
        await self._host.offload(OffloadKind.DISK, self._prepare)

    async def renew_daily(self, timers: Timers) -> None:
        """Makes certificates anew that are about to end, until it is cancelled; the processes look at their files. The
        authority stays as long as they run, since others have to be told to trust another one.
        """
        while True:
            await timers.sleep(RENEWED_EVERY_MS)
            try:
                await self._host.offload(OffloadKind.DISK, partial(self._ensure_certificates, keeps_authority=True))
            except OffloadFullError:
                continue
            except HostClosedError:
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, it may be gone tomorrow
                self._tell(f"certificates cannot be made anew: {error}")

    def broker_properties(self) -> dict[str, str]:
        """Configs of all brokers that are secrets."""
        return broker_login(self._passwords[BROKERS])

    async def write_users(self, coordinator_address: str) -> None:
        """Has the cluster know its users. Raises ClusterSecurityError and OSError."""
        settings = ClientSettings(
            coordinator_address, login=DigestUser(BROKERS, self._passwords[_COORDINATOR]), tls=self._context()
        )
        people = {user: self._passwords[user] for user in _PEOPLE}
        logger = logging.getLogger("barnabas.supervisor")
        try:
            if not self._host.files.exists(self._closed_path):
                await close_coordinator(self._host, settings, logger)
                await self._host.offload(OffloadKind.DISK, self._files.write, self._closed_path, _CLOSED)
            await write_users(self._host, settings, self._passwords[BROKERS], people, frozenset(self._new), logger)
        except (CoordinationError, TimeoutError) as error:
            why = str(error) or "it does not answer"
            raise ClusterSecurityError(f"the coordinator does not take the users of the cluster: {why}") from None
        await self._host.offload(OffloadKind.DISK, self._settle)

    def access(self) -> Access:
        """How the brokers come in at each other."""
        values = self._paths.client_properties(BROKERS, self._passwords[BROKERS])
        return access_of(values, "the brokers' login", lambda path: read_file(self._host.files, path))

    async def write_client_files(self, bootstrap_servers: str) -> None:
        """For those who come in at these addresses. Raises OSError."""
        await self._host.offload(OffloadKind.DISK, self._write_client_files, bootstrap_servers)

    def description(self) -> dict[str, Any]:
        """Where a program finds what it needs; no secret."""
        paths = self._paths
        return {
            "authority": paths.authority,
            "profiles": paths.profiles,
            "users": {
                user: {"properties": paths.client(user), "librdkafka": paths.librdkafka(user)} for user in _PEOPLE
            },
            "metrics": {"user": SCRAPER, "password_file": paths.password("metrics")},
            "console": {"user": ADMIN, "password_file": paths.password(_CONSOLE)},
        }

    # Inside.

    def _prepare(self) -> None:
        files, paths = self._files, self._paths
        self._host.files.make_directories(paths.directory)
        self._ensure_certificates()
        for user in (_COORDINATOR, BROKERS, *_PEOPLE, _CONSOLE, "metrics"):
            self._passwords[user] = self._secret(user, is_known_later=user in _PEOPLE)
        files.write(paths.digest_users, digest_users(self._passwords[_COORDINATOR]))
        files.write(paths.digest_login, digest_login(self._passwords[_COORDINATOR]))
        files.write(paths.coordinator_tls, paths.coordinator_tls_text())
        self._write_login(_CONSOLE, ADMIN, Role.OPERATOR)
        self._write_login("metrics", SCRAPER, Role.VIEWER)

    def _ensure_certificates(self, *, keeps_authority: bool = False) -> None:
        paths, plan = self._paths, self._plan
        certificates = Certificates(
            self._files,
            self._host.clock.time_ms(),
            paths.authority,
            f"{paths.directory}/authority.key",
            self._tell,
            keeps_authority=keeps_authority,
        )
        names = dict.fromkeys((*_LOOPBACK, plan.host, *plan.names, *_advertised(plan)))
        for process in (_COORDINATOR, _CONSOLE, *(f"broker-{broker_id}" for broker_id in plan.broker_ids)):
            certificates.ensure(paths.key_store(process), process, names)

    def _secret(self, user: str, *, is_known_later: bool) -> str:
        """A user's password, which is made where there is none."""
        path = self._paths.password(user)
        for place in (path, path + _NEW):
            found = (self._files.read(place) or b"").decode("ascii", "replace").strip()
            if _is_secret(found):
                if place != path:
                    self._new.add(user)
                return found
            if found:
                raise ClusterSecurityError(f"{place}: {_WANTED}; remove the file, and another is made")
        made = self._host.entropy(_SECRET_BYTES).hex()
        self._files.write(path + _NEW if is_known_later else path, made + "\n")
        if is_known_later:
            self._new.add(user)
        return made

    def _settle(self) -> None:
        """The cluster knows all passwords now."""
        for user in self._new:
            path = self._paths.password(user)
            self._files.rename(path + _NEW, path)
        self._new.clear()

    def _write_login(self, what: str, user: str, role: Role) -> None:
        """The hash of a password, where there is none of it."""
        path, password = self._paths.logins(what), self._passwords[what]
        found = (self._files.read(path) or b"").decode("ascii", "replace")
        name, _, rest = found.strip().partition(":")
        try:
            is_there = name == user and PasswordHash.read(rest.rpartition(":")[2]).is_of(password)
        except ValueError:
            is_there = False
        if not is_there:
            made = PasswordHash.of(password, self._host.entropy(_SALT_BYTES))
            self._files.write(path, f"{user}:{role.value}:{made}\n")

    def _write_client_files(self, bootstrap_servers: str) -> None:
        paths = self._paths
        for user in _PEOPLE:
            password = self._passwords[user]
            self._files.write(paths.client(user), paths.client_text(user, password, bootstrap_servers))
            self._files.write(paths.librdkafka(user), paths.librdkafka_text(user, password, bootstrap_servers))
        self._files.write(paths.profiles, paths.profiles_text(bootstrap_servers))

    def _context(self) -> Any:
        settings = TlsSettings(truststore_type="PEM", truststore_location=self._paths.authority)
        return client_context(
            settings, read_stores(settings, lambda path: read_file(self._host.files, path)), load_chain
        )


def _is_secret(text: str) -> bool:
    """Whether a password needs no quoting anywhere, and is long enough; an operator may have written it."""
    return len(text) >= 16 and text.isascii() and all(each.isalnum() or each in "-_." for each in text)


def _advertised(plan: ClusterPlan) -> list[str]:
    """Hosts that brokers are told to call themselves."""
    addresses = plan.overrides.get("advertised.listeners", "").split(",")
    found = (each.rpartition("://")[2].rpartition(":")[0].strip().strip("[]") for each in addresses)
    return [name for name in found if name]
