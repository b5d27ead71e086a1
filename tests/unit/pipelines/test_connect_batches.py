"""Batches of queries that a Spark Connect server runs, written here: the two sides, by settings that both have."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from barnabas.pipelines import connect_waiting
from barnabas.pipelines.connect_batches import BatchAttendant, QueryBatches, signs_of_life
from barnabas.pipelines.connect_waiting import ALIVE, OVER, waiting_for_run


class Settings:
    """Those of a session, for client and server."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def get(self, name: str, default: str) -> str:
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.values[name] = value


class Session:
    def __init__(self) -> None:
        self.conf = Settings()

    def _create_remote_dataframe(self, frame_id: str) -> str:
        return f"frame {frame_id}"


class Frame:
    """A batch's frame as the server's Python has it."""

    def __init__(self, session: Session, frame_id: str) -> None:
        self.sparkSession = session
        self._plan = type("Plan", (), {"_relation_id": frame_id})


def test_the_run_writes_a_batch_that_the_server_asks_for_by_the_id_of_its_frame() -> None:
    session, written = Session(), list[tuple[Any, int]]()
    attendant = BatchAttendant(session, lambda frame, batch_id: written.append((frame, batch_id)))
    attendant.function(Frame(session, "a-1"), 7)
    attendant.function(Frame(session, "a-2"), 8)
    attendant.close()
    assert written == [("frame a-1", 7), ("frame a-2", 8)]


def test_what_the_writer_raises_ends_the_query_at_the_server() -> None:
    session = Session()

    def refuse(_frame: Any, _batch_id: int) -> None:
        raise ValueError("no such column")

    attendant = BatchAttendant(session, refuse)
    with pytest.raises(RuntimeError, match="ValueError: no such column"):
        attendant.function(Frame(session, "a-1"), 0)
    attendant.close()


def test_the_same_batch_of_another_start_is_another_question() -> None:
    """The answer to the first must not be taken for its own."""
    session, numbers = Session(), list[int]()
    batches = QueryBatches(session)
    attendant = BatchAttendant(session, lambda _frame, batch_id: numbers.append(batch_id))
    attendant.function(Frame(session, "a-1"), 3)
    attendant.function(Frame(session, "a-2"), 3)
    attendant.close()
    batches.close()
    assert numbers == [3, 3]


def test_nobody_waits_for_a_run_that_is_over_or_not_heard_of() -> None:
    session = Session()
    wait = waiting_for_run("asked", "answered", 0.05)
    with pytest.raises(RuntimeError, match=r"has not been heard of"):
        wait(Frame(session, "a-1"), 0)
    session.conf.set(OVER, "true")
    with pytest.raises(RuntimeError, match="is over"):
        wait(Frame(session, "a-1"), 0)


def test_a_run_that_is_heard_of_may_take_its_time() -> None:
    session = Session()
    with signs_of_life(session):
        thread = threading.Thread(target=waiting_for_run("asked", "answered", 30.0), args=(Frame(session, "a-1"), 0))
        thread.start()
        while not session.conf.get("asked", ""):
            pass
        session.conf.set("answered", "0 a-1 done")
        thread.join()
    assert session.conf.get(ALIVE, "") != ""


def test_the_server_needs_nothing_of_ours() -> None:
    """The function goes there as it is, into a Python without this package."""
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    cloudpickle.register_pickle_by_value(connect_waiting)
    try:
        content = cloudpickle.dumps(waiting_for_run("asked", "answered", 1.0))
    finally:
        cloudpickle.unregister_pickle_by_value(connect_waiting)
    assert b"barnabas.pipelines.connect_batches" not in content
    names: list[str] = []

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            names.append(module)
            return super().find_class(module, name)

    import io

    found = Reader(io.BytesIO(content)).load()
    assert not [name for name in names if name.startswith("barnabas")]
    session = Session()
    session.conf.set("answered", "4 a-9 done")
    found(Frame(session, "a-9"), 4)


def test_a_spark_of_its_own_calls_the_writer_itself() -> None:
    def write(_frame: Any, _batch_id: int) -> None:
        pass

    assert QueryBatches(object()).function("view", write) is write
