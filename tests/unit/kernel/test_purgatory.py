"""`barnabas.kernel.purgatory`."""

from __future__ import annotations

import gc
import logging
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from barnabas.kernel.purgatory import DelayedOperation, Purgatory
from barnabas.kernel.timers import Timers
from tests.unit.kernel.virtual_loop import HandDrivenLoop

LOGGER = logging.getLogger("tests.purgatory")
KEYS = "abc"


class World:
    """Levels by key, a purgatory of operations that wait for a level, and the loop they expire on."""

    def __init__(self) -> None:
        self.loop = HandDrivenLoop()
        self.timers = Timers(self.loop.as_loop)
        self.purgatory: Purgatory[Waiting] = Purgatory("Produce", self.timers, LOGGER)
        self.levels = dict.fromkeys(KEYS, 0)

    def raise_level(self, key: str) -> int:
        self.levels[key] += 1
        return self.purgatory.check_and_complete(key)


class Waiting(DelayedOperation):
    """Complete when every key's level is high enough; completion may raise the level of another key."""

    def __init__(self, world: World, keys: str, level: int, delay_ms: float = 1000, raises: str = "") -> None:
        super().__init__(delay_ms)
        self.world = world
        self.keys = keys
        self.level = level
        self.raises = raises
        self.completions = 0
        self.expirations = 0

    @property
    def ready(self) -> bool:
        return all(self.world.levels[key] >= self.level for key in self.keys)

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        self.completions += 1
        if self.raises:
            self.world.raise_level(self.raises)

    def on_expiration(self) -> None:
        self.expirations += 1


PARK = st.tuples(
    st.just("park"),
    st.sampled_from(("a", "b", "c", "ab", "bc", "abc")),
    st.integers(1, 6),
    st.sampled_from(("", *KEYS)),
)
RAISE = st.tuples(st.just("raise"), st.sampled_from(KEYS), st.just(0), st.just(""))
ADVANCE = st.tuples(st.just("advance"), st.just(""), st.integers(0, 30), st.just(""))
CANCEL = st.tuples(st.just("cancel"), st.sampled_from(KEYS), st.just(0), st.just(""))


@settings(deadline=None)
@given(st.lists(st.one_of(PARK, PARK, RAISE, RAISE, ADVANCE, CANCEL), max_size=80))
@example([("advance", "", 6, ""), ("park", "a", 1, ""), ("advance", "", 20, "")])
def test_completes_each_operation_once_and_keeps_none_that_could_complete(
    steps: list[tuple[str, str, int, str]],
) -> None:
    world = World()
    purgatory = world.purgatory
    made: list[Waiting] = []
    cancelled: list[Waiting] = []
    now_ms = 0
    deadlines: dict[Waiting, int] = {}
    for step, keys, amount, raises in steps:
        if step == "park":
            operation = Waiting(world, keys, amount, delay_ms=20, raises=raises)
            made.append(operation)
            deadlines[operation] = now_ms + 20
            assert purgatory.try_complete_else_watch(operation, keys) is operation.completed
        elif step == "raise":
            before = sum(operation.completed for operation in made)
            completed = world.raise_level(keys)
            assert completed == sum(operation.completed for operation in made) - before
        elif step == "cancel":
            cancelled += purgatory.cancel_for_key(keys)
        else:
            now_ms += amount
            world.loop.advance_to(now_ms / 1000)
        parked = [operation for operation in made if not operation.completed and operation not in cancelled]
        assert all(operation.completions == operation.completed for operation in made)
        assert all(operation.expirations <= operation.completions for operation in made)
        assert not any(operation.ready for operation in parked)
        assert all(deadlines[operation] > now_ms for operation in parked)
        assert not any(operation.completed for operation in cancelled)
        assert purgatory.delayed == len(parked) == len(world.timers)
        assert purgatory.watched == sum(len(operation.keys) for operation in parked)
        assert purgatory.expired_count == sum(operation.expirations for operation in made)
        for key in KEYS:
            assert purgatory.watchers(key) == [operation for operation in parked if key in operation.keys]


def test_tells_an_operation_which_of_its_keys_was_checked() -> None:
    class Told(Waiting):
        def try_complete_for(self, key: object) -> bool:
            told.append(key)
            return super().try_complete_for(key)

    told: list[object] = []
    world = World()
    operation = Told(world, "abc", 1)
    world.purgatory.try_complete_else_watch(operation, operation.keys)
    assert [world.raise_level(key) for key in "bac"] == [0, 0, 1]
    assert told == ["b", "a", "c"]
    assert operation.completions == 1


def test_completes_at_once_what_can_complete_and_does_not_park_it() -> None:
    world = World()
    world.levels["a"] = 1
    operation = Waiting(world, "a", 1)
    assert world.purgatory.try_complete_else_watch(operation, "a")
    assert operation.completions == 1
    assert (world.purgatory.delayed, world.purgatory.watched, len(world.timers)) == (0, 0, 0)


def test_expires_what_stays_and_says_so_after_completing_it() -> None:
    world = World()
    order: list[str] = []

    class Recording(Waiting):
        def on_complete(self) -> None:
            order.append("complete")

        def on_expiration(self) -> None:
            order.append("expiration")

    world.purgatory.try_complete_else_watch(Recording(world, "ab", 1, delay_ms=30), "ab")
    world.loop.advance(0.029)
    assert order == []
    world.loop.advance(0.001)
    assert order == ["complete", "expiration"]
    assert world.purgatory.expired_count == 1
    assert world.raise_level("a") == 0


def test_an_operation_forced_from_outside_leaves_its_keys_and_its_time_out() -> None:
    world = World()
    operation = Waiting(world, "ab", 1)
    world.purgatory.try_complete_else_watch(operation, "ab")
    assert operation.force_complete()
    assert not operation.force_complete()
    assert (world.purgatory.watched, len(world.timers)) == (0, 0)
    world.loop.advance(10)
    assert (operation.completions, operation.expirations) == (1, 0)
    assert world.purgatory.completed_count == 1


def test_a_chain_of_completions_does_not_nest() -> None:
    world = World()
    length = 5000
    world.levels = dict.fromkeys(map(str, range(length + 1)), 0)

    class Link(Waiting):
        def __init__(self, number: int) -> None:
            super().__init__(world, "", 1)
            self.number = number

        @property
        def ready(self) -> bool:
            return world.levels[str(self.number)] >= 1

        def on_complete(self) -> None:
            super().on_complete()
            world.raise_level(str(self.number + 1))

    links = [Link(number) for number in range(length)]
    for link in links:
        world.purgatory.try_complete_else_watch(link, [str(link.number)])
    assert world.raise_level("0") == length
    assert all(link.completions == 1 for link in links)


def test_an_operation_parked_by_a_completion_is_seen_by_checks_still_to_come() -> None:
    world = World()
    late = Waiting(world, "b", 1)

    class Parking(Waiting):
        def on_complete(self) -> None:
            super().on_complete()
            assert not world.purgatory.try_complete_else_watch(late, "b")
            assert world.raise_level("b") == 0  # checked when this check is through

    world.purgatory.try_complete_else_watch(Parking(world, "a", 1), "a")
    assert world.raise_level("a") == 2
    assert late.completions == 1


def test_cancelled_operations_complete_neither_by_event_nor_by_time_but_by_their_taker() -> None:
    world = World()
    first, second = Waiting(world, "ab", 1), Waiting(world, "b", 1)
    for operation in (first, second):
        world.purgatory.try_complete_else_watch(operation, operation.keys)
    assert world.purgatory.cancel_for_key("a") == [first]
    assert world.purgatory.watchers("b") == [second]
    world.levels["a"] = 1
    world.raise_level("b")
    world.loop.advance(10)
    assert (first.completions, second.completions) == (0, 1)
    assert first.force_complete()
    assert first.completions == 1


def test_all_are_completed_at_the_end_whatever_one_of_them_does(caplog: pytest.LogCaptureFixture) -> None:
    world = World()

    class Failing(Waiting):
        def on_complete(self) -> None:
            raise RuntimeError("nobody can be told")

    operations = [Failing(world, "a", 1), Waiting(world, "b", 1), Waiting(world, "ab", 1)]
    for operation in operations:
        world.purgatory.try_complete_else_watch(operation, operation.keys)
    world.purgatory.complete_all()
    assert [operation.completions for operation in operations] == [0, 1, 1]
    assert world.purgatory.delayed == 0
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["nobody can be told"]


def test_an_operation_that_is_cancelled_during_a_check_is_not_tried() -> None:
    world = World()
    second = Waiting(world, "a", 1)

    class Cancelling(Waiting):
        def on_complete(self) -> None:
            super().on_complete()
            assert world.purgatory.cancel_for_key("a") == [second]

    world.purgatory.try_complete_else_watch(Cancelling(world, "a", 1), "a")
    world.purgatory.try_complete_else_watch(second, "a")
    assert world.raise_level("a") == 1
    assert not second.completed


def test_a_failing_operation_is_logged_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    world = World()

    class FailsToComplete(Waiting):
        def on_complete(self) -> None:
            super().on_complete()
            raise ValueError("cannot answer")

    class FailsToTry(Waiting):
        def try_complete(self) -> bool:
            if world.levels["a"]:
                raise ValueError("cannot tell")
            return False

    failing, puzzled, sound = FailsToComplete(world, "a", 1), FailsToTry(world, "a", 1), Waiting(world, "a", 1)
    for operation in (failing, puzzled, sound):
        world.purgatory.try_complete_else_watch(operation, "a")
    with caplog.at_level(logging.ERROR):
        assert world.raise_level("a") == 2
    assert [record.exc_text is not None for record in caplog.records] == [True, True]
    assert (failing.completions, sound.completions) == (1, 1)
    assert world.purgatory.watchers("a") == [puzzled]
    world.loop.advance(1)
    assert (puzzled.completions, world.purgatory.delayed) == (1, 0)


def test_close_returns_what_is_parked_in_the_order_it_was_parked() -> None:
    world = World()
    operations = [Waiting(world, keys, 1) for keys in ("b", "ab", "a", "c")]
    for operation in operations:
        world.purgatory.try_complete_else_watch(operation, operation.keys)
    assert world.purgatory.close() == operations
    assert (world.purgatory.watched, len(world.timers)) == (0, 0)
    assert not any(operation.completed for operation in operations)


def test_refuses_an_operation_without_key_and_one_that_is_parked() -> None:
    world = World()
    operation = Waiting(world, "a", 1)
    with pytest.raises(ValueError, match="needs a key"):
        world.purgatory.try_complete_else_watch(operation, ())
    world.purgatory.try_complete_else_watch(operation, "a")
    with pytest.raises(ValueError, match="parked already"):
        world.purgatory.try_complete_else_watch(operation, "b")


def test_completed_operations_leave_no_memory_behind() -> None:
    world = World()
    world.levels["never"] = 0

    def churn() -> None:
        for _ in range(3000):
            # Completed under one key and never checked under the other, which Kafka has to purge.
            operation = Waiting(world, "a", world.levels["a"] + 1)
            world.purgatory.try_complete_else_watch(operation, ("a", "never"))
            assert world.raise_level("a") == 1

    churn()
    gc.collect()
    tracemalloc.start()
    churn()
    gc.collect()
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 50_000


def test_an_operation_that_comes_after_the_timers_closed_is_not_half_parked() -> None:
    world = World()
    world.timers.close()
    with pytest.raises(RuntimeError, match="closed"):
        world.purgatory.try_complete_else_watch(Waiting(world, "ab", 1), "ab")
    assert (world.purgatory.watched, world.purgatory.delayed, world.purgatory.watchers("a")) == (0, 0, [])
