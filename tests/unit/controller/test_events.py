"""Every event says what it does, which state the controller is in meanwhile, and its place in the queue."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from barnabas.controller import events, term_events
from barnabas.controller.effects import BrokerRequest
from barnabas.controller.events import (
    EVENT_LEVELS,
    IN_ORDER,
    URGENT,
    ControllerChange,
    ControllerEvent,
    ControllerMoved,
    ElectionEvent,
    Expire,
    Reelect,
    RegisterBrokerAndReelect,
    RegistrationChange,
    Startup,
)
from barnabas.controller.states import ControllerState
from barnabas.controller.term_events import (
    AllocateProducerIds,
    AlterPartitionReceived,
    BrokerChange,
    LeaderAndIsrResponseReceived,
    ReadAgain,
    TermEvent,
    TopicDeletionStopReplicaResponseReceived,
    UncleanElectionDelayOver,
    UpdateMetadataResponseReceived,
    response_event,
)
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from tests.unit.controller.term_harness import Terms

PLAIN_BASES = {ControllerEvent, ElectionEvent, TermEvent}
EVENTS: list[type[ControllerEvent]] = [
    found
    for module in (events, term_events)
    for _name, found in inspect.getmembers(module, inspect.isclass)
    if issubclass(found, ControllerEvent) and found.__module__ == module.__name__ and found not in PLAIN_BASES
]
BASES = {"OneTermEvent", "ResponseReceived", "AnsweredEvent"}


def test_both_files_have_events() -> None:
    assert {"Startup", "Expire", "BrokerChange", "AlterPartitionReceived"} <= {event.__name__ for event in EVENTS}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_each_event_says_what_it_does(event: type[ControllerEvent]) -> None:
    assert issubclass(event, ElectionEvent) != issubclass(event, TermEvent)
    assert inspect.isabstract(event) == (event.__name__ in BASES)
    assert 0 <= event.level < EVENT_LEVELS
    if not inspect.isabstract(event):
        assert event.state is not ControllerState.IDLE or event.__name__ == "AllocateProducerIds"


def test_only_the_end_of_a_session_overtakes() -> None:
    assert [event.__name__ for event in EVENTS if event.level == URGENT] == ["Expire"]
    assert URGENT < IN_ORDER


class ScriptedCandidate:
    """Records what an event has it do."""

    def __init__(self, *, is_elected: bool = False, can_register: bool = True) -> None:
        self.session = 3
        self.is_elected = is_elected
        self.can_register = can_register
        self.done: list[str] = []

    async def watch_controller(self) -> None:
        self.done.append("watch")

    async def elect(self) -> None:
        self.done.append("elect")

    async def maybe_resign(self) -> None:
        self.done.append("maybe resign")

    async def resign(self) -> None:
        self.done.append("resign")

    async def give_back(self) -> None:
        self.done.append("give back")

    async def register(self) -> bool:
        self.done.append("register")
        return self.can_register

    async def renew_registration(self) -> bool:
        self.done.append("renew")
        return self.can_register

    def forget_session(self) -> None:
        self.done.append("forget")


def processed(event: ElectionEvent, candidate: ScriptedCandidate) -> list[str]:
    assert asyncio.run(process(event, candidate)) is None
    return candidate.done


async def process(event: ElectionEvent, candidate: ScriptedCandidate) -> ElectionEvent | None:
    return await event.process(candidate)


def test_election_events_stand_for_election() -> None:
    assert processed(Startup(), ScriptedCandidate()) == ["renew", "watch", "elect"]
    assert processed(ControllerChange(), ScriptedCandidate()) == ["maybe resign", "elect"]
    assert processed(Reelect(), ScriptedCandidate()) == ["maybe resign", "elect"]


def test_a_controller_that_has_the_znode_but_not_the_epoch_gives_it_back() -> None:
    assert processed(ControllerMoved(), ScriptedCandidate()) == ["maybe resign", "elect"]
    assert processed(ControllerMoved(), ScriptedCandidate(is_elected=True)) == ["maybe resign", "give back", "elect"]


def test_a_broker_registers_in_the_present_session_only_and_tries_again() -> None:
    registered = ["register", "renew", "maybe resign", "elect"]
    assert processed(RegisterBrokerAndReelect(3), ScriptedCandidate()) == registered
    assert processed(RegistrationChange(3), ScriptedCandidate()) == ["renew"]
    for event in (RegisterBrokerAndReelect(2), RegistrationChange(2)):
        assert processed(event, ScriptedCandidate()) == []
    for event, done in ((RegisterBrokerAndReelect(3), "register"), (RegistrationChange(3), "renew")):
        failing = ScriptedCandidate(can_register=False)
        assert asyncio.run(process(event, failing)) is event
        assert failing.done == [done]
    assert asyncio.run(process(Startup(), ScriptedCandidate(can_register=False))) == RegisterBrokerAndReelect(3)


def test_the_end_of_a_session_is_done_when_the_event_is_over() -> None:
    loop = asyncio.new_event_loop()
    event, candidate = Expire(loop.create_future()), ScriptedCandidate()
    assert processed(event, candidate) == ["resign", "forget"]
    assert not event.done.done()
    event.finish()
    event.finish()
    assert event.done.done()
    loop.close()


def test_an_event_that_somebody_waits_for_is_answered_once() -> None:
    loop = asyncio.new_event_loop()
    dropped = AllocateProducerIds(loop.create_future(), 1, 1)
    dropped.finish()
    with pytest.raises(KafkaError) as refused:
        dropped.answer.result()
    assert refused.value.code == ErrorCode.NOT_CONTROLLER
    answered = AlterPartitionReceived(loop.create_future(), AlterPartitionRequest(), 3)
    response = AlterPartitionResponse()
    answered.complete(response)
    answered.finish()
    answered.refuse(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
    assert answered.answer.result() is response
    loop.close()


def test_an_event_of_one_term_does_not_concern_the_next_one() -> None:
    terms = Terms(1)
    term = terms.elect()
    for event in (ReadAgain(terms.epoch, lambda _epoch: None), UncleanElectionDelayOver(terms.epoch), BrokerChange()):
        assert event.concerns(term)
    for event in (ReadAgain(terms.epoch - 1, lambda _epoch: None), UncleanElectionDelayOver(terms.epoch + 1)):
        assert not event.concerns(term)


def test_responses_become_events() -> None:
    asked = LeaderAndIsrRequest(broker_epoch=7)
    event = response_event(4, BrokerRequest(2, ApiKey.LEADER_AND_ISR, 7, asked), LeaderAndIsrResponse())
    assert event == LeaderAndIsrResponseReceived(4, 2, 7, LeaderAndIsrResponse())
    update = BrokerRequest(2, ApiKey.UPDATE_METADATA, 8, UpdateMetadataRequest())
    event = response_event(4, update, UpdateMetadataResponse())
    assert event == UpdateMetadataResponseReceived(4, 2, UpdateMetadataResponse())


@pytest.mark.parametrize("deletes", [True, False])
def test_a_response_to_stop_replica_is_an_event_when_it_deletes(deletes: bool) -> None:
    state = StopReplicaRequest.StopReplicaPartitionState(delete_partition=deletes)
    topic = StopReplicaRequest.StopReplicaTopicState(topic_name="t", partition_states=[state])
    stop = StopReplicaRequest(topic_states=[topic])
    event = response_event(4, BrokerRequest(2, ApiKey.STOP_REPLICA, 4, stop), StopReplicaResponse())
    expected = TopicDeletionStopReplicaResponseReceived(4, 2, stop, StopReplicaResponse())
    assert event == (expected if deletes else None)
