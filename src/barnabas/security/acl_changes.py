"""Keeps `AclRules` as ZooKeeper has them while brokers, ours and Apache Kafka's, change them.

All rules are read at the start and after every end of a session; in between, each change is announced below
`/kafka-acl-changes` or, of prefixed patterns, below `/kafka-acl-extended-changes`. An announcement says only whose
rules changed; they are read then. Invariant: the watches are set before everything is read, so that each change is in
what is read or is announced after it.

While ZooKeeper is out of reach the rules hold as they were read last, as in Kafka.
"""

from __future__ import annotations

import itertools
import logging
from typing import Final

from barnabas.coordination.announcements import AnnouncedChanges, Announcements
from barnabas.coordination.layout.acls import (
    ACL_CHANGE_PREFIX,
    EXTENDED_ACL_CHANGES_PATH,
    LITERAL_ACL_CHANGES_PATH,
    decode_acl_change,
)
from barnabas.coordination.ports import Store
from barnabas.kernel.host import Host
from barnabas.kernel.timers import Timers
from barnabas.security.acl_store import AclStore
from barnabas.security.acl_znodes import pattern_of

_PATHS: Final = (LITERAL_ACL_CHANGES_PATH, EXTENDED_ACL_CHANGES_PATH)


class AclChanges:
    """Reads and follows the ACLs; a listener of the session, added before `start`."""

    def __init__(self, host: Host, store: Store, acls: AclStore, *, timers: Timers, logger: logging.Logger) -> None:
        self._acls = acls
        self._changes = AnnouncedChanges(
            host, store, self, "ACLs", timers=timers, logger=logger, thread="/kafka-acl-changes-event-process-thread"
        )
        self._announcements = tuple(
            Announcements(
                *(host, store, path, ACL_CHANGE_PREFIX, decode_acl_change),
                on_change=self._changes.announced,
                logger=logger,
            )
            for path in _PATHS
        )

    async def start(self) -> None:
        """Makes Kafka's znodes where they are missing, reads all rules, and follows them from then on.

        To be called before a request is served. Raises `CoordinationError` when they cannot be read.
        """
        await self._changes.start()

    async def before_new_session(self) -> None:
        """The session is over, and the watches with it. The rules in memory hold."""
        await self._changes.before_new_session()

    async def after_new_session(self) -> None:
        """Reads everything again, beside what else a new session brings: announcements may have come and gone."""
        await self._changes.after_new_session()

    async def stop(self) -> None:
        """Stops following changes."""
        await self._changes.stop()

    # `coordination.announcements.Reader`.

    async def reload(self) -> None:
        """Sets the watches, and reads all rules."""
        await self._acls.create_paths()
        for announcements in self._announcements:
            announcements.forget()
            await announcements.new()
        await self._acls.load()
        await self._purge()

    async def hear(self) -> None:
        """Reads the rules of what was announced since the last time."""
        heard = [await announcements.new() for announcements in self._announcements]
        await self._acls.refresh(map(pattern_of, itertools.chain.from_iterable(heard)))
        await self._purge()

    async def _purge(self) -> None:
        for announcements in self._announcements:
            await announcements.purge()
