"""Moving partitions: what is checked before, the throttle around it, and waiting until all are there."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.cli.connection import CommandError, ExitStatus
from barnabas.cli.missing import missing_broker, missing_topics
from barnabas.cli.output import counted, printable, say
from barnabas.cli.reassignment_files import named
from barnabas.cli.reassignment_progress import Progress, open_progress
from barnabas.cli.reassignment_throttles import Throttles, find_throttles, remove_throttles, set_throttles
from barnabas.cli.reassignment_view import Sizes, replica_sizes, size_of
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.admin import Admin
    from barnabas.client.client import Client

_PAUSE_MS: Final = 1_000.0
_SIZES_TIMEOUT_MS: Final = 3_000
"""How long a broker is waited for that is to tell how far its copies are."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SEEN_WITHIN_SECONDS: Final = 30.0
"""How long brokers may take to show where partitions are that the controller has moved."""

Assignment = Mapping[TopicPartition, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Execution:
    """What is to be done: where partitions are, where those that change are to be, and how."""

    current: Assignment
    changes: Assignment
    bytes_per_second: int | None
    is_waited_for: bool = True
    is_quiet: bool = False


async def check(
    client: Client, admin: Admin, targets: Assignment, *, is_additional: bool
) -> dict[TopicPartition, tuple[int, ...]]:
    """Where the partitions are now. Raises CommandError for what does not exist, and where others are being moved."""
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
    return current


async def execute(client: Client, admin: Admin, wish: Execution) -> None:
    """Begins the moves, and waits for their end. The throttle is removed however it ends."""
    if wish.bytes_per_second is None:
        await _move(client, admin, wish)
        return
    throttles = Throttles(_brokers_of(client, wish), tuple(sorted({each.topic for each in wish.changes})))
    moves = {each: (wish.current[each], after) for each, after in wish.changes.items()}
    with _ended_by_signals():
        try:
            await set_throttles(admin, throttles, wish.bytes_per_second, moves)
            await _move(client, admin, wish)
        except BaseException:
            # Also Ctrl-C, which has cancelled what was awaited.
            say("Removing the throttles ...")
            await remove_throttles(admin, throttles)
            raise
        if not await remove_throttles(admin, throttles):
            raise CommandError("all partitions are there, and throttles are left")


async def cancel_moves(client: Client, admin: Admin, partitions: Sequence[TopicPartition], *, is_last: bool) -> None:
    """Ends the moves of these partitions; where no others are left, removes throttles too."""
    from barnabas.wire.errors import ErrorCode, KafkaError

    if partitions:
        try:
            await admin.alter_partition_reassignments(dict.fromkeys(partitions))
        except KafkaError as error:
            # They have come to their end meanwhile; the others are cancelled all the same.
            if error.code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
                raise
    if is_last:
        throttles = await find_throttles(admin, client.cluster.brokers)
        if throttles.is_any() and await remove_throttles(admin, throttles):
            say(f"Throttles are removed: {throttles.named()}.")


# Inside.


async def _move(client: Client, admin: Admin, wish: Execution) -> None:
    try:
        await admin.alter_partition_reassignments(wish.changes)
    except Exception:
        begun = await admin.list_partition_reassignments(wish.changes)
        if begun:
            say(f"Begun before the error: {named(sorted(begun))}; `barnabas reassign cancel` ends that.")
        raise
    if not wish.is_waited_for:
        return
    try:
        await _wait(client, admin, wish)
    except BaseException:
        what = "without a throttle now" if wish.bytes_per_second is not None else "all the same"
        say(f"The brokers go on, {what}: see `barnabas reassign status`; `barnabas reassign cancel --all` ends it.")
        raise
    await _check_end(client, admin, wish)


async def _wait(client: Client, admin: Admin, wish: Execution) -> None:
    told: set[int] = set()
    with open_progress(is_quiet=wish.is_quiet) as progress:
        progress.update(_progress(wish, {}, wish.changes))
        while True:
            # In this order: what is not listed is done, and its sizes are the last.
            ongoing = await admin.list_partition_reassignments(wish.changes)
            sizes, _ = await replica_sizes(admin, _brokers_of(client, wish), _SIZES_TIMEOUT_MS)
            progress.update(_progress(wish, sizes, ongoing))
            if not ongoing:
                break
            _, _, alive = await admin.describe_cluster()
            waited_for = {node_id for each in ongoing.values() for node_id in each.adding_replicas}
            for node_id in sorted(waited_for - {*alive} - told):
                told.add(node_id)
                progress.said(
                    f"Broker {node_id} is not in the cluster, and its copies wait for it: start it, or give up with "
                    "`barnabas reassign cancel --all`."
                )
            told &= waited_for - {*alive}
            await client.timers.sleep(_PAUSE_MS)


def _brokers_of(client: Client, wish: Execution) -> tuple[int, ...]:
    """The brokers that send or get copies; those that are not in the cluster copy nothing, and cannot be asked."""
    involved = {node_id for each in wish.changes for node_id in (*wish.current[each], *wish.changes[each])}
    return tuple(sorted(involved.intersection(client.cluster.brokers)))


def _progress(wish: Execution, sizes: Sizes, ongoing: Collection[TopicPartition]) -> list[Progress]:
    """How far each partition is."""
    found = []
    for partition, after in sorted(wish.changes.items()):
        before = wish.current[partition]
        adding = [node_id for node_id in after if node_id not in before]
        of_one = size_of(sizes, partition, -1, (*before, *after))
        copied = sum(min(of_one, sizes.get((partition, node_id), 0)) for node_id in adding)
        is_done = partition not in ongoing
        total = of_one * len(adding)
        found.append(Progress(partition, tuple(adding), total if is_done else copied, total, is_done))
    return found


async def _check_end(client: Client, admin: Admin, wish: Execution) -> None:
    """Raises CommandError where a partition is not where it was to be, and nobody is moving it."""
    deadline = client.host.loop.time() + _SEEN_WITHIN_SECONDS
    while True:
        topics = await admin.describe_topics()
        elsewhere = [
            each
            for each, after in sorted(wish.changes.items())
            if each.topic not in topics
            or each.partition not in topics[each.topic].partitions
            or topics[each.topic].partitions[each.partition].replicas != tuple(after)
        ]
        if not elsewhere:
            return
        if client.host.loop.time() > deadline:
            raise CommandError(
                f"{counted(len(elsewhere), 'partition')} not where the file has them, and not on the way: "
                f"{named(elsewhere)}; somebody has cancelled that, or deleted the topic"
            )
        await client.timers.sleep(_PAUSE_MS / 4)


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
