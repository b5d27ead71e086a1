"""States with nothing to decide are read as all others would be, whatever is known of them and of their writers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.controller import partition_znodes
from barnabas.controller import usual_states as usual_states_module
from barnabas.controller.context import ControllerContext
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.live_broker import LiveBroker
from barnabas.controller.partition_znodes import read_leadership
from barnabas.controller.usual_states import usual_states
from barnabas.coordination.layout.brokers import BrokerRegistration
from barnabas.coordination.layout.controller import CONTROLLER_EPOCH_PATH, encode_controller_epoch
from barnabas.coordination.layout.topics import ReplicaAssignment, partition_state_path
from barnabas.coordination.operations import WrittenData
from barnabas.wire.endpoints import BrokerEndpoint
from barnabas.wire.topics import TopicPartition
from tests.support.examples import examples
from tests.unit.controller.memory_store import LISTENER, MemoryStore, Shell

EPOCH, BEGAN, FORMER_BEGAN = 9, 200, 100
PARTITIONS = [TopicPartition(topic, number) for topic in "ab" for number in range(3)]
REGISTERED = {1: (150, 5), 2: (250, 5), 3: (50, 1)}
"""Epochs of brokers, and versions of their registrations: the last writes ISRs itself."""

leaderships = st.builds(
    LeaderAndIsr,
    leader=st.sampled_from([-1, 1, 2, 3]),
    leader_epoch=st.sampled_from([5, 6]),
    isr=st.sampled_from([(1, 2), (2, 1), (3,), (4,), ()]),
    controller_epoch=st.sampled_from([EPOCH - 2, EPOCH - 1, EPOCH, EPOCH + 1]),
    partition_epoch=st.integers(3, 5),
)


@dataclasses.dataclass(frozen=True)
class Case:
    stored: LeaderAndIsr | bytes | None
    written: int
    told: LeaderAndIsr | str | None
    known: LeaderAndIsr | None
    is_unreadable: bool
    lost: bool


cases = st.builds(
    Case,
    stored=leaderships | st.sampled_from([None, b"", b"{}", b'{"leader":1}', b"[]"]),
    written=st.sampled_from([40, 100, 101, 150, 200, 201, 300]),
    told=st.sampled_from([None, "same", "in another version"]) | leaderships,
    known=st.none() | leaderships,
    is_unreadable=st.booleans(),
    lost=st.booleans(),
)


class Store(MemoryStore):
    """Tells by which transactions znodes were written."""

    def __init__(self, written: Mapping[str, int]) -> None:
        super().__init__()
        self._written = written

    def read_written(self, paths: tuple[str, ...]) -> list[Any]:
        found = zip(paths, super().read_written(paths), strict=True)
        return [
            each._replace(mzxid=self._written[path]) if isinstance(each, WrittenData) else each for path, each in found
        ]


def read(described: Mapping[TopicPartition, Case]) -> tuple[Any, ...]:
    """Everything that follows from a reading of these."""

    def told(topic: str, _topic_id: object) -> Any:
        return lambda number: _told(described[TopicPartition(topic, number)])

    context = ControllerContext(EPOCH, 8, told, began=BEGAN, former_began=FORMER_BEGAN)
    for broker_id, (epoch, version) in REGISTERED.items():
        endpoint = BrokerEndpoint(LISTENER, "host", 9092, "PLAINTEXT")
        context.add_live_broker(LiveBroker(broker_id, epoch, BrokerRegistration((endpoint,), 0, version=version)))
    store = Store({partition_state_path(*partition): case.written for partition, case in described.items()})
    store.znodes[CONTROLLER_EPOCH_PATH] = (encode_controller_epoch(EPOCH), 8)
    for partition, case in described.items():
        context.add_topic(partition.topic)
        context.set_assignment(partition, ReplicaAssignment((1, 2, 3)))
        if isinstance(case.stored, LeaderAndIsr):
            store.put(partition, case.stored)
        elif case.stored is not None:
            store.znodes[partition_state_path(*partition)] = (case.stored or None, 3)
        if case.known is not None:
            context.set_leadership(partition, case.known)
        if case.is_unreadable:
            context.unreadable_partitions[partition] = None
        if case.lost:
            context.lost_members[partition] = {1: None}
    shell, written_at = Shell(store), dict[TopicPartition, int]()
    found = shell.run(read_leadership(context, list(described), written_at))
    returned = [
        (partition, member)
        for partition, written in written_at.items()
        for member in getattr(found[partition], "isr", ())
        if member in REGISTERED and REGISTERED[member][0] > written
    ]
    shown = {partition: each if isinstance(each, LeaderAndIsr) else repr(each) for partition, each in found.items()}
    lists = (context.unreadable_partitions, context.lost_members, context.put_back_partitions, context.made_again)
    return list(shown.items()), sorted(returned), [list(each) for each in lists], dict(store.znodes), shell.lines


def _told(case: Case) -> LeaderAndIsr | None:
    if not isinstance(case.told, str):
        return case.told
    if not isinstance(case.stored, LeaderAndIsr):
        return None
    return case.stored if case.told == "same" else case.stored.at_version(case.stored.partition_epoch - 1)


@settings(max_examples=examples(300))
@given(st.fixed_dictionaries(dict.fromkeys(PARTITIONS, cases)))
def test_they_are_what_a_closer_look_finds(described: dict[TopicPartition, Case]) -> None:
    quickly = read(described)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_znodes, "usual_states", lambda _context, partitions, *_: [None] * len(partitions))
        closely = read(described)
    assert quickly == closely


def test_nearly_all_states_of_a_takeover_are() -> None:
    stored = LeaderAndIsr(1, 5, (1, 2), EPOCH - 1, partition_epoch=3)
    context = ControllerContext(EPOCH, 8, began=BEGAN, former_began=FORMER_BEGAN)
    outcomes = [WrittenData(stored.to_znode().encode(), 3, written) for written in (BEGAN, BEGAN + 1)]
    assert usual_states(context, PARTITIONS[:2], outcomes, None) == [stored, None]


def test_equal_data_in_versions_that_alternate_are_judged_once_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[int] = []
    judge = usual_states_module._judge

    def counting(context: ControllerContext, data: bytes | None, version: int, bounds: Any) -> Any:
        judged.append(version)
        return judge(context, data, version, bounds)

    monkeypatch.setattr(usual_states_module, "_judge", counting)
    stored = LeaderAndIsr(1, 5, (1, 2), EPOCH - 1)
    context = ControllerContext(EPOCH, 8, began=BEGAN, former_began=FORMER_BEGAN)
    data = stored.to_znode().encode()
    outcomes = [WrittenData(data, 3 + number % 2, BEGAN) for number in range(len(PARTITIONS))]
    found = usual_states(context, PARTITIONS, outcomes, None)
    assert found == [stored.at_version(3 + number % 2) for number in range(len(PARTITIONS))]
    assert judged == [3, 4]
