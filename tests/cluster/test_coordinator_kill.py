"""kill -9 of the coordinator during pipelined writes, again and again: nothing acknowledged is lost, nothing is seen
half-applied.

A few rounds by default, 45 s of them with BARNABAS_LONG_FAILURES=1 (`make test-cluster`), and
BARNABAS_FAILURE_SECONDS of them where that is set, as the nightly does.
"""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.embedded_coordinator import EmbeddedCoordinator
from tests.support.raw_zookeeper import ConnectionLost, Operation, RawSession, create, multi, read, set_data

LONG = os.environ.get("BARNABAS_LONG_FAILURES") == "1"
SECONDS = float(os.environ.get("BARNABAS_FAILURE_SECONDS", "45")) if LONG else 6.0
ROUNDS_MIN = 3
WRITERS = 3
PIPELINE = 20
SEQUENTIAL = 2


@dataclass(slots=True)
class Promised:
    """What one writer was told."""

    number: int
    pair: int = 0
    numbered: int = 0
    faults: list[BaseException] = field(default_factory=list)


def write_until_killed(port: int, promised: Promised) -> None:
    """Pairs that must be equal and numbered znodes without gaps, many requests on their way at any time."""
    base = f"/w{promised.number}"
    session = RawSession(port)
    try:
        session.connect()
        for path in (base, f"{base}/a", f"{base}/b", f"{base}/numbered"):
            session.call(create(path, b"0"))
        while True:
            first = promised.pair + 1
            for number in range(first, first + PIPELINE):
                value = str(number).encode()
                session.send(
                    multi([set_data(f"{base}/a", value), set_data(f"{base}/b", value)]),
                    create(f"{base}/numbered/n", b"", SEQUENTIAL),
                )
            for number in range(first, first + PIPELINE):
                assert session.receive().error == 0
                promised.pair = number
                promised.numbered = int(session.receive().body[-10:]) + 1
            session.take_arrivals()
    except ConnectionLost:
        return
    except BaseException as error:  # noqa: BLE001 - told by the test's own thread
        promised.faults.append(error)
    finally:
        session.drop()


def check(port: int, promised: Promised) -> None:
    """What is there is whole, and not less than what was promised."""
    base = f"/w{promised.number}"
    session = RawSession(port)
    session.connect()
    first, second = (session.call(read(Operation.GET_DATA, f"{base}/{name}")) for name in "ab")
    listed = session.call(read(Operation.GET_CHILDREN, f"{base}/numbered"))
    session.close()
    if promised.pair == 0 and (first.error or second.error or listed.error):
        return
    assert first.body[0] == second.body[0], "half of a multi is there"
    names = sorted(listed.body)
    assert names == [f"n{number:010d}" for number in range(len(names))], "a numbered znode is missing"
    pair = int(first.body[0])
    assert pair >= promised.pair, f"{promised.pair} was acknowledged, {pair} is there"
    assert len(names) >= promised.numbered, f"{promised.numbered} were acknowledged, {len(names)} are there"
    promised.pair = pair
    promised.numbered = len(names)


def test_nothing_acknowledged_is_lost_by_kill_nine(tmp_path: Path) -> None:
    moments = random.Random(7)
    coordinator = EmbeddedCoordinator(tmp_path, options=["--snapshot-transactions", "2000"])
    promises = [Promised(number) for number in range(WRITERS)]
    end = time.monotonic() + SECONDS
    rounds = 0
    coordinator.start()
    try:
        while rounds < ROUNDS_MIN or time.monotonic() < end:
            writers = [
                threading.Thread(target=write_until_killed, args=(coordinator.port, promised)) for promised in promises
            ]
            kill = threading.Timer(moments.uniform(0.05, 0.6), coordinator.kill)
            for thread in (*writers, kill):
                thread.start()
            for thread in (*writers, kill):
                thread.join()
            assert [promised.faults for promised in promises] == [[]] * WRITERS
            coordinator.start()
            for promised in promises:
                check(coordinator.port, promised)
            rounds += 1
    finally:
        coordinator.stop()
    assert all(promised.pair > 0 for promised in promises), "nothing was ever written"
