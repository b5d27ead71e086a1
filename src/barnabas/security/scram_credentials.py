"""The SCRAM credentials of a cluster's users, as `/config/users` has them, for those who log in."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from barnabas.sasl.scram_mechanisms import ScramCredential, ScramMechanism


class ScramCredentials:
    """Held by user. It is told of each user's configs, and of who is left after all were read."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._by_user: dict[str, dict[ScramMechanism, ScramCredential]] = {}

    def find(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """The credential that a user logs in with; None for who has none."""
        return self._by_user.get(user, {}).get(mechanism)

    def set(self, user: str, configs: Mapping[str, str]) -> None:
        """Takes over a user's configs, and forgets those before. A credential that cannot be read is none: whose it is
        cannot log in, and the log says why.
        """
        found: dict[ScramMechanism, ScramCredential] = {}
        for mechanism in ScramMechanism:
            text = configs.get(mechanism.value)
            if text is None:
                continue
            try:
                found[mechanism] = ScramCredential.decode(mechanism, text)
            except ValueError as error:
                self._logger.error("The user %r cannot log in: %s", user, error)  # noqa: TRY400 - who wrote it is at fault
        if found:
            self._by_user[user] = found
        else:
            self._by_user.pop(user, None)

    def retain(self, users: Collection[str]) -> None:
        """Forgets everybody else."""
        for user in self._by_user.keys() - users:
            del self._by_user[user]
