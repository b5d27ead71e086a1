"""Leadership and its znode."""

from __future__ import annotations

import pytest

from barnabas.controller.leadership import LeaderAndIsr
from barnabas.coordination.layout import topics
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
