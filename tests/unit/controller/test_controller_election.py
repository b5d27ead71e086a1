"""The epoch of a controller that is elected: above all that brokers have heard of, and that states were written in."""

from __future__ import annotations

import pytest

from barnabas.controller.controller_election import claim_controllership
from barnabas.controller.effects import ControllerMovedError
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.term_events import ControllerEpochChange, LeaderAndIsrResponseReceived
from barnabas.coordination.layout.controller import (
    CONTROLLER_EPOCH_PATH,
    CONTROLLER_PATH,
    ControllerRegistration,
    decode_controller_epoch,
    encode_controller_epoch,
)
from barnabas.coordination.layout.topics import partition_state_path, partitions_path
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import LeaderAndIsrResponse, UpdateMetadataResponse
from barnabas.wire.topics import TopicPartition
from tests.unit.controller.memory_store import Shell
from tests.unit.controller.term_harness import Terms, WatchedStore

REGISTRATION = ControllerRegistration(1, 1_000)


def store_with(**states: bytes | None) -> WatchedStore:
    """Without an epoch; a topic of one partition with each state."""
    store = WatchedStore()
    store.znodes["/brokers/topics"] = (None, 0)
    for topic, state in states.items():
        store.znodes[partitions_path(topic)] = (None, 0)
        if state is not None:
            store.znodes[partition_state_path(topic, 0)] = (state, 0)
    return store


def state(controller_epoch: int) -> bytes:
    return LeaderAndIsr(1, 4, (1, 2), controller_epoch).to_znode().encode()


def written(store: WatchedStore) -> int:
    return decode_controller_epoch(store.znodes[CONTROLLER_EPOCH_PATH][0])


@pytest.mark.parametrize(("present", "heard", "epoch"), [(3, 0, 4), (3, 3, 4), (3, 9, 10), (3, 2**31 - 1, 4)])
def test_the_epoch_is_above_what_the_broker_has_heard_of(present: int, heard: int, epoch: int) -> None:
    store = store_with()
    store.znodes[CONTROLLER_EPOCH_PATH] = (encode_controller_epoch(present), 7)
    elected = Shell(store).run(claim_controllership(REGISTRATION, heard))
    assert (elected.epoch, elected.epoch_version, written(store)) == (epoch, 8, epoch)
    assert CONTROLLER_PATH in store.znodes


def test_without_a_znode_the_epoch_is_above_those_of_states() -> None:
    assert Shell(store_with()).run(claim_controllership(REGISTRATION)).epoch == 1
    assert Shell(WatchedStore()).run(claim_controllership(REGISTRATION)).epoch == 1
    store = store_with(a=state(4), b=state(6), c=b"{garbage", d=None, e=state(5), f=state(2**31 - 1))
    elected = Shell(store).run(claim_controllership(REGISTRATION))
    assert (elected.epoch, elected.epoch_version, written(store)) == (7, 1, 7)


def test_a_claim_whose_answer_was_lost_is_known_for_its_own() -> None:
    store = store_with()
    store.znodes[CONTROLLER_EPOCH_PATH] = (encode_controller_epoch(3), 7)
    Shell(store).run(claim_controllership(REGISTRATION, 9))
    claimed: list[int] = []

    def before_batch() -> None:
        claimed.append(written(store))
        if len(claimed) == 1:
            # What is read first is from before.
            store.znodes[CONTROLLER_EPOCH_PATH] = (encode_controller_epoch(3), 7)
        elif len(claimed) == 2:
            store.znodes[CONTROLLER_EPOCH_PATH] = (encode_controller_epoch(10), 8)

    store.before_batch = before_batch
    assert Shell(store).run(claim_controllership(REGISTRATION, 9)).epoch == 10


def test_a_controller_ends_when_somebody_deletes_the_epoch_and_not_when_it_is_written() -> None:
    terms = Terms(1, 2)
    terms.elect()
    terms.store.put_data(CONTROLLER_EPOCH_PATH, encode_controller_epoch(8))
    terms.settle()
    terms.store.remove(CONTROLLER_EPOCH_PATH)
    assert terms.events == [ControllerEpochChange()]
    with pytest.raises(ControllerMovedError, match="deleted /controller_epoch"):
        terms.settle()


@pytest.mark.parametrize("api", ["LeaderAndIsr", "UpdateMetadata"])
def test_a_controller_ends_when_a_broker_has_heard_of_a_later_one(api: str) -> None:
    """Where there is none, the next one has a greater epoch: brokers would obey this one never again."""
    terms = Terms(1, 2)
    terms.create("t", (1, 2))
    terms.elect()
    for code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.STALE_CONTROLLER_EPOCH):
        if api == "UpdateMetadata":
            steps = terms.term.update_metadata_answered(2, UpdateMetadataResponse(error_code=code))
        else:
            response = LeaderAndIsrResponse(error_code=code)
            steps = LeaderAndIsrResponseReceived(terms.epoch, 2, 1, response).steps(terms.term)
        if code is ErrorCode.STALE_BROKER_EPOCH:
            terms.run(steps)
        else:
            with pytest.raises(ControllerMovedError, match="later epoch than 1"):
                terms.run(steps)
        assert f"broker 2 refused {api}: {code.name}" in terms.shell.lines[-1].message
    assert terms.state("t") == terms.store.leadership(TopicPartition("t", 0))
