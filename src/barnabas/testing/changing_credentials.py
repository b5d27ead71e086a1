"""A simulated cluster whose certificates, keys and passwords change while connections come and go.

Brokers speak TLS to everybody and log in by tokens (`bearer_users`). Operators exchange certificates, and set other
passwords, by IncrementalAlterConfigs, which keeps them encrypted (0052); the secret that encrypts them is changed with
a restart, or is wrong at one. Invariants: no certificate is taken that the brokers would not take of each other; at
rest every password is what was acknowledged last, and can be read, and who connects is shown the certificate that is
stored.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from barnabas.client.admin import Admin, ConfigOperation, ResourceType
from barnabas.config.keys import Password
from barnabas.coordination.layout.configs import ConfigEntityType, EntityConfig, config_path
from barnabas.kernel.real_key_files import load_chain
from barnabas.kernel.timers import Timers
from barnabas.link.client import connect
from barnabas.link.connection import LinkContext
from barnabas.link.handshakes import Handshakes
from barnabas.link.limits import LinkLimits
from barnabas.security.password_encoder import Encoded, PasswordEncoder, PasswordEncoderError, PasswordEncoderSettings
from barnabas.server.cluster_security import ADMIN, BROKERS, CLIENT
from barnabas.testing.bearer_users import KEYS_FILE, REFRESH_MS, TOKEN_FILE
from barnabas.testing.faults import FaultKind
from barnabas.testing.made_credentials import Authority, KeyPair
from barnabas.tls.contexts import client_context
from barnabas.tls.settings import OF_CLIENTS, tls_settings
from barnabas.tls.stores import read_stores
from barnabas.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    import logging
    import ssl
    from collections.abc import Callable, Mapping

    from barnabas.coordination.embedded.tree import ZnodeTree
    from barnabas.kernel.host import Host
    from barnabas.testing.cluster_effects import Effects
    from barnabas.testing.cluster_load import Users
    from barnabas.testing.cluster_operator import Operator
    from barnabas.testing.faults import Nemesis, Striker, Undo
    from barnabas.testing.simulated_host import SimulatedMachine
    from barnabas.testing.simulation import Simulation

_PORT: Final = 9092
_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
_KEY, _CHAIN = (f"listener.name.sasl_ssl.ssl.keystore.{each}" for each in ("key", "certificate.chain"))
_OTHERS: Final = tuple(f"listener.name.later{number}.scram-sha-256.sasl.jaas.config" for number in range(3))
"""Passwords that nothing uses yet."""
_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required"
ITERATIONS: Final = 1_024
"""What Kafka takes at least."""
METRICS_PORT: Final = 9_100
PROPERTIES: Final = {
    "listeners": f"SASL_SSL://:{_PORT}",
    "security.inter.broker.protocol": "SASL_SSL",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
    "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": f"{_PACKAGE}.OAuthBearerLoginModule required;",
    "listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class": (
        f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler"
    ),
    "sasl.oauthbearer.jwks.endpoint.url": f"file://{KEYS_FILE}",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": str(REFRESH_MS),
    "sasl.oauthbearer.token.endpoint.url": f"file://{TOKEN_FILE}",
    "sasl.oauthbearer.clock.skew.seconds": "1",
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
    "password.encoder.iterations": str(ITERATIONS),
    "barnabas.metrics.host": "0.0.0.0",  # noqa: S104 - a simulated machine
    "barnabas.metrics.port": str(METRICS_PORT),
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": ";".join(f"User:{user}" for user in (BROKERS, ADMIN, CLIENT)),
    "allow.everyone.if.no.acl.found": "false",
}
COVERAGE: Final = (
    "credentials: certificates refused",
    "credentials: certificates shown",
    "credentials: passwords deleted",
)
"""What must have happened."""
_ATTEMPTS_MAX: Final = 40
_DOUBT_SECONDS: Final = 15.0
"""So long after it was given up a change may yet come."""
_WATCH_PAUSE_MS: Final = 200.0
_CONNECT_MS: Final = 3_000
_OF_NOBODY: Final = frozenset((ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CONFIG))


@dataclass(slots=True)
class _Secret:
    """What encrypts the passwords of one broker."""

    present: str
    old: str = ""
    rolled_away: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    is_wrong: bool = False

    @property
    def every(self) -> list[str]:
        """All that were ever used."""
        return [self.present, *self.wrong, *self.rolled_away]


@dataclass(slots=True)
class _Value:
    """One password of a broker: what was acknowledged last, and what may have come, or come yet, since."""

    acknowledged: str | None = None
    doubtful: list[tuple[float, str | None]] = field(default_factory=list)


class ChangingCredentials:
    """Those of all brokers of one run. `nemesis` is to be set before the first strike."""

    nemesis: Nemesis

    def __init__(
        self,
        simulation: Simulation,
        users: Users,
        brokers: Mapping[int, SimulatedMachine],
        operator: Operator,
        effects: Effects,
        tree: Callable[[], ZnodeTree | None],
    ) -> None:
        """`tree` gives what the coordinator has."""
        self.counts: Counter[str] = Counter()
        self._simulation = simulation
        self._users = users
        self._brokers = dict(brokers)
        self._operator = operator
        self._effects = effects
        self._tree = tree
        self._random = simulation.world.random("credentials")
        draw = self._random.randbytes
        self._authorities = [Authority(name, draw(32)) for name in ("authority one", "authority two")]
        self._stranger = Authority("authority that nobody trusts", draw(32))
        self._serial = 1
        self._static = {each: self._signed(each, self._authorities[0]) for each in brokers}
        self._pairs = {(each, pair.key): pair for each, pair in self._static.items()}
        self._by_der = {pair.der: pair for pair in self._static.values()}
        self._secrets = {each: _Secret(f"secret-1-of-{each}") for each in brokers}
        self._values: dict[tuple[int, str], _Value] = {}
        self._changing: set[int] = set()
        self._shown: set[int] = set()
        self._latest: dict[int, int] = {}
        """The serial that each broker has shown last."""

    # What brokers and users have.

    def properties(self, broker_id: int) -> str:
        """More of a broker's configs, when it starts."""
        pair, secret = self._static[broker_id], self._secrets[broker_id]
        found = {
            _KEY: pair.key,
            _CHAIN: pair.chain,
            "ssl.truststore.certificates": " ".join(each.certificate for each in self._authorities),
            "password.encoder.secret": secret.wrong[-1] if secret.is_wrong else secret.present,
        }
        if secret.old and not secret.is_wrong:
            found["password.encoder.old.secret"] = secret.old
        return "".join(f"{name}={value}\n" for name, value in found.items())

    @functools.cached_property
    def context(self) -> ssl.SSLContext:
        """Of clients, which trust both authorities."""
        trusted = " ".join(each.certificate for each in self._authorities)
        values = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": trusted}
        settings = tls_settings(values, OF_CLIENTS)
        return client_context(settings, read_stores(settings, lambda _: b""), load_chain)

    def _signed(self, broker_id: int, authority: Authority) -> KeyPair:
        self._serial += 1
        return authority.sign(self._brokers[broker_id].name, self._serial, self._random.randbytes(32))

    # What strikes.

    def strikers(self) -> Mapping[FaultKind, Striker]:
        """For the nemesis."""
        return {
            FaultKind.CERTIFICATE_EXCHANGED: self._exchange,
            FaultKind.PASSWORD_STORED: self._store,
            FaultKind.SECRET_ROLLED: self._roll_secret,
            FaultKind.SECRET_MISTYPED: self._mistype_secret,
        }

    def _exchange(self) -> Undo | None:
        broker_id = self._random.choice(list(self._brokers))
        if broker_id in self._changing:
            return None
        way = self._random.choices(("exchange", "strange", "delete"), (6, 2, 1))[0]
        if way == "delete":
            self._change(broker_id, {_KEY: None, _CHAIN: None}, FaultKind.CERTIFICATE_EXCHANGED)
            return _nothing
        is_strange = way == "strange"
        authority = self._stranger if is_strange else self._random.choice(self._authorities)
        pair = self._signed(broker_id, authority)
        self._pairs[broker_id, pair.key] = self._by_der[pair.der] = pair
        self._change(
            broker_id, {_KEY: pair.key, _CHAIN: pair.chain}, FaultKind.CERTIFICATE_EXCHANGED, is_refused=is_strange
        )
        if not is_strange:
            self._effects.when_seen(FaultKind.CERTIFICATE_EXCHANGED, lambda: pair.serial in self._shown)
        return _nothing

    def _store(self) -> Undo | None:
        broker_id = self._random.choice(list(self._brokers))
        if broker_id in self._changing:
            return None
        name = self._random.choice(_OTHERS)
        password = f'{_MODULE} username="later" password="{self._random.randrange(1 << 40):x}";'
        value = None if self._random.random() < 0.2 else password
        self._change(broker_id, {name: value}, FaultKind.PASSWORD_STORED)
        return _nothing

    def _change(
        self, broker_id: int, values: Mapping[str, str | None], kind: FaultKind, *, is_refused: bool = False
    ) -> None:
        """One change of a broker at a time, again and again until it is acknowledged or refused."""
        operations = [
            (name, ConfigOperation.DELETE if value is None else ConfigOperation.SET, value)
            for name, value in values.items()
        ]

        async def run(host: Host) -> None:
            try:
                for _ in range(_ATTEMPTS_MAX):
                    async with self._users.client(host) as client, Admin(client) as admin:
                        try:
                            await admin.alter_configs(
                                ResourceType.BROKER, str(broker_id), operations, timeout_ms=10_000
                            )
                        except KafkaError as error:
                            if error.code in _OF_NOBODY:
                                self._refused(broker_id, error, is_refused=is_refused)
                                return
                        except self._users.failures:
                            pass
                        else:
                            self._acknowledged(broker_id, values, kind, is_refused=is_refused)
                            return
                        await client.timers.sleep(500)
            finally:
                self._changing.discard(broker_id)

        if not is_refused:
            for name, value in values.items():
                known = self._values.setdefault((broker_id, name), _Value())
                known.doubtful.append((self._simulation.now, value))
        self._changing.add(broker_id)
        self._operator.start(run)

    def _refused(self, broker_id: int, error: KafkaError, *, is_refused: bool) -> None:
        self.counts["credentials: certificates refused"] += is_refused
        if not is_refused:
            self._note(f"broker {broker_id} refuses a change of its keys or passwords: {error}")

    def _acknowledged(
        self, broker_id: int, values: Mapping[str, str | None], kind: FaultKind, *, is_refused: bool
    ) -> None:
        if is_refused:
            self._note(f"broker {broker_id} takes a certificate that no other would take of it")
        if kind is FaultKind.PASSWORD_STORED:
            self._effects.happened(kind)
            self.counts["credentials: passwords deleted"] += None in values.values()
        long_ago = self._simulation.now - _DOUBT_SECONDS
        for name, value in values.items():
            known = self._values.setdefault((broker_id, name), _Value())
            known.acknowledged = value
            known.doubtful = [each for each in known.doubtful if each[0] > long_ago and each[1] != value]

    def _roll_secret(self) -> Undo | None:
        """A broker is started with another secret, and the one of before as the old one."""
        broker_id = self._random.choice(list(self._brokers))
        secret, machine = self._secrets[broker_id], self._brokers[broker_id]
        if secret.is_wrong or not self._are_encoded_anew(broker_id):
            return None
        if self.nemesis.take(FaultKind.SECRET_ROLLED, machine) is None:
            return None
        secret.rolled_away.append(secret.present)
        secret.old, secret.present = secret.present, f"secret-{len(secret.rolled_away) + 1}-of-{broker_id}"
        machine.crash()
        has_any = any(value.acknowledged is not None for (each, _), value in self._values.items() if each == broker_id)
        if has_any:
            self._effects.when_seen(
                FaultKind.SECRET_ROLLED, lambda: machine.running and self._are_encoded_anew(broker_id)
            )
        return lambda: self._start_again(machine)

    def _mistype_secret(self) -> Undo | None:
        """A broker is started with a secret that is wrong, and some time later with the right one."""
        broker_id = self._random.choice(list(self._brokers))
        secret, machine = self._secrets[broker_id], self._brokers[broker_id]
        if secret.is_wrong or self.nemesis.take(FaultKind.SECRET_MISTYPED, machine) is None:
            return None
        secret.wrong.append(f"wrong-{len(secret.wrong) + 1}-of-{broker_id}")
        secret.is_wrong = True
        self._effects.when_reported(FaultKind.SECRET_MISTYPED, "could not be decoded, ignoring")
        machine.crash()
        self._start_again(machine)

        def put_right() -> None:
            secret.is_wrong = False
            if not self.nemesis.is_taken(machine):
                machine.crash()
                machine.restart()

        return put_right

    def _start_again(self, machine: SimulatedMachine) -> None:
        self.nemesis.give_back(machine)
        machine.restart()

    # What is stored.

    def _stored(self, broker_id: int) -> Mapping[str, str]:
        tree = self._tree()
        path = config_path(ConfigEntityType.BROKERS, str(broker_id))
        node = None if tree is None else tree.find(path)
        found = {} if node is None else EntityConfig.decode(node[0], path).config
        return {name: text for name, text in found.items() if name in (_KEY, _CHAIN, *_OTHERS)}

    def _are_encoded_anew(self, broker_id: int) -> bool:
        """Whether nothing is encoded with a secret that was exchanged."""
        rolled_away = self._secrets[broker_id].rolled_away
        return not any(
            _decoded(text, each) is not None for text in self._stored(broker_id).values() for each in rolled_away
        )

    # Who looks.

    async def watch(self, host: Host, logger: logging.Logger) -> None:
        """Connects to brokers and looks whose certificates they show, until the users are to stop."""
        timers = Timers(host.loop)
        while self._users.goes_on():
            await timers.sleep(host.random.expovariate(1 / _WATCH_PAUSE_MS))
            await self._look(host, timers, logger, host.random.choice(list(self._brokers)))

    async def _look(self, host: Host, timers: Timers, logger: logging.Logger, broker_id: int) -> None:
        from barnabas.link.tls_end import TlsEnd

        def seen(_: object, der: bytes | None) -> None:
            pair = self._by_der.get(der or b"")
            if pair is None:
                self._note(f"broker {broker_id} shows a certificate that it was never given")
                return
            self.counts["credentials: certificates shown"] += pair.serial not in self._shown
            self._shown.add(pair.serial)
            self._latest[broker_id] = pair.serial

        context = LinkContext.of(host.loop, timers, LinkLimits(), logger)
        end = TlsEnd(self.context, Handshakes(host.loop, timers, host.offload), when_secured=seen)
        try:
            machine = self._brokers[broker_id]
            connection = await connect(context, machine.name, _PORT, timeout_ms=_CONNECT_MS, tls=end)
        except OSError as error:
            logger.info("%s", error)
        else:
            connection.abort()

    # In the end.

    def is_at_rest(self) -> bool:
        """Whether every broker has its right secret, and all is encoded with that."""
        return not self._changing and all(map(self._are_encoded_anew, self._brokers))

    async def finish(self, host: Host, logger: logging.Logger) -> None:
        """Looks at each broker once more, and judges."""
        timers = Timers(host.loop)
        for broker_id in self._brokers:
            wanted = self._wanted_serial(broker_id)
            for _ in range(50):
                await self._look(host, timers, logger, broker_id)
                if self._latest.get(broker_id) == wanted:
                    break
                await timers.sleep(100)
            else:
                shown = self._latest.get(broker_id)
                self._note(f"broker {broker_id} shows certificate {shown} at rest, and {wanted} is stored")
        for (broker_id, name), value in self._values.items():
            self._judge(broker_id, name, value)

    def _wanted_serial(self, broker_id: int) -> int:
        """That of the certificate that a broker's stored configs say, or of its file where they cannot be read."""
        stored, secret = self._stored(broker_id), self._secrets[broker_id]
        key = None if _KEY not in stored else _decoded(stored[_KEY], secret.present)
        return self._static[broker_id].serial if key is None else self._pairs[broker_id, key].serial

    def _judge(self, broker_id: int, name: str, value: _Value) -> None:
        text = self._stored(broker_id).get(name)
        found = None if text is None else self._opened(broker_id, text)
        allowed = [value.acknowledged, *(each for _, each in value.doubtful)]
        if text is not None and found is None:
            self._note(f"{name} of broker {broker_id} can be read with no secret that it ever had")
        elif found not in allowed:
            self._note(f"{name} of broker {broker_id} is not what was acknowledged last")

    def _opened(self, broker_id: int, text: str) -> str | None:
        tried = (_decoded(text, each) for each in self._secrets[broker_id].every)
        return next((clear for clear in tried if clear is not None), None)

    def _note(self, finding: str) -> None:
        self._users.history.mistaken.append(f"at {self._users.now():.3f} s: {finding}")


def _decoded(text: str, secret: str) -> str | None:
    try:
        return PasswordEncoder(Password(secret), PasswordEncoderSettings()).decode(Encoded.parse(text))
    except PasswordEncoderError:
        return None


def _nothing() -> None:
    """Nothing to mend."""
