"""The cluster of `test_controller_model`, with what happens and where controllers fall chosen by hypothesis: what fails
is told as the fewest steps that fail.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.examples import examples
from tests.unit.controller.test_controller_model import ACTIONS, EFFECTS_BEFORE_CRASH_MAX, Model


class Cluster(RuleBasedStateMachine):
    """Brokers, users and controllers; in the end all come to rest."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        # So that a takeover reads states ahead.
        self.patch.setattr("barnabas.controller.state_loading.PARTITIONS_PER_BATCH", 2)
        self.model: Model | None = None

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        """The seed chooses brokers, topics and partitions."""
        self.model = Model(seed)
        self.model.act("create", None)

    @rule(
        name=st.sampled_from(sorted(set(ACTIONS))),
        effects_before_crash=st.none() | st.integers(1, EFFECTS_BEFORE_CRASH_MAX),
    )
    def happens(self, name: str, effects_before_crash: int | None) -> None:
        assert self.model is not None
        self.model.act(name, effects_before_crash)

    @rule()
    def followers_fetch(self) -> None:
        """Or ISRs would never grow, and records never be committed."""
        assert self.model is not None
        for _ in range(4):
            self.model.act("replicate_some", None)

    @invariant()
    def nothing_is_that_may_never_be(self) -> None:
        if self.model is not None:
            self.model.check()

    def teardown(self) -> None:
        try:
            if self.model is not None:
                self.model.come_to_rest()
                self.model.check_rest()
        finally:
            self.patch.undo()


Cluster.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=50)
# What fails is made smaller for up to five minutes.
TestCluster = pytest.mark.timeout(900)(Cluster.TestCase)
