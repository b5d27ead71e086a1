"""State machines as data: which state follows which, kept beside the enum of the states.

    CONNECTION = TransitionTable(
        "connection",
        start=State.CLOSED,
        transitions={(State.CLOSED, Event.OPENED): State.OPEN, (State.OPEN, Event.LOST): State.CLOSED},
    )
    state = CONNECTION.advance("broker-3", state, Event.OPENED)

A machine whose moves are named by their target only, as those of Kafka's controller are, is written the way Kafka
writes it, each state with its valid previous states; the event is then the target state itself:

    PARTITION = TransitionTable.from_valid_previous_states(
        "partition",
        start=PartitionState.NON_EXISTENT,
        valid_previous_states={PartitionState.NEW: {PartitionState.NON_EXISTENT}, ...},
    )
    state = PARTITION.advance(topic_partition, state, PartitionState.NEW)
"""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar

from barnabas.kernel.facts import fact

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping

State = TypeVar("State", bound=enum.Enum)
Event = TypeVar("Event", bound=enum.Enum)
Item = TypeVar("Item", bound="Hashable")


class TransitionTableError(ValueError):
    """A table that cannot be right; the message has every fault of it."""


class IllegalTransitionError(RuntimeError):
    """An event that the table does not allow in the item's state. The item keeps its state."""

    def __init__(self, table: str, item: object, state: enum.Enum, event: enum.Enum) -> None:
        super().__init__(f"{table} {item}: {event.name} is not allowed in state {state.name}")
        self.table = table
        self.item = item
        self.state = state
        self.event = event


@fact
class Advanced(Generic[Item, State]):
    """What became of a batch: the new state of each item that moved, and the refusal for each that did not."""

    states: Mapping[Item, State]
    refusals: Mapping[Item, IllegalTransitionError]


class TransitionTable(Generic[State, Event]):
    """The transitions of one kind of item, checked when the table is made."""

    def __init__(
        self,
        name: str,
        *,
        start: State | Collection[State],
        transitions: Mapping[tuple[State, Event], State],
        final: Collection[State] = (),
    ) -> None:
        """`name` is what errors call the item; `start` has the state or states that items begin in, `final` those they
        end in.

        Raises `TransitionTableError` when a state is of another enum than the first start state or an event of another
        than the first event; when a state cannot be reached, or cannot be left and is not final, or is final and can be
        left; and when an event occurs nowhere.
        """
        self.name = name
        self.start: tuple[State, ...] = (start,) if isinstance(start, enum.Enum) else tuple(start)
        self.final: frozenset[State] = frozenset(final)
        self.transitions: Mapping[tuple[State, Event], State] = MappingProxyType(dict(transitions))
        faults = list(self._faults())
        if faults:
            raise TransitionTableError(f"the transitions of {name} cannot be right: {'; '.join(faults)}")

    @classmethod
    def from_valid_previous_states(
        cls,
        name: str,
        *,
        start: State | Collection[State],
        valid_previous_states: Mapping[State, Collection[State]],
        final: Collection[State] = (),
    ) -> TransitionTable[State, State]:
        """The table of a machine whose events are its target states: each with the states that it may follow."""
        transitions = {
            (source, target): target for target, sources in valid_previous_states.items() for source in sources
        }
        return TransitionTable[State, State](name, start=start, transitions=transitions, final=final)

    @property
    def states(self) -> tuple[State, ...]:
        """Every state, in the order of the enum."""
        return tuple(type(self.start[0]))

    def allows(self, state: State, event: Event) -> bool:
        return (state, event) in self.transitions

    def advance(self, item: object, state: State, event: Event) -> State:
        """The item's next state; raises `IllegalTransitionError` for this item when the table has none."""
        following = self.transitions.get((state, event))
        if following is None:
            raise IllegalTransitionError(self.name, item, state, event)
        return following

    def advance_all(self, items: Iterable[tuple[Item, State]], event: Event) -> Advanced[Item, State]:
        """Moves every item that the table lets move; the others keep their state and are reported."""
        states: dict[Item, State] = {}
        refusals: dict[Item, IllegalTransitionError] = {}
        for item, state in items:
            try:
                states[item] = self.advance(item, state, event)
            except IllegalTransitionError as refusal:
                refusals[item] = refusal
        return Advanced(states, refusals)

    def diagram(self) -> str:
        """The table as a Mermaid state diagram, for the documentation; the same text for the same table."""
        by_target = all(event is target for (_, event), target in self.transitions.items())
        labels: dict[tuple[State, State], list[str]] = {}
        for (source, event), target in self.transitions.items():
            labels.setdefault((source, target), []).append(event.name)
        order = {state: position for position, state in enumerate(self.states)}
        lines = ["stateDiagram-v2", *(f"    [*] --> {state.name}" for state in self.states if state in self.start)]
        for source, target in sorted(labels, key=lambda pair: (order[pair[0]], order[pair[1]])):
            label = "" if by_target else f" : {', '.join(labels[source, target])}"
            lines.append(f"    {source.name} --> {target.name}{label}")
        lines += [f"    {state.name} --> [*]" for state in self.states if state in self.final]
        return "\n".join(lines) + "\n"

    def _faults(self) -> Iterable[str]:
        if not self.start:
            yield "there is no start state"
            return
        if not self.transitions:
            yield "there is no transition"
            return
        strangers = list(self._strangers())
        if strangers:
            yield from strangers
            return
        reached = self._reachable()
        left = {source for (source, _), target in self.transitions.items() if source is not target}
        for state in self.states:
            if state not in reached:
                yield f"state {state.name} cannot be reached"
            if state in self.final and state in left:
                yield f"state {state.name} is final and can be left"
            if state not in self.final and state not in left:
                yield f"state {state.name} cannot be left and is not final"
        used = {event for _, event in self.transitions}
        events = type(next(iter(self.transitions))[1])
        if events is not type(self.start[0]):
            yield from (f"event {event.name} occurs nowhere" for event in events if event not in used)

    def _strangers(self) -> Iterable[str]:
        states = type(self.start[0])
        events = type(next(iter(self.transitions))[1])
        named = [*self.start, *self.final, *(source for source, _ in self.transitions), *self.transitions.values()]
        for state in dict.fromkeys(named):
            if not isinstance(state, states):
                yield f"{state} is not a state of {states.__name__}"
        for event in dict.fromkeys(event for _, event in self.transitions):
            if not isinstance(event, events):
                yield f"{event} is not an event of {events.__name__}"

    def _reachable(self) -> set[State]:
        reached = set(self.start)
        frontier = list(self.start)
        while frontier:
            state = frontier.pop()
            for (source, _), target in self.transitions.items():
                if source is state and target not in reached:
                    reached.add(target)
                    frontier.append(target)
        return reached
