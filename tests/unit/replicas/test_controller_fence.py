"""`barnabas.replicas.controller_fence`: no request of a deposed controller is obeyed."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.replicas.controller_fence import ControllerFence
from barnabas.wire.messages import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest

REQUESTS = (LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest)


@given(st.lists(st.tuples(st.sampled_from(REQUESTS), st.integers(0, 4))))
def test_obeys_only_whoever_has_the_greatest_epoch_so_far(told: list[tuple[type[LeaderAndIsrRequest], int]]) -> None:
    fence = ControllerFence(logging.getLogger("test"))
    greatest = 0
    for kind, epoch in told:
        assert fence.admits(kind(controller_id=1, controller_epoch=epoch)) == (epoch >= greatest)
        greatest = max(greatest, epoch)
        assert fence.epoch == greatest


def test_a_refusal_is_logged_and_asking_notes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    fence = ControllerFence(logging.getLogger("test"))
    assert not fence.refuses(StopReplicaRequest(controller_id=3, controller_epoch=7))
    assert fence.epoch == 0
    assert fence.admits(StopReplicaRequest(controller_id=3, controller_epoch=7))
    with caplog.at_level(logging.WARNING, "test"):
        assert fence.refuses(StopReplicaRequest(controller_id=2, controller_epoch=6))
    assert "Ignoring StopReplicaRequest of controller 2 since its epoch 6 is old" in caplog.text
