"""What cannot be read harms itself only: nobody is told that it is gone, and it goes on once it is mended."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from barnabas.controller.broker_requests import FULL
from barnabas.controller.effects import ControllerMovedError
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.partition_states import PartitionState
from barnabas.controller.partition_znodes import read_leadership
from barnabas.controller.settings import ControllerSettings
from barnabas.coordination.errors import NoAuthError
from barnabas.coordination.layout.brokers import BrokerRegistration, broker_id_path
from barnabas.coordination.layout.cluster import FEATURE_PATH, PRODUCER_ID_BLOCK_PATH, FinalizedFeatures
from barnabas.coordination.layout.configs import ConfigEntityType, EntityConfig, config_path
from barnabas.coordination.layout.controller import CONTROLLER_EPOCH_PATH, encode_controller_epoch
from barnabas.coordination.layout.topics import partition_state_path, topic_path
from barnabas.coordination.operations import Multi, Operation
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import AlterPartitionRequest, LeaderAndIsrRequest, UpdateMetadataRequest
from barnabas.wire.topics import TopicPartition
from tests.unit.controller.memory_store import LISTENER
from tests.unit.controller.term_harness import CONTROLLER, Terms

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)
GARBAGE = b"{garbage"
ALL = {1, 2, 3}


def with_topics(settings: ControllerSettings | None = None) -> Terms:
    """Brokers 1, 2 and 3, the topics t and u on all of them, and a controller that has been there for a while."""
    terms = Terms(1, 2, 3, settings=settings)
    terms.elect()
    for topic in ("t", "u"):
        terms.create(topic, (1, 2, 3))
    terms.settle()
    terms.run(terms.term.allow_unclean_elections())
    return terms


def spoil(terms: Terms, path: str) -> bytes | None:
    """Returns what the znode had."""
    data = terms.store.znodes[path][0]
    terms.store.put_data(path, GARBAGE)
    return data


def known(terms: Terms, topic: str) -> LeaderAndIsr:
    found = terms.state(topic)
    assert found is not None
    return found


def full_requests(terms: Terms) -> dict[int, list[str]]:
    """The topics that full requests have named, by broker."""
    return {
        request.broker_id: [topic.topic_name for topic in request.message.topic_states]
        for request in terms.sent("UPDATE_METADATA")
        if isinstance(request.message, UpdateMetadataRequest) and request.message.type == FULL
    }


@pytest.mark.parametrize("path", [topic_path("t"), partition_state_path(*T0)])
def test_brokers_hear_what_is_gone_once_everything_can_be_read(path: str) -> None:
    terms = with_topics()
    before = spoil(terms, path)
    terms.watches.end()
    terms.elect()
    terms.settle()
    assert full_requests(terms) == {}
    assert not terms.term.context.is_complete
    terms.store.put_data(path, before)
    terms.settle()
    terms.run(terms.term.read_again())
    assert full_requests(terms).keys() == ALL
    assert all(sorted(topics) == ["t", "u"] for topics in full_requests(terms).values())
    # Who may have started anew before this state was mended is not to be seen: only the first that registered stays.
    mended = path != topic_path("t")
    assert (known(terms, "t").leader, set(known(terms, "t").isr)) == (1, {1} if mended else ALL)
    assert terms.term.context.partition_state(T0) is PartitionState.ONLINE
    assert not terms.term.must_read_again


def test_brokers_hear_what_is_gone_also_when_another_event_has_found_all_readable() -> None:
    terms = with_topics()
    before = spoil(terms, partition_state_path(*T0))
    terms.elect()
    terms.store.put_data(partition_state_path(*T0), before)
    terms.stop_broker(3)
    terms.settle()
    assert (known(terms, "t").leader, full_requests(terms)) == (1, {})
    assert terms.term.must_read_again
    terms.run(terms.term.read_again())
    assert full_requests(terms).keys() == {1, 2}
    assert not terms.term.must_read_again


def test_a_topic_whose_state_could_not_be_read_is_deleted_when_it_can() -> None:
    terms = with_topics()
    before = spoil(terms, partition_state_path(*T0))
    terms.delete("t")
    terms.settle()
    assert terms.term.must_read_again
    terms.store.put_data(partition_state_path(*T0), before)
    terms.run(terms.term.read_again())
    terms.settle()
    assert terms.state("t") is None
    assert not terms.term.must_read_again


def test_a_topic_that_is_deleted_while_it_cannot_be_read_is_told_to_be_gone() -> None:
    terms = with_topics()
    spoil(terms, topic_path("t"))
    terms.elect()
    for path in [path for path in terms.store.znodes if path.startswith(topic_path("t"))][::-1]:
        terms.store.remove(path)
    terms.settle()
    assert full_requests(terms) == {broker_id: ["u"] for broker_id in ALL}


def test_a_topic_with_the_id_of_another_is_not_told_to_be_gone() -> None:
    terms = with_topics()
    terms.store.put_data(topic_path("u"), terms.store.znodes[topic_path("t")][0])
    terms.elect()
    assert full_requests(terms) == {}


def test_a_leader_that_dies_while_the_state_cannot_be_read_is_replaced_when_it_can() -> None:
    terms = with_topics()
    before = spoil(terms, partition_state_path(*T0))
    terms.stop_broker(1)
    terms.settle()
    assert known(terms, "u").leader == 2
    assert terms.term.must_read_again
    terms.run(terms.term.read_again())
    terms.store.put_data(partition_state_path(*T0), before)
    terms.run(terms.term.read_again())
    assert (known(terms, "t").leader, set(known(terms, "t").isr)) == (2, {2, 3})
    assert not terms.term.must_read_again


def test_a_state_that_is_mended_with_that_of_a_former_leader_epoch_is_not_believed() -> None:
    """Its ISR may name who has lagged since, and brokers refuse its epochs."""
    terms = with_topics()
    former = terms.store.znodes[partition_state_path(*T0)][0]
    terms.stop_broker(1)
    terms.settle()
    terms.start_broker(1)
    terms.settle()
    before = known(terms, "t")
    assert (before.leader, set(before.isr)) == (2, {2, 3})
    spoil(terms, partition_state_path(*T0))
    terms.store.put_data(partition_state_path(*T0), former)
    terms.stop_broker(2)
    terms.settle()
    after = known(terms, "t")
    assert (after.leader, after.isr) == (3, (3,))
    assert after.leader_epoch > before.leader_epoch


def alter_isr(terms: Terms, isr: list[int]) -> int:
    """The leader of t-0 proposes an ISR; returns what is answered."""
    before = terms.term.context.leadership(T0)
    topic_id = terms.term.context.topic_id("t")
    assert before is not None
    assert topic_id is not None
    data = AlterPartitionRequest.PartitionData(
        partition_index=0, leader_epoch=before.leader_epoch, new_isr=isr, partition_epoch=before.partition_epoch
    )
    request = AlterPartitionRequest(
        broker_id=before.leader,
        broker_epoch=terms.term.context.live_or_shutting_down_brokers[before.leader].epoch,
        topics=[AlterPartitionRequest.TopicData(topic_id=topic_id, partitions=[data])],
    )
    response = terms.run(terms.term.alter_partition(request, 2))
    return response.topics[0].partitions[0].error_code


@pytest.mark.parametrize("noticed", ["by looking", "by an election", "by the leader"])
def test_a_state_that_is_mended_with_a_former_isr_of_the_same_leader_epoch_is_not_believed(noticed: str) -> None:
    terms = with_topics()
    path = partition_state_path(*T0)
    former = terms.store.znodes[path][0]
    assert alter_isr(terms, [1]) == ErrorCode.NONE
    before = known(terms, "t")
    assert before.isr == (1,)
    spoil(terms, path)
    if noticed == "by looking":
        terms.stop_broker(3)
        terms.settle()
        assert terms.term.must_read_again
    terms.store.put_data(path, former)
    if noticed == "by looking":
        terms.run(terms.term.read_again())
    elif noticed == "by the leader":
        assert alter_isr(terms, [1, 2]) == ErrorCode.INVALID_UPDATE_VERSION
    if noticed != "by an election":
        after = known(terms, "t")
        assert (after.leader, after.isr) == (1, (1,))
        assert after.leader_epoch > before.leader_epoch
        assert alter_isr(terms, [1]) == ErrorCode.NONE
    terms.stop_broker(1)
    terms.settle()
    assert (known(terms, "t").leader, known(terms, "t").isr) == (-1, (1,))
    # What the next controller finds is right.
    terms.elect()
    terms.start_broker(1)
    terms.settle()
    assert known(terms, "t").leader == 1
    assert any("is not in force" in line.message for line in terms.shell.lines) is False
    terms.run(terms.term.read_again())
    assert not terms.term.must_read_again


@pytest.mark.parametrize("happened", ["the answer was lost", "it was written once more", "it cannot be written"])
def test_what_could_not_be_put_back_is_not_told(monkeypatch: pytest.MonkeyPatch, happened: str) -> None:
    """Else a leader epoch would be in force that is in no znode, and another controller would give it to another."""
    terms = with_topics()
    path = partition_state_path(*T0)
    former = terms.store.znodes[path][0]
    assert alter_isr(terms, [1]) == ErrorCode.NONE
    before = known(terms, "t")
    terms.store.put_data(path, former)
    submit = terms.store.submit
    done: list[str] = []

    def faulty(operations: tuple[Operation[Any], ...]) -> list[Any]:
        is_write = any(isinstance(each, Multi) and each.operations[-1].path == path for each in operations)
        if is_write and happened == "it cannot be written":
            return [NoAuthError(path) for _ in operations]
        if is_write and not done:
            done.append(happened)
            if happened == "the answer was lost":
                submit(operations)
            else:
                terms.store.put_data(path, former)
        return submit(operations)

    monkeypatch.setattr(terms.store, "submit", faulty)
    found = terms.run(read_leadership(terms.term.context, [T0]))[T0]
    if happened == "it cannot be written":
        assert isinstance(found, NoAuthError)
        assert terms.term.must_read_again
        return
    assert done
    assert found == known(terms, "t")
    assert isinstance(found, LeaderAndIsr)
    assert found.isr == (1,)
    assert found.leader_epoch > before.leader_epoch
    assert terms.term.must_read_again
    terms.run(terms.term.read_again())
    assert alter_isr(terms, [1]) == ErrorCode.NONE


def test_a_leader_that_writes_isrs_itself_is_believed() -> None:
    """That of inter.broker.protocol.version below 2.7, whose registration says so."""
    terms = with_topics()
    terms.write_isrs_themselves(1)
    before = known(terms, "t")
    written = dataclasses.replace(before, isr=(1, 2)).to_znode()
    terms.store.put_data(partition_state_path(*T0), written.encode())
    terms.stop_broker(1)
    terms.settle()
    assert (known(terms, "t").leader, known(terms, "t").isr) == (2, (2,))


@pytest.mark.parametrize("spoiled", ["before the takeover", "at the takeover"])
def test_a_new_controller_does_not_believe_a_state_that_is_older_than_what_it_was_told(spoiled: str) -> None:
    terms = with_topics()
    path = partition_state_path(*T0)
    former = terms.store.znodes[path][0]
    terms.stop_broker(1)
    terms.settle()
    terms.start_broker(1)
    terms.settle()
    before = known(terms, "t")
    assert (before.leader, before.isr) == (2, (2, 3))
    terms.told[T0] = before
    if spoiled == "at the takeover":
        spoil(terms, path)
        terms.elect()
        assert terms.term.must_read_again
        terms.store.put_data(path, former)
        terms.run(terms.term.read_again())
    else:
        terms.store.put_data(path, former)
        terms.elect()
    after = known(terms, "t")
    assert (after.leader, after.isr) == (2, (2, 3))
    assert after.leader_epoch > before.leader_epoch
    assert not terms.term.must_read_again
    told = [
        state.leader_epoch
        for request in terms.sent("LEADER_AND_ISR")
        if isinstance(request.message, LeaderAndIsrRequest)
        for topic in request.message.topic_states
        for state in topic.partition_states
        if topic.topic_name == "t"
    ]
    assert told
    assert max(told) == after.leader_epoch


def test_a_leader_that_bounced_before_a_mend_and_a_takeover_does_not_lead_on() -> None:
    terms = with_topics()
    paths = [partition_state_path(*partition) for partition in (T0, U0)]
    before = known(terms, "t")
    assert (before.leader, before.isr) == (1, (1, 2, 3))
    terms.told.update({T0: before, U0: known(terms, "u")})
    states = [spoil(terms, path) for path in paths]
    terms.stop_broker(1)
    terms.start_broker(1)
    for path, data in zip(paths, states, strict=True):
        terms.store.put_data(path, data)  # the transaction that wrote it is later than the new registration
    terms.elect()
    after = known(terms, "t")
    assert (after.leader, after.isr) == (2, (2,))
    assert after.leader_epoch > before.leader_epoch


@pytest.mark.parametrize("mended", ["between the terms", "in the new term"])
def test_a_mend_is_seen_by_a_controller_that_was_told_nothing(mended: str) -> None:
    """Its broker has just started. What the last controller can have written names that one's epoch."""
    terms = with_topics()
    path = partition_state_path(*T0)
    before = known(terms, "t")
    assert (before.leader, before.isr, before.controller_epoch) == (1, (1, 2, 3), 1)
    data = spoil(terms, path)
    terms.elect()
    terms.stop_broker(1)
    terms.start_broker(1)
    if mended == "between the terms":
        terms.store.put_data(path, data)
    terms.elect()
    if mended == "in the new term":
        terms.store.put_data(path, data)
        terms.run(terms.term.brokers_changed())
        terms.settle()
        terms.elect()
    after = known(terms, "t")
    assert (after.leader, after.isr) == (2, (2,))
    assert after.leader_epoch > before.leader_epoch


def test_a_leader_that_writes_isrs_itself_has_not_mended_a_state() -> None:
    """It names the controller that told it to lead."""
    terms = with_topics()
    terms.elect()
    before = known(terms, "t")
    for broker_id in ALL:
        registration = BrokerRegistration.decode(
            terms.store.znodes[broker_id_path(broker_id)][0], broker_id_path(broker_id)
        )
        old = dataclasses.replace(registration, version=4, features={})
        terms.store.put_data(broker_id_path(broker_id), old.encode())
    shrunk = dataclasses.replace(before, isr=(1, 2))
    terms.store.put_data(partition_state_path(*T0), shrunk.to_znode().encode())
    terms.elect()
    assert known(terms, "t").isr == (1, 2)


def test_a_state_that_nobody_has_touched_stays_as_it_is_at_a_takeover() -> None:
    terms = with_topics()
    before = known(terms, "t")
    terms.told[T0] = before
    terms.elect()
    assert known(terms, "t").leader_epoch == before.leader_epoch


@pytest.mark.parametrize("failover", [False, True])
def test_a_member_that_starts_anew_while_the_state_cannot_be_read_leaves_the_isr(failover: bool) -> None:
    terms = with_topics()
    before = spoil(terms, partition_state_path(*T0))
    if failover:
        terms.elect()
    terms.stop_broker(2)
    terms.start_broker(2)
    terms.settle()
    assert known(terms, "u").isr == (1, 3)
    terms.store.put_data(partition_state_path(*T0), before)
    terms.run(terms.term.read_again())
    # A new controller cannot see who else may have, before its term.
    assert (known(terms, "t").leader, known(terms, "t").isr) == (1, (1,) if failover else (1, 3))
    assert not terms.term.must_read_again


def test_a_leader_that_starts_anew_while_the_state_cannot_be_read_does_not_lead_on() -> None:
    terms = with_topics()
    before = spoil(terms, partition_state_path(*T0))
    asked = len(terms.sent("LEADER_AND_ISR"))
    terms.stop_broker(1)
    terms.start_broker(1)
    terms.settle()
    told = {
        topic.topic_name
        for request in terms.sent("LEADER_AND_ISR")[asked:]
        if isinstance(request.message, LeaderAndIsrRequest) and request.broker_id == 1
        for topic in request.message.topic_states
    }
    assert told == {"u"}
    terms.store.put_data(partition_state_path(*T0), before)
    terms.run(terms.term.read_again())
    assert (known(terms, "t").leader, known(terms, "t").isr) == (2, (2, 3))


def test_a_broker_whose_registration_is_spoiled_stays_while_it_lives() -> None:
    terms = with_topics()
    before = spoil(terms, broker_id_path(2))
    terms.stop_broker(3)
    terms.settle()
    assert set(known(terms, "t").isr) == {1, 2}
    terms.stop_broker(2)
    terms.settle()
    assert set(known(terms, "t").isr) == {1}
    terms.store.put_data(broker_id_path(2), GARBAGE)
    terms.settle()
    assert set(terms.term.context.live_brokers) == {1}
    terms.store.put_data(broker_id_path(2), before)
    terms.settle()
    assert set(terms.term.context.live_brokers) == {1, 2}


def test_the_controller_puts_a_spoiled_registration_back() -> None:
    """Else the next controller would not know a broker that lives."""
    terms = with_topics()
    before = spoil(terms, broker_id_path(2))
    sent = len(terms.shell.requests)
    terms.settle()
    assert terms.store.znodes[broker_id_path(2)][0] == before
    assert len(terms.shell.requests) == sent, "nothing has changed"
    terms.elect()
    assert set(terms.term.context.live_brokers) == ALL
    assert set(known(terms, "t").isr) == ALL


def test_a_broker_that_registers_anew_is_faster_than_who_puts_its_spoiled_registration_back() -> None:
    terms = with_topics()
    spoil(terms, broker_id_path(2))
    steps = terms.term.broker_modified(2)
    read = next(steps)
    found = tuple(terms.shell.carry_out(effect) for effect in read)
    terms.stop_broker(2)
    terms.start_broker(2, port=9999)
    write = steps.send(found)
    with pytest.raises(StopIteration):
        steps.send(tuple(terms.shell.carry_out(effect) for effect in write))
    terms.settle()
    (endpoint,) = terms.term.context.live_or_shutting_down_brokers[2].registration.endpoints
    assert endpoint.port == 9999


def test_a_spoiled_registration_of_another_life_is_not_put_back() -> None:
    terms = with_topics()
    terms.stop_broker(2)
    terms.store.put_data(broker_id_path(2), GARBAGE)
    terms.run(terms.term.broker_modified(2))
    assert terms.store.znodes[broker_id_path(2)][0] == GARBAGE


def test_a_controller_that_was_replaced_puts_no_registration_back() -> None:
    terms = with_topics()
    spoil(terms, broker_id_path(2))
    terms.store.put_data(CONTROLLER_EPOCH_PATH, encode_controller_epoch(terms.epoch + 1))
    with pytest.raises(ControllerMovedError):
        terms.settle()
    assert terms.store.znodes[broker_id_path(2)][0] == GARBAGE


def test_nobody_leads_uncleanly_while_a_member_has_a_registration_that_cannot_be_read() -> None:
    settings = ControllerSettings(CONTROLLER, LISTENER, unclean_leader_election_enable=True)
    terms = with_topics(dataclasses.replace(settings, unclean_election_delay_ms=0))
    for broker_id in (2, 3):
        terms.stop_broker(broker_id)
        terms.settle()
    assert known(terms, "t").isr == (1,)
    terms.start_broker(2)
    terms.settle()
    before = spoil(terms, broker_id_path(1))
    terms.elect()
    terms.settle()
    assert known(terms, "t").leader == -1
    terms.store.put_data(broker_id_path(1), before)
    terms.settle()
    assert known(terms, "t").leader == 1


def test_a_member_that_goes_with_a_registration_that_cannot_be_read_is_waited_for_no_longer() -> None:
    settings = ControllerSettings(CONTROLLER, LISTENER, unclean_leader_election_enable=True)
    terms = with_topics(dataclasses.replace(settings, unclean_election_delay_ms=0))
    for broker_id in (2, 3):
        terms.stop_broker(broker_id)
        terms.settle()
    terms.start_broker(2)
    terms.settle()
    spoil(terms, broker_id_path(1))
    terms.elect()
    terms.settle()
    assert known(terms, "t").leader == -1
    terms.stop_broker(1)
    terms.settle()
    assert known(terms, "t").leader == 2


@pytest.mark.parametrize("asked_before", [True, False])
def test_a_topic_that_cannot_be_read_is_deleted_when_it_can(asked_before: bool) -> None:
    terms = with_topics()
    before = spoil(terms, topic_path("t"))
    if asked_before:
        terms.watches.end()
        terms.delete("t")
    terms.elect()
    if not asked_before:
        terms.delete("t")
    terms.settle()
    assert terms.state("t") is not None
    terms.store.put_data(topic_path("t"), before)
    terms.settle()
    assert terms.state("t") is None
    assert {request.broker_id for request in terms.sent("STOP_REPLICA")} == ALL
    assert full_requests(terms).keys() == ALL


def test_features_that_cannot_be_read_refuse_nobody_and_are_set_up_when_they_can() -> None:
    terms = with_topics()
    terms.store.put_data(FEATURE_PATH, GARBAGE)
    terms.elect()
    assert set(terms.term.context.live_brokers) == ALL
    assert terms.store.znodes[FEATURE_PATH][0] == GARBAGE
    must_read_again = [terms.term.must_read_again]
    terms.store.put_data(FEATURE_PATH, b'{"features":{"x":{"max_version_level":1}},"version":2,"status":0}')
    terms.run(terms.term.read_again())
    assert [*must_read_again, terms.term.must_read_again] == [True, False]
    assert FinalizedFeatures.decode(terms.store.znodes[FEATURE_PATH][0]).status == 1


def test_a_config_that_cannot_be_read_allows_no_unclean_election_until_it_can() -> None:
    terms = with_topics(ControllerSettings(CONTROLLER, LISTENER, unclean_leader_election_enable=True))
    path = config_path(ConfigEntityType.TOPICS, "t")
    terms.store.put_data(path, GARBAGE)
    for broker_id in (2, 3):
        terms.stop_broker(broker_id)
        terms.settle()
    terms.start_broker(2)
    terms.settle()
    terms.stop_broker(1)
    terms.settle()
    assert (known(terms, "t").leader, known(terms, "u").leader) == (-1, 2)
    terms.run(terms.term.read_again())
    assert known(terms, "t").leader == -1
    must_read_again = [terms.term.must_read_again]
    terms.store.put_data(path, EntityConfig({}).encode())
    terms.run(terms.term.read_again())
    assert known(terms, "t").leader == 2
    assert [*must_read_again, terms.term.must_read_again] == [True, False]


@pytest.mark.parametrize("garbage", [GARBAGE, b"", None])
def test_no_producer_id_is_given_out_while_the_last_block_cannot_be_read(garbage: bytes | None) -> None:
    terms = with_topics()
    epoch = terms.term.context.live_or_shutting_down_brokers[1].epoch
    terms.run(terms.term.allocate_producer_ids(1, epoch))
    terms.store.put_data(PRODUCER_ID_BLOCK_PATH, garbage)
    with pytest.raises(KafkaError, match=PRODUCER_ID_BLOCK_PATH) as refused:
        terms.run(terms.term.allocate_producer_ids(1, epoch))
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert terms.store.znodes[PRODUCER_ID_BLOCK_PATH][0] == garbage


@pytest.mark.parametrize(
    "changed",
    [
        {"listener_security_protocol_map": {LISTENER: "BAR"}},
        {"endpoints": [f"{LISTENER}://{'h' * 40_000}:9092"]},
        {"rack": "r" * 40_000},
    ],
    ids=["unknown protocol", "host that fits no request", "rack that fits no request"],
)
def test_a_registration_that_no_request_can_tell_of_harms_its_broker_only(changed: dict[str, Any]) -> None:
    terms = with_topics()
    path = broker_id_path(3)
    data = terms.store.znodes[path][0]
    assert data is not None
    terms.stop_broker(3)
    terms.store.put_data(path, json.dumps({**json.loads(data), **changed}).encode())
    terms.elect()
    terms.settle()
    assert list(terms.term.context.live_or_shutting_down_brokers) == [1, 2]
    assert known(terms, "t").leader == 1
    assert terms.sent("UPDATE_METADATA")
