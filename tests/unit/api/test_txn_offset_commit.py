"""TxnOffsetCommit in every version: whom the transaction's coordinator is asked about, what comes into the group's
partition, and what the producer is told.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.api.txn_offset_commit import TxnOffsetCommitHandler
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.steps import StepRunner
from barnabas.log.producers.producer_state import ProducerState, ProducerStateError
from barnabas.serving.ports import Replicas
from barnabas.serving.transaction_verification import BatchVerification, TransactionVerifier
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import TxnOffsetCommitRequest, UpdateMetadataRequest
from barnabas.wire.record_batch import HEADER, BatchHeader
from barnabas.wire.topics import TopicPartition
from tests.unit.api.calling import Calls
from tests.unit.api.data_broker import Coordinator
from tests.unit.coordinators.group.group_world import GroupWorld, TestMember, stable_group

GROUP = "g"
VERSIONS = range(5)
PRODUCER = 5
PARTITIONS = 3
T0, T1 = ("t", 0), ("t", 1)
Codes = dict[tuple[str, int], ErrorCode]


class Broker:
    """A group coordinator and a leader of its partition behind the handler, a coordinator of transactions that is
    asked, and one client.
    """

    def __init__(self) -> None:
        self.world = GroupWorld()
        self.world.elect(GROUP)
        self.partition = self.world.partition_of(GROUP)
        self.producers = ProducerState()
        self.asked = Coordinator()
        self._write = self.world.log.write
        self.world.log.write = self._checked_write  # type: ignore[method-assign]
        host = self.world.host
        logger = logging.getLogger("kafka.server.AddPartitionsToTxnManager of tests")
        self.verifier = TransactionVerifier(
            *(self.asked, lambda: self.asked.is_asked, host.loop, StepRunner(host.loop)),
            *(MetricsRegistry(host.loop.time), logger),
        )
        metadata = MetadataCache(1, logging.getLogger("state.change.logger"))
        states = [
            UpdateMetadataRequest.UpdateMetadataPartitionState(partition_index=index, leader=1, isr=[1], replicas=[1])
            for index in range(PARTITIONS)
        ]
        topic = UpdateMetadataRequest.UpdateMetadataTopicState(topic_name="t", partition_states=states)
        metadata.apply(UpdateMetadataRequest(controller_id=1, controller_epoch=1, topic_states=[topic]))
        self.handler = TxnOffsetCommitHandler(
            self.world.coordinator,
            metadata,
            BatchVerification(cast("Replicas", self), self.verifier),
            self.world.clock,
            host.loop,
        )
        self.calls = Calls(host, self.handler)
        self.caller = self.calls.connect()

    def get_partition(self, topic_partition: TopicPartition) -> Any:
        """Port `Replicas`: the leader of the group's partition."""
        if topic_partition not in self.world.log.leaders:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return SimpleNamespace(leader_log=lambda: SimpleNamespace(producers=self.producers))

    def _checked_write(self, partition: TopicPartition, batch: bytearray) -> int:
        """As the log of a leader takes what a coordinator writes for a producer."""
        base_offset = self.world.log.end_offsets.get(partition, 0)
        header = BatchHeader(*HEADER.unpack_from(batch))
        if header.has_producer_id:
            try:
                update = self.producers.prepare_coordinator(header, base_offset, header.max_timestamp_ms)
            except ProducerStateError as error:
                raise KafkaError(error.error) from error
            self.producers.apply(update, base_offset + header.record_count)
        return self._write(partition, batch)

    def send(self, *partitions: tuple[str, int], version: int = 4, offset: int = 7, **named: Any) -> None:
        topics: dict[str, list[Any]] = {}
        for topic, number in partitions or (T0,):
            topics.setdefault(topic, []).append(
                TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                    partition_index=number, committed_offset=offset, committed_metadata=named.get("metadata", "")
                )
            )
        named.pop("metadata", None)
        request = TxnOffsetCommitRequest(
            **{
                "transactional_id": "orders",
                "group_id": GROUP,
                "producer_id": PRODUCER,
                "producer_epoch": 0,
                "topics": [
                    TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=name, partitions=of_topic)
                    for name, of_topic in topics.items()
                ],
                **named,
            }
        )
        self.caller.send(request, version)

    def answer(self) -> Codes | None:
        self.world.pass_ms(10)
        responses = self.caller.received()
        if not responses:
            return None
        (response,) = responses
        return {
            (topic.name, partition.partition_index): ErrorCode.for_code(partition.error_code)
            for topic in response.topics
            for partition in topic.partitions
        }

    def call(self, *partitions: tuple[str, int], **named: Any) -> Codes:
        self.send(*partitions, **named)
        answer = self.answer()
        assert answer is not None
        return answer

    def end(self, *, is_commit: bool = True) -> None:
        """The marker of the transaction is committed."""
        kind = ControlRecordType.COMMIT if is_commit else ControlRecordType.ABORT
        end_offset = self.world.log.end_offsets[self.partition]
        header = BatchHeader(end_offset, 0, 0, 2, 0, 0, 0, 1, 1, PRODUCER, 0, -1, 1)
        self.producers.apply(
            self.producers.prepare_marker(header, EndTransactionMarker(kind, 0), end_offset, 1), end_offset + 1
        )
        self.world.coordinator.complete_transaction(
            self.partition.partition, PRODUCER, lambda: None, is_commit=is_commit
        )
        self.world.pass_ms(10)

    def offset(self, number: int = 0) -> int | None:
        return self.world.offset(GROUP, TopicPartition("t", number))

    def refuse(self, code: ErrorCode) -> None:
        """What the coordinator says of the transaction from now on."""
        self.asked.codes[self.partition] = code

    @property
    def written(self) -> int:
        """Records in the group's partition that are part of a transaction, or not."""
        return self.world.log.end_offsets.get(self.partition, 0)

    def close(self) -> None:
        self.world.loop.run_until_complete(self.verifier.stop())
        self.world.loop.run_until_complete(self.calls.dispatcher.close())
        assert self.calls.lines.lines == []
        self.world.close()


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("is_commit", [True, False])
def test_offsets_are_seen_when_the_transaction_is_committed(broker: Broker, version: int, *, is_commit: bool) -> None:
    assert broker.call(T0, T1, version=version) == {T0: ErrorCode.NONE, T1: ErrorCode.NONE}
    assert [broker.offset(0), broker.offset(1)] == [None, None]
    broker.end(is_commit=is_commit)
    assert [broker.offset(0), broker.offset(1)] == ([7, 7] if is_commit else [None, None])


def test_the_coordinator_is_asked_once_in_each_transaction(broker: Broker) -> None:
    for offset in (7, 8):
        assert broker.call(offset=offset) == {T0: ErrorCode.NONE}
    ((asked,),) = (each.transactions for each in broker.asked.asked)
    assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == ("orders", PRODUCER, 0)
    assert asked.verify_only
    assert [(topic.name, topic.partitions) for topic in asked.topics] == [
        (broker.partition.topic, [broker.partition.partition])
    ]
    broker.end()
    assert broker.offset() == 8
    broker.call()
    assert len(broker.asked.asked) == 2, "another transaction"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("said", "before_two", "before_four", "now"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, *[ErrorCode.INVALID_TXN_STATE] * 2, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.PRODUCER_FENCED, *[ErrorCode.INVALID_PRODUCER_EPOCH] * 3),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, *[ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 3),
        (ErrorCode.CONCURRENT_TRANSACTIONS, *[ErrorCode.CONCURRENT_TRANSACTIONS] * 3),
        (ErrorCode.NOT_COORDINATOR, *[ErrorCode.NOT_COORDINATOR] * 3),
        (
            ErrorCode.NETWORK_EXCEPTION,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            *[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2,
        ),
    ],
)
def test_what_is_not_verified_is_not_written(
    broker: Broker, version: int, said: ErrorCode, before_two: ErrorCode, before_four: ErrorCode, now: ErrorCode
) -> None:
    broker.refuse(said)
    expected = before_two if version < 2 else before_four if version < 4 else now
    unknown = ("u", 0)
    assert broker.call(T0, unknown, version=version) == {
        T0: expected,
        unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert broker.written == 0
    broker.asked.codes.clear()
    assert broker.call(version=version) == {T0: ErrorCode.NONE}


def test_a_marker_that_comes_before_the_answer_ends_what_was_asked(broker: Broker) -> None:
    """What was true when the coordinator was asked is not any more: the offsets would stay open for ever."""
    broker.asked.answers.clear()
    broker.send()
    assert broker.answer() is None
    broker.world.log.end_offsets[broker.partition] = 0
    broker.end(is_commit=False)
    broker.asked.answers.set()
    assert broker.answer() == {T0: ErrorCode.INVALID_TXN_STATE}
    assert broker.written == 0


def test_nobody_is_asked_about_partitions_that_do_not_exist(broker: Broker) -> None:
    for name in ("u", "t"):
        unknown = (name, PARTITIONS)
        assert broker.call(unknown) == {unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert broker.asked.asked == []


def test_without_a_group_nobody_is_asked(broker: Broker) -> None:
    unknown = ("u", 0)
    broker.world.elect("")
    assert broker.call(T0, unknown, group_id="") == {
        T0: ErrorCode.INVALID_GROUP_ID,
        unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert broker.asked.asked == []


@pytest.mark.parametrize("version", VERSIONS)
def test_members_are_checked_since_they_are_named(broker: Broker, version: int) -> None:
    """A consumer of a former generation, whose partitions another one has, commits nothing (KIP-447)."""
    member = TestMember(broker.world, GROUP)
    stable_group(broker.world, member)
    for generation, member_id, code in (
        (member.generation, member.member_id, ErrorCode.NONE),
        (member.generation - 1, member.member_id, ErrorCode.ILLEGAL_GENERATION),
        (member.generation, "stranger", ErrorCode.UNKNOWN_MEMBER_ID),
        (-1, "", ErrorCode.NONE),
    ):
        named = {"generation_id": generation, "member_id": member_id} if version >= 3 else {}
        assert broker.call(version=version, **named) == {T0: code if version >= 3 else ErrorCode.NONE}


def test_metadata_that_are_too_long_refuse_one_partition(broker: Broker) -> None:
    long = "x" * (broker.world.settings.offset_metadata_max + 1)
    assert broker.call(T0, metadata=long) == {T0: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert broker.call(T0, metadata=long[1:]) == {T0: ErrorCode.NONE}


@pytest.mark.parametrize("version", VERSIONS)
def test_while_the_group_is_not_here_the_commit_says_why(broker: Broker, version: int) -> None:
    broker.world.resign(GROUP)
    assert broker.call(version=version) == {T0: ErrorCode.NOT_COORDINATOR}
    broker.world.log.reading.clear()
    broker.world.log.end_offsets[broker.partition] = 1
    broker.world.log.leaders[broker.partition] = 2
    broker.world.coordinator.on_elected(broker.partition.partition, 2)
    loading = ErrorCode.COORDINATOR_NOT_AVAILABLE if version < 2 else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert broker.call(version=version) == {T0: loading}
    assert broker.written == 1
    broker.world.log.end_offsets[broker.partition] = 0
    broker.world.log.reading.set()
    broker.world.pass_ms(10)
    assert broker.call(version=version) == {T0: ErrorCode.NONE}


def test_what_the_log_does_not_take_is_told(broker: Broker) -> None:
    broker.world.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    assert broker.call() == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    broker.world.log.refusal = None
    broker.world.log.holds_back = True
    broker.send()
    assert broker.answer() is None
    broker.world.log.release(ErrorCode.REQUEST_TIMED_OUT)
    assert broker.answer() == {T0: ErrorCode.REQUEST_TIMED_OUT}


def test_a_commit_that_is_refused_leaves_no_verification(broker: Broker) -> None:
    """Else the next one would go unasked."""
    assert broker.call(generation_id=3, member_id="stranger") == {T0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert broker.producers._verifications == {}
    broker.refuse(ErrorCode.TRANSACTION_ABORTABLE)
    assert broker.call() == {T0: ErrorCode.TRANSACTION_ABORTABLE}
    assert broker.producers._verifications == {}
