"""The work that both clients do: the states of 100,000 partitions, as Kafka's controller reads and writes them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kazoo.client import KazooClient

from barnabas.coordination.client import Client
from barnabas.coordination.errors import CoordinationError
from barnabas.coordination.operations import Create, SetData
from barnabas.coordination.session_settings import ClientSettings
from barnabas.kernel.real_host import RealHost, run

Result = TypeVar("Result")
PARTITIONS_PER_TOPIC = 100
SESSION_TIMEOUT_MS = 30_000
# The fastest way to drive kazoo of those tried: so many asynchronous calls at once, then all their results. A sliding
# window of as many was about a quarter slower.
_KAZOO_BATCH = 1_000
_CONTROLLER_EPOCH = 7


@dataclass(frozen=True, slots=True)
class Layout:
    """Topics of 100 partitions each, with the znodes that Kafka makes for them."""

    partitions: int

    def parents(self) -> list[str]:
        """Every znode above a state, parents before children."""
        topics = [f"/brokers/topics/topic-{number}" for number in range(self.partitions // PARTITIONS_PER_TOPIC)]
        paths = ["/brokers", "/brokers/topics"]
        for topic in topics:
            paths += [topic, f"{topic}/partitions"]
            paths += [f"{topic}/partitions/{partition}" for partition in range(PARTITIONS_PER_TOPIC)]
        return paths

    def states(self) -> list[str]:
        """The path of every partition's state."""
        return [
            f"/brokers/topics/topic-{number}/partitions/{partition}/state"
            for number in range(self.partitions // PARTITIONS_PER_TOPIC)
            for partition in range(PARTITIONS_PER_TOPIC)
        ]


def state_payload(leader: int, leader_epoch: int) -> bytes:
    """A partition state as Kafka writes it."""
    state = {"controller_epoch": _CONTROLLER_EPOCH, "leader": leader, "version": 1, "leader_epoch": leader_epoch}
    return json.dumps(state | {"isr": [1, 2, 3]}, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one round."""

    read_seconds: float
    write_seconds: float


def populate(address: str, layout: Layout) -> float:
    """Makes all znodes, pipelined, by our client; the seconds it took."""
    payload = state_payload(1, 0)

    async def work(client: Client) -> float:
        creates = [Create(path, None) for path in layout.parents()]
        creates += [Create(path, payload) for path in layout.states()]
        began = time.perf_counter()
        _raise_first_error(await client.submit(creates))
        return time.perf_counter() - began

    return _with_client(address, work)


def barnabas_round(address: str, layout: Layout, number: int) -> Timing:
    """Writes every state (pipelined), then reads all of them (multiRead), and checks what came."""
    paths, payload = layout.states(), state_payload(number % 3 + 1, number)

    async def work(client: Client) -> Timing:
        began = time.perf_counter()
        _raise_first_error(await client.submit([SetData(path, payload) for path in paths]))
        written = time.perf_counter()
        results = await client.get_many(paths)
        read = time.perf_counter()
        _raise_first_error(results)
        _check_payloads(
            [result.data for result in results if not isinstance(result, CoordinationError)], payload, paths
        )
        return Timing(read - written, written - began)

    return _with_client(address, work)


def kazoo_round(address: str, layout: Layout, number: int) -> Timing:
    """The same by kazoo, pipelined as far as kazoo does it: its asynchronous calls, 1,000 at once."""
    paths, payload = layout.states(), state_payload(number % 3 + 1, number)
    client = KazooClient(address, timeout=SESSION_TIMEOUT_MS / 1000)
    client.start(timeout=30)
    try:
        began = time.perf_counter()
        _in_batches(lambda path: client.set_async(path, payload), paths)
        written = time.perf_counter()
        results = _in_batches(client.get_async, paths)
        read = time.perf_counter()
    finally:
        client.stop()
        client.close()
    _check_payloads([data for data, _stat in results], payload, paths)
    return Timing(read - written, written - began)


def _in_batches(start: Callable[[str], Any], paths: Sequence[str]) -> list[Any]:
    results: list[Any] = []
    for first in range(0, len(paths), _KAZOO_BATCH):
        pending = [start(path) for path in paths[first : first + _KAZOO_BATCH]]
        results.extend(one.get(timeout=60) for one in pending)
    return results


def _with_client(address: str, work: Callable[[Client], Coroutine[Any, Any, Result]]) -> Result:
    async def main(host: RealHost) -> Result:
        client = Client(host, ClientSettings(address, session_timeout_ms=SESSION_TIMEOUT_MS))
        await client.connect()
        try:
            return await work(client)
        finally:
            await client.close()

    return run(main, name="benchmark")


def _raise_first_error(outcomes: Sequence[Any]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, CoordinationError):
            raise outcome


def _check_payloads(found: Sequence[bytes | None], payload: bytes, paths: Sequence[str]) -> None:
    if len(found) != len(paths) or any(data != payload for data in found):
        raise RuntimeError("what was read is not what was written")
