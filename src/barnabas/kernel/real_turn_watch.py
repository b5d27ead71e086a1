"""Watches the turns of a real event loop: how long they are, and what held the loop when one was too long.

A timer of the loop is due every 20 ms. How late it comes is how long others waited for their turn, and what holds the
loop is found by a signal: it is set to go off when the timer is late, comes between two bytecodes of whatever runs, and
sees its frames. Nobody notes anything on the way, so work pays nothing for being watched.

So that an idle process is not woken for it, the timer of a loop that has done next to nothing for a second is due four
times a second only, and another signal goes off when the process has used some milliseconds of its processor.
Then a turn that works is found as before, one that waits (for a disk, say) only if it waits for 250 ms.
That signal comes with the system's clock tick, and on a machine with much to do after 100 ms instead of 30: what ran
before it counts in whole only where the turn that it came in is a long one for what follows alone.
"""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, cast

from barnabas.kernel.long_turns import LONG_TURN_MS, LongTurn

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping
    from types import FrameType, FunctionType

BEAT_SECONDS: Final = 0.02
# A turn that began just after a beat is so late at least when it has become a long one.
_ALARM_SECONDS: Final = LONG_TURN_MS / 1000 - BEAT_SECONDS
_ALARM_INTERVAL_SECONDS: Final = 0.02
IDLE_BEAT_SECONDS: Final = 0.25
_IDLE_AFTER_BEATS: Final = 50
# Of processor time, as a part of the time of so many beats, or of one slow beat, for the loop to count as idle.
_IDLE_PART_MAX: Final = 0.05
_PACKAGE: Final = __name__.partition(".")[0]
_FRAMES_SHOWN: Final = 4

NOTHING: Final = "nothing"
"""What held the loop when no code of ours did: the process was stopped, or waited for a processor."""
COLLECTOR: Final = "garbage collection"
_ALARMS: Final = (signal.SIGALRM, signal.SIGPROF)


class Naming:
    """How a turn is named while a function runs: by one of its local variables, of which few different names come."""

    __slots__ = ("_local", "_name", "code")

    def __init__(self, function: Callable[..., Any], local: str, name: Callable[[Any], str]) -> None:
        """Raises ValueError when the function has no such variable."""
        self.code = cast("FunctionType", function).__code__
        if local not in self.code.co_varnames + self.code.co_cellvars:
            raise ValueError(f"{function.__qualname__} has no local variable {local!r} to name a turn by")
        self._local = local
        self._name = name

    def of(self, frame: FrameType) -> str:
        """The name; empty while the variable has no value yet."""
        value = frame.f_locals.get(self._local)
        return "" if value is None else self._name(value)


class _ProcessorAlarm:
    """The alarm of the processor's time in an idle loop, which came in a turn and has it end with a beat.

    When that turn began is not known: it had not all of what was used since the last beat when others ran before it.
    """

    __slots__ = ("_at", "_used")

    def __init__(self, used_seconds: float) -> None:
        """`used_seconds` is the processor's time since the last beat."""
        self._at = time.monotonic()
        self._used = used_seconds

    def turn_until_now(self, used_seconds: float) -> tuple[float, float]:
        """Seconds of the turn, and of the processor in it, when so much was used since the last beat.

        A turn that has gone on for long since is a long one for sure, and all before the alarm is counted with it.
        Otherwise the alarm is taken to have come in time, as if the turn had begun so much before it.
        """
        since = used_seconds - self._used
        before = self._used if since * 1000 > LONG_TURN_MS else min(self._used, _ALARM_SECONDS)
        return before + time.monotonic() - self._at, before + since


class TurnWatch:
    """Reports every long turn of the main thread's loop, asyncio's or uvloop's.

    The innermost function that has an entry in `names` names the turn, and where there is none the outermost one of
    ours. Takes SIGALRM and SIGPROF; where one is in use already, turns have no names.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tell: Callable[[LongTurn], None],
        names: Iterable[Naming],
    ) -> None:
        """`tell` is called on the loop, after the turn."""
        self._loop = loop
        self._tell = tell
        self._names = {naming.code: naming for naming in names}
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0
        self._period = BEAT_SECONDS
        self._beats = 0
        self._beats_seconds = 0.0
        self._beats_processor_seconds = 0.0
        self._alarm: _ProcessorAlarm | None = None
        self._processor_seconds = 0.0
        self._collector_seconds = 0.0
        self._collection_began = 0.0
        self._seen: Counter[str] = Counter()
        self._place = ""
        self._has_alarm = False

    def start(self) -> None:
        """To be called on the loop's thread."""
        on_main_thread = threading.current_thread() is threading.main_thread()
        self._has_alarm = on_main_thread and all(signal.getsignal(alarm) is signal.SIG_DFL for alarm in _ALARMS)
        if self._has_alarm:
            signal.signal(signal.SIGALRM, self._look)
            signal.signal(signal.SIGPROF, self._works_again)
            for alarm in _ALARMS:
                signal.siginterrupt(alarm, False)
        gc.callbacks.append(self._collected)
        self._wait_for_beat()

    def stop(self) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        gc.callbacks.remove(self._collected)
        if self._has_alarm:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            for alarm in _ALARMS:
                signal.signal(alarm, signal.SIG_DFL)

    def _wait_for_beat(self) -> None:
        self._began = time.monotonic()
        self._processor_seconds = time.thread_time()
        self._timer = self._loop.call_later(self._period, self._beat)
        if self._has_alarm:
            signal.setitimer(signal.ITIMER_REAL, self._period + _ALARM_SECONDS, _ALARM_INTERVAL_SECONDS)

    def _beat(self) -> None:
        if self._timer is None:
            return  # stopped since an alarm has asked for it: no alarm may be set that nobody takes
        took = time.monotonic() - self._began
        late = took - self._period
        processor = time.thread_time() - self._processor_seconds
        if self._alarm is not None:
            self._tell_if_long(*max((late, processor), self._alarm.turn_until_now(processor)))
        elif self._is_idle:
            self._tell_if_long(late, processor)
        elif late > _ALARM_SECONDS:
            # The turn began before the timer was due: by so much that the processor's time goes up, and no more than
            # half a beat, on average.
            self._tell_if_long(max(late, min(processor, late + self._period / 2)), processor)
        if self._seen or self._collector_seconds:
            self._seen.clear()
            self._place = ""
            self._collector_seconds = 0.0
        self._alarm = None
        self._follow(took, processor)
        self._wait_for_beat()

    @property
    def _is_idle(self) -> bool:
        return self._period == IDLE_BEAT_SECONDS

    def _follow(self, took: float, processor: float) -> None:
        """Beats slowly once the loop is idle, and fast again when it is not. Many beats are taken together before it
        counts as idle: what it does four times a second fills a tenth of a fast beat, and next to nothing of a second.
        """
        if not self._has_alarm:
            return
        if self._is_idle:
            if processor >= took * _IDLE_PART_MAX:
                self._period = BEAT_SECONDS
                signal.setitimer(signal.ITIMER_PROF, 0.0)
            return
        self._beats += 1
        self._beats_seconds += took
        self._beats_processor_seconds += processor
        if self._beats < _IDLE_AFTER_BEATS:
            return
        if self._beats_processor_seconds < self._beats_seconds * _IDLE_PART_MAX:
            self._period = IDLE_BEAT_SECONDS
            signal.setitimer(signal.ITIMER_PROF, _ALARM_SECONDS, _ALARM_INTERVAL_SECONDS)
        self._beats = 0
        self._beats_seconds = self._beats_processor_seconds = 0.0

    def _works_again(self, number: int, frame: FrameType | None) -> None:
        """The alarm of the processor's time."""
        self._look(number, frame)
        if self._is_idle and self._timer is not None and not self._timer.cancelled():
            self._alarm = _ProcessorAlarm(time.thread_time() - self._processor_seconds)
            self._timer.cancel()
            # A beat in the next turn ends what is taken for one turn.
            self._loop.call_soon_threadsafe(self._beat)

    def _tell_if_long(self, duration: float, processor: float) -> None:
        if duration * 1000 > LONG_TURN_MS:
            self._tell(self._turn(duration, processor))

    def _turn(self, duration: float, processor: float) -> LongTurn:
        if self._collector_seconds > duration / 2:
            name = COLLECTOR
        elif self._seen:
            ((name, _),) = self._seen.most_common(1)
        else:
            name = NOTHING
        return LongTurn(
            name,
            round(duration * 1000),
            round(processor * 1000),
            round(self._collector_seconds * 1000),
            self._place,
        )

    def _look(self, _number: int, frame: FrameType | None) -> None:
        """The alarm: notes what runs."""
        name = outermost = ""
        places: list[str] = []
        while frame is not None:
            module = str(frame.f_globals.get("__name__", ""))
            if module == "asyncio.runners" or frame.f_code.co_name == "_run_once":
                break  # what runs the loop; on asyncio's it has a frame of its own
            naming = self._names.get(frame.f_code)
            if naming is not None and not name:
                name = naming.of(frame)
            if module.startswith(_PACKAGE) and module != __name__:
                outermost = f"{module[len(_PACKAGE) + 1 :]}.{frame.f_code.co_qualname}"
                if len(places) < _FRAMES_SHOWN:
                    places.append(f"{outermost}:{frame.f_lineno}")
            frame = frame.f_back
        self._seen[name or outermost or NOTHING] += 1
        if places:
            self._place = " > ".join(reversed(places))

    def _collected(self, phase: str, _info: Mapping[str, int]) -> None:
        """The garbage collector's callback."""
        if phase == "start":
            self._collection_began = time.monotonic()
        else:
            self._collector_seconds += time.monotonic() - self._collection_began
