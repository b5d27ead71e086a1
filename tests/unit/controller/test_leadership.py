"""Leadership and its znode."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.leadership import LeaderAndIsr
from barnabas.coordination.layout import topics
from barnabas.coordination.layout.payload import LayoutError
from barnabas.wire.topics import LeaderRecoveryState


def test_a_new_partition_is_led_by_its_first_live_replica() -> None:
    assert LeaderAndIsr.initial((3, 1), 5) == LeaderAndIsr(3, 0, (3, 1), 5)
    with pytest.raises(ValueError, match="live replica"):
        LeaderAndIsr.initial((), 5)


def test_a_rewrite_of_the_znode_keeps_what_it_does_not_know() -> None:
    payload = (
        b'{"controller_epoch":4,"leader":2,"version":1,"leader_epoch":9,"isr":[2,1],"leader_recovery_state":1,"n":7}'
    )
    read = LeaderAndIsr.from_znode(topics.PartitionState.decode(payload, "/p"), 12)
    assert (read.partition_epoch, read.leader_recovery_state) == (12, LeaderRecoveryState.RECOVERING)
    assert read.to_znode().encode() == payload
    elected = read.elect(1, (1,)).by_controller(5).at_version(13)
    assert elected.partition_epoch == 13
    assert elected.to_znode().encode() == (
        b'{"controller_epoch":5,"leader":1,"version":1,"leader_epoch":10,"isr":[1],"leader_recovery_state":1,"n":7}'
    )


NUMBERS = st.one_of(st.integers(-2, 12), st.sampled_from([2**31 - 1, 2**31, 10**9, 10**9 - 1, -(2**31), 2**40]))
STATES = st.fixed_dictionaries(
    {
        "controller_epoch": NUMBERS,
        "leader": NUMBERS,
        "version": st.sampled_from([1, 1, 1, 2]),
        "leader_epoch": NUMBERS,
        "isr": st.lists(NUMBERS, max_size=4),
    },
    optional={"leader_recovery_state": st.integers(0, 2), "n": st.none()},
)


def outcome(decode: Callable[[], LeaderAndIsr]) -> LeaderAndIsr | str:
    try:
        return decode()
    except LayoutError as error:
        return str(error)


@given(
    STATES,
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.sampled_from([0, 1, 7]),
    st.one_of(
        st.none(),
        st.tuples(st.integers(0, 200), st.sampled_from([b"", b"0", b"-", b"9", b",", b"x", b"\n", b".", b" "])),
    ),
)
def test_states_of_the_usual_shape_are_read_as_all_others_are(
    state: dict[str, Any], separators: tuple[str, str], version: int, spoiled: tuple[int, bytes] | None
) -> None:
    """The quick way, which keeps what it has read, beside the general one: twice, since the second finds it kept."""
    data = json.dumps(state, separators=separators).encode()
    if spoiled is not None:
        place, text = spoiled
        data = data[:place] + text + data[place + 1 :]

    def generally() -> LeaderAndIsr:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(topics.PartitionState, "plain_fields", staticmethod(lambda data: None))
            return LeaderAndIsr.from_znode(topics.PartitionState.decode(data, "/p"), version)

    wanted = outcome(generally)
    for _ in range(2):
        assert outcome(lambda: LeaderAndIsr.decode(data, "/p", version)) == wanted


def test_equal_states_share_one_object_and_large_ones_are_not_kept() -> None:
    def payload(isr: str) -> bytes:
        return b'{"controller_epoch":4,"leader":2,"version":1,"leader_epoch":9,"isr":[%s]}' % isr.encode()

    first, second = (LeaderAndIsr.decode(payload("2,1"), path, 3) for path in ("/p", "/q"))
    assert first is second
    assert LeaderAndIsr.decode(payload("2,1"), "/p", 4) == first.at_version(4)
    long = ",".join(map(str, range(100)))
    large = LeaderAndIsr.decode(payload(long), "/p", 3)
    assert large is not LeaderAndIsr.decode(payload(long), "/p", 3)
    assert large.at_version(5) == large.at_version(5)
    assert large.at_version(5) is not large.at_version(5)


def test_equal_states_that_were_written_share_one_object() -> None:
    known = LeaderAndIsr(2, 9, (2, 1), 4, partition_epoch=3)
    first, second = (known.elect(-1, (2, 1)).by_controller(6).at_version(4) for _ in range(2))
    assert first == LeaderAndIsr(-1, 10, (2, 1), 6, partition_epoch=4)
    assert first is second
    extra = dataclasses.replace(known, extra={"n": 7})
    assert extra.at_version(4) == dataclasses.replace(known, partition_epoch=4, extra={"n": 7})
