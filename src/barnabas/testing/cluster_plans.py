"""The plans of runs of a cluster: each is out to break a promise of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from barnabas.testing.cluster_load import Load
from barnabas.testing.cluster_plan import Plan
from barnabas.testing.faults import FaultKind
from barnabas.testing.user_plans import (
    COMPACTION,
    CREDENTIALS,
    NEXT_GROUPS,
    OUTBOX,
    SECURED,
    TIERED,
    TOKENS,
    TRANSACTIONS,
)

_MISCHIEF: Final = {
    FaultKind.CRASH: 3.0,
    FaultKind.PAUSE: 3.0,
    FaultKind.PARTITION: 2.0,
    FaultKind.CUT: 3.0,
    FaultKind.RESET: 4.0,
    FaultKind.SLOW_DISK: 2.0,
}
_LOGINS: Final = {
    "listeners": "PLAINTEXT://:9092,LOGIN://:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
    "inter.broker.listener.name": "LOGIN",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "connections.max.reauth.ms": "2500",
    "listener.name.login.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="broker" password="of brokers" '
        'user_broker="of brokers";'
    ),
}
"""Brokers log in at each other, and again all the time."""
_UNCLEAN_LOAD: Final = Load(topic_configs={"unclean.leader.election.enable": "true"})
POWER: Final = Plan("power", {**_MISCHIEF, FaultKind.POWER: 3.0, FaultKind.OUTAGE: 0.7}, down_at_most=2)
"""Power fails whenever it likes, of all machines at once too: what that may take is computed."""
KEEPING: Final = Plan("keeping", {**_MISCHIEF, FaultKind.POWER: 3.0}, keeps_one_in_sync=True)
"""One member of every ISR is kept: nothing may be lost."""
LATE: Final = dataclasses.replace(KEEPING, name="late", late_copies=0.5)
"""Like `KEEPING`; stale requests of controllers arrive again, which epochs must fence."""
OLDER: Final = dataclasses.replace(
    KEEPING, name="older", protocols=("2.6", "2.7", "2.3", "3.1", "2.5", "2.4-IV0", "2.8-IV0", "3.3", "2.4", "3.2")
)
"""Like `KEEPING`, with older versions of what brokers and the controller speak (0012). Below 2.7 leaders write ISRs
into the znodes themselves, and followers ask ahead where logs part (0014); below 2.8 topics have no ids.
"""

EXPIRY: Final = Plan(
    "expiry",
    {
        FaultKind.EXPIRY: 12.0,
        FaultKind.CRASH: 6.0,
        FaultKind.RESET: 4.0,
        FaultKind.CUT: 2.0,
        FaultKind.CONFIG_CHANGED: 10.0,
    },
    lasting_seconds=(0.1, 4.0),
    expiries_at_start=0.7,
)
"""Sessions end at every step of a broker's life, out to break what waits for a former session or watches under one
(0013): nothing may be lost, and everybody knows every dynamic config in the end.
"""
OFFICE: Final = Plan(
    "office",
    {FaultKind.CONTROLLER_DELETED: 14.0, FaultKind.CRASH: 12.0, FaultKind.EXPIRY: 3.0, FaultKind.CLOCK_STEP: 4.0},
    down_at_most=2,
    lasting_seconds=(0.05, 2.0),
    properties=_LOGINS,
)
"""`/controller` is deleted while brokers fall and come back at once, out to break what is made of brokers that
restarted while nobody was the controller, and of who takes the office for his own (0012). Brokers log in, and again
while they work (0029).
"""
TOGETHER: Final = Plan(
    "together",
    {FaultKind.CRASH_ALL: 4.0, FaultKind.CRASH: 4.0, FaultKind.CUT: 2.0, FaultKind.EXPIRY: 2.0},
    down_at_most=3,
    lasting_seconds=(0.1, 6.0),
    load=_UNCLEAN_LOAD,
)
"""All brokers fall at once, some having fallen before, where unclean elections are allowed: out to break what is made
of replicas that go offline together (0012). A member of the ISR that is registered keeps the leadership from others.
"""

UNCLEAN: Final = Plan(
    "unclean",
    {**_MISCHIEF, FaultKind.POWER: 3.0, FaultKind.OUTAGE: 0.7, FaultKind.CRASH_ALL: 1.0, FaultKind.EXPIRY: 2.0},
    down_at_most=2,
    load=_UNCLEAN_LOAD,
)
"""Everything that `POWER` has, where unclean elections are allowed: lost may be only what no registered member of the
ISR had, or what a loss of power takes.
"""
DIRECTORIES: Final = Plan(
    "directories",
    {
        FaultKind.DIRECTORY_ERROR: 3.0,
        FaultKind.DIRECTORY_FULL: 3.0,
        FaultKind.DIRECTORY_READ_ONLY: 3.0,
        FaultKind.DIRECTORY_SLOW: 3.0,
        FaultKind.CRASH: 3.0,
        FaultKind.RESET: 3.0,
    },
    lasting_seconds=(1.0, 9.0),
)
"""One of a broker's log directories fails, until it is mended and the broker restarted: what it led has to be led by
others at once, and nothing may be lost.
"""
HANGING: Final = Plan(
    "hanging",
    {
        FaultKind.DIRECTORY_HANGS: 12.0,
        FaultKind.CRASH: 3.0,
        FaultKind.CUT: 3.0,
        FaultKind.RESET: 3.0,
    },
    lasting_seconds=(0.5, 6.0),
    faults_seconds=30.0,
    properties={"barnabas.log.dir.patience.ms": "400", "barnabas.log.dir.writes": "offload"},
)
"""A log directory of a broker hangs, is held, and comes back (0025), while leaders fall: what was refused is in no log,
nothing may be lost, and a directory that answers takes records again.
"""
CONFIGS: Final = Plan(
    "configs",
    {FaultKind.CONFIG_CHANGED: 30.0, FaultKind.ROLLING_RESTART: 1.5, FaultKind.CRASH: 3.0, FaultKind.RESET: 3.0},
    lasting_seconds=(0.1, 5.0),
)
"""Dynamic configs change while brokers are restarted, in order and not: everybody goes by all of them in the end."""
RETENTION: Final = Plan(
    "retention",
    {
        FaultKind.RECORDS_DELETED: 10.0,
        FaultKind.CLOCK_STEP: 4.0,
        FaultKind.CHECKPOINT_SPOILED: 3.0,
        FaultKind.CRASH: 3.0,
        FaultKind.PAUSE: 2.0,
        FaultKind.PARTITION: 1.0,
        FaultKind.SLOW_DISK: 1.0,
    },
    load=Load(topic_configs={"segment.bytes": "4096", "retention.bytes": "12288"}),
    properties={
        "log.retention.check.interval.ms": "3000",
        "log.initial.task.delay.ms": "500",
        "log.flush.start.offset.checkpoint.interval.ms": "5000",
        "log.flush.offset.checkpoint.interval.ms": "5000",
    },
)
"""Logs lose their beginnings, by retention and by DeleteRecords, while clocks are set and checkpoints are full of
garbage (0010): nothing is deleted that no config and no user wants gone.
"""
SPOILED: Final = Plan(
    "spoiled",
    {
        FaultKind.ZNODE_SPOILED: 12.0,
        FaultKind.CONTROLLER_DELETED: 4.0,
        FaultKind.EXPIRY: 4.0,
        FaultKind.CRASH: 3.0,
        FaultKind.RESET: 2.0,
    },
    lasting={FaultKind.ZNODE_SPOILED: (1.0, 12.0)},
)
"""Somebody writes garbage into znodes and puts them right later, while controllers change, out to break what is told
with a FULL UpdateMetadata (0012): nothing is forgotten because it could not be read.
"""
FORMER: Final = Plan(
    "former",
    {
        FaultKind.STATE_SET_BACK: 10.0,
        FaultKind.CONTROLLER_DELETED: 3.0,
        FaultKind.EXPIRY: 4.0,
        FaultKind.CRASH: 4.0,
        FaultKind.PARTITION: 2.0,
        FaultKind.RESET: 2.0,
    },
    lasting={FaultKind.STATE_SET_BACK: (0.5, 8.0)},
)
"""Somebody spoils the states of partitions and mends them with copies of a former leader epoch, while ISRs and
controllers change, out to have somebody lead who has lagged since (0012): what the controllers know stays in force.
While a broker has not heard of the state in force, which it could not put back as a controller, the mend is a true one.
"""
DELETED: Final = Plan(
    "deleted",
    {
        FaultKind.STATE_DELETED: 10.0,
        FaultKind.CONTROLLER_DELETED: 4.0,
        FaultKind.EXPIRY: 4.0,
        FaultKind.PAUSE: 2.0,
        FaultKind.PARTITION: 2.0,
        FaultKind.RESET: 2.0,
    },
)
"""Somebody deletes the states of partitions while controllers, leaders and ISRs change, out to have a partition begin
anew under somebody who has lagged (0012). No broker is killed: one that has started anew has heard of no state, and as
a controller takes a partition without one for new.
"""
GROUPS: Final = Plan(
    "groups",
    {
        FaultKind.INTERNAL_TOPIC_DELETED: 2.0,
        FaultKind.CRASH: 4.0,
        FaultKind.PAUSE: 3.0,
        FaultKind.RESET: 4.0,
        FaultKind.CUT: 3.0,
        FaultKind.EXPIRY: 2.0,
    },
    lasting_seconds=(0.2, 6.0),
    load=Load(consumers=4, consumer_life_seconds=5, records_pause_ms=300),
)
"""Members come and go all the time, and the topic of their offsets is deleted under them, out to break what
coordinators do with joins and syncs that are parked (0015).
"""
LIVES: Final = Plan(
    "lives",
    {
        FaultKind.CRASH: 14.0,
        FaultKind.POWER: 8.0,
        FaultKind.CUT: 2.0,
        FaultKind.ROLLING_RESTART: 1.0,
    },
    keeps_one_in_sync=True,
    lasting_seconds=(0.05, 2.5),
    late_copies=0.5,
    load=Load(topic_pause_seconds=1.5),
)
"""Brokers come back so soon that their former life is not over, while topics are made and deleted, out to break what is
made of answers and ISRs of a former life (0012, KIP-903).
"""
WATERMARKS: Final = Plan(
    "watermarks",
    {
        FaultKind.CUT: 8.0,
        FaultKind.PAUSE: 6.0,
        FaultKind.CRASH: 5.0,
        FaultKind.SLOW_DISK: 4.0,
        FaultKind.DIRECTORY_SLOW: 4.0,
        FaultKind.CONTROLLER_DELETED: 4.0,
    },
    late_copies=0.3,
)
"""Followers fall behind, are cut off and come back while nobody may be the controller, out to break what moves high
watermarks where Kafka waits, and what keeps them in their checkpoint (0014, 0016).
"""

MOVES: Final = Plan(
    "moves",
    {
        FaultKind.REASSIGNED: 20.0,
        FaultKind.CRASH: 4.0,
        FaultKind.PAUSE: 2.0,
        FaultKind.CONTROLLER_DELETED: 5.0,
        FaultKind.EXPIRY: 3.0,
        FaultKind.CUT: 2.0,
        FaultKind.RESET: 3.0,
    },
    brokers=6,
    lasting_seconds=(0.1, 5.0),
    late_copies=0.2,
)
"""Partitions are moved to other brokers by the API and by the znode, to some of the same and to none of them, anew
before that has ended, and back, while controllers and brokers fall: out to have a replica deleted that alone has what
is committed (0012).
"""

_BALANCED: Final = {"auto.leader.rebalance.enable": "true", "leader.imbalance.check.interval.seconds": "5"}
ELECTIONS: Final = Plan(
    "elections",
    {
        FaultKind.LEADERS_ELECTED: 25.0,
        FaultKind.CRASH: 8.0,
        FaultKind.PAUSE: 3.0,
        FaultKind.CONTROLLER_DELETED: 4.0,
        FaultKind.EXPIRY: 2.0,
        FaultKind.CUT: 3.0,
    },
    lasting_seconds=(0.1, 5.0),
    late_copies=0.2,
    properties=_BALANCED,
)
"""Preferred leaders are elected, on demand and by the controller itself every 5 s, while brokers and controllers fall:
leadership goes back and forth between replicas of which one may have lagged, and nothing may be lost (0012).
"""
DEMAND: Final = Plan(
    "demand",
    {
        FaultKind.LEADERS_ELECTED: 25.0,
        FaultKind.CRASH_ALL: 3.0,
        FaultKind.CRASH: 6.0,
        FaultKind.CONTROLLER_DELETED: 2.0,
        FaultKind.EXPIRY: 2.0,
        FaultKind.CUT: 2.0,
        FaultKind.ROLLING_RESTART: 1.0,
    },
    down_at_most=3,
    lasting_seconds=(0.1, 6.0),
    load=_UNCLEAN_LOAD,
    properties=_BALANCED,
)
"""Leaders are elected uncleanly on demand, too, which waits for nobody who may come: out to have a replica overtake a
registered member of the ISR, of brokers that shut down above all (0012).
"""

LOG_MOVES: Final = Plan(
    "log-moves",
    {
        FaultKind.LOG_MOVED: 40.0,
        FaultKind.REASSIGNED: 4.0,
        FaultKind.RECORDS_DELETED: 3.0,
        FaultKind.DIRECTORY_ERROR: 2.5,
        FaultKind.DIRECTORY_READ_ONLY: 2.5,
        FaultKind.DIRECTORY_SLOW: 3.0,
        FaultKind.CRASH: 4.0,
        FaultKind.POWER: 3.0,
        FaultKind.PAUSE: 2.0,
        FaultKind.CUT: 2.0,
    },
    keeps_one_in_sync=True,
    lasting_seconds=(0.1, 5.0),
    properties={"replica.fetch.max.bytes": "2048", "file.delete.delay.ms": "1000"},
)
"""Replicas go from one log directory to another, anew before that has ended, and back, as fast as disks allow or so
slowly that leaders change meanwhile; brokers fall in the moment after each step, and disks fail: out to lose what was
appended during a move, or to have two logs of one replica (0023).
"""

AT_ONCE: Final = Plan(
    "at-once",
    {
        FaultKind.CRASH: 14.0,
        FaultKind.MANY_ASKED_FOR: 30.0,
        FaultKind.CONTROLLER_DELETED: 4.0,
        FaultKind.RESET: 4.0,
        FaultKind.ROLLING_RESTART: 1.0,
    },
    lasting={FaultKind.CRASH: (0.0, 0.1)},
)
"""Brokers that die are started again at once, as `barnabas up` does, while their sessions live; and requests that are
answered in steps, between which leaders move: out to break what such an answer makes of what it has looked at before.
"""

FLUSHED: Final = Plan(
    "flushed",
    {
        FaultKind.POWER: 10.0,
        FaultKind.OUTAGE: 1.0,
        FaultKind.SLOW_DISK: 25.0,
        FaultKind.CRASH: 3.0,
        FaultKind.RESET: 1.0,
    },
    down_at_most=2,
    lasting={FaultKind.POWER: (0.2, 2.0), FaultKind.SLOW_DISK: (3.0, 12.0)},
    load=Load(flush_messages=(1, 3), records_pause_ms=600),
)
"""Power fails while records are appended before, during and behind the syncs that `flush.messages` asks for: none that
counts as flushed is lost by who has acknowledged it (0010).
"""
RENEWED: Final = Plan(
    "renewed",
    {
        FaultKind.TOPIC_MADE_ANEW: 8.0,
        FaultKind.CRASH: 2.0,
        FaultKind.RESET: 1.5,
        FaultKind.CUT: 1.0,
    },
    lasting_seconds=(0.1, 3.0),
    load=Load(has_renewed_topic=True, records_pause_ms=1_500),
)
"""A topic is deleted and made anew under its name while followers fetch it and clients write and read, out to break
what goes by the name and the leader epoch alone (0014).
"""
DOUBT: Final = Plan(
    "doubt",
    {
        FaultKind.CUT: 25.0,
        FaultKind.PAUSE: 6.0,
        FaultKind.CRASH: 10.0,
    },
    down_at_most=2,
    lasting={FaultKind.CUT: (1.0, 5.0), FaultKind.PAUSE: (1.0, 5.0), FaultKind.CRASH: (0.1, 1.0)},
    load=Load(consumers=4, commit_pause_ms=200, records_pause_ms=150),
    properties={"offsets.commit.timeout.ms": "300"},
)
"""Commits of groups are not replicated in time while leaders fall, out to break what OffsetFetch shows (0015)."""

NEAR: Final = Plan(
    "near",
    {
        FaultKind.CUT: 8.0,
        FaultKind.PAUSE: 6.0,
        FaultKind.CRASH: 6.0,
        FaultKind.CONTROLLER_DELETED: 3.0,
        FaultKind.RESET: 3.0,
    },
    late_copies=0.2,
    load=Load(racks=("here", "there", "yonder"), consumers=4, records_pause_ms=100),
    properties={"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"},
)
"""Consumers read from the replica in their rack, while leaders change and followers fall behind, are cut off and cut
their logs off, out to give them what is not committed (0014, KIP-392).
"""

THROTTLES: Final = Plan(
    "throttles",
    {
        FaultKind.THROTTLED: 40.0,
        FaultKind.REASSIGNED: 40.0,
        FaultKind.LEADERS_ELECTED: 8.0,
        FaultKind.CRASH: 6.0,
        FaultKind.CONTROLLER_DELETED: 2.0,
        FaultKind.EXPIRY: 1.0,
        FaultKind.RESET: 2.0,
    },
    brokers=4,
    lasting_seconds=(0.1, 5.0),
    load=Load(
        partitions=8,
        records_pause_ms=150,
        topic_configs={f"{side}.replication.throttled.replicas": "*" for side in ("leader", "follower")},
    ),
    properties={
        "replica.fetch.max.bytes": "200",
        "replica.fetch.response.max.bytes": "200",
        "replication.quota.window.num": "3",
    },
)
"""Replication is throttled, at rates that are hardly enough and for lists that change, and a response of a leader has
room for one replica's records; partitions are moved and leaders fall meanwhile: out to have a replica starve, or never
catch up (KIP-73).
"""

CONNECTIONS: Final = Plan(
    "connections",
    {
        FaultKind.RESET: 30.0,
        FaultKind.CUT: 6.0,
        FaultKind.CRASH: 6.0,
        FaultKind.CRASH_ALL: 1.0,
        FaultKind.PAUSE: 3.0,
        FaultKind.EXPIRY: 2.0,
    },
    down_at_most=3,
    lasting_seconds=(0.1, 5.0),
    load=Load(producer_life_seconds=6),
    properties={
        "listeners": "PLAINTEXT://:9092,INSIDE://:9093",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "max.connection.creation.rate": "2",
        "quota.window.num": "3",
        "max.connections": "10",
    },
)
"""Connections break all the time, where two may be made in a second, and there is hardly room for all of them: out to
keep brokers from each other, or to lose the count of those that are there (KIP-612, 0011).
"""

PLANS: Final[Mapping[str, Plan]] = {
    plan.name: plan
    for plan in (
        POWER,
        KEEPING,
        LATE,
        OLDER,
        EXPIRY,
        OFFICE,
        TOGETHER,
        UNCLEAN,
        DIRECTORIES,
        HANGING,
        CONFIGS,
        RETENTION,
        SPOILED,
        DELETED,
        FORMER,
        GROUPS,
        LIVES,
        WATERMARKS,
        MOVES,
        ELECTIONS,
        DEMAND,
        LOG_MOVES,
        AT_ONCE,
        FLUSHED,
        RENEWED,
        DOUBT,
        NEAR,
        THROTTLES,
        CONNECTIONS,
        TRANSACTIONS,
        COMPACTION,
        TIERED,
        TOKENS,
        SECURED,
        CREDENTIALS,
        OUTBOX,
        NEXT_GROUPS,
    )
}
