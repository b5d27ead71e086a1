"""Keeps `DelegationTokens` as ZooKeeper has them while brokers, ours and Apache Kafka's, change them.

As `acl_changes`: all tokens are read at the start and after every end of a session, and in between those that are
announced below `/delegation_token/token_changes`. While ZooKeeper is out of reach the tokens hold as they were read.
"""

from __future__ import annotations

import logging

from barnabas.coordination.announcements import AnnouncedChanges, Announcements
from barnabas.coordination.layout.delegation_tokens import (
    TOKEN_CHANGE_PREFIX,
    TOKEN_CHANGES_PATH,
    decode_token_change,
)
from barnabas.coordination.ports import Store
from barnabas.kernel.host import Host
from barnabas.kernel.timers import Timers
from barnabas.security.token_store import TokenStore


class TokenChanges:
    """Reads and follows the tokens; a listener of the session, added before `start`."""

    def __init__(self, host: Host, store: Store, tokens: TokenStore, *, timers: Timers, logger: logging.Logger) -> None:
        self._tokens = tokens
        self._changes = AnnouncedChanges(
            host,
            store,
            self,
            "Delegation tokens",
            timers=timers,
            logger=logger,
            thread="/delegation_token/token_changes-event-process-thread",
        )
        self._announcements = Announcements(
            *(host, store, TOKEN_CHANGES_PATH, TOKEN_CHANGE_PREFIX, decode_token_change),
            on_change=self._changes.announced,
            logger=logger,
        )

    async def start(self) -> None:
        """Makes Kafka's znodes where they are missing, reads all tokens, and follows them from then on.

        To be called before a client can log in. Raises `CoordinationError` when they cannot be read.
        """
        await self._changes.start()

    async def before_new_session(self) -> None:
        """The session is over, and the watch with it. The tokens in memory hold."""
        await self._changes.before_new_session()

    async def after_new_session(self) -> None:
        """Reads everything again, beside what else a new session brings: announcements may have come and gone."""
        await self._changes.after_new_session()

    async def stop(self) -> None:
        """Stops following changes."""
        await self._changes.stop()

    # `coordination.announcements.Reader`.

    async def reload(self) -> None:
        """Sets the watch, and reads all tokens."""
        await self._tokens.create_paths()
        self._announcements.forget()
        await self._announcements.new()
        await self._tokens.load()
        await self._announcements.purge()

    async def hear(self) -> None:
        """Reads the tokens that were announced since the last time."""
        await self._tokens.refresh(await self._announcements.new())
        await self._announcements.purge()
