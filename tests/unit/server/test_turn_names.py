"""`barnabas.server.turn_names` and the coordinator's: names are taken from variables that there are."""

from __future__ import annotations

from barnabas.coordination.embedded.turn_names import coordinator_turn_names
from barnabas.server.turn_names import broker_turn_names


def test_every_name_comes_from_a_variable_of_its_function() -> None:
    # A naming raises where its function has no such variable.
    names = [*broker_turn_names(), *coordinator_turn_names()]
    assert len({naming.code for naming in names}) == len(names)
