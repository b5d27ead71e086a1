"""How brokers are reached from one place: what its connections to all of them have in common."""

from __future__ import annotations

import random
from dataclasses import field
from typing import TYPE_CHECKING

from barnabas.kernel.facts import fact
from barnabas.link.outgoing import Outgoing, OutgoingSettings

if TYPE_CHECKING:
    from barnabas.link.connection import LinkContext
    from barnabas.link.login import LinkLogin
    from barnabas.link.tls_end import TlsEnd


@fact
class Connector:
    """Makes connections; nothing is sent yet. `random` is the host's, for jitter."""

    context: LinkContext
    random: random.Random
    client_id: str
    settings: OutgoingSettings = field(default_factory=OutgoingSettings)
    login: LinkLogin | None = None
    tls: TlsEnd | None = None

    def connect(
        self,
        host: str,
        port: int,
        *,
        client_id: str | None = None,
        is_control: bool = False,
        learns_versions: bool = False,
    ) -> Outgoing:
        """A connection to one broker, under another `client_id` where one is given; otherwise as `Outgoing` has it."""
        return Outgoing(
            self.context,
            self.random,
            host,
            port,
            client_id=self.client_id if client_id is None else client_id,
            settings=self.settings,
            is_control=is_control,
            learns_versions=learns_versions,
            login=self.login,
            tls=self.tls,
        )
