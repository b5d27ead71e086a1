"""Batches of queries that a Spark Connect server runs: written by this process, as those of a Spark of its own.

The server's `foreachBatch` runs in a Python there. So what it runs only waits (`connect_waiting`), and a thread here
takes each batch by the id that the session has for its frame, has the writer write it, and says so. All that makes a
batch exact (state, outbox, tables) stays here.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from barnabas.pipelines import connect_waiting
from barnabas.pipelines.connect_waiting import ALIVE, DONE, OVER, SETTINGS, waiting_for_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SILENCE_SECONDS_MAX: Final = 60.0
"""So long a batch waits at the server for a run that is not heard of."""
SIGN_EVERY_SECONDS: Final = 2.0
# The server waits ten seconds for the Python that is to wait for batches, which imports pandas and more.
_PYTHON_IS_SLOW: Final = "Python worker failed to connect back"
_STARTS_MAX: Final = 6
_POLL_SECONDS_MIN: Final = 0.02
_POLL_SECONDS_MAX: Final = 0.2

WriteBatch = Callable[["DataFrame", int], None]


def is_connect(session: SparkSession) -> bool:
    """Whether a session is one of Spark Connect's."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


class QueryBatches:
    """What the queries of a run call for their batches, in whichever Spark."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._attendants: dict[str, BatchAttendant] = {}

    def function(self, view: str, write: WriteBatch) -> WriteBatch:
        """What `foreachBatch` takes for one start of a view's query; the start before it is over."""
        if not is_connect(self._session):
            return write
        former = self._attendants.pop(view, None)
        if former is not None:
            former.close()
        found = self._attendants[view] = BatchAttendant(self._session, write)
        return found.function

    @staticmethod
    def start(writer: Any) -> Any:
        """Has Spark start a query, and returns its handle."""
        for _ in range(_STARTS_MAX - 1):
            try:
                return writer.start()
            except Exception as error:  # whatever else it is, the next attempt raises it too
                if _PYTHON_IS_SLOW not in str(error):
                    raise
        return writer.start()

    def close(self) -> None:
        """Returns when no batch is written any more."""
        if self._attendants:
            with contextlib.suppress(Exception):  # the server may be gone
                self._session.conf.set(OVER, "true")
            if any(attendant.is_writing for attendant in self._attendants.values()):
                with contextlib.suppress(Exception):
                    self._session.interruptAll()
        for attendant in self._attendants.values():
            attendant.close()
        self._attendants.clear()


class BatchAttendant:
    """Writes the batches of one start of a query, on a thread of its own."""

    def __init__(self, session: Any, write: WriteBatch) -> None:
        self._session, self._write = session, write
        name = f"{SETTINGS}{uuid.uuid4().hex}"
        self._asked, self._answered = f"{name}.asked", f"{name}.answered"
        self.function = waiting_for_run(self._asked, self._answered, SILENCE_SECONDS_MAX)
        self.is_writing = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._attend, name="batches", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Returns when the batch under way has come to its end, and takes no other."""
        self._closed.set()
        self._thread.join()

    def _attend(self) -> None:
        settings, before, pause = self._session.conf, "", _POLL_SECONDS_MIN
        # Without its server it ends: the run finds that out by itself.
        with contextlib.suppress(Exception):
            while not self._closed.wait(pause):
                asked = settings.get(self._asked, "")
                if asked in ("", before):
                    pause = min(pause * 1.2, _POLL_SECONDS_MAX)
                    continue
                said = self._written(asked)
                settings.set(self._answered, f"{asked}{said}")
                before, pause = asked, _POLL_SECONDS_MIN

    def _written(self, asked: str) -> str:
        batch_id, frame_id = asked.split()
        self.is_writing = True
        try:
            self._write(self._session._create_remote_dataframe(frame_id), int(batch_id))  # noqa: SLF001
        except Exception as error:  # noqa: BLE001  # the server is to know, and the query to end by it
            return f"{type(error).__name__}: {error}"
        finally:
            self.is_writing = False
        return DONE


@contextlib.contextmanager
def signs_of_life(session: Any, heard: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Has the server know, for as long as the block lasts, that the run is there; `heard` is called when it answers."""
    over = threading.Event()

    def give() -> None:
        for number in itertools.count():
            with contextlib.suppress(Exception):  # the run finds out by itself
                session.conf.set(ALIVE, str(number))
                heard()
            if over.wait(SIGN_EVERY_SECONDS):
                return

    thread = threading.Thread(target=give, name="signs of life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def send_by_value() -> None:
    """Has the function go to the server as it is: there is no such module there."""
    from pyspark.cloudpickle import register_pickle_by_value

    register_pickle_by_value(connect_waiting)
