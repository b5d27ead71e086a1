"""Keeps `DelegationTokens` as ZooKeeper has them while brokers, ours and Apache Kafka's, change them, and announce that
below `/delegation_token/token_changes`.
"""

from __future__ import annotations

import logging
from typing import Final

from barnabas.coordination.announcements import AnnouncedChanges, Source
from barnabas.coordination.layout.delegation_tokens import (
    TOKEN_CHANGE_PREFIX,
    TOKEN_CHANGES_PATH,
    decode_token_change,
)
from barnabas.coordination.ports import Store
from barnabas.kernel.host import Host
from barnabas.kernel.timers import Timers
from barnabas.security.token_store import TokenStore

_SOURCES: Final = (Source(TOKEN_CHANGES_PATH, TOKEN_CHANGE_PREFIX, decode_token_change),)


class TokenChanges(AnnouncedChanges[str]):
    """Those of the tokens, by their ids; to be started before a client can log in."""

    def __init__(self, host: Host, store: Store, tokens: TokenStore, *, timers: Timers, logger: logging.Logger) -> None:
        thread = "/delegation_token/token_changes-event-process-thread"
        super().__init__(
            host, store, tokens, _SOURCES, "Delegation tokens", timers=timers, logger=logger, thread=thread
        )
