"""Plans whose users do more than to write and to read a topic: transactions, compacted and tiered topics, tokens, a
pipeline's driver.
"""

from __future__ import annotations

from typing import Final

from barnabas.testing.changed_rights import PROPERTIES as RIGHTS_PROPERTIES
from barnabas.testing.changing_credentials import PROPERTIES as CREDENTIALS_PROPERTIES
from barnabas.testing.cluster_load import Load
from barnabas.testing.cluster_plan import Plan
from barnabas.testing.compacted_topic import PROPERTIES as COMPACTED
from barnabas.testing.faults import FaultKind
from barnabas.testing.next_group_users import PROPERTIES as NEXT_GROUP
from barnabas.testing.secured_users import PROPERTIES as SECURED_PROPERTIES
from barnabas.testing.tiered_topic import PROPERTIES as REMOTE
from barnabas.testing.tokens_in_use import PROPERTIES as TOKEN_PROPERTIES
from barnabas.testing.transactional_users import PROPERTIES

TRANSACTIONS: Final = Plan(
    "transactions",
    {
        FaultKind.CRASH: 8.0,
        FaultKind.POWER: 3.0,
        FaultKind.PAUSE: 3.0,
        FaultKind.PARTITION: 3.0,
        FaultKind.CUT: 6.0,
        FaultKind.RESET: 10.0,
        FaultKind.LEADERS_ELECTED: 6.0,
        FaultKind.CONTROLLER_DELETED: 2.0,
        FaultKind.EXPIRY: 1.0,
    },
    keeps_one_in_sync=True,
    lasting_seconds=(0.1, 6.0),
    load=Load(transactional_ids=5, producers=1, consumers=1),
    properties=PROPERTIES,
)
"""Producers write to several partitions and commit offsets all or nothing, abort, vanish, and are replaced, while the
brokers that lead, that coordinate their transactions and that coordinate their groups fall: out to have somebody see a
part of a transaction, or one that is not committed (0015, KIP-98).
"""

COMPACTION: Final = Plan(
    "compaction",
    {
        FaultKind.CRASH: 8.0,
        FaultKind.POWER: 6.0,
        FaultKind.CUT: 5.0,
        FaultKind.PAUSE: 3.0,
        FaultKind.SLOW_DISK: 2.0,
        FaultKind.LEADERS_ELECTED: 8.0,
        FaultKind.CONTROLLER_DELETED: 1.0,
        FaultKind.RESET: 2.0,
    },
    keeps_one_in_sync=True,
    lasting_seconds=(0.1, 5.0),
    load=Load(has_compacted_topic=True, transactional_ids=2, producers=1, records_pause_ms=400, commit_pause_ms=300),
    properties={**PROPERTIES, **COMPACTED},
)
"""A topic of few keys, the groups' offsets and the transactions' states are compacted all the time, while brokers and
leaders fall, anywhere in the middle of a cleaning: out to have a key lose its last value, or get a former one (0024).
"""

TIERED: Final = Plan(
    "tiered",
    {
        FaultKind.CRASH: 14.0,
        FaultKind.POWER: 5.0,
        FaultKind.CUT: 4.0,
        FaultKind.PAUSE: 4.0,
        FaultKind.LEADERS_ELECTED: 8.0,
        FaultKind.SLOW_DISK: 3.0,
        FaultKind.CONTROLLER_DELETED: 1.0,
        FaultKind.RESET: 3.0,
    },
    keeps_one_in_sync=True,
    lasting_seconds=(0.1, 5.0),
    load=Load(has_tiered_topic=True, producers=1, consumers=1, records_pause_ms=600),
    properties=REMOTE,
)
"""A topic's old segments are copied to remote storage and given up locally, while leaders fall in the middle of a copy,
before and after each record of the metadata: out to have a record nowhere, or a hole in what is read by offset or by
time (0028).
"""

TOKENS: Final = Plan(
    "tokens",
    {
        FaultKind.CRASH: 8.0,
        FaultKind.PAUSE: 4.0,
        FaultKind.CUT: 6.0,
        FaultKind.RESET: 4.0,
        FaultKind.EXPIRY: 8.0,
        FaultKind.CONTROLLER_DELETED: 6.0,
        FaultKind.CLOCK_STEP: 2.0,
    },
    lasting_seconds=(0.1, 7.0),
    load=Load(has_tokens=True, producers=1, consumers=1, records_pause_ms=600),
    properties={**TOKEN_PROPERTIES, **RIGHTS_PROPERTIES},
)
"""Delegation tokens are made, renewed, used and let go at all brokers, while these fall, are cut off, and lose their
sessions and the office: out to bring back a token that is gone, to have one deleted that holds, or to leave a broker
with tokens that there are not (0033). So are passwords of SCRAM and ACLs, of which a broker may miss no change (0030).
"""

SECURED: Final = Plan(
    "secured",
    {
        FaultKind.CRASH: 8.0,
        FaultKind.POWER: 3.0,
        FaultKind.PAUSE: 3.0,
        FaultKind.CUT: 4.0,
        FaultKind.RESET: 8.0,
        FaultKind.EXPIRY: 6.0,
        FaultKind.CONTROLLER_DELETED: 4.0,
        FaultKind.CONFIG_CHANGED: 6.0,
    },
    keeps_one_in_sync=True,
    lasting_seconds=(0.1, 5.0),
    load=Load(is_secured=True, records_pause_ms=400),
    properties=SECURED_PROPERTIES,
)
"""A cluster as `barnabas up --secure` makes it, but for TLS: brokers log in at ZooKeeper and at each other, users at
them, all by SCRAM and again while they work, and nothing is allowed that no ACL allows; while brokers and the
coordinator fall, and lose sessions and the office. Out to have somebody served who has no login or no rights, a znode
made that is not the brokers' own, or a broker or a user locked out who has both (0029, 0030, 0046, 0047).
"""

CREDENTIALS: Final = Plan(
    "credentials",
    {
        FaultKind.CERTIFICATE_EXCHANGED: 14.0,
        FaultKind.PASSWORD_STORED: 14.0,
        FaultKind.SECRET_ROLLED: 5.0,
        FaultKind.SECRET_MISTYPED: 4.0,
        FaultKind.TOKEN_KEYS_ROLLED: 5.0,
        FaultKind.NO_TOKENS: 2.0,
        FaultKind.TLS_BROKEN: 30.0,
        FaultKind.HTTP_FLOODED: 8.0,
        FaultKind.CRASH: 5.0,
        FaultKind.PAUSE: 2.0,
        FaultKind.RESET: 4.0,
        FaultKind.EXPIRY: 2.0,
    },
    lasting_seconds=(0.1, 5.0),
    lasting={FaultKind.NO_TOKENS: (4.0, 9.0)},
    load=Load(has_credentials=True, records_pause_ms=600, producers=1),
    properties=CREDENTIALS_PROPERTIES,
)
"""Everybody speaks TLS and logs in by signed tokens, while certificates, keys, tokens, passwords and the secrets that
encrypt them change, connections break amid handshakes and records, and servers of HTTP are flooded: out to have one let
in whose token does not count, or shut out whose does; to lose a password or a certificate, or hold a place for nobody
(0032, 0045, 0052).
"""

OUTBOX: Final = Plan(
    "outbox",
    {
        FaultKind.CRASH: 8.0,
        FaultKind.POWER: 3.0,
        FaultKind.PAUSE: 3.0,
        FaultKind.PARTITION: 2.0,
        FaultKind.CUT: 5.0,
        FaultKind.RESET: 8.0,
        FaultKind.LEADERS_ELECTED: 6.0,
        FaultKind.CONTROLLER_DELETED: 1.0,
    },
    keeps_one_in_sync=True,
    lasting_seconds=(0.1, 5.0),
    load=Load(has_outbox=True, producers=1, consumers=1, records_pause_ms=400),
    properties=PROPERTIES,
)
"""A pipeline's driver sends its batches to two topics in a transaction each, is killed between any two steps, and goes
on; copies of its state are used beside it and after it; answers are lost while leaders and coordinators fall: out to
have a batch lost, there twice, in one of its topics only, or mixed from two computations (0035).
"""

NEXT_GROUPS: Final = Plan(
    "next-groups",
    {
        FaultKind.CRASH: 8.0,
        FaultKind.POWER: 4.0,
        FaultKind.PAUSE: 4.0,
        FaultKind.PARTITION: 4.0,
        FaultKind.CUT: 14.0,
        FaultKind.RESET: 4.0,
        FaultKind.LEADERS_ELECTED: 8.0,
        FaultKind.CONTROLLER_DELETED: 2.0,
        FaultKind.EXPIRY: 1.0,
    },
    keeps_one_in_sync=True,
    lasting_seconds=(0.1, 5.0),
    faults_seconds=120.0,
    load=Load(has_next_group=True, producers=1, consumers=1, records_pause_ms=600),
    properties=NEXT_GROUP,
)
"""Members of a group of the consumer protocol come, go, vanish, hold on and fall silent, and topics grow, go and are
made anew, while coordinators fall: out to have a partition owned twice, or by nobody, or an offset go back (0034).
"""
