"""Users whom suites log in with by SCRAM."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

_ITERATIONS = 4_096
_SECONDS = 60.0


def make_user(bootstrap_servers: str, name: str, password: str, mechanisms: Iterable[ScramMechanism]) -> None:
    """As their own scripts make one by the tools of the Kafka that they start; there may be one already."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for mechanism in mechanisms:
        wanted = UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, _ITERATIONS), password.encode())
        (future,) = admin.alter_user_scram_credentials([wanted], request_timeout=_SECONDS).values()
        future.result(_SECONDS)
