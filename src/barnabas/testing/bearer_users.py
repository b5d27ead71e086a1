"""Users and brokers of a simulated cluster that log in by tokens of OAUTHBEARER, and who tries to without.

An identity provider signs tokens that hold for seconds, puts them where brokers and users read them, changes its keys,
and falls silent for a while. Invariants: a token that has expired, that nobody trusted has signed, or that was signed
by a key withdrawn some seconds ago lets nobody in; a session ends with its token; and who has a good token is refused
by no broker.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from barnabas.client.errors import ClientError
from barnabas.kernel.timers import Timers
from barnabas.link.client import connect
from barnabas.link.connection import LinkContext
from barnabas.link.errors import AuthenticationFailedError
from barnabas.link.handshakes import Handshakes
from barnabas.link.limits import LinkLimits
from barnabas.link.login import LinkLogin
from barnabas.sasl.oauthbearer_login import OAuthBearerLogin, TokenEndpoint
from barnabas.server.cluster_security import ADMIN, BROKERS, CLIENT
from barnabas.server.private_files import PrivateFiles
from barnabas.testing.asking_user import AskingUser
from barnabas.testing.cluster_load import ADMINISTRATORS
from barnabas.testing.made_credentials import TokenKey, key_set, unsigned
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import MetadataRequest

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from barnabas.kernel.host import Host
    from barnabas.testing.cluster_load import Users
    from barnabas.testing.faults import Undo
    from barnabas.testing.simulated_host import SimulatedMachine
    from barnabas.testing.simulation import Simulation

STRANGER: Final = "stranger"
DIRECTORY: Final = "/credentials"
KEYS_FILE: Final = f"{DIRECTORY}/keys.json"
TOKEN_FILE: Final = f"{DIRECTORY}/token.jwt"
_ASKING_FILE: Final = f"{DIRECTORY}/asking.jwt"
REFRESH_MS: Final = 1_000
"""`sasl.oauthbearer.jwks.endpoint.refresh.ms`."""
LIFE_SECONDS: Final = 6
_ISSUING_SECONDS: Final = 1.0
_SIGNED_AFTER_SECONDS: Final = 4.0
"""A key is published for so long before it signs, and for so long more than its tokens hold afterwards."""
_WITHDRAWN_SECONDS: Final = 6.0
"""After which no broker takes what a key has signed."""
_ROLLED_EVERY_SECONDS: Final = 14.0
_SHORT_SECONDS: Final = 3
_SESSION_SLACK_SECONDS: Final = 1.0
_PAUSE_MS: Final = 120.0
_REQUEST_MS: Final = 4_000
_ISSUER: Final = "https://issuer.example"
COVERAGE: Final = (
    "tokens: refused without one",
    "tokens: refused in clear",
    "tokens: refused when it had expired",
    "tokens: refused of a strange key",
    "tokens: refused of a withdrawn key",
    "tokens: refused without a signature",
    "tokens: denied to who has no rights",
    "tokens: let in",
    "tokens: sessions ended",
)
"""What must have happened."""


@dataclass(slots=True)
class _Key:
    key: TokenKey
    withdrawn_at: float | None = None


class BearerUsers:
    """The identity provider, and those who come with its tokens or others."""

    def __init__(
        self,
        simulation: Simulation,
        users: Users,
        brokers: Mapping[int, SimulatedMachine],
        port: int,
        pauses: Callable[[], int],
    ) -> None:
        """`pauses` says how often a machine was paused: who was may know no news for a moment."""
        self.counts: Counter[str] = Counter()
        self._pauses = pauses
        self._simulation = simulation
        self._users = users
        self._brokers = dict(brokers)
        self._port = port
        self._machine = simulation.machine("identity provider")
        self._random = simulation.world.random("tokens of OAUTHBEARER")
        self._keys: list[_Key] = []
        self._signing = self._new_key()
        self._rolled_at = -_ROLLED_EVERY_SECONDS
        self._pauses_at_roll = 0
        self._let_in_by: set[str] = set()
        self._is_silent = False
        self._strange = TokenKey("strange", self._random.randbytes(32))

    # What users and brokers have.

    def begin(self) -> None:
        """Signs tokens from now on, for everybody."""
        self._issue()

    def write_files(self, host: Host, *, is_broker: bool) -> None:
        """What a machine begins with."""
        host.files.make_directories(DIRECTORY)
        files = PrivateFiles(host.files)
        files.write(TOKEN_FILE, self._token(self._subject_of(host.name)))
        if is_broker:
            files.write(KEYS_FILE, self._published())

    def login(self, host: Host, path: str = TOKEN_FILE) -> OAuthBearerLogin:
        """That of whoever is on a machine."""
        if path == TOKEN_FILE and not host.files.exists(path):
            self.write_files(host, is_broker=False)
        return OAuthBearerLogin({}, TokenEndpoint(f"file://{path}"))

    def _subject_of(self, name: str) -> str:
        machine = name.partition("/")[0]
        if machine in {each.name for each in self._brokers.values()}:
            return BROKERS
        return ADMIN if machine in ADMINISTRATORS else CLIENT

    def _issue(self) -> None:
        if not self._is_silent:
            for machine in self._simulation.machines.values():
                machine.disk.scribble(TOKEN_FILE, self._token(self._subject_of(machine.name)).encode())
        for machine in self._brokers.values():
            machine.disk.scribble(KEYS_FILE, self._published())
        self._simulation.after(_ISSUING_SECONDS, self._issue)

    def _token(self, subject: str, seconds: float = LIFE_SECONDS, key: TokenKey | None = None, **named: str) -> str:
        return (key or self._signing.key).sign(self._claims(subject, seconds), **named)

    def _claims(self, subject: str, seconds: float) -> dict[str, Any]:
        now = self._machine.clock.time_ms() // 1000
        return {"iss": _ISSUER, "sub": subject, "iat": now - 60, "exp": now + int(seconds), "scope": "all"}

    def _published(self) -> bytes:
        return key_set(each.key for each in self._keys if each.withdrawn_at is None)

    def _new_key(self) -> _Key:
        made = _Key(TokenKey(f"key-{len(self._keys) + 1}", self._random.randbytes(32)))
        self._keys.append(made)
        return made

    # What strikes.

    def roll_keys(self, happened: Callable[[], object]) -> Undo | None:
        """Another key signs, as soon as all brokers have had the time to hear of it, and the former one is withdrawn
        when all it has signed is over.
        """
        now = self._simulation.now
        if now - self._rolled_at < _ROLLED_EVERY_SECONDS:
            return None
        self._rolled_at, self._pauses_at_roll = now, self._pauses()
        former, made = self._signing, self._new_key()

        def sign() -> None:
            self._signing = made

        def withdraw() -> None:
            former.withdrawn_at = self._simulation.now
            if made.key.key_id in self._let_in_by:
                happened()

        self._simulation.after(_SIGNED_AFTER_SECONDS, sign)
        self._simulation.after(_SIGNED_AFTER_SECONDS + LIFE_SECONDS + 1.0, withdraw)
        return _nothing

    def fall_silent(self) -> Undo | None:
        """No new tokens for a while: those that there are run out."""
        if self._is_silent:
            return None
        self._is_silent = True

        def speak() -> None:
            self._is_silent = False

        return speak

    # Who tries.

    async def try_brokers(self, host: Host, tls: ssl.SSLContext) -> None:
        """Asks brokers with tokens that are to count and others, until the users are to stop."""
        host.files.make_directories(DIRECTORY)
        timers = Timers(host.loop)
        ways = ("nobody", "clear", "expired", "strange", "withdrawn", "unsigned", "stranger", "client", "client")
        while self._users.goes_on():
            await timers.sleep(host.random.expovariate(1 / _PAUSE_MS))
            way = host.random.choice(ways)
            if way in ("nobody", "clear"):
                what = "refused without one" if way == "nobody" else "refused in clear"
                await self._try(host, AskingUser(host, None, self._port, None if way == "clear" else tls), what)
            elif way == "client":
                await self._try_good(host, tls)
            else:
                await self._try_bad(host, tls, way)

    async def _try_bad(self, host: Host, tls: ssl.SSLContext, way: str) -> None:
        what, token = self._bad_token(host, way)
        if token is None:
            return
        PrivateFiles(host.files).write(_ASKING_FILE, token)
        await self._try(host, AskingUser(host, self.login(host, _ASKING_FILE), self._port, tls), what)

    def _bad_token(self, host: Host, way: str) -> tuple[str, str | None]:
        match way:
            case "expired":
                return "refused when it had expired", self._token(ADMIN, -host.random.randint(4, 30))
            case "strange":
                named = host.random.choice((self._strange.key_id, self._signing.key.key_id))
                return "refused of a strange key", self._token(ADMIN, key=self._strange, key_id=named)
            case "withdrawn":
                until = self._simulation.now - _WITHDRAWN_SECONDS
                gone = [each.key for each in self._keys if each.withdrawn_at is not None and each.withdrawn_at < until]
                if not gone or self._pauses() != self._pauses_at_roll:
                    return "", None
                return "refused of a withdrawn key", self._token(ADMIN, key=gone[-1])
            case "unsigned":
                return "refused without a signature", unsigned(self._claims(ADMIN, LIFE_SECONDS))
            case _:
                return "denied to who has no rights", self._token(STRANGER)

    async def _try(self, host: Host, user: AskingUser, what: str) -> None:
        broker_id = host.random.choice(tuple(self._brokers))
        pauses = self._pauses()
        topic = MetadataRequest.MetadataRequestTopic(name=self._users.load.topic)
        try:
            answer = await user.ask(broker_id, MetadataRequest(topics=[topic]), 9)
        except AuthenticationFailedError:
            self.counts[f"tokens: {what}"] += not what.startswith("denied")
        else:
            if answer is None:
                self._unanswered(broker_id, user, what, is_sure=pauses == self._pauses())
            elif what.startswith("denied"):
                codes = {ErrorCode.for_code(each.error_code) for each in answer.topics}
                if codes != {ErrorCode.TOPIC_AUTHORIZATION_FAILED}:
                    self._note(f"broker {broker_id} tells {STRANGER} {answer}")
                self.counts[f"tokens: {what}"] += 1
            elif "withdrawn" not in what or pauses == self._pauses():
                self._note(f"broker {broker_id} answers whom it should have {what}: {answer}")
        finally:
            await user.client.close()

    def _unanswered(self, broker_id: int, user: AskingUser, what: str, *, is_sure: bool) -> None:
        """The connection was over, after it was made and secured or before."""
        if user.login is None:
            # Who speaks no TLS is told nothing.
            is_refused = user.has_asked or (what == "refused in clear" and self._brokers[broker_id].running)
            self.counts[f"tokens: {what}"] += is_refused
        elif user.has_asked and not what.startswith("denied") and ("withdrawn" not in what or is_sure):
            self._note(f"broker {broker_id} lets in whom it should have {what}")

    async def _try_good(self, host: Host, tls: ssl.SSLContext) -> None:
        key_id, pauses = self._signing.key.key_id, self._pauses()
        PrivateFiles(host.files).write(_ASKING_FILE, self._token(CLIENT))
        user = AskingUser(host, self.login(host, _ASKING_FILE), self._port, tls)
        broker_id = host.random.choice(tuple(self._brokers))
        try:
            answer = await user.ask(broker_id, MetadataRequest(topics=None), 9)
        except AuthenticationFailedError as error:
            if "refuses the login" in str(error) and pauses == self._pauses_at_roll == self._pauses():
                self._note(f"broker {broker_id} refuses a token of {key_id} that is good: {error}")
        else:
            if answer is not None:
                self._let_in_by.add(key_id)
                self.counts["tokens: let in"] += 1
        finally:
            await user.client.close()

    async def outstay(self, host: Host, tls: ssl.SSLContext) -> None:
        """Logs in with tokens that end soon, and asks on as if they did not, until the users are to stop."""
        host.files.make_directories(DIRECTORY)
        timers = Timers(host.loop)
        logger = logging.getLogger(f"barnabas.simulated.{host.name}")
        context = LinkContext.of(host.loop, timers, LinkLimits(), logger)
        while self._users.goes_on():
            await timers.sleep(host.random.expovariate(1 / _PAUSE_MS))
            try:
                await self._outstay_once(host, context, tls)
            except (ClientError, OSError) as error:
                logger.info("%s", error)

    async def _outstay_once(self, host: Host, context: LinkContext, tls: ssl.SSLContext) -> None:
        from barnabas.link.tls_end import TlsEnd

        broker_id = host.random.choice(tuple(self._brokers))
        machine, timers = self._brokers[broker_id], context.timers
        end = TlsEnd(tls, Handshakes(host.loop, timers, host.offload))
        connection = await connect(context, machine.name, self._port, timeout_ms=_REQUEST_MS, tls=end)
        try:
            PrivateFiles(host.files).write(_ASKING_FILE, self._token(CLIENT, _SHORT_SECONDS))
            login, pauses = LinkLogin.of(self.login(host, _ASKING_FILE), host, timers), self._pauses()
            lifetime_ms = await login.log_in(connection, _REQUEST_MS)
            ends_at = host.loop.time() + lifetime_ms / 1000 + _SESSION_SLACK_SECONDS
            while True:
                asked_at = host.loop.time()
                try:
                    await connection.request(MetadataRequest(topics=[]), 9, _REQUEST_MS)
                except (ClientError, OSError):
                    self.counts["tokens: sessions ended"] += asked_at > ends_at - _SESSION_SLACK_SECONDS
                    return
                if asked_at > ends_at:
                    if pauses == self._pauses():
                        self._note(f"broker {broker_id} serves a session on whose token is over")
                    return
                await timers.sleep(300)
        finally:
            connection.abort()

    def _note(self, finding: str) -> None:
        self._users.history.mistaken.append(f"at {self._users.now():.3f} s: {finding}")


def _nothing() -> None:
    """Nothing to mend."""
