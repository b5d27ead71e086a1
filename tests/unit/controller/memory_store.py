"""A store of znodes in memory and a shell for the controller's core, for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from barnabas.controller.context import ControllerContext
from barnabas.controller.effects import (
    BrokerRequest,
    ChangeChannels,
    Effect,
    ReadChildren,
    ReadZnodes,
    SendRequests,
    StateChange,
    Steps,
    UncleanElections,
    WaitForFeatures,
    ZnodeOperations,
)
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.live_broker import LiveBroker
from barnabas.coordination.errors import (
    BadVersionError,
    KeeperError,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RuntimeInconsistencyError,
)
from barnabas.coordination.layout import topics
from barnabas.coordination.layout.brokers import BrokerRegistration
from barnabas.coordination.layout.controller import CONTROLLER_EPOCH_PATH, encode_controller_epoch
from barnabas.coordination.layout.topics import ReplicaAssignment, partition_state_path
from barnabas.coordination.operations import (
    Check,
    Create,
    Created,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Operation,
    SetData,
    WrittenData,
    ZnodeChildren,
    ZnodeData,
)
from barnabas.coordination.paths import parent_of
from barnabas.coordination.protocol import ANY_VERSION, Stat
from barnabas.wire.endpoints import BrokerEndpoint
from barnabas.wire.topics import TopicPartition

Result = TypeVar("Result")
EPOCH = 5
LISTENER = "PLAINTEXT"


def stat_of(version: int) -> Stat:
    return Stat(0, 0, 0, 0, version, 0, 0, 0, 0, 0, 0)


class Znodes(dict[str, tuple[bytes | None, int]]):
    """Data and version by path, which knows what is below a path without looking at all."""

    def __init__(self, znodes: Mapping[str, tuple[bytes | None, int]] = MappingProxyType({})) -> None:
        super().__init__()
        self._below: dict[str, Counter[str]] = {}
        """The names below a path, with how many znodes are there or below."""
        for path, znode in znodes.items():
            self[path] = znode

    def __setitem__(self, path: str, znode: tuple[bytes | None, int]) -> None:
        if path not in self:
            self._count(path, 1)
        super().__setitem__(path, znode)

    def __delitem__(self, path: str) -> None:
        super().__delitem__(path)
        self._count(path, -1)

    def pop(self, path: str, *default: Any) -> Any:
        if path not in self and default:
            return default[0]
        znode = self[path]
        del self[path]
        return znode

    def names_below(self, path: str) -> list[str]:
        """Also where a znode between is missing."""
        return list(self._below.get(path, ()))

    def _count(self, path: str, change: int) -> None:
        while path:
            path, _, name = path.rpartition("/")
            names = self._below.setdefault(path, Counter())
            names[name] += change
            if not names[name]:
                del names[name]


class MemoryStore:
    """Znodes by path. `before_batch` runs ahead of every batch; `faults` answers for the path of a read or a write."""

    def __init__(self) -> None:
        self.znodes = Znodes()
        self.before_batch: Callable[[], None] = lambda: None
        self.faults: dict[str, KeeperError] = {}
        self.batches = 0

    def leadership(self, partition: TopicPartition) -> LeaderAndIsr | None:
        path = partition_state_path(*partition)
        if path not in self.znodes:
            return None
        data, version = self.znodes[path]
        return LeaderAndIsr.from_znode(topics.PartitionState.decode(data, path), version)

    def put(self, partition: TopicPartition, known: LeaderAndIsr) -> None:
        """As another client writes: the version grows."""
        path = partition_state_path(*partition)
        version = self.znodes[path][1] + 1 if path in self.znodes else known.partition_epoch
        self.znodes[path] = (known.to_znode().encode(), version)

    def children(self, path: str) -> list[str]:
        """The names below a znode; those of one that is missing, too, if there are any."""
        names = self.znodes.names_below(path)
        if not names and path not in self.znodes:
            raise NoNodeError(path)
        return names

    def read_children(self, paths: tuple[str, ...]) -> list[list[str] | KeeperError]:
        self.before_batch()
        self.batches += 1
        outcomes: list[list[str] | KeeperError] = []
        for path in paths:
            try:
                outcomes.append(self.children(path))
            except KeeperError as error:
                outcomes.append(error)
        return outcomes

    def read_written(self, paths: tuple[str, ...]) -> list[Any]:
        """`WrittenData` or an error of each."""
        outcomes = self.submit(tuple(map(GetData, paths)))
        return [
            WrittenData(outcome.data, outcome.stat.version, outcome.stat.mzxid)
            if isinstance(outcome, ZnodeData)
            else outcome
            for outcome in outcomes
        ]

    def submit(self, operations: tuple[Operation[Any], ...]) -> list[Any]:
        self.before_batch()
        self.batches += 1
        return [self._outcome(operation) for operation in operations]

    def _outcome(self, operation: Operation[Any]) -> Any:
        try:
            if not isinstance(operation, Multi):
                return self._perform(operation)
            before = dict(self.znodes)
            answers = []
            for index, part in enumerate(operation.operations):
                try:
                    answers.append(self._perform(part))
                except KeeperError as error:
                    self.znodes = Znodes(before)
                    return MultiFailedError(index, error, (RuntimeInconsistencyError(),) * len(operation.operations))
            return answers
        except KeeperError as error:
            return error

    def _perform(self, operation: Operation[Any]) -> Any:
        path = operation.path
        if path in self.faults:
            raise self.faults[path]
        if isinstance(operation, Exists):
            return stat_of(self.znodes[path][1]) if path in self.znodes else None
        if isinstance(operation, GetChildren):
            return ZnodeChildren(self.children(path), stat_of(0))
        if isinstance(operation, Create):
            if path in self.znodes:
                raise NodeExistsError(path)
            parent = parent_of(path)
            if parent.startswith("/brokers/topics/") and parent.count("/") > 3 and parent not in self.znodes:
                raise NoNodeError(path)
            self.znodes[path] = (operation.data, 0)
            return Created(path, None)
        if path not in self.znodes:
            raise NoNodeError(path)
        data, version = self.znodes[path]
        if isinstance(operation, GetData):
            return ZnodeData(data, stat_of(version))
        if not isinstance(operation, Check | SetData | Delete):
            raise TypeError(f"no test needs {operation}")
        if operation.version not in {version, ANY_VERSION}:
            raise BadVersionError(path)
        if isinstance(operation, Delete):
            if self.children(path):
                raise NotEmptyError(path)
            del self.znodes[path]
            return None
        if isinstance(operation, SetData):
            self.znodes[path] = (operation.data, version + 1)
            return stat_of(version + 1)
        return None


class Shell:
    """Carries out what the core asks for, on a `MemoryStore`, and keeps what it sent and logged."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.requests: list[BrokerRequest] = []
        self.lines: list[StateChange] = []
        self.channels: list[ChangeChannels] = []
        self.features: list[int] = []
        self.unclean_elections = 0
        self._ahead: dict[type[Effect], tuple[tuple[Any, ...], list[Any]]] = {}

    def run(self, steps: Steps[Result]) -> Result:
        self._ahead.clear()
        results: tuple[Any, ...] | None = None
        while True:
            try:
                effects = steps.send(results)  # type: ignore[arg-type]
            except StopIteration as end:
                result: Result = end.value
                return result
            gathered: list[Any] = []
            for effect in effects:
                gathered.append(self.carry_out(effect))
            results = tuple(gathered)

    def carry_out(self, effect: Effect) -> Any:
        match effect:
            case ZnodeOperations():
                return self._read(ZnodeOperations, effect.operations, effect.ahead, self.store.submit)
            case ReadZnodes():
                return self._read(ReadZnodes, effect.paths, effect.ahead, self._get_many)
            case ReadChildren():
                return self.store.read_children(effect.paths)
            case SendRequests():
                self.requests += effect.requests
            case StateChange():
                self.lines.append(effect)
            case UncleanElections():
                self.unclean_elections += effect.count
            case ChangeChannels():
                self.channels.append(effect)
            case WaitForFeatures():
                self.features.append(effect.version)
        return None

    def _get_many(self, paths: tuple[str, ...]) -> list[Any]:
        return self.store.read_written(paths)

    def _read(
        self,
        kind: type[Effect],
        items: tuple[Any, ...],
        ahead: tuple[Any, ...],
        submit: Callable[[tuple[Any, ...]], list[Any]],
    ) -> list[Any]:
        if kind in self._ahead and not all(isinstance(item, Multi) for item in items):
            begun = self._ahead.pop(kind)
            outcomes = begun[1] if begun[0] == items else submit(items)
        else:
            outcomes = submit(items)
        if ahead:
            # As early as a shell can.
            self._ahead[kind] = (ahead, submit(ahead))
        return outcomes

    def sent(self, api: str) -> dict[int, dict[TopicPartition, Any]]:
        """The partition states of the requests of one API by broker; the last request counts."""
        return {
            request.broker_id: {
                TopicPartition(topic.topic_name, state.partition_index): state
                for topic in request.message.topic_states  # type: ignore[attr-defined]
                for state in topic.partition_states
            }
            for request in self.requests
            if request.api_key.name == api
        }


class Cluster:
    """A context, its store and a shell; brokers 1 to 4 are registered, of which `live` are alive."""

    def __init__(self, live: tuple[int, ...] = (1, 2, 3)) -> None:
        self.context = ControllerContext(EPOCH, 8)
        self.store = MemoryStore()
        self.store.znodes[CONTROLLER_EPOCH_PATH] = (encode_controller_epoch(EPOCH), 8)
        self.shell = Shell(self.store)
        for broker_id in live:
            self.start_broker(broker_id)

    def start_broker(self, broker_id: int, version: int = 5) -> None:
        """`version` is that of its registration: leaders below 5 write ISRs themselves."""
        endpoint = BrokerEndpoint(LISTENER, f"host-{broker_id}", 9092, "PLAINTEXT")
        registration = BrokerRegistration((endpoint,), 0, version=version)
        self.context.add_live_broker(LiveBroker(broker_id, 100 + broker_id, registration))

    def assign(self, partition: TopicPartition, *replicas: int) -> TopicPartition:
        self.context.add_topic(partition.topic)
        self.context.set_assignment(partition, ReplicaAssignment(replicas))
        return partition

    def lead(
        self, partition: TopicPartition, leader: int, *isr: int, epoch: int = 6, controller_epoch: int = 4
    ) -> LeaderAndIsr:
        """Puts leadership into the store, at version 3 when it is new, and what was written into the context."""
        self.store.put(partition, LeaderAndIsr(leader, epoch, isr, controller_epoch, partition_epoch=3))
        known = self.store.leadership(partition)
        if known is None:
            raise KeyError(partition)
        self.context.set_leadership(partition, known)
        return known
