"""What the console changes where it may: a record is written, a move of partitions cancelled, leaders are elected.

A change is prepared, which does nothing but say what would happen, and carried out by the number that it got then:
once, as it was said, soon. Who confirms it again is told how it ended.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.client.admin import Admin
from barnabas.client.errors import ClientError, ClientTimeoutError, DeliveryTimeoutError
from barnabas.client.producer import Producer
from barnabas.client.records import ProducerRecord
from barnabas.client.settings import ProducerSettings
from barnabas.console.words import counted, date_and_clock, size
from barnabas.link.errors import RequestTimeoutError, UnsupportedVersionError
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.topics import ElectionType, TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.reassignments import PartitionReassignment

PREPARED_MAX: Final = 32
"""How many changes wait to be confirmed; the oldest goes for a further one."""
PREPARED_SECONDS_MAX: Final = 600.0
CHANGE_MS_MAX: Final = 15_000
_WAIT_SECONDS: Final = 5.0
_NAMED_MAX: Final = 20
_IN_DOUBT: Final = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
"""With these a broker does not say that it has done nothing."""
_LOOK = "It may have been done, or be done yet: look before you repeat it."


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a change ended: well or not, and in sentences."""

    is_done: bool
    said: tuple[str, ...]


class Change(Protocol):
    """Something that may be done."""

    @property
    def title(self) -> str:
        """In a few words, as a button has it."""
        ...

    @property
    def sentences(self) -> tuple[str, ...]:
        """What will happen."""
        ...

    @property
    def back(self) -> tuple[str | int, ...]:
        """The page to go on with."""
        ...

    async def carry_out(self, client: Client) -> Outcome:
        """Does it. Raises what the client raises."""
        ...


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """One record is written."""

    record: ProducerRecord

    @property
    def title(self) -> str:
        return "Write the record"

    @property
    def sentences(self) -> tuple[str, ...]:
        record = self.record
        where = "the partition of its key" if record.key is not None else "a partition that the console chooses"
        if record.partition is not None:
            where = f"partition {record.partition}"
        value = "null: a tombstone, where the topic is compacted" if record.value is None else _bytes(record.value)
        key = "null" if record.key is None else _bytes(record.key)
        return (
            f"One record is written to topic {record.topic}, {where}, and waited for with acks=all.",
            f"Key: {key}. Value: {value}. {counted(len(record.headers), 'header')}.",
            "Consumers of the topic get it like any other record; it cannot be taken back.",
        )

    @property
    def back(self) -> tuple[str | int, ...]:
        return ("topics", self.record.topic)

    async def carry_out(self, client: Client) -> Outcome:
        settings = ProducerSettings(max_block_ms=5_000, delivery_timeout_ms=CHANGE_MS_MAX - 5_000)
        async with Producer(client, settings) as producer:
            there = await producer.send_and_wait(self.record)
        at = f"at offset {there.offset:,}" if there.offset >= 0 else "at an offset that the broker does not tell"
        time = f", with the time {date_and_clock(there.timestamp_ms)} UTC" if there.timestamp_ms >= 0 else ""
        return Outcome(True, (f"The record is in {there.partition} {at}{time}.",))


@dataclass(frozen=True, slots=True)
class CancelMoves:
    """Moves of partitions are given up; `moves` are those that were seen."""

    moves: tuple[tuple[TopicPartition, PartitionReassignment], ...]

    @property
    def title(self) -> str:
        return f"Cancel {counted(len(self.moves), 'move')}"

    @property
    def sentences(self) -> tuple[str, ...]:
        said = [
            f"{partition} stays on brokers {_ids(each for each in move.replicas if each not in move.adding_replicas)}"
            + (f"; what brokers {_ids(move.adding_replicas)} have copied is deleted" if move.adding_replicas else "")
            + "."
            for partition, move in self.moves[:_NAMED_MAX]
        ]
        return (
            *said,
            *_and_more(len(self.moves), "partition"),
            "Throttles that were set for the move stay: `barnabas reassign` takes them off.",
        )

    @property
    def back(self) -> tuple[str | int, ...]:
        return ("reassignments",)

    async def carry_out(self, client: Client) -> Outcome:
        async with Admin(client) as admin:
            now = await admin.list_partition_reassignments([partition for partition, _ in self.moves], CHANGE_MS_MAX)
            # What began since it was shown is another move, which nobody has asked to cancel.
            moves = [partition for partition, move in self.moves if now.get(partition) == move]
            said = []
            if ended := sum(partition not in now for partition, _ in self.moves):
                said.append(f"{counted(ended, 'move')} had come to an end before.")
            if others := len(self.moves) - ended - len(moves):
                said.append(f"{counted(others, 'partition')} moved otherwise than was shown: left alone.")
            if not moves:
                return Outcome(False, ("Nothing was cancelled.", *said))
            try:
                await admin.alter_partition_reassignments(dict.fromkeys(moves), CHANGE_MS_MAX)
            except KafkaError as error:
                # One error is told of all; some may have been cancelled, or have come to their end meanwhile.
                left = await admin.list_partition_reassignments(moves, CHANGE_MS_MAX)
                still = f"Still being moved: {len(left):,} of {counted(len(moves), 'partition')}."
                return Outcome(not left, (f"The broker says: {told(error)}", still, *said))
        return Outcome(not others, (f"{counted(len(moves), 'move')} cancelled.", *said))


@dataclass(frozen=True, slots=True)
class ElectPreferred:
    """Preferred leaders are elected; `elections` have the partition, its leader and its preferred one."""

    elections: tuple[tuple[TopicPartition, int, int], ...]
    back: tuple[str | int, ...]

    @property
    def title(self) -> str:
        return f"Elect the preferred {'leader' if len(self.elections) == 1 else 'leaders'}"

    @property
    def sentences(self) -> tuple[str, ...]:
        said = [
            f"{partition} is led by broker {after} instead of {'nobody' if before < 0 else f'broker {before}'}."
            for partition, before, after in self.elections[:_NAMED_MAX]
        ]
        return (
            *said,
            *_and_more(len(self.elections), "partition"),
            "Its clients notice a change of leader, ask for it, and go on: no record is lost.",
        )

    async def carry_out(self, client: Client) -> Outcome:
        wanted = [partition for partition, _, after in self.elections if _preferred(client, partition) == after]
        if not wanted:
            return Outcome(False, ("Nothing was done: these partitions prefer other leaders by now.",))
        async with Admin(client) as admin:
            found = await admin.elect_leaders(ElectionType.PREFERRED, wanted, CHANGE_MS_MAX)
        failed = {
            partition: error
            for partition, error in found.items()
            if error is not None and error.code is not ErrorCode.ELECTION_NOT_NEEDED
        }
        elected = sum(error is None for error in found.values())
        said = [f"{counted(elected, 'partition')} got the preferred leader."]
        others = len(found) - elected - len(failed)
        if others:
            said.append(f"{counted(others, 'partition')} had it already.")
        said += [f"{partition}: {told(error)}" for partition, error in list(failed.items())[:_NAMED_MAX]]
        said += _and_more(len(failed), "partition")
        if left_alone := len(self.elections) - len(wanted):
            said.append(f"{counted(left_alone, 'partition')} with another preferred leader by now: left alone.")
        return Outcome(not failed and not left_alone, tuple(said))


@dataclass(frozen=True, slots=True)
class Ended:
    """A change that was carried out, or tried; `is_repeated` where it was confirmed before."""

    change: Change
    outcome: Outcome
    is_repeated: bool


@dataclass(frozen=True, slots=True)
class _Prepared:
    change: Change
    session_id: str
    until: float


@dataclass(frozen=True, slots=True)
class _Begun:
    prepared: _Prepared
    task: asyncio.Task[Outcome | None]
    """None where its turn has not come: nothing was done then."""


class BusyError(Exception):
    """Another change is under way."""


class Changes:
    """Prepares changes and carries them out, one at a time."""

    def __init__(self, client: Client, on_change: Callable[[str], object] = lambda _: None) -> None:
        """`on_change` is told of each that was carried out, or failed."""
        self._client = client
        self._on_change = on_change
        self._prepared: OrderedDict[str, _Prepared] = OrderedDict()
        self._begun: OrderedDict[str, _Begun] = OrderedDict()
        self._turn = asyncio.Lock()

    def prepare(self, change: Change, session_id: str) -> str:
        """A number by which this session may have it carried out, once."""
        while len(self._prepared) >= PREPARED_MAX:
            self._prepared.popitem(last=False)
        number = self._client.host.entropy(16).hex()
        until = self._client.host.loop.time() + PREPARED_SECONDS_MAX
        self._prepared[number] = _Prepared(change, session_id, until)
        return number

    async def carry_out(self, number: str, session_id: str, user: str) -> Ended | None:
        """Does what was prepared under that number by this session, and tells how that ended; None where nothing was,
        or too long ago. For what was confirmed before it waits, and tells the same. Raises BusyError, and nothing is
        done then: the change waits on.

        A browser that goes away does not take the change back: it is done to the end.
        """
        begun = self._begun.get(number)
        is_repeated = begun is not None
        if begun is None:
            begun = self._begin(number, session_id, user)
        if begun is None or begun.prepared.session_id != session_id:
            return None
        outcome = await asyncio.shield(begun.task)
        if outcome is None:
            raise BusyError("another change is under way: nothing was done; try again in a moment")
        return Ended(begun.prepared.change, outcome, is_repeated)

    async def close(self) -> None:
        """Waits for nothing more: of what is under way it is told that nobody knows how it ends."""
        tasks = [begun.task for begun in self._begun.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Inside.

    def _begin(self, number: str, session_id: str, user: str) -> _Begun | None:
        prepared = self._prepared.get(number)
        if prepared is None or prepared.session_id != session_id:
            return None
        del self._prepared[number]
        if self._client.host.loop.time() > prepared.until:
            return None
        for each in [each for each, begun in self._begun.items() if begun.task.done()]:
            if len(self._begun) < PREPARED_MAX:
                break
            del self._begun[each]
        task = self._client.host.loop.create_task(
            self._in_turn(number, prepared, user), name=f"console: {prepared.change.title}"
        )
        begun = self._begun[number] = _Begun(prepared, task)
        return begun

    async def _in_turn(self, number: str, prepared: _Prepared, user: str) -> Outcome | None:
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            del self._begun[number]
            self._prepared[number] = prepared
            return None
        try:
            outcome = await self._tried(prepared.change)
        except asyncio.CancelledError:
            self._tell(prepared.change, user, "The console ended before the answer came.", _LOOK)
            raise
        finally:
            self._turn.release()
        self._tell(prepared.change, user, *outcome.said)
        return outcome

    def _tell(self, change: Change, user: str, *said: str) -> None:
        who = f"{user}: " if user else ""
        self._on_change(f"{who}{change.title}: {' '.join([*change.sentences[:1], *said])}")

    async def _tried(self, change: Change) -> Outcome:
        try:
            outcome = await change.carry_out(self._client)
        except DeliveryTimeoutError as error:
            said = _LOOK if error.may_be_written else "It was surely not written."
            return Outcome(False, (f"No answer in time: {_named(error)}.", said))
        except (ClientTimeoutError, RequestTimeoutError, TimeoutError) as error:
            return Outcome(False, (f"No answer in time: {_named(error)}.", _LOOK))
        except KafkaError as error:
            if error.code in _IN_DOUBT:
                return Outcome(False, (f"The broker says: {told(error)}", _LOOK))
            return Outcome(False, (f"The broker refused it: {told(error)}",))
        except UnsupportedVersionError as error:
            return Outcome(False, (f"{_named(error)}: it was not done.",))
        except (ClientError, ConnectionError, ProtocolError) as error:
            return Outcome(False, (f"{_named(error)}.", _LOOK))
        except Exception as error:
            self._client.logger.exception("A change failed")
            return Outcome(False, (f"A mistake of the console: {type(error).__name__}.", _LOOK))
        self._client.metadata.request_update()
        return outcome


def told(error: Exception) -> str:
    """What a broker says, with the name and the words of Kafka."""
    if not isinstance(error, KafkaError):
        return _named(error)
    detail = f" ({error.detail})" if error.detail and error.detail != error.code.message else ""
    return f"{error.code.name}: {error.code.message}{detail}"


# Inside.


def _preferred(client: Client, partition: TopicPartition) -> int | None:
    info = client.cluster.partition(partition)
    return info.replicas[0] if info is not None and info.replicas else None


def _named(error: Exception) -> str:
    return str(error) or type(error).__name__


def _bytes(data: bytes) -> str:
    return f"{len(data):,} bytes" if len(data) < 1024 else size(len(data))


def _ids(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _and_more(count: int, noun: str) -> list[str]:
    return [f"So for {counted(count - _NAMED_MAX, f'more {noun}')}."] if count > _NAMED_MAX else []
