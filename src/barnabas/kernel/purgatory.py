"""Operations that wait for a condition, watched by key and completed once, by an event or by their time-out.

They work as in Kafka's DelayedOperationPurgatory. With one loop there is nothing between the check of an operation and
its place in the watch lists, so no wake-up is lost; a completed operation leaves every list at once, so nothing is to
be purged and the lists hold what is parked, exactly.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from barnabas.kernel.lazy_timer import LazyTimer

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from barnabas.kernel.timers import Timer, Timers


class DelayedOperation(abc.ABC):
    """An operation that completes when its condition holds, or after `delay_ms` at the latest.

    A subclass checks in `try_complete` and acts in `on_complete`, which is called exactly once.
    """

    def __init__(self, delay_ms: float) -> None:
        self.delay_ms = delay_ms
        self.purgatory: Purgatory[Any] | None = None
        """Where the operation is parked, set there."""
        self._completed = False

    @property
    def completed(self) -> bool:
        return self._completed

    @abc.abstractmethod
    def try_complete(self) -> bool:
        """Completes by `force_complete` and returns its result if the condition holds; else returns False."""

    def try_complete_for(self, key: Hashable) -> bool:  # noqa: ARG002 - for those that wait under many keys
        """As `try_complete`, where only what concerns this key of the operation has changed."""
        return self.try_complete()

    @abc.abstractmethod
    def on_complete(self) -> None:
        """Acts: answers the request with what is there. Called once, however the operation was completed."""

    def on_expiration(self) -> None:  # noqa: B027 - most operations only count
        """Called after `on_complete` when the time-out completed the operation."""

    def force_complete(self) -> bool:
        """Completes the operation whatever it waits for; True when this call did it, False when it was complete
        already.
        """
        if self._completed:
            return False
        self._completed = True
        if self.purgatory is not None:
            self.purgatory.release(self)
        self.on_complete()
        return True


class Standing(Protocol):
    """An operation that is reused: it waits for one condition after another."""

    @property
    def waiting_count(self) -> int:
        """The number of operations that wait now."""
        ...

    @property
    def completed(self) -> bool: ...

    def try_complete(self) -> bool:
        """Completes what can be completed; True when nothing is left."""
        ...

    def force_complete(self) -> bool:
        """Completes everything that waits in it; False if there was nothing."""
        ...


class _Parked(NamedTuple):
    keys: tuple[Hashable, ...]
    timer: Timer


Operation = TypeVar("Operation", bound=DelayedOperation)


class Purgatory(Generic[Operation]):
    """Operations parked under keys.

    The code that makes an operation's condition true calls `check_and_complete` of the key afterwards. What an
    operation does on completion may check keys and park operations itself: such checks are made when the one on its way
    is through, so a chain of completions, however long, does not nest.

    Operations are as many as the requests that wait; whoever accepts requests bounds those. An operation that raises is
    logged and harms no other; when it raised in `try_complete`, it stays parked until its time-out.
    """

    def __init__(self, name: str, timers: Timers, logger: logging.Logger) -> None:
        self.name = name
        self.expired_count = 0
        self.completed_count = 0
        """The number of parked operations that were completed, by event or by time-out."""
        self._standing: dict[Standing, None] = {}
        self._timers = timers
        self._logger = logger
        self._watchers: dict[Hashable, dict[Operation | Standing, None]] = {}
        self._watched = 0
        self._parked: dict[Operation, _Parked] = {}
        self._keys_to_check: dict[Hashable, None] = {}
        self._checking = False

    @property
    def watched(self) -> int:
        """Entries of all watch lists; an operation has one under each of its keys (Kafka's PurgatorySize)."""
        return self._watched + self._count_standing()

    @property
    def watched_keys(self) -> Mapping[Hashable, object]:
        """The keys under which operations are parked, as a view that stays true."""
        return self._watchers

    @property
    def delayed(self) -> int:
        """Parked operations (Kafka's NumDelayedOperations)."""
        return len(self._parked) + self._count_standing()

    # What stands.

    def lazy_timer(self, callback: Callable[[], object], when_idle: Callable[[], object] | None = None) -> LazyTimer:
        """For an operation that stands: its time-out, which it sets and clears itself."""
        return LazyTimer(self._timers, callback, when_idle)

    def stand(self, operation: Standing, key: Hashable | None = None) -> None:
        """The operation waits from now on, until `leave`. With a key, it is checked with the operations parked under
        it; otherwise it is told by whom it waits for.
        """
        self._standing[operation] = None
        if key is not None:
            self._watchers.setdefault(key, {})[operation] = None

    def leave(self, operation: Standing, key: Hashable | None = None) -> None:
        """The operation does not wait any more, of which that key was told to `stand`. Twice is no error."""
        self._standing.pop(operation, None)
        if key is not None:
            watching = self._watchers.get(key)
            if watching is not None and watching.pop(operation, self) is None and not watching:
                del self._watchers[key]

    def report_failed(self, waiting: object, error: Exception) -> None:
        """Logs why an operation, or one of those that wait in it, could not be told of its end."""
        self._logger.error("Uncaught error completing %r in purgatory %s", waiting, self.name, exc_info=error)

    # What is parked.

    def watchers(self, key: Hashable) -> list[Operation]:
        """The operations parked under the key, the one that has waited longest first."""
        return [operation for operation in self._watchers.get(key, ()) if isinstance(operation, DelayedOperation)]

    def try_complete_else_watch(self, operation: Operation, keys: Iterable[Hashable]) -> bool:
        """Completes the operation now if it can be (True), or parks it under the keys (False).

        Raises what `try_complete` raises, with the operation not parked, and ValueError for no key at all or for an
        operation that is parked already.
        """
        watch_keys = tuple(dict.fromkeys(keys))
        if not watch_keys:
            raise ValueError(f"{operation!r} needs a key to be watched by")
        if operation.purgatory is not None:
            raise ValueError(f"{operation!r} is parked already")
        if operation.try_complete():
            return True
        if operation.completed:
            return False  # by somebody else, on the way
        timer = self._timers.call_after(operation.delay_ms, self._expire, operation)  # first: it may refuse
        for key in watch_keys:
            operations = self._watchers.get(key)
            if operations is None:
                self._watchers[key] = {operation: None}
            else:
                operations[operation] = None
        self._watched += len(watch_keys)
        self._parked[operation] = _Parked(watch_keys, timer)
        operation.purgatory = self
        return False

    def check_and_complete(self, key: Hashable) -> int:
        """Completes those operations under the key whose condition holds; returns their number.

        Called from within a completion, it returns 0 and the key is checked right after the check that is on its way.
        """
        if key not in self._watchers:
            return 0
        self._keys_to_check[key] = None
        if self._checking:
            return 0
        completed = 0
        self._checking = True
        try:
            while self._keys_to_check:
                next_key = next(iter(self._keys_to_check))
                del self._keys_to_check[next_key]
                completed += self._check(next_key)
        finally:
            self._checking = False
        return completed

    def cancel_for_key(self, key: Hashable) -> list[Operation]:
        """Takes the key's operations out, from under their other keys too, and returns them.

        They are not completed, and neither event nor time-out will complete them; the caller may.
        """
        operations = self.watchers(key)
        for operation in operations:
            self._take_out(operation)
        return operations

    def release(self, operation: Operation) -> None:
        """Called by a parked operation that completes."""
        self.completed_count += 1
        self._take_out(operation)

    def close(self) -> list[Operation | Standing]:
        """Takes every operation out, uncompleted, and returns them in the order in which they were parked; then those
        that stand, which leave by themselves.
        """
        operations = list(self._parked)
        for operation in operations:
            self._take_out(operation)
        return [*operations, *self._standing]

    def complete_all(self) -> None:
        """Takes every operation out, and completes each; one that raises is logged and harms no other."""
        for operation in self.close():
            try:
                operation.force_complete()
            except Exception as error:  # noqa: BLE001 - logged there
                self.report_failed(operation, error)

    def _check(self, key: Hashable) -> int:
        completed = 0
        operation: Any
        for operation in tuple(self._watchers.get(key, ())):
            try:
                if operation in self._standing:
                    completed += operation.try_complete()
                elif getattr(operation, "purgatory", None) is self:  # else completed or cancelled by one before it
                    completed += operation.try_complete_for(key)
            except Exception:
                self._logger.exception("Uncaught error completing %r in purgatory %s", operation, self.name)
                completed += operation.completed
        return completed

    def _expire(self, operation: Operation) -> None:
        self.expired_count += 1
        try:
            operation.force_complete()
            operation.on_expiration()
        except Exception:
            self._logger.exception("Uncaught error expiring %r in purgatory %s", operation, self.name)

    def _count_standing(self) -> int:
        return sum(operation.waiting_count for operation in self._standing)

    def _take_out(self, operation: Operation) -> None:
        operation.purgatory = None
        parked = self._parked.pop(operation)
        parked.timer.cancel()
        self._watched -= len(parked.keys)
        for key in parked.keys:
            operations = self._watchers[key]
            del operations[operation]
            if not operations:
                del self._watchers[key]
