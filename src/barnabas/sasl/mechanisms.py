"""The mechanisms by their names, and the login module that belongs to each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from barnabas.sasl.errors import LoginConfigError
from barnabas.sasl.jaas import (
    OAUTHBEARER_MODULE,
    PLAIN_MODULE,
    SCRAM_MODULE,
    LoginModule,
    login_of,
    parse_login_module,
)
from barnabas.sasl.oauthbearer_login import OAuthBearerLogin, ValueOf
from barnabas.sasl.oauthbearer_messages import OAUTHBEARER
from barnabas.sasl.plain import PLAIN, PlainClient
from barnabas.sasl.scram_client import ScramClient
from barnabas.sasl.scram_mechanisms import ScramMechanism

if TYPE_CHECKING:
    from barnabas.kernel.host import Entropy
    from barnabas.sasl.exchange import ClientExchange

MECHANISMS: Final = (PLAIN, *(mechanism.value for mechanism in ScramMechanism), OAUTHBEARER)
"""Those that are there; Kafka has GSSAPI beside them."""
_MODULES: Final = {PLAIN: PLAIN_MODULE, OAUTHBEARER: OAUTHBEARER_MODULE}


@dataclass(frozen=True, slots=True)
class Login:
    """Who a client is, and the mechanism by which it shows that; those by OAUTHBEARER are `OAuthBearerLogin`s."""

    mechanism: str
    username: str
    password: str = field(repr=False)
    is_token: bool = False
    """Of SCRAM: the name is the id of a delegation token, and the password its HMAC in base64 (KIP-48)."""

    def __post_init__(self) -> None:
        """Raises LoginConfigError."""
        check_mechanism(self.mechanism)
        if self.mechanism == OAUTHBEARER:
            raise LoginConfigError(f"a login by {OAUTHBEARER} has no password")
        if not self.username or not self.password:
            raise LoginConfigError(f"a login by {self.mechanism} needs a user name and a password")
        if "\0" in self.username + self.password:
            raise LoginConfigError("neither a user name nor a password may hold a zero byte")
        if self.mechanism != PLAIN and not self.username.isascii():
            raise LoginConfigError(f"the name of a user of {self.mechanism} is ASCII only, as in Kafka")

    @classmethod
    def of_jaas(cls, mechanism: str, jaas_config: str) -> Login:
        """That of a client's `sasl.mechanism` and `sasl.jaas.config`. Raises LoginConfigError."""
        return cls.of_module(mechanism, parse_login_module(jaas_config))

    @classmethod
    def of_module(cls, mechanism: str, module: LoginModule) -> Login:
        """That of a login module. Raises LoginConfigError."""
        check_mechanism(mechanism)
        check_module(mechanism, module.name)
        return cls(mechanism, *login_of(module), is_token=mechanism != PLAIN and module.has_token)

    def exchange(self, entropy: Entropy) -> ClientExchange:
        """A new exchange of messages with a server."""
        if self.mechanism == PLAIN:
            return PlainClient(self.username, self.password)
        mechanism = ScramMechanism(self.mechanism)
        return ScramClient(mechanism, self.username, self.password, entropy, is_token=self.is_token)


AnyLogin = Login | OAuthBearerLogin


def login_of_client(mechanism: str, jaas_config: str, value_of: ValueOf) -> AnyLogin:
    """That of a client's properties. Raises LoginConfigError."""
    module = parse_login_module(jaas_config)
    return OAuthBearerLogin.of(module, value_of) if mechanism == OAUTHBEARER else Login.of_module(mechanism, module)


def check_mechanism(mechanism: str) -> None:
    """Raises LoginConfigError for a mechanism that is not there."""
    if mechanism not in MECHANISMS:
        raise LoginConfigError(f"the SASL mechanism must be one of {', '.join(MECHANISMS)}, not {mechanism}")


def check_module(mechanism: str, module_name: str) -> None:
    """Raises LoginConfigError where a mechanism has the login module of another, or one that is a program of Java's."""
    wanted = _MODULES.get(mechanism, SCRAM_MODULE)
    if module_name != wanted:
        raise LoginConfigError(f"the login module of {mechanism} is {wanted}; sasl.jaas.config names another")
