"""Requests of producers with transactional ids, of coordinators and of operators, drawn by seed, right and wrong.

What a broker chooses (producer ids and epochs) is a `Who` in a request, which each run replaces by what its own broker
has said, and by its place among the ids of the run in what is compared.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from barnabas.wire import catalogue
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_builder import RecordBatchBuilder
from tests.support.waiting import wait_until
from tests.support.wire_calls import call
from tests.support.wire_messages import to_message, to_tree
from tests.support.wire_values import Tree, fields_of

IDS: Final = ("@a", "@b", "@c")
TOPICS: Final = ("@t", "@u")
PARTITIONS: Final = 2
GROUPS: Final = ("@g", "@h")
NOBODY: Final = 10**12
"""A producer id that no broker gives."""
TIMEOUT_MAX_MS: Final = 900_000
_SECONDS: Final = 30.0
_AGAIN: Final = frozenset(
    {
        *(ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR),
        *(ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
    }
)
"""What every client asks again after."""
_STATES: Final = ("Empty", "Ongoing", "CompleteCommit", "CompleteAbort", "PrepareAbort", "Dead", "nothing")
VERSIONS: Final[Mapping[ApiKey, tuple[int, int]]] = {
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 4),
    ApiKey.TXN_OFFSET_COMMIT: (0, 4),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 1),
    ApiKey.WRITE_TXN_MARKERS: (0, 1),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.PRODUCE: (3, 11),
}


@dataclass(frozen=True, slots=True)
class Who:
    """A producer of a transactional id: the latest one, or one before it; nobody where there was none."""

    transactional_id: str
    back: int = 0
    epoch_delta: int = 0
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class Part:
    """The `producer_id` or `producer_epoch` of somebody."""

    who: Who
    name: str


@dataclass(frozen=True, slots=True)
class Batch:
    """A record of somebody in a partition, with the sequence that comes next, or with one that is too late."""

    who: Who
    topic: str
    partition: int
    too_late: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    key: ApiKey
    version: int
    tree: Tree

    def __str__(self) -> str:
        return f"{self.key.api_name} v{self.version} {self.tree}"


class Walk:
    """The requests of one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"transactions {seed}")

    def draw(self, count: int) -> list[Asked]:
        """Begins each id in order, and goes on at random; at the end it looks at everything."""
        drawn = [self._init(transactional_id, is_right=True) for transactional_id in IDS]
        makers: dict[Any, int] = {
            self._init: 4,
            self._add_partitions: 7,
            self._add_offsets: 3,
            self._produce: 7,
            self._commit_offsets: 4,
            self._end: 6,
            self._describe: 2,
            self._list: 2,
            self._markers: 1,
        }
        while len(drawn) < count:
            (make,) = self._random.choices(list(makers), list(makers.values()))
            drawn.append(make())
        return [*drawn, *self._look()]

    def _look(self) -> list[Asked]:
        topics = [{"name": name, "partition_indexes": [*range(PARTITIONS), 9]} for name in (*TOPICS, "@missing")]
        fetched = [{"name": name, "partition_indexes": list(range(PARTITIONS))} for name in TOPICS]
        looked = [Asked(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": topics}), self._describe(IDS)]
        looked.append(Asked(ApiKey.LIST_TRANSACTIONS, 1, _tree(state_filters=[], producer_id_filters=[])))
        for isolation_level in (0, 1):
            asked = [
                {
                    "name": name,
                    "partitions": [{"partition_index": each, "timestamp": -1} for each in range(PARTITIONS)],
                }
                for name in TOPICS
            ]
            looked.append(
                Asked(ApiKey.LIST_OFFSETS, 5, {"replica_id": -1, "isolation_level": isolation_level, "topics": asked})
            )
        for group in GROUPS:
            for require_stable in (False, True):
                tree = {"group_id": group, "topics": fetched, "require_stable": require_stable}
                looked.append(Asked(ApiKey.OFFSET_FETCH, 7, tree))
        return looked

    def _init(self, transactional_id: str | None = None, *, is_right: bool = False) -> Asked:
        name = transactional_id or self._id()
        timeout_ms = TIMEOUT_MAX_MS
        who = Who(name, is_known=False)
        version = self._version(ApiKey.INIT_PRODUCER_ID)
        if not is_right:
            timeout_ms = self._random.choice((TIMEOUT_MAX_MS, TIMEOUT_MAX_MS, 60_000, 0, -1, TIMEOUT_MAX_MS + 1))
            if version >= 3 and self._chance(0.5):
                who = self._who(name)
        tree: Tree = {"transactional_id": name, "transaction_timeout_ms": timeout_ms, **_parts(who)}
        if not who.is_known:
            tree |= {"producer_id": -1, "producer_epoch": -1}
            if not is_right and self._chance(0.1):
                tree |= self._random.choice(({"producer_id": 5}, {"producer_epoch": 5}, {"producer_id": -7}))
        return self._asked(ApiKey.INIT_PRODUCER_ID, version, tree)

    def _add_partitions(self) -> Asked:
        version = self._version(ApiKey.ADD_PARTITIONS_TO_TXN)
        if version < 4:
            name = self._id()
            tree: Tree = {"v3_and_below_transactional_id": name, "v3_and_below_topics": self._topics()}
            tree |= {f"v3_and_below_{each}": part for each, part in _parts(self._who(name)).items()}
            return self._asked(ApiKey.ADD_PARTITIONS_TO_TXN, version, tree)
        names = [self._id() for _ in range(self._random.choice((1, 1, 2)))]  # Kafka leaves none without an answer
        transactions = [
            {
                "transactional_id": name,
                **_parts(self._who(name)),
                "verify_only": self._chance(0.6),
                "topics": self._topics(),
            }
            for name in dict.fromkeys(names)
        ]
        return self._asked(ApiKey.ADD_PARTITIONS_TO_TXN, version, {"transactions": transactions})

    def _add_offsets(self) -> Asked:
        name = self._id()
        tree = {"transactional_id": name, **_parts(self._who(name)), "group_id": self._group()}
        return self._asked(ApiKey.ADD_OFFSETS_TO_TXN, self._version(ApiKey.ADD_OFFSETS_TO_TXN), tree)

    def _produce(self) -> Asked:
        name = self._id()
        (topic,) = self._topics(is_one=True)
        partition = topic["partitions"][0]
        too_late = 3 if self._chance(0.15) else 0
        batch = Batch(self._who(name, epoch_delta_max=0), topic["name"], partition, too_late)
        data = [{"name": topic["name"], "partition_data": [{"index": partition, "records": batch}]}]
        transactional_id = name if self._chance(0.95) else None
        tree = {"transactional_id": transactional_id, "acks": -1, "timeout_ms": 5_000, "topic_data": data}
        return self._asked(ApiKey.PRODUCE, self._version(ApiKey.PRODUCE), tree)

    def _commit_offsets(self) -> Asked:
        name = self._id()
        who = self._who(name, epoch_delta_max=0)
        metadata = (None, "", "where", "x" * 5_000) if who == Who(name) else (None, "", "where")
        topics: list[Tree] = [
            {
                "name": topic["name"],
                "partitions": [
                    {
                        "partition_index": partition,
                        "committed_offset": self._random.choice((0, 5, 77)),
                        "committed_leader_epoch": -1,
                        "committed_metadata": self._random.choice(metadata),
                    }
                    for partition in topic["partitions"]
                ],
            }
            for topic in self._topics()
        ]
        version = self._version(ApiKey.TXN_OFFSET_COMMIT)
        tree = {"transactional_id": name, "group_id": self._group(), **_parts(who), "topics": topics}
        tree |= {"generation_id": -1, "member_id": "", "group_instance_id": None}
        if self._chance(0.1):
            tree |= self._random.choice(({"generation_id": 3}, {"member_id": "who"}, {"group_instance_id": "static"}))
        return self._asked(ApiKey.TXN_OFFSET_COMMIT, version, tree)

    def _end(self) -> Asked:
        name = self._id()
        tree = {"transactional_id": name, **_parts(self._who(name)), "committed": self._chance(0.6)}
        return self._asked(ApiKey.END_TXN, self._version(ApiKey.END_TXN), tree)

    def _describe(self, names: Sequence[str] = ()) -> Asked:
        asked = list(names) or [self._id() for _ in range(self._random.choice((0, 1, 2)))]
        return Asked(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": asked})

    def _list(self) -> Asked:
        states = [self._random.choice(_STATES) for _ in range(self._random.choice((0, 1, 2)))]
        producers = [_parts(self._who(self._id()))["producer_id"] for _ in range(self._random.choice((0, 0, 1, 2)))]
        tree = _tree(state_filters=states, producer_id_filters=producers)
        tree["duration_filter"] = self._random.choice((-1, -1, 10**9))
        return self._asked(ApiKey.LIST_TRANSACTIONS, self._version(ApiKey.LIST_TRANSACTIONS), tree)

    def _markers(self) -> Asked:
        topics = [{"name": each["name"], "partition_indexes": each["partitions"]} for each in self._topics()]
        marker = {
            # Of nobody: what it does to a real transaction depends on when the coordinator's own comes.
            **_parts(Who("@nobody", is_known=False)),
            "transaction_result": self._chance(0.5),
            "topics": topics,
            "coordinator_epoch": self._random.choice((0, 0, 1)),
        }
        markers = [marker] if self._chance(0.9) else []
        return self._asked(ApiKey.WRITE_TXN_MARKERS, self._version(ApiKey.WRITE_TXN_MARKERS), {"markers": markers})

    def _id(self) -> str:
        return self._random.choices((*IDS, "@unknown", ""), (10, 10, 10, 1, 1))[0]

    def _group(self) -> str:
        return self._random.choices((*GROUPS, ""), (10, 10, 1))[0]

    def _who(self, name: str, epoch_delta_max: int = 1) -> Who:
        """Mostly the right one. In an open transaction Kafka appends what has an epoch that nobody was given, and never
        ends the transaction after that.
        """
        if self._chance(0.8):
            return Who(name)
        match self._random.randrange(4):
            case 0:
                return Who(name, is_known=False)
            case 1:
                return Who(name, back=1)
            case 2:
                return Who(self._random.choice(IDS))
            case _:
                return Who(name, epoch_delta=self._random.choice((-1, epoch_delta_max)))

    def _topics(self, *, is_one: bool = False) -> list[Tree]:
        count = 1 if is_one else self._random.choice((1, 1, 2))
        names = self._random.sample(TOPICS, count)
        if self._chance(0.06):
            names[0] = "@missing"
        return [
            {
                "name": name,
                "partitions": [self._random.choices((0, 1, 9), (12, 12, 1))[0]]
                if is_one or self._chance(0.7)
                else [0, 1],
            }
            for name in names
        ]

    def _asked(self, key: ApiKey, version: int, tree: Tree) -> Asked:
        """Without the fields that the version lacks."""
        wanted = [each.name for each in fields_of(catalogue.request(key).fields, version)]
        return Asked(key, version, {name: tree[name] for name in wanted if name in tree})

    def _version(self, key: ApiKey) -> int:
        return self._random.randint(*VERSIONS[key])

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability


@dataclass(slots=True)
class TransactionRun:
    """One run of a walk at one broker."""

    port: int
    prefix: str
    _producers: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """What each transactional id was given, oldest first."""
    _symbols: dict[int, str] = field(default_factory=dict)
    _sequences: dict[tuple[int, int, str, int], int] = field(default_factory=lambda: defaultdict(int))

    def prepare(self) -> None:
        """Makes the topics, and waits for the coordinators."""
        topics: list[Tree] = [
            {"name": name, "num_partitions": PARTITIONS, "replication_factor": 1, "assignments": [], "configs": []}
            for name in TOPICS
        ]
        answer = self._call(Asked(ApiKey.CREATE_TOPICS, 4, {"topics": topics, "timeout_ms": 20_000}))
        assert {each.error_code for each in answer.topics} == {0}
        for kind, names in ((0, GROUPS), (1, IDS)):
            for name in names:
                asked = Asked(ApiKey.FIND_COORDINATOR, 2, {"key": name, "key_type": kind})
                wait_until(lambda: self._call(asked).error_code == 0, f"{name} has a coordinator", _SECONDS)  # noqa: B023
        # Answers about nobody have 0 for an id, which is what the first producer of a cluster is given.
        tree = {"transactional_id": None, "transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
        anybody = Asked(ApiKey.INIT_PRODUCER_ID, 4, tree)
        wait_until(lambda: self._call(anybody).producer_id > 0, "an id above 0", _SECONDS)

    def transcript(self, walk: Sequence[Asked]) -> list[Any]:
        """What is answered, comparable with what another broker answers."""
        return [self._one(asked) for asked in walk]

    def _one(self, asked: Asked) -> Any:
        deadline = time.monotonic() + _SECONDS
        while (codes := _codes(answer := to_tree(self._call(asked), asked.version))) & _AGAIN:
            assert time.monotonic() < deadline, f"{asked}: {answer}"
            time.sleep(0.02)
        if asked.key is ApiKey.INIT_PRODUCER_ID and codes == {0}:
            self._producers[asked.tree["transactional_id"]].append((answer["producer_id"], answer["producer_epoch"]))
            self._symbols.setdefault(answer["producer_id"], f"<producer {len(self._symbols)}>")
        if asked.key is ApiKey.PRODUCE and codes == {0}:
            batch = asked.tree["topic_data"][0]["partition_data"][0]["records"]
            self._sequences[self._place(batch)] += 1
        if asked.key in (ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN):
            self._settle()
        return self._shown(answer, asked.tree)

    def _settle(self) -> None:
        """Waits for the markers: the answer to EndTxn comes before them."""
        asked = Asked(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": list(IDS)})

        def is_settled() -> bool:
            states = [each.transaction_state for each in self._call(asked).transaction_states]
            return not any(state.startswith("Prepare") for state in states)

        wait_until(is_settled, "no transaction is about to end", _SECONDS)

    def _call(self, asked: Asked) -> Any:
        message = to_message(catalogue.request(asked.key), self._resolved(asked.tree))
        return call(self.port, asked.key, asked.version, message, _SECONDS)

    def _resolved(self, value: Any) -> Any:
        match value:
            case Part(who, name):
                return self._producer(who)[0 if name == "producer_id" else 1]
            case Batch(who, _, _, too_late):
                producer_id, epoch = self._producer(who)
                sequence = self._sequences[self._place(value)] + too_late
                builder = RecordBatchBuilder(
                    producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=True
                )
                builder.append(int(time.time() * 1_000), None, b"value")
                return bytes(builder.build())
            case str():
                return value.replace("@", self.prefix)
            case dict():
                return {name: self._resolved(each) for name, each in value.items()}
            case list():
                return [self._resolved(each) for each in value]
            case _:
                return value

    def _producer(self, who: Who) -> tuple[int, int]:
        given = self._producers[who.transactional_id]
        if not who.is_known or len(given) <= who.back:
            return NOBODY, 0
        producer_id, epoch = given[-1 - who.back]
        return producer_id, max(0, epoch + who.epoch_delta)

    def _place(self, batch: Batch) -> tuple[int, int, str, int]:
        return (*self._producer(batch.who), batch.topic, batch.partition)

    def _shown(self, value: Any, asked: Tree, name: str = "") -> Any:
        match value:
            case dict():
                ignored = _IGNORED
                if value.get("transaction_state") == "Empty":
                    # In memory Kafka keeps when the transaction before began; its record has nothing.
                    ignored |= {"transaction_start_time_ms"}
                return {key: self._shown(each, asked, key) for key, each in value.items() if key not in ignored}
            case list():
                mine = [each for each in value if name != "transaction_states" or self._is_mine(each, asked)]
                return sorted((self._shown(each, asked, name) for each in mine), key=repr)
            case int() if name == "producer_id":
                return self._symbols.get(value, value)
            case int() if name == "transaction_start_time_ms":
                return value > 0
            case str():
                return value.replace(self.prefix, "@")
            case _:
                return value

    def _is_mine(self, state: Tree, asked: Tree) -> bool:
        if asked.get("duration_filter", -1) >= 0 and state["transaction_state"] == "Empty":
            return False  # as below
        return not state["transactional_id"] or state["transactional_id"].startswith(self.prefix)


def _parts(who: Who) -> Tree:
    return {name: Part(who, name) for name in ("producer_id", "producer_epoch")}


def _tree(**fields: Any) -> Tree:
    return fields


def _codes(value: Any, name: str = "") -> set[int]:
    """All error codes in an answer."""
    match value:
        case dict():
            return {code for key, each in value.items() for code in _codes(each, key)}
        case list():
            return {code for each in value for code in _codes(each)}
        case _:
            return {value} if name.endswith("error_code") else set()


_IGNORED: Final = frozenset(
    {"throttle_time_ms", "error_message", "last_timestamp", "log_append_time_ms", "log_start_offset", "leader_epoch"}
)
