"""Requests of every admin, group and data API, drawn by seed: valid and invalid, in any version, on shared names.

A request is a tree of fields (`tests/support/wire_values`). What only a broker can know (the id of a topic, the id of a
member, a generation) is a `Ref` in it, which each run replaces by what its own broker has said.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from barnabas.wire import catalogue
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.codec import encode_prefixed
from barnabas.wire.messages import ConsumerProtocolSubscription
from barnabas.wire.schema import INTEGER_RANGES, Field
from tests.interop.answers.batches import random_records
from tests.support.wire_values import Tree, fields_of

TOPICS: Final = tuple(f"t{number}" for number in range(5))
GROUPS: Final = ("g0", "g1", "g2")
BROKER_ID: Final = 1
EPOCH_MS: Final = 1_700_000_000_000
SESSION_MS: Final = 600_000
"""No session ends and no join is given up while a seed runs, so that nothing depends on how fast a broker is."""
ZERO_UUID: Final = bytes(16)
_UNKNOWN_UUID: Final = bytes(range(16))
_PREFIX: Final = "@"
"""Stands in names for what is different in each run."""
_BAD_NAMES: Final = ("", "bad name", f"{_PREFIX}x" * 125, "é")
_TOPIC_KEYS: Final[Mapping[str, Sequence[str | None]]] = {
    "retention.ms": ("5000", "-1", "-2", "soon", "", None, " 77 "),
    "cleanup.policy": ("delete", "compact", "compact,delete", "", "other", None),
    "segment.bytes": ("1048576", "13", "14", "1.5", "2147483648"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", "createtime"),
    "compression.type": ("producer", "gzip", "zstd", "uncompressed", "none"),
    "flush.ms": ("1000", "-1", None),
    "preallocate": ("true", "FALSE", "1"),
    "min.cleanable.dirty.ratio": ("0.5", "1.5", "x"),
    "leader.replication.throttled.replicas": ("*", "0:1", "x", "0:1,1:1"),
    "unclean.leader.election.enable": ("false",),
    "remote.storage.enable": ("false", "true"),
    "retention.bytes": ("100", "-1"),
    "nobody.knows.this": ("1", None),
    "": ("1", None),
}
_LIST_KEY: Final = "leader.replication.throttled.replicas"
_QUIET_KEYS: Final = ("retention.ms", _LIST_KEY, "flush.ms", "retention.bytes", "nobody.knows.this", "")
"""Those that may change while a topic is in use: what the others do begins some time after the answer."""
_BROKER_KEYS: Final = (
    "log.cleaner.threads",
    "log.roll.hours",
    "nobody.knows.this",
    "broker.id",
    "max.connections",
)


class Ref(NamedTuple):
    """What the broker knows: the id of a topic by name; a field of the answer to an earlier step by number."""

    kind: str
    of: str | int


@dataclass(frozen=True, slots=True)
class Step:
    """One request."""

    number: int
    key: ApiKey
    version: int
    tree: Tree
    has_unknown_tag: bool = False
    """At its end comes a tagged field that no version has."""

    def __str__(self) -> str:
        tag = " with an unknown tag" if self.has_unknown_tag else ""
        return f"{self.number}: {self.key.api_name} v{self.version} {self.tree}{tag}"

    def with_unknown_tag(self) -> Step:
        """The same, with an unknown tagged field, where it has no tagged fields of its own."""
        request = catalogue.request(self.key)
        has_tags = any(self.version in field.tagged_versions for field in request.fields)
        return replace(self, has_unknown_tag=self.version in request.flexible_versions and not has_tags)


@dataclass(slots=True)
class _Member:
    group: str
    step: int
    """Whose answer has the member's id."""


class Steps:
    """Draws the steps of one seed. The first ones make topics and groups, the last ones look at what there is."""

    def __init__(self, seed: int, versions: Mapping[ApiKey, tuple[int, int]]) -> None:
        """`versions` is the lowest and highest version of each API that is asked."""
        self._random = random.Random(f"answers {seed}")
        self._versions = versions
        self._members: list[_Member] = []
        self._joins: list[int] = []
        self._steps: list[Step] = []
        self._asked_version = 0

    def draw(self, count: int) -> list[Step]:
        """`count` steps between the first and the last."""
        self._prepare()
        makers = [(make, weight) for key, weight, make in self._makers() if key in self._versions]
        for _ in range(count):
            (make,) = self._random.choices([make for make, _ in makers], [weight for _, weight in makers])
            make()
        self._look()
        return self._steps

    def draw_boundaries(self, count: int) -> list[Step]:
        """`count` steps and more for each of the versions of each API at which something begins or ends: the first, the
        last, and those before and after flexible ones begin. Those of flexible versions bring a tagged field that
        nobody knows, where they have room for it.
        """
        self._prepare()
        every = dict(self._versions)
        for _ in range(count):
            makers = self._makers()
            self._random.shuffle(makers)
            for key, _, make in makers:
                for version in _boundaries(key, *every[key]):
                    self._versions = {**every, key: (version, version)}
                    make()
        self._versions = every
        self._look()
        return [step.with_unknown_tag() for step in self._steps]

    def _makers(self) -> list[tuple[ApiKey, int, Callable[[], object]]]:
        special: dict[ApiKey, tuple[int, Callable[[], object]]] = {
            ApiKey.JOIN_GROUP: (10, self._join_group),
            ApiKey.SYNC_GROUP: (10, self._sync_group),
            ApiKey.CREATE_TOPICS: (8, self._create_topics),
            ApiKey.DELETE_TOPICS: (3, self._delete_topics),
            ApiKey.DESCRIBE_CONFIGS: (5, lambda: self._configs(ApiKey.DESCRIBE_CONFIGS)),
            ApiKey.ALTER_CONFIGS: (5, lambda: self._configs(ApiKey.ALTER_CONFIGS)),
            ApiKey.INCREMENTAL_ALTER_CONFIGS: (6, lambda: self._configs(ApiKey.INCREMENTAL_ALTER_CONFIGS)),
        }
        weights = {ApiKey.PRODUCE: 9, ApiKey.FETCH: 9, ApiKey.OFFSET_COMMIT: 7, ApiKey.OFFSET_FETCH: 7}
        made: list[tuple[ApiKey, int, Callable[[], object]]] = []
        for key in sorted(self._versions):
            if key in special:
                made.append((key, *special[key]))
            else:
                made.append((key, weights.get(key, 4), lambda key=key: self._any(key)))  # type: ignore[misc]
        return made

    # Before and after.

    def _prepare(self) -> None:
        topics = [
            {
                "name": f"{_PREFIX}{name}",
                "num_partitions": number % 3 + 1,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            }
            for number, name in enumerate(TOPICS[:4])
        ]
        self._add(ApiKey.CREATE_TOPICS, 5, {"topics": topics, "timeout_ms": 20_000, "validate_only": False})
        for name in TOPICS[:4]:
            partition = {"index": 0, "records": random_records(self._random, is_plain=True)}
            topic = {"name": f"{_PREFIX}{name}", "partition_data": [partition]}
            self._add(
                ApiKey.PRODUCE, 8, {"transactional_id": None, "acks": -1, "timeout_ms": 1_000, "topic_data": [topic]}
            )

    def _look(self) -> None:
        names = [f"{_PREFIX}{name}" for name in TOPICS]
        self._add(
            ApiKey.METADATA,
            8,
            {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False},
        )
        resources = [{"resource_type": 2, "resource_name": name, "configuration_keys": None} for name in names]
        self._add(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": resources, "include_synonyms": True})
        for timestamp in (-1, -2, -3):
            partitions = [{"partition_index": number, "timestamp": timestamp} for number in range(3)]
            topics: list[Tree] = [{"name": name, "partitions": partitions} for name in names]
            self._add(ApiKey.LIST_OFFSETS, 7, {"replica_id": -1, "topics": topics})
        for version, isolation_level in ((11, 0), (12, 1)):
            asked = [
                {"partition": number, "fetch_offset": 0, "partition_max_bytes": 1_000_000, "log_start_offset": -1}
                for number in range(3)
            ]
            topics = [{"topic": name, "partitions": asked} for name in names]
            tree = {"max_wait_ms": 0, "min_bytes": 0, "isolation_level": isolation_level, "topics": topics}
            self._add(ApiKey.FETCH, version, {**tree, "session_epoch": -1, "max_bytes": 10_000_000})
        every = [{"group_id": f"{_PREFIX}{group}", "topics": None} for group in GROUPS]
        self._add(ApiKey.OFFSET_FETCH, 8, {"groups": every})
        self._add(ApiKey.DESCRIBE_GROUPS, 5, {"groups": [f"{_PREFIX}{group}" for group in GROUPS]})
        self._add(ApiKey.LIST_GROUPS, 5, {})
        producers = [{"name": name, "partition_indexes": [0, 1, 2]} for name in names]
        self._add(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": producers})

    # Any API, field by field.

    def _any(self, key: ApiKey) -> None:
        version = self._version(key)
        self._add(key, version, self._message(key, version))

    def _message(self, key: ApiKey, version: int) -> Tree:
        message = catalogue.request(key)
        return self._struct(key, message.structs, message.fields, version)

    def _struct(self, key: ApiKey, structs: Mapping[str, Any], fields: Sequence[Field], version: int) -> Tree:
        return {field.name: self._field(key, structs, field, version) for field in fields_of(fields, version)}

    def _field(self, key: ApiKey, structs: Mapping[str, Any], field: Field, version: int) -> Any:
        if field.type.is_array:
            if version in field.nullable_versions and self._chance(0.15):
                return None
            count = self._random.choices((0, 1, 2, 3), (1, 10, 4, 2))[0]
            found = [self._single(key, structs, field, version) for _ in range(count)]
            # Apache Kafka does not answer what names a resource twice, nor what asks for offsets of no group.
            if found and field.name != "resources" and self._chance(0.08):
                found.append(found[0])  # the same twice
            if not found and (key, field.name) == (ApiKey.OFFSET_FETCH, "groups"):
                found = [self._single(key, structs, field, version)]
            return found
        if version in field.tagged_versions and not self._chance(0.1):
            return None if field.absent_is_none else field.default
        return self._single(key, structs, field, version)

    def _single(self, key: ApiKey, structs: Mapping[str, Any], field: Field, version: int) -> Any:
        if field.type.is_struct:
            return self._struct(key, structs, structs[field.type.name].fields, version)
        pool = _FIELDS.get(f"{key.api_name}.{field.name}") or _FIELDS.get(field.name)
        if pool is not None:
            value = pool(self)
            if value is None and version not in field.nullable_versions:
                value = ""
            return value
        name = field.type.name
        if name in INTEGER_RANGES:
            low, high = INTEGER_RANGES[name]
            return self._random.choice((0, 0, 1, 1, 2, -1, low, high))
        if name == "bool":
            return self._chance(0.5)
        raise AssertionError(f"nobody says what {key.api_name}.{field.name} may be")

    # What fields may be.

    def topic(self) -> str | None:
        roll = self._random.random()
        if roll < 0.85:
            return f"{_PREFIX}{self._random.choice(TOPICS[:4])}"
        if roll < 0.92:
            return f"{_PREFIX}{self._random.choice(('t4', 'missing'))}"
        return None if roll < 0.94 else self._random.choice(_BAD_NAMES)

    def group(self) -> str:
        return "" if self._chance(0.06) else f"{_PREFIX}{self._random.choice((*GROUPS, *GROUPS, 'nobody'))}"

    def partition(self) -> int:
        return self._random.choices((0, 1, 2, 3, -1, 2**31 - 1), (12, 3, 2, 1, 1, 1))[0]

    def topic_id(self) -> Any:
        roll = self._random.random()
        if roll < 0.85:
            return Ref("topic id", f"{_PREFIX}{self._random.choice(TOPICS)}")
        return ZERO_UUID if roll < 0.93 else _UNKNOWN_UUID

    def member_id(self) -> Any:
        if not self._members or self._chance(0.15):
            return self._random.choice(("", "nobody"))
        return Ref("member_id", self._random.choice(self._members).step)

    def generation(self) -> Any:
        if not self._joins or self._chance(0.25):
            return self._random.choice((-1, -1, 0, 1, 2, -2, 2**31 - 1))
        return Ref("generation_id", self._random.choice(self._joins[-3:]))

    def offset(self) -> int:
        return self._random.choice((0, 0, 1, 2, 3, 5, -1, -2, 100, 2**63 - 1, -(2**63)))

    def epoch(self) -> int:
        return self._random.choices((-1, 0, 1, 5, -2, -5, 2**31 - 1), (8, 6, 1, 1, 1, 1, 1))[0]

    def metadata(self) -> str | None:
        # Version 0 stores one offset after another in ZooKeeper, and answers one after another for one partition.
        return self._random.choice((None, "", "metadata", "x" * 5000 if self._asked_version else ""))

    def records(self) -> bytes:
        return random_records(self._random, version=self._asked_version)

    def choose(self, *values: Any) -> Any:
        return self._random.choice(values)

    # Where fields belong together.

    def _join_group(self) -> None:
        key, version = ApiKey.JOIN_GROUP, self._version(ApiKey.JOIN_GROUP)
        group = self.group()
        known = [member for member in self._members if member.group == group]
        member_id: Any = ""
        if known and self._chance(0.6):
            member_id = Ref("member_id", self._random.choice(known).step)
        elif self._chance(0.05):
            member_id = "nobody"
        metadata = encode_prefixed(ConsumerProtocolSubscription(topics=["x"]), self._random.choice((0, 1)))
        protocols = [{"name": name, "metadata": metadata} for name in self._random.choice(_PROTOCOLS)]
        tree = {
            "group_id": group,
            "session_timeout_ms": self._random.choices((SESSION_MS, 1, -1, 2**31 - 1), (30, 1, 1, 1))[0],
            "rebalance_timeout_ms": SESSION_MS,
            "member_id": member_id,
            "group_instance_id": self._random.choices((None, "static", ""), (20, 2, 0))[0],
            "protocol_type": self._random.choices(("consumer", "connect", ""), (20, 1, 1))[0],
            "protocols": protocols,
            "reason": self._random.choice((None, "why")),
        }
        number = self._add(key, version, _of_version(key, version, tree))
        if not isinstance(member_id, Ref):
            self._members.append(_Member(group, number))
            if version >= 4 and tree["group_instance_id"] is None and member_id == "" and self._chance(0.9):
                again = {**tree, "member_id": Ref("member_id", number)}
                number = self._add(key, version, _of_version(key, version, again))
        self._joins.append(number)
        if self._chance(0.75):
            self._sync_group(number)

    def _sync_group(self, join: int | None = None) -> None:
        key, version = ApiKey.SYNC_GROUP, self._version(ApiKey.SYNC_GROUP)
        tree = self._message(key, version)
        if join is None and self._joins and self._chance(0.8):
            join = self._random.choice(self._joins[-3:])
        if join is not None:
            member = Ref("member_id", join)
            tree |= {"group_id": self._steps[join].tree["group_id"], "member_id": member}
            tree["generation_id"] = Ref("generation_id", join)
            tree["assignments"] = [{"member_id": member, "assignment": b"mine"}] if self._chance(0.9) else []
        self._add(key, version, tree)

    def _create_topics(self) -> None:
        key, version = ApiKey.CREATE_TOPICS, self._version(ApiKey.CREATE_TOPICS)
        is_checked_only = version >= 1 and self._chance(0.6)
        tree = self._message(key, version)
        tree |= {"timeout_ms": 20_000 if self._chance(0.9) else self._random.choice((0, -1))}
        if version >= 1:
            tree["validate_only"] = is_checked_only
        # Which of two that collide with each other is made is for Kafka's hash table to say.
        colliding = self._random.choice((f"{_PREFIX}t.5", f"{_PREFIX}t_5"))
        for topic in tree["topics"]:
            # No znode can be called "." or "..", which has Kafka fail in other requests than this.
            new = self._random.choices((f"{_PREFIX}t4", colliding, "..", "__cluster_metadata"), (6, 3, 1, 1))[0]
            topic["name"] = new if self._chance(0.7) else self.topic() or ""
            brokers = (BROKER_ID,) if not is_checked_only else (BROKER_ID, BROKER_ID, 7)
            count = self._random.choices((0, 1, 2), (9, 2, 2))[0]
            topic["assignments"] = [
                {
                    "partition_index": self._random.choices((number, number + 5), (9, 1))[0],
                    "broker_ids": [self._random.choice(brokers) for _ in range(self._random.choice((1, 1, 1, 2)))],
                }
                for number in range(count)
            ]
            topic["num_partitions"] = self._random.choices((-1, 1, 2, 0, -2), (6 if not count else 16, 4, 4, 1, 1))[0]
            topic["replication_factor"] = self._random.choices((-1, 1, 0, 2, -2), (10, 8, 1, 1, 1))[0]
            if count and self._chance(0.7):
                topic["num_partitions"] = topic["replication_factor"] = -1
            if version < 4 and not count:
                topic["num_partitions"], topic["replication_factor"] = 1, 1
            topic["configs"] = self._pairs(tuple(_TOPIC_KEYS), 0.3)
        self._add(key, version, tree)

    def _delete_topics(self) -> None:
        key, version = ApiKey.DELETE_TOPICS, self._version(ApiKey.DELETE_TOPICS)
        tree = self._message(key, version)
        tree["timeout_ms"] = 20_000 if self._chance(0.9) else 0
        if not tree["timeout_ms"] and version < 6:
            # Of a name that comes twice Kafka says once that it timed out, and once that it is deleted.
            tree["topic_names"] = list(dict.fromkeys(tree["topic_names"]))
        for topic in tree.get("topics") or ():
            if self._chance(0.5):
                topic["topic_id"] = ZERO_UUID
            elif self._chance(0.8):
                topic["name"] = None
        self._add(key, version, tree)

    def _configs(self, key: ApiKey) -> None:
        version = self._version(key)
        tree = self._message(key, version)
        seen: set[tuple[int, str]] = set()
        for resource in tree["resources"]:
            kind = self._random.choices((2, 4, 8, 16, 0, 127), (16, 4, 0, 1, 1, 1))[0]
            name = self.topic() or ""
            if kind == 4:
                name = self._random.choice((str(BROKER_ID), "", "7", "x", "-1"))
            while (kind, name) in seen:
                name += "x"
            seen.add((kind, name))
            resource |= {"resource_type": kind, "resource_name": name}
            if key is ApiKey.DESCRIBE_CONFIGS:
                keys = _BROKER_KEYS if kind == 4 else tuple(_TOPIC_KEYS)
                names = [self._random.choice(keys) for _ in range(self._random.choice((0, 1, 2, 3)))]
                resource["configuration_keys"] = None if kind == 2 and self._chance(0.4) else names
                continue
            resource["configs"] = self._pairs(_BROKER_KEYS if kind == 4 else _QUIET_KEYS, 0.9)
            if key is ApiKey.INCREMENTAL_ALTER_CONFIGS:
                for config in resource["configs"]:
                    config["config_operation"] = self._random.choices((0, 1, 2, 3, 4, -1), (8, 3, 3, 3, 0, 0))[0]
            # What brokers are told begins some time after the answer.
            if kind == 4:
                tree["validate_only"] = True
        self._add(key, version, tree)

    def _pairs(self, keys: Sequence[str], chance: float) -> list[Tree]:
        found: list[Tree] = []
        while self._chance(chance) and len(found) < 3:
            key = self._random.choice(keys)
            values = _TOPIC_KEYS.get(key, ("1", "2", "x", None, ""))
            found.append({"name": key, "value": self._random.choice(values)})
            chance /= 2
        return found

    # Inside.

    def _version(self, key: ApiKey) -> int:
        low, high = self._versions[key]
        self._asked_version = self._random.randint(low, high)
        return self._asked_version

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _add(self, key: ApiKey, version: int, tree: Tree) -> int:
        number = len(self._steps)
        self._steps.append(Step(number, key, version, tree))
        return number


def _boundaries(key: ApiKey, low: int, high: int) -> list[int]:
    flexible = catalogue.request(key).flexible_versions
    first = next((version for version in range(low, high + 1) if version in flexible), high)
    return sorted({low, max(low, first - 1), first, high})


def _of_version(key: ApiKey, version: int, tree: Tree) -> Tree:
    """Without the fields that the version lacks."""
    return {field.name: tree[field.name] for field in fields_of(catalogue.request(key).fields, version)}


_PROTOCOLS: Final = (
    *((("range",),) * 12),
    ("range", "roundrobin"),
    ("roundrobin", "range"),
    ("other",),
    (),
)
_TIMEOUTS: Final = (20_000, 20_000, 1_000)
_FIELDS: Final[Mapping[str, Callable[[Steps], Any]]] = {
    "name": Steps.topic,
    "topic": Steps.topic,
    "topic_names": Steps.topic,
    "topic_id": Steps.topic_id,
    "partition": Steps.partition,
    "partitions": Steps.partition,
    "partition_index": Steps.partition,
    "partition_indexes": Steps.partition,
    "index": Steps.partition,
    "group_id": Steps.group,
    "groups": Steps.group,
    "groups_names": Steps.group,
    "key": Steps.group,
    "coordinator_keys": Steps.group,
    "member_id": Steps.member_id,
    "generation_id": Steps.generation,
    "generation_id_or_member_epoch": Steps.generation,
    "group_instance_id": lambda steps: steps.choose(None, None, None, None, "static", ""),
    "member_epoch": lambda steps: steps.choose(-1, -1, -1, 0),
    "protocol_type": lambda steps: steps.choose("consumer", "consumer", "consumer", None, "connect"),
    "protocol_name": lambda steps: steps.choose("range", "range", "range", None, "other"),
    "assignment": lambda _: b"an assignment",
    "reason": lambda steps: steps.choose(None, "why"),
    "states_filter": lambda steps: steps.choose("Stable", "empty", "Dead", "nothing"),
    "types_filter": lambda steps: steps.choose("classic", "CONSUMER", "nothing"),
    "transactional_id": lambda _: None,
    "ElectLeaders.election_type": lambda steps: steps.choose(0, 0, 0, 1, 1, 2, -1),
    "InitProducerId.transactional_id": lambda steps: steps.choose(None, None, None, ""),
    "InitProducerId.producer_id": lambda steps: steps.choose(-1, -1, 0, 5, -2),
    "InitProducerId.producer_epoch": lambda steps: steps.choose(-1, -1, 0, 5, -2),
    "transaction_timeout_ms": lambda steps: steps.choose(60_000, 0, -1),
    "acks": lambda steps: steps.choose(-1, -1, -1, 1, 1, 2),
    "timeout_ms": lambda steps: steps.choose(*_TIMEOUTS),
    "records": Steps.records,
    "offset": Steps.offset,
    "fetch_offset": lambda steps: steps.choose(0, 0, 0, 1, 2, 3, 100, -1, -5),
    "committed_offset": Steps.offset,
    "committed_leader_epoch": Steps.epoch,
    "commit_timestamp": lambda _: -1,
    "retention_time_ms": lambda steps: steps.choose(-1, -1, 10**9),
    "committed_metadata": Steps.metadata,
    "current_leader_epoch": Steps.epoch,
    "leader_epoch": Steps.epoch,
    "last_fetched_epoch": lambda steps: steps.choose(-1, -1, -1, 0, 3),
    "log_start_offset": lambda _: -1,
    "timestamp": lambda steps: steps.choose(-1, -2, -3, -4, -5, -6, EPOCH_MS, EPOCH_MS + 2, 0, 2**63 - 1),
    "max_num_offsets": lambda steps: steps.choose(1, 1, 5, 0),
    "replica_id": lambda _: -1,
    "replica_epoch": lambda _: -1,
    "cluster_id": lambda steps: steps.choose(None, "another"),
    "rack_id": lambda steps: steps.choose("", "a"),
    "replica_directory_id": lambda _: ZERO_UUID,
    "max_wait_ms": lambda steps: steps.choose(0, 0, 10, -1),
    "min_bytes": lambda steps: steps.choose(0, 1, 1, -1),
    "max_bytes": lambda steps: steps.choose(2**31 - 1, 100_000, 1, 0, 100),
    "partition_max_bytes": lambda steps: steps.choose(1_000_000, 1_000_000, 1, 0, 100),
    "isolation_level": lambda steps: steps.choose(0, 0, 0, 1, 1, 2, -1),
    "session_id": lambda steps: steps.choose(0, 0, 0, 0, 77),
    "session_epoch": lambda steps: steps.choose(-1, -1, -1, -1, 1),
    "key_type": lambda steps: steps.choose(0, 0, 0, 2, 3, -1),
    "endpoint_type": lambda steps: steps.choose(1, 1, 1, 2, 0),
    "count": lambda steps: steps.choose(1, 2, 3, 4, 0, -1),
    "broker_ids": lambda steps: steps.choose(BROKER_ID, BROKER_ID, BROKER_ID, 7),
    "num_partitions": lambda _: 1,
    "value": lambda _: None,
    "resource_name": Steps.topic,
    "configuration_keys": lambda _: "",
    "include_documentation": lambda _: False,
    "include_cluster_authorized_operations": lambda steps: steps.choose(False, True),
    "allow_auto_topic_creation": lambda steps: steps.choose(False, False, False, True),
}
