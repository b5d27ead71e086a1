"""How a cluster of `barnabas up --secure` is secured: which files it has for that, and what its processes and clients
are told. Decision 0047.

Everything is in one directory, which is the user's alone. Secrets are in files and never on a command line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from barnabas.config.broker_config import base_name
from barnabas.config.key_table import broker_keys
from barnabas.server.property_files import properties_text

ADMIN: Final = "admin"
"""May do everything, as the brokers may."""
CLIENT: Final = "client"
"""The first user without such rights."""
BROKERS: Final = "broker"
"""The brokers, to each other and to the coordinator."""
SCRAPER: Final = "metrics"
"""Who may read the metrics."""
MECHANISM: Final = "SCRAM-SHA-512"
PROTOCOL: Final = "SASL_SSL"
_SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_DIGEST_MODULE: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"
_JAAS: Final = f"listener.name.{PROTOCOL.lower()}.{MECHANISM.lower()}.sasl.jaas.config"
_HEAD: Final = "# Written by barnabas up --secure at every start."


class ClusterSecurityError(Exception):
    """What a cluster needs to be secured is not there; the message says what to do."""


@dataclass(frozen=True, slots=True)
class SecurityPaths:
    """The files, in `directory`."""

    directory: str

    @property
    def authority(self) -> str:
        """The certificate that clients have to trust."""
        return f"{self.directory}/authority.pem"

    @property
    def profiles(self) -> str:
        """For `BARNABAS_PROFILES`."""
        return f"{self.directory}/profiles.toml"

    @property
    def digest_users(self) -> str:
        """Who may log in at the coordinator."""
        return f"{self.directory}/coordinator.jaas"

    @property
    def digest_login(self) -> str:
        """Who the brokers are there."""
        return f"{self.directory}/brokers.jaas"

    @property
    def coordinator_tls(self) -> str:
        """For the coordinator's `--tls-config`."""
        return f"{self.directory}/coordinator.properties"

    def key_store(self, process: str) -> str:
        """Key and certificate of a process, PEM."""
        return f"{self.directory}/{process}.pem"

    def password(self, user: str) -> str:
        """What a user logs in with."""
        return f"{self.directory}/{user}.password"

    def logins(self, what: str) -> str:
        """Who may log in at the console, or at the metrics."""
        return f"{self.directory}/{what}.logins"

    def client(self, user: str) -> str:
        """What Java's clients and our commands need to come in."""
        return f"{self.directory}/{user}.properties"

    def librdkafka(self, user: str) -> str:
        """What librdkafka and kcat need."""
        return f"{self.directory}/{user}.librdkafka.properties"

    # What processes are told.

    def broker_properties(self, broker_id: int) -> dict[str, str]:
        """Configs of one broker, but for its password."""
        return {
            "security.inter.broker.protocol": PROTOCOL,
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.key_store(f"broker-{broker_id}"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority,
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": f"User:{BROKERS};User:{ADMIN}",
            "allow.everyone.if.no.acl.found": "false",
            "zookeeper.set.acl": "true",
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.truststore.location": self.authority,
            "barnabas.zookeeper.login.config": self.digest_login,
            "barnabas.metrics.login.file": self.logins("metrics"),
            "barnabas.metrics.tls.certificate": self.key_store(f"broker-{broker_id}"),
        }

    def coordinator_arguments(self) -> list[str]:
        """Of its command line."""
        return ["--login-file", self.digest_users, "--tls-config", self.coordinator_tls]

    def console_arguments(self) -> list[str]:
        """Of its command line."""
        login = ["--command-config", self.client(ADMIN), "--login-file", self.logins("console")]
        return [*login, "--tls-certificate", self.key_store("console")]

    def coordinator_tls_text(self) -> str:
        """The file of that name. Brokers show a password, and no certificate."""
        values = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.key_store("coordinator"),
            "ssl.client.auth": "none",
        }
        return properties_text(values, _HEAD)

    # What clients are told.

    def client_properties(self, user: str, password: str, bootstrap_servers: str = "") -> dict[str, str]:
        """For Java's clients and our own."""
        found = {"bootstrap.servers": bootstrap_servers} if bootstrap_servers else {}
        return found | {
            "security.protocol": PROTOCOL,
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": scram_login(user, password),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority,
        }

    def client_text(self, user: str, password: str, bootstrap_servers: str) -> str:
        """The file for Java's clients."""
        return properties_text(self.client_properties(user, password, bootstrap_servers), _HEAD)

    def librdkafka_text(self, user: str, password: str, bootstrap_servers: str) -> str:
        """The file for librdkafka, whose values are taken as they stand."""
        values = {
            "bootstrap.servers": bootstrap_servers,
            "security.protocol": PROTOCOL,
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": self.authority,
        }
        return "\n".join([_HEAD, *(f"{name}={value}" for name, value in values.items()), ""])

    def profiles_text(self, bootstrap_servers: str) -> str:
        """The file of profiles: one for each user."""
        lines = [_HEAD]
        for user in (CLIENT, ADMIN):
            lines += [f"[{user}]", f"bootstrap-server = {json.dumps(bootstrap_servers)}"]
            lines += [f"command-config = {json.dumps(self.client(user), ensure_ascii=False)}", ""]
        return "\n".join(lines)


SECURED_CONFIGS: Final = frozenset(SecurityPaths("").broker_properties(1)) | {
    "inter.broker.listener.name",
    "listener.security.protocol.map",
    "control.plane.listener.name",
    "ssl.endpoint.identification.algorithm",
    "zookeeper.ssl.endpoint.identification.algorithm",
    _JAAS,
}
"""Configs of brokers that must not be overridden: the cluster would not be what it says."""


def keeps_closed(name: str) -> bool:
    """Whether it is one of these, for all listeners or for one."""
    return name in SECURED_CONFIGS or base_name(name, broker_keys()) in SECURED_CONFIGS


def broker_login(password: str) -> dict[str, str]:
    """The config that is a secret."""
    return {_JAAS: scram_login(BROKERS, password)}


def scram_login(user: str, password: str) -> str:
    """For `sasl.jaas.config`; passwords are digits in hexadecimal."""
    return f'{_SCRAM_MODULE} required username="{user}" password="{password}";'


def digest_users(password: str) -> str:
    """The file of who may log in at the coordinator."""
    return f'Server {{\n  {_DIGEST_MODULE} required user_{BROKERS}="{password}";\n}};\n'


def digest_login(password: str) -> str:
    """The file of who the brokers are there."""
    return f'Client {{\n  {_DIGEST_MODULE} required username="{BROKERS}" password="{password}";\n}};\n'
