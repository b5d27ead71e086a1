"""`barnabas.kernel.transitions`."""

from __future__ import annotations

import enum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.kernel.transitions import IllegalTransitionError, TransitionTable, TransitionTableError


class Door(enum.Enum):
    OPEN = "open"
    CLOSED = "closed"
    LOCKED = "locked"
    GONE = "gone"


class Act(enum.Enum):
    OPEN = "open"
    CLOSE = "close"
    LOCK = "lock"
    UNLOCK = "unlock"
    BURN = "burn"


TRANSITIONS = {
    (Door.CLOSED, Act.OPEN): Door.OPEN,
    (Door.OPEN, Act.CLOSE): Door.CLOSED,
    (Door.CLOSED, Act.LOCK): Door.LOCKED,
    (Door.LOCKED, Act.UNLOCK): Door.CLOSED,
    (Door.OPEN, Act.BURN): Door.GONE,
    (Door.CLOSED, Act.BURN): Door.GONE,
    (Door.LOCKED, Act.BURN): Door.GONE,
}
DOOR = TransitionTable("door", start=Door.CLOSED, transitions=TRANSITIONS, final={Door.GONE})


class Replica(enum.Enum):
    ABSENT = 0
    NEW = 1
    ONLINE = 2


REPLICA = TransitionTable.from_valid_previous_states(
    "replica",
    start=Replica.ABSENT,
    valid_previous_states={
        Replica.NEW: {Replica.ABSENT},
        Replica.ONLINE: {Replica.NEW, Replica.ONLINE},
        Replica.ABSENT: {Replica.ONLINE},
    },
)


@pytest.mark.parametrize("event", Act)
@pytest.mark.parametrize("state", Door)
def test_advances_where_the_table_says_and_raises_everywhere_else(state: Door, event: Act) -> None:
    expected = TRANSITIONS.get((state, event))
    assert DOOR.allows(state, event) is (expected is not None)
    if expected is not None:
        assert DOOR.advance("front", state, event) is expected
    else:
        with pytest.raises(IllegalTransitionError) as raised:
            DOOR.advance("front", state, event)
        assert (raised.value.item, raised.value.state, raised.value.event) == ("front", state, event)
        assert str(raised.value) == f"door front: {event.name} is not allowed in state {state.name}"


@pytest.mark.parametrize("target", Replica)
@pytest.mark.parametrize("source", Replica)
def test_valid_previous_states_are_a_table_whose_events_are_the_targets(source: Replica, target: Replica) -> None:
    valid = {
        (Replica.ABSENT, Replica.NEW),
        (Replica.NEW, Replica.ONLINE),
        (Replica.ONLINE, Replica.ONLINE),
        (Replica.ONLINE, Replica.ABSENT),
    }
    if (source, target) in valid:
        assert REPLICA.advance(1, source, target) is target
    else:
        with pytest.raises(IllegalTransitionError, match=f"replica 1: {target.name} is not allowed"):
            REPLICA.advance(1, source, target)


@settings(deadline=None)
@given(st.dictionaries(st.integers(), st.sampled_from(Door)), st.sampled_from(Act))
def test_a_batch_moves_what_may_move_and_reports_the_rest(doors: dict[int, Door], event: Act) -> None:
    advanced = DOOR.advance_all(doors.items(), event)
    assert list(advanced.states.items()) == [
        (item, TRANSITIONS[state, event]) for item, state in doors.items() if (state, event) in TRANSITIONS
    ]
    assert [(item, refusal.item, refusal.state, refusal.event) for item, refusal in advanced.refusals.items()] == [
        (item, item, state, event) for item, state in doors.items() if (state, event) not in TRANSITIONS
    ]


@settings(deadline=None)
@given(st.data())
def test_a_table_is_refused_exactly_when_a_state_is_cut_off_or_a_dead_end(data: st.DataObject) -> None:
    transitions = dict(TRANSITIONS)
    for removed in data.draw(st.sets(st.sampled_from(sorted(TRANSITIONS, key=str)), max_size=3)):
        del transitions[removed]
    pairs = st.tuples(st.sampled_from(Door), st.sampled_from(Act))
    transitions |= data.draw(st.dictionaries(pairs, st.sampled_from(Door), max_size=2))
    final = data.draw(st.sampled_from([{Door.GONE}, set(), {Door.GONE, Door.LOCKED}]))
    edges = {(source, target) for (source, _), target in transitions.items()}
    # Reachability by powers of the relation, not by the search that the table makes.
    reached = {Door.CLOSED}
    for _ in Door:
        reached |= {target for source, target in edges if source in reached}
    left = {source for source, target in edges if source is not target}
    sound = (
        reached == set(Door)
        and final == {state for state in Door if state not in left}
        and {event for _, event in transitions} == set(Act)
    )
    try:
        TransitionTable("door", start=Door.CLOSED, transitions=transitions, final=final)
    except TransitionTableError:
        assert not sound
    else:
        assert sound


def test_every_fault_of_a_table_is_named() -> None:
    with pytest.raises(TransitionTableError) as raised:
        TransitionTable(
            "door",
            start=Door.CLOSED,
            transitions={(Door.CLOSED, Act.OPEN): Door.OPEN, (Door.CLOSED, Act.CLOSE): Door.CLOSED},
            final={Door.CLOSED},
        )
    message = str(raised.value)
    for fault in (
        "the transitions of door cannot be right",
        "state LOCKED cannot be reached",
        "state GONE cannot be reached",
        "state OPEN cannot be left and is not final",
        "state CLOSED is final and can be left",
        "event LOCK occurs nowhere",
    ):
        assert fault in message


def test_strangers_are_named() -> None:
    strange = {(Door.CLOSED, Act.OPEN): Door.OPEN, (Replica.NEW, Replica.ONLINE): Door.CLOSED}
    with pytest.raises(TransitionTableError) as raised:
        TransitionTable("door", start=Door.CLOSED, transitions=strange)
    assert "Replica.NEW is not a state of Door" in str(raised.value)
    assert "Replica.ONLINE is not an event of Act" in str(raised.value)


def test_an_empty_table_and_one_without_start_are_refused() -> None:
    with pytest.raises(TransitionTableError, match="there is no transition"):
        TransitionTable[Door, Act]("door", start=Door.CLOSED, transitions={})
    with pytest.raises(TransitionTableError, match="there is no start state"):
        TransitionTable("door", start=(), transitions=TRANSITIONS)


def test_several_start_states_each_reach_what_follows() -> None:
    table = TransitionTable("door", start=(Door.OPEN, Door.LOCKED), transitions=TRANSITIONS, final=[Door.GONE])
    assert table.start == (Door.OPEN, Door.LOCKED)
    assert "[*] --> LOCKED" in table.diagram()


def test_draws_the_diagram_in_the_order_of_the_states() -> None:
    assert DOOR.diagram() == (
        "stateDiagram-v2\n"
        "    [*] --> CLOSED\n"
        "    OPEN --> CLOSED : CLOSE\n"
        "    OPEN --> GONE : BURN\n"
        "    CLOSED --> OPEN : OPEN\n"
        "    CLOSED --> LOCKED : LOCK\n"
        "    CLOSED --> GONE : BURN\n"
        "    LOCKED --> CLOSED : UNLOCK\n"
        "    LOCKED --> GONE : BURN\n"
        "    GONE --> [*]\n"
    )


def test_draws_a_diagram_by_targets_without_repeating_them_as_labels() -> None:
    assert REPLICA.diagram() == (
        "stateDiagram-v2\n"
        "    [*] --> ABSENT\n"
        "    ABSENT --> NEW\n"
        "    NEW --> ONLINE\n"
        "    ONLINE --> ABSENT\n"
        "    ONLINE --> ONLINE\n"
    )


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        DOOR.transitions[Door.GONE, Act.OPEN] = Door.OPEN  # type: ignore[index]


class Fork(enum.Enum):
    LEFT = "left"
    RIGHT = "right"
    END = "end"


def test_the_diagram_does_not_depend_on_the_order_in_which_start_states_are_given() -> None:
    moves = {(state, state): state for state in Fork} | {
        (Fork.LEFT, Fork.END): Fork.END,
        (Fork.RIGHT, Fork.END): Fork.END,
    }
    one = TransitionTable("fork", start=[Fork.LEFT, Fork.RIGHT], transitions=moves, final=[Fork.END])
    two = TransitionTable("fork", start=[Fork.RIGHT, Fork.LEFT], transitions=moves, final=[Fork.END])
    assert one.diagram() == two.diagram()
