"""Moving partitions: what is checked before, the throttle around it, and waiting until all are there."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from barnabas.cli.connection import CommandError, ExitStatus
from barnabas.cli.missing import missing_broker, missing_topics
from barnabas.cli.output import counted, printable, say
from barnabas.cli.reassignment_directories import Map, Replica, locate, tell
from barnabas.cli.reassignment_directory_rates import DirectoryCopies
from barnabas.cli.reassignment_files import Directories, named
from barnabas.cli.reassignment_progress import Progress, open_progress
from barnabas.cli.reassignment_throttles import (
    DIRECTORY_RATE,
    LISTS,
    RATES,
    Rates,
    Throttles,
    find_throttles,
    keep_throttles,
    remove_throttles,
    set_throttles,
    tell_what_is_left,
)
from barnabas.cli.reassignment_view import State, size_of
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.admin import Admin
    from barnabas.client.client import Client

_PAUSE_MS: Final = 1_000.0
_SETTLED_AFTER_MS: Final = _PAUSE_MS / 2
"""How long between looks for others, where a rate was found: shorter than the time between theirs."""
_SIZES_TIMEOUT_MS: Final = 3_000
"""How long a broker is waited for that is to tell how far its copies are."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SEEN_WITHIN_SECONDS: Final = 30.0
"""How long brokers may take to show where partitions are that the controller has moved."""

Assignment = Mapping[TopicPartition, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Execution:
    """What is to be done: where partitions are, where those that change are to be, and how; with the log directories of
    replicas that are not in theirs yet.
    """

    current: Assignment
    changes: Assignment
    bytes_per_second: int | None
    directories: Directories = field(default_factory=dict)
    directory_bytes_per_second: int | None = None
    is_waited_for: bool = True
    is_quiet: bool = False

    def is_throttled(self) -> bool:
        """Whether copies are held back, and something has to be taken away."""
        return self.bytes_per_second is not None or self.directory_bytes_per_second is not None

    def between_directories(self) -> Directories:
        """Those of replicas that are at their brokers already; the others are made in theirs."""
        return {replica: path for replica, path in self.directories.items() if replica[1] in self.current[replica[0]]}


async def check(
    client: Client, admin: Admin, targets: Assignment, *, is_additional: bool
) -> tuple[dict[TopicPartition, tuple[int, ...]], dict[TopicPartition, tuple[int, ...]]]:
    """Where the partitions are now, and where those are to be that change: these are being moved elsewhere, or are not
    where they shall be. Raises CommandError for what does not exist, and, but with `is_additional`, where any
    partitions are being moved.
    """
    topics = await admin.describe_topics()
    missing = sorted({each.topic for each in targets if each.topic not in topics})
    if missing:
        raise missing_topics([printable(name) for name in missing])
    alive = client.cluster.brokers
    current: dict[TopicPartition, tuple[int, ...]] = {}
    for partition, replicas in sorted(targets.items()):
        there = topics[partition.topic].partitions
        if partition.partition not in there:
            raise CommandError(
                f"topic {printable(partition.topic)} has no partition {partition.partition}; it has 0 to "
                f"{len(there) - 1}",
                ExitStatus.MISSING,
            )
        current[partition] = there[partition.partition].replicas
        for node_id in replicas:
            if node_id not in alive and node_id not in current[partition]:
                raise missing_broker(node_id, alive)
    ongoing = await admin.list_partition_reassignments()
    if ongoing and not is_additional:
        raise CommandError(
            f"partitions are being moved already: {named(sorted(ongoing))}; `barnabas reassign status` shows how far "
            "that is, `barnabas reassign cancel --all` ends it, and with --additional others are moved too"
        )
    for partition, found in ongoing.items():
        if partition in current:
            current[partition] = tuple(each for each in found.replicas if each not in found.adding_replicas)
    changes = {
        each: tuple(after) for each, after in targets.items() if each in ongoing or tuple(after) != current[each]
    }
    return current, changes


async def execute(client: Client, admin: Admin, wish: Execution) -> None:
    """Begins the moves, and waits for their end. The throttle is removed however it ends."""
    if wish.changes:
        await tell_what_is_left(admin, _brokers_of(client, wish))
    if not wish.is_throttled():
        await _move(client, admin, wish, Throttles((), ()))
        return
    moves = {}
    if wish.bytes_per_second is not None:
        moves = {each: (wish.current[each], after) for each, after in wish.changes.items()}
    throttles = Throttles(_brokers_of(client, wish), tuple(sorted({each.topic for each in moves})))
    if wish.directory_bytes_per_second is not None:
        throttles.copies = DirectoryCopies(frozenset(wish.directories), client.cluster.brokers)
    rates = Rates(wish.bytes_per_second, wish.directory_bytes_per_second)
    with _ended_by_signals():
        try:
            await set_throttles(admin, throttles, rates, moves, lambda: client.timers.sleep(_SETTLED_AFTER_MS))
            await _move(client, admin, wish, throttles)
        except BaseException:
            # Also Ctrl-C, which has cancelled what was awaited.
            say("Removing the throttles ...")
            await remove_throttles(admin, throttles)
            raise
        if not await remove_throttles(admin, throttles):
            raise CommandError("all partitions are there, and throttles are left")


async def cancel_moves(admin: Admin, partitions: Sequence[TopicPartition]) -> None:
    """Ends the moves of these partitions between brokers."""
    from barnabas.wire.errors import ErrorCode, KafkaError

    if not partitions:
        return
    try:
        await admin.alter_partition_reassignments(dict.fromkeys(partitions))
    except KafkaError as error:
        # They have come to their end meanwhile; the others are cancelled all the same.
        if error.code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
            raise


async def remove_found_throttles(
    client: Client, admin: Admin, *, between_brokers: bool, between_directories: bool
) -> None:
    """Removes the throttles that are set for what is not done any more, and leaves the others."""
    configs = [
        name for name in (*RATES, *LISTS) if (between_directories if name == DIRECTORY_RATE else between_brokers)
    ]
    if not configs:
        return
    throttles = await find_throttles(admin, client.cluster.brokers, configs)
    if throttles.is_any() and await remove_throttles(admin, throttles):
        say(f"Throttles are removed: {throttles.named()}.")


# Inside.


async def _move(client: Client, admin: Admin, wish: Execution, throttles: Throttles) -> None:
    try:
        # A replica that is to come is made in its directory if the broker knows it before.
        between = wish.between_directories()
        await tell(admin, {replica: path for replica, path in wish.directories.items() if replica not in between})
        if wish.changes:
            await admin.alter_partition_reassignments(wish.changes)
        to_come = await tell(admin, wish.directories)
    except Exception:
        begun = await admin.list_partition_reassignments(wish.changes) if wish.changes else {}
        if begun:
            say(f"Begun before the error: {named(sorted(begun))}; `barnabas reassign cancel` ends that.")
        raise
    if not wish.is_waited_for:
        return
    try:
        await _wait(client, admin, wish, to_come, throttles)
    except BaseException:
        what = "without a throttle now" if wish.is_throttled() else "all the same"
        say(f"The brokers go on, {what}: see `barnabas reassign status`; `barnabas reassign cancel --all` ends it.")
        raise
    await _check_end(client, admin, wish)


async def _wait(client: Client, admin: Admin, wish: Execution, to_come: set[Replica], throttles: Throttles) -> None:
    told: set[int] = set()
    with open_progress(is_quiet=wish.is_quiet) as progress:
        progress.update(_progress(wish, Map({}, {}), wish.changes))
        while True:
            # In this order: what is not listed is done, and its sizes are the last.
            to_come = await tell(admin, {replica: wish.directories[replica] for replica in to_come})
            ongoing = await admin.list_partition_reassignments(wish.changes) if wish.changes else {}
            where = await locate(admin, _brokers_of(client, wish), _SIZES_TIMEOUT_MS)
            progress.update(_progress(wish, where, ongoing))
            copying = {replica[1] for replica in wish.directories if _is_copied(where, replica)}
            if not ongoing and not copying:
                break
            for node_id in await keep_throttles(admin, throttles, where):
                progress.said(
                    f"The throttle of copies between the log directories of broker {node_id} was removed by somebody "
                    "else, and is set again."
                )
            _, _, alive = await admin.describe_cluster()
            waited_for = {node_id for each in ongoing.values() for node_id in each.adding_replicas} | copying
            for node_id in sorted(waited_for - {*alive} - told):
                told.add(node_id)
                progress.said(
                    f"Broker {node_id} is not in the cluster, and its copies wait for it: start it, or give up with "
                    "`barnabas reassign cancel --all`."
                )
            told &= waited_for - {*alive}
            await client.timers.sleep(_PAUSE_MS)


def _is_copied(where: Map, replica: Replica) -> bool:
    """Whether it is on its way between directories; so it is as long as its broker tells nothing."""
    return replica[1] not in where.told or where.at(replica).future is not None


def _brokers_of(client: Client, wish: Execution) -> tuple[int, ...]:
    """The brokers that send or get copies; those that are not in the cluster copy nothing, and cannot be asked."""
    involved = {node_id for each in wish.changes for node_id in (*wish.current[each], *wish.changes[each])}
    involved |= {node_id for _, node_id in wish.directories}
    return tuple(sorted(involved.intersection(client.cluster.brokers)))


def _progress(wish: Execution, where: Map, ongoing: Collection[TopicPartition]) -> list[Progress]:
    """How far each partition is, and each replica between its log directories."""
    found = []
    sizes = where.sizes()
    for partition, after in sorted(wish.changes.items()):
        before = wish.current[partition]
        adding = [node_id for node_id in after if node_id not in before]
        of_one = size_of(sizes, partition, -1, (*before, *after))
        copied = sum(min(of_one, sizes.get((partition, node_id), 0)) for node_id in adding)
        is_done = partition not in ongoing
        total = of_one * len(adding)
        found.append(Progress(partition, tuple(adding), total if is_done else copied, total, is_done))
    for replica, path in sorted(wish.between_directories().items()):
        located = where.at(replica)
        is_done = located.state(path) is State.DONE
        total = located.size_bytes
        copied = total if is_done else min(total, located.copied_bytes)
        found.append(Progress(replica[0], (replica[1],), copied, total, is_done, path))
    return found


async def _check_end(client: Client, admin: Admin, wish: Execution) -> None:
    """Raises CommandError where a partition is not where it was to be, and nobody is moving it."""
    deadline = client.host.loop.time() + _SEEN_WITHIN_SECONDS
    while True:
        elsewhere = await _elsewhere(admin, wish)
        if not elsewhere:
            return
        if client.host.loop.time() > deadline:
            raise CommandError(
                f"{counted(len(elsewhere), 'partition')} not where the file has them, and not on the way: "
                f"{named(elsewhere)}; somebody has cancelled that, or deleted the topic, or a log directory has failed"
            )
        await client.timers.sleep(_PAUSE_MS / 4)


async def _elsewhere(admin: Admin, wish: Execution) -> list[TopicPartition]:
    """Partitions that are at other brokers than they were to be, or in other log directories."""
    topics = await admin.describe_topics() if wish.changes else {}
    found = {
        each
        for each, after in wish.changes.items()
        if each.topic not in topics
        or each.partition not in topics[each.topic].partitions
        or topics[each.topic].partitions[each.partition].replicas != tuple(after)
    }
    if wish.directories:
        where = await locate(admin, {node_id for _, node_id in wish.directories})
        found |= {
            replica[0] for replica, path in wish.directories.items() if where.at(replica).state(path) is not State.DONE
        }
    return sorted(found)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Has Ctrl-C, SIGTERM and a closed terminal cancel the block, as often as they come, so that it can tidy up."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if task is None:
        yield
        return
    heard: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        heard.append(number)
        task.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, end, number)
    try:
        yield
    except asyncio.CancelledError:
        if not heard:
            raise
        while task.uncancel():
            pass
        how = "interrupted" if heard[0] is signal.SIGINT else "ended by a signal"
        raise CommandError(how, ExitStatus.INTERRUPTED) from None
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
