"""Keeps `AclRules` as ZooKeeper has them while brokers, ours and Apache Kafka's, change them, and announce that below
`/kafka-acl-changes` or, of prefixed patterns, below `/kafka-acl-extended-changes`. An announcement says only whose
rules changed.
"""

from __future__ import annotations

import logging
from typing import Final

from barnabas.coordination.announcements import AnnouncedChanges, Source
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
from barnabas.security.acls import ResourcePattern


def _decode(data: bytes | None, path: str) -> ResourcePattern:
    return pattern_of(decode_acl_change(data, path))


_SOURCES: Final = tuple(
    Source(path, ACL_CHANGE_PREFIX, _decode) for path in (LITERAL_ACL_CHANGES_PATH, EXTENDED_ACL_CHANGES_PATH)
)


class AclChanges(AnnouncedChanges[ResourcePattern]):
    """Those of the ACLs; to be started before a request is served."""

    def __init__(self, host: Host, store: Store, acls: AclStore, *, timers: Timers, logger: logging.Logger) -> None:
        thread = "/kafka-acl-changes-event-process-thread"
        super().__init__(host, store, acls, _SOURCES, "ACLs", timers=timers, logger=logger, thread=thread)
