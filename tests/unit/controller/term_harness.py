"""A term of the controller on a store in memory, with brokers that answer as they should, for tests of its events."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from barnabas.controller.controller_election import ElectionResult
from barnabas.controller.effects import BrokerRequest, Effect, SendRequests, Steps, ZnodeOperations
from barnabas.controller.event_watches import EventWatches
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.settings import ControllerSettings
from barnabas.controller.term import ControllerTerm
from barnabas.controller.term_events import TermEvent
from barnabas.coordination.layout.access import PERSISTENT_PATHS
from barnabas.coordination.layout.admin import delete_topic_path
from barnabas.coordination.layout.brokers import BrokerRegistration, broker_id_path
from barnabas.coordination.layout.controller import CONTROLLER_EPOCH_PATH, encode_controller_epoch
from barnabas.coordination.layout.topics import ReplicaAssignment, TopicAssignment, topic_path
from barnabas.coordination.operations import Exists, GetChildren, GetData, Operation, SetData, Watcher, ZnodeData
from barnabas.coordination.protocol import EventType, KeeperState, Stat, WatcherEvent
from barnabas.kernel.ids import Uuid
from barnabas.wire.endpoints import BrokerEndpoint
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    AlterPartitionRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
)
from barnabas.wire.stopped_partitions import partition_errors, stopped_partitions
from barnabas.wire.topics import TopicPartition
from tests.unit.controller.memory_store import LISTENER, MemoryStore, Shell

Result = TypeVar("Result")
CONTROLLER = 1


class CrashError(Exception):
    """The controller's process is gone."""


class WatchedStore(MemoryStore):
    """Fires watches, and numbers the transactions that made and changed znodes."""

    def __init__(self) -> None:
        super().__init__()
        self.czxids: dict[str, int] = {}
        self.mzxids: dict[str, int] = {}
        self.performed: list[Operation[Any]] = []
        self._zxids = itertools.count(100)
        self._watchers: dict[tuple[str, bool], dict[Watcher, None]] = {}

    def put_data(self, path: str, data: bytes | None) -> None:
        """As another client writes: makes the znode, or replaces its data."""
        if path in self.znodes:
            self.znodes[path] = (data, self.znodes[path][1] + 1)
            self.mzxids[path] = next(self._zxids)
            self._fire(path, False, EventType.NODE_DATA_CHANGED)
        else:
            self.znodes[path] = (data, 0)
            self.czxids[path] = self.mzxids[path] = next(self._zxids)
            self._fire(path, False, EventType.NODE_CREATED)
            self._fire(path.rpartition("/")[0], True, EventType.NODE_CHILDREN_CHANGED)

    def remove(self, path: str) -> None:
        """As another client, or an expiry, deletes."""
        del self.znodes[path]
        self._fire(path, False, EventType.NODE_DELETED)
        self._fire(path.rpartition("/")[0], True, EventType.NODE_CHILDREN_CHANGED)

    def _perform(self, operation: Operation[Any]) -> Any:
        outcome = super()._perform(operation)
        path = operation.path
        if isinstance(operation, SetData):
            self.mzxids[path] = next(self._zxids)
        if isinstance(outcome, Stat):
            return outcome._replace(czxid=self.czxids.get(path, 0), mzxid=self.mzxids.get(path, 0))
        if isinstance(outcome, ZnodeData):
            stat = outcome.stat._replace(czxid=self.czxids.get(path, 0), mzxid=self.mzxids.get(path, 0))
            return outcome._replace(stat=stat)
        return outcome

    def submit(self, operations: tuple[Operation[Any], ...]) -> list[Any]:
        self.performed.extend(operations)
        before = dict(self.znodes)
        outcomes = super().submit(operations)
        for operation, outcome in zip(operations, outcomes, strict=True):
            if isinstance(outcome, Exception) or not isinstance(operation, Exists | GetData | GetChildren):
                continue
            if operation.watcher is not None:
                kind = isinstance(operation, GetChildren)
                self._watchers.setdefault((operation.path, kind), {})[operation.watcher] = None
        for path in [*before, *self.znodes]:
            if path in self.znodes and path not in before:
                self.mzxids[path] = next(self._zxids)
            if path in before and path not in self.znodes:
                self._fire(path, False, EventType.NODE_DELETED)
                self._fire(path.rpartition("/")[0], True, EventType.NODE_CHILDREN_CHANGED)
            elif path not in before:
                self._fire(path, False, EventType.NODE_CREATED)
                self._fire(path.rpartition("/")[0], True, EventType.NODE_CHILDREN_CHANGED)
            elif before[path] != self.znodes[path]:
                self._fire(path, False, EventType.NODE_DATA_CHANGED)
        return outcomes

    def _fire(self, path: str, is_children: bool, event_type: EventType) -> None:
        for watcher in self._watchers.pop((path, is_children), {}):
            watcher(WatcherEvent(event_type, KeeperState.SYNC_CONNECTED, path))


class CrashingShell(Shell):
    """Crashes instead of carrying out the effect of this number; a multi may have happened or not."""

    def __init__(
        self,
        store: MemoryStore,
        crash_at: int | None = None,
        deliver: Callable[[BrokerRequest], None] = lambda _request: None,
    ) -> None:
        """`deliver` is given every request as it is sent."""
        super().__init__(store)
        self.crash_at = crash_at
        self._deliver = deliver
        self.carried_out = 0

    def carry_out(self, effect: Effect) -> Any:
        self.carried_out += 1
        if self.carried_out == self.crash_at:
            if isinstance(effect, ZnodeOperations):
                # The first half has reached the server.
                self.store.submit(effect.operations[: len(effect.operations) // 2 + 1])
            raise CrashError
        if isinstance(effect, SendRequests):
            for request in effect.requests:
                self._deliver(request)
        return super().carry_out(effect)


class Terms:
    """A store, and one term after the other on it."""

    def __init__(self, *broker_ids: int, settings: ControllerSettings | None = None) -> None:
        self.store = WatchedStore()
        self.settings = settings or ControllerSettings(CONTROLLER, LISTENER)
        for path in (*PERSISTENT_PATHS, "/admin", "/brokers", "/config"):
            self.store.znodes[path] = (None, 0)
        self.store.znodes[CONTROLLER_EPOCH_PATH] = (encode_controller_epoch(0), 0)
        self.epoch = 0
        self._ids = itertools.count(1)
        self.events: list[TermEvent] = []
        self.told: dict[TopicPartition, LeaderAndIsr] = {}
        """What the broker of the next terms has heard of former ones."""
        self.shell = CrashingShell(self.store)
        self.watches = EventWatches(self.events.append)
        self.answers: Callable[[BrokerRequest, TopicPartition], ErrorCode] = lambda _request, _partition: ErrorCode.NONE
        self.replica_errors: Callable[[BrokerRequest, TopicPartition], ErrorCode] | None = None
        """What LeaderAndIsr is answered with; None where it is not answered."""
        self._answered = 0
        self.deliver: Callable[[BrokerRequest], None] = lambda _request: None
        for broker_id in broker_ids:
            self.start_broker(broker_id)

    # Znodes as others write them.

    def start_broker(self, broker_id: int, port: int = 9092) -> None:
        endpoint = BrokerEndpoint(LISTENER, f"host-{broker_id}", port, LISTENER)
        self.store.put_data(broker_id_path(broker_id), BrokerRegistration((endpoint,), 0).encode())

    def write_isrs_themselves(self, broker_id: int) -> None:
        """Has the broker be one of inter.broker.protocol.version 2.6, and says so to the term."""
        known = self.term.context.live_or_shutting_down_brokers[broker_id]
        registration = dataclasses.replace(known.registration, version=4, features={})
        self.term.context.add_live_broker(dataclasses.replace(known, registration=registration))

    def stop_broker(self, broker_id: int) -> None:
        self.store.remove(broker_id_path(broker_id))

    def create(self, topic: str, *replicas: tuple[int, ...], topic_id: bool = True) -> None:
        assigned = {number: ReplicaAssignment(each) for number, each in enumerate(replicas)}
        assignment = TopicAssignment(assigned, self.new_topic_id() if topic_id else None)
        self.store.put_data(topic_path(topic), assignment.encode())

    def delete(self, topic: str) -> None:
        self.store.put_data(delete_topic_path(topic), None)

    def new_topic_id(self) -> Uuid:
        return Uuid(next(self._ids).to_bytes(16, "big"))

    # Terms.

    def elect(self, crash_at: int | None = None) -> ControllerTerm:
        """A new term on a shell of its own, which has taken over. The former one, if any, is gone."""
        self.watches.end()
        self.epoch += 1
        self.events.clear()
        former_began = self.store.mzxids.get(CONTROLLER_EPOCH_PATH, 0)
        self.store.submit((SetData(CONTROLLER_EPOCH_PATH, encode_controller_epoch(self.epoch), self.epoch - 1),))
        self.shell = CrashingShell(self.store, crash_at, self.deliver)
        self._answered = 0
        self.watches = EventWatches(self.events.append)
        logger = logging.getLogger("test")
        self.term = ControllerTerm(
            ElectionResult(self.epoch, self.epoch, self.store.mzxids[CONTROLLER_EPOCH_PATH], former_began),
            self.settings,
            self.watches,
            self.new_topic_id,
            logger,
            logger,
            lambda topic, _topic_id: lambda number: self.told.get(TopicPartition(topic, number)),
        )
        self.run(self.term.take_over())
        return self.term

    def run(self, steps: Steps[Result]) -> Result:
        return self.shell.run(steps)

    def propose(self, partition: TopicPartition, *isr: int, state: LeaderAndIsr | None = None) -> ErrorCode:
        """The leader proposes an ISR, is answered, and what may go on then does. It knows `state`, by default what the
        znode has.
        """
        known = state or self.store.leadership(partition)
        if known is None:
            raise KeyError(partition)
        leader = self.term.context.live_or_shutting_down_brokers[known.leader]
        data = AlterPartitionRequest.PartitionData(
            partition_index=partition.partition,
            leader_epoch=known.leader_epoch,
            new_isr=list(isr),
            leader_recovery_state=known.leader_recovery_state,
            partition_epoch=known.partition_epoch,
        )
        request = AlterPartitionRequest(
            broker_id=leader.broker_id,
            broker_epoch=leader.epoch,
            topics=[AlterPartitionRequest.TopicData(topic_name=partition.topic, partitions=[data])],
        )
        response = self.run(self.term.alter_partition(request, 1))
        self.run(self.term.reassignments.go_on())
        return ErrorCode.for_code(response.topics[0].partitions[0].error_code)

    def reassign(self, partition: TopicPartition, *target: int) -> KafkaError | None:
        """As the API asks; without a target it cancels."""
        return self.run(self.term.reassignments.alter({partition: target or None}))[partition]

    def settle(self) -> None:
        """Processes events, and answers requests to replicas, until nothing is left."""
        while self.events or self._answered < len(self.shell.requests):
            while self.events:
                self.run(self.events.pop(0).steps(self.term))
            requests = self.shell.requests[self._answered :]
            self._answered = len(self.shell.requests)
            for request in requests:
                if isinstance(request.message, StopReplicaRequest):
                    response = self.stop_replica_response(request)
                    self.run(self.term.replicas_deleted(request.broker_id, request.message, response))
                elif isinstance(request.message, LeaderAndIsrRequest) and self.replica_errors is not None:
                    answer = _leader_and_isr_response(request, request.message, self.replica_errors)
                    epoch = request.message.broker_epoch
                    self.run(self.term.leader_and_isr_answered(request.broker_id, epoch, answer))

    def stop_replica_response(self, request: BrokerRequest) -> StopReplicaResponse:
        message = request.message
        if not isinstance(message, StopReplicaRequest):
            raise TypeError(f"{message} is no StopReplica")
        answers = {
            stopped.topic_partition: self.answers(request, stopped.topic_partition)
            for stopped in stopped_partitions(message)
        }
        return StopReplicaResponse(partition_errors=partition_errors(answers))

    # What has become of it.

    def state(self, topic: str, partition: int = 0) -> LeaderAndIsr | None:
        return self.store.leadership(TopicPartition(topic, partition))

    def assignment(self, topic: str, partition: int = 0) -> ReplicaAssignment:
        """As in ZooKeeper."""
        return TopicAssignment.decode(self.store.znodes[topic_path(topic)][0], topic).partitions[partition]

    def refusals(self) -> list[str]:
        return [line.message for line in self.shell.lines if "is not allowed in state" in line.message]

    def sent(self, api: str) -> list[BrokerRequest]:
        return [request for request in self.shell.requests if request.api_key.name == api]


def _leader_and_isr_response(
    request: BrokerRequest,
    message: LeaderAndIsrRequest,
    error_of: Callable[[BrokerRequest, TopicPartition], ErrorCode],
) -> LeaderAndIsrResponse:
    response = LeaderAndIsrResponse()
    for topic in message.topic_states:
        answered = LeaderAndIsrResponse.LeaderAndIsrTopicError(topic_id=topic.topic_id)
        for state in topic.partition_states:
            code = error_of(request, TopicPartition(topic.topic_name, state.partition_index))
            error = LeaderAndIsrResponse.LeaderAndIsrPartitionError(
                partition_index=state.partition_index, error_code=code
            )
            answered.partition_errors.append(error)
        response.topics.append(answered)
    return response
