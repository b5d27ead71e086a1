"""`barnabas reassign`: moves partitions to other brokers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from barnabas.cli.completed_files import complete_files
from barnabas.cli.completed_names import complete_brokers, complete_topics
from barnabas.cli.connection import CommandError, ExitStatus, bootstrap_option, json_option, run_with_client
from barnabas.cli.measuring import measured_option
from barnabas.cli.output import Column, counted, print_json, print_table, printable, say, size
from barnabas.cli.profiles import is_on_command_line

if TYPE_CHECKING:
    from barnabas.cli.reassignment_directories import Map
    from barnabas.cli.reassignment_execution import Execution
    from barnabas.cli.reassignment_files import Directories
    from barnabas.cli.reassignment_planner import Broker, Move, Placed, Wish
    from barnabas.cli.reassignment_view import View
    from barnabas.client.client import Client
    from barnabas.wire.topics import TopicPartition

_SIZE: Final = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,3}))?\s*([KMGT]?)(i?)B?(?:/s)?", re.ASCII | re.IGNORECASE)
_MOVE_COLUMNS: Final = (
    Column("Topic", "topic"),
    Column("Partition", "partition", is_number=True),
    Column("From", "from"),
    Column("To", "to"),
    Column("Copied", "bytes", is_number=True),
)
_DIRECTORY_COLUMN: Final = Column("Into", "directories")
"""Only where a broker has several log directories, and the plan says which."""
_BROKER_COLUMNS: Final = (
    Column("Broker", "id", is_number=True),
    Column("Replicas", "replicas", is_number=True),
    Column("After", "replicas_after", is_number=True),
    Column("Preferred", "preferred", is_number=True),
    Column("After", "preferred_after", is_number=True),
    Column("Logs", "bytes", is_number=True),
    Column("After", "bytes_after", is_number=True),
)


class SizeOption(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number of bytes (per second), such as 50MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(value.strip())
        number_bytes = 0
        if found is not None:
            unit = (1024 if found[4] else 1000) ** " KMGT".index(found[3].upper() or " ")
            number_bytes = int(found[1]) * unit + int((found[2] or "0").ljust(3, "0")) * unit // 1_000
        if number_bytes < 1:
            self.fail(f"{printable(value[:60])!r} is no size: write 50MiB, 1GiB, or a number of bytes", param, ctx)
        return number_bytes


@click.group(name="reassign")
def command() -> None:
    """Move partitions to other brokers: plan it, do it, look at it, cancel it."""


@command.command(name="plan")
@click.option(
    "--drain",
    multiple=True,
    type=int,
    metavar="ID",
    shell_complete=complete_brokers,
    help="Leave nothing on this broker; repeatable.",
)
@click.option(
    "--onto",
    multiple=True,
    type=int,
    metavar="ID",
    shell_complete=complete_brokers,
    help="Give this broker its share; repeatable.",
)
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC", shell_complete=complete_topics, help="Only this; repeatable."
)
@click.option("--throttle", type=SizeOption(), metavar="SIZE", help="Say how long it takes at so many bytes a second.")
@measured_option("How long to measure what is written to each partition; 0s not to.")
@click.option(
    "--from-stats",
    "statistics",
    metavar="FILE",
    shell_complete=complete_files,
    help="Take sizes and what is written from what `topic stats --json` has printed, in place of measuring.",
)
@click.option(
    "--tolerance",
    type=click.IntRange(0, 100),
    default=5,
    show_default=True,
    metavar="PERCENT",
    help="Brokers that differ by less are even.",
)
@click.option(
    "--save", metavar="FILE", shell_complete=complete_files, help="Write the plan into a new file, for execute."
)
@bootstrap_option
@json_option
def plan(
    drain: tuple[int, ...],
    onto: tuple[int, ...],
    topics: tuple[str, ...],
    throttle: int | None,
    measured_ms: int,
    statistics: str | None,
    tolerance: int,
    save: str | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Show which partitions should move where, how much is copied and how long it takes; nothing is moved.

    Without --drain and --onto, evens out all brokers: by bytes, by what is written to partitions and by their number,
    with replicas on different racks, and brokers preferred as leaders of about as many partitions each. It moves as
    little as that takes. --drain moves what the broker has, and nothing else; it may be dead. --onto moves replicas
    onto the broker only, until it has its share. What comes to a broker with several log directories goes into the one
    in which least is. What --json prints is a plan for execute too.
    """
    if statistics is not None and is_on_command_line(click.get_current_context(), "measured_ms"):
        raise click.UsageError("--from-stats has what was measured: leave --measure out")

    async def body(client: Client) -> None:
        from barnabas.cli.missing import missing_broker, missing_topics
        from barnabas.cli.reassignment_planner import Broker, PlanError, Wish
        from barnabas.cli.reassignment_planner import plan as plan_moves
        from barnabas.cli.reassignment_view import look
        from barnabas.client.admin import Admin

        kept = None
        if statistics is not None:
            from barnabas.cli.reassignment_statistics import read_statistics

            kept = read_statistics(statistics)
        for node_id in onto:
            if node_id not in client.cluster.brokers:
                raise missing_broker(node_id, client.cluster.brokers)
        async with Admin(client) as admin:
            ongoing = await admin.list_partition_reassignments()
            if ongoing:
                raise _already_going_on(ongoing)
            view = await look(client, admin, measured_ms if kept is None else 0)
        if kept is not None:
            from barnabas.cli.reassignment_statistics import with_statistics

            view = with_statistics(view, kept, client.cluster.cluster_id)
        missing = [name for name in topics if name not in view.topics]
        if missing:
            raise missing_topics(missing)
        brokers = [Broker(node.node_id, node.rack) for node in client.cluster.brokers.values()]
        wish = Wish(frozenset(drain), frozenset(onto), frozenset(topics) or None, tolerance / 100)
        _say_what_is_not_known(view, brokers, wish)
        try:
            moves = plan_moves(view.placed, brokers, wish, say)
        except PlanError as error:
            raise CommandError(printable(str(error))) from None
        directories = await _directories(client, moves)
        if moves and save is not None:
            from barnabas.cli.reassignment_files import write_reassignment

            write_reassignment(save, {move.partition: move.after for move in moves}, directories)
        if as_json:
            print_json(plan_document(moves, throttle, directories))
        else:
            _print_plan(view.placed, brokers, moves, directories, throttle, save)

    run_with_client(bootstrap, body)


@command.command(name="execute")
@click.argument("file", metavar="FILE", shell_complete=complete_files)
@click.option(
    "--throttle", type=SizeOption(), metavar="SIZE", help="Copy at most so many bytes a second at each broker."
)
@click.option(
    "--directory-throttle",
    type=SizeOption(),
    metavar="SIZE",
    help="Copy at most so many bytes a second between the log directories of each broker.",
)
@click.option("--additional", is_flag=True, help="Also while other partitions are being moved.")
@click.option("--no-wait", is_flag=True, help="Do not wait for its end.")
@click.option(
    "--save-current",
    metavar="FILE",
    shell_complete=complete_files,
    help="Write where the partitions are now into a new file: the way back.",
)
@bootstrap_option
@json_option
def execute(
    file: str,
    throttle: int | None,
    directory_throttle: int | None,
    additional: bool,
    no_wait: bool,
    save_current: str | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Move partitions to the brokers and log directories that a file names, and show how far they are.

    The file is what plan has saved, or what kafka-reassign-partitions takes; - is standard input. The throttle is
    removed at the end, however that comes. Ctrl-C ends the waiting, not the moving: `barnabas reassign status` shows
    it, `barnabas reassign cancel` ends it.
    """
    if no_wait and (throttle is not None or directory_throttle is not None):
        raise click.UsageError("nobody would remove the throttle: leave --no-wait or the throttle out")

    async def body(client: Client) -> None:
        from barnabas.cli import reassignment_execution
        from barnabas.cli.reassignment_directories import check_directories
        from barnabas.cli.reassignment_files import read_reassignment, write_reassignment
        from barnabas.client.admin import Admin

        targets = read_reassignment(file)
        async with Admin(client) as admin:
            current, changes = await reassignment_execution.check(
                client, admin, targets.replicas, is_additional=additional
            )
            where = await check_directories(client, admin, targets.directories, current)
            if save_current is not None:
                write_reassignment(save_current, current, where.paths())
            wish = reassignment_execution.Execution(
                current,
                changes,
                throttle,
                where.not_in(targets.directories),
                directory_throttle,
                is_waited_for=not no_wait,
                is_quiet=as_json,
            )
            if wish.changes or wish.directories:
                await reassignment_execution.execute(client, admin, wish)
        what = _named_moves(wish)
        if as_json:
            print_json({"is_done": not no_wait, **_execution_document(wish, where)})
        elif not what:
            say("All partitions are there already.")
        elif no_wait:
            say(f"Begun: {what}; `barnabas reassign status` shows how far they are.")
        else:
            say(f"Done: {what}.")

    run_with_client(bootstrap, body)


@command.command(name="status")
@click.argument("file", metavar="[FILE]", required=False, shell_complete=complete_files)
@bootstrap_option
@json_option
def status(file: str | None, bootstrap: str, as_json: bool) -> None:
    """Show what is being moved, to brokers and to log directories of one, how far it is, and which throttles are set.

    With a FILE, as execute takes it, shows of each of its partitions whether it is done, and so of the log directories
    that it names; the exit status is 1 where one is neither done nor being moved.
    """

    async def body(client: Client) -> None:
        from barnabas.cli import reassignment_status
        from barnabas.cli.reassignment_files import read_reassignment
        from barnabas.client.admin import Admin

        wanted = None if file is None else read_reassignment(file)
        async with Admin(client) as admin:
            found = await reassignment_status.observe(client, admin, wanted)
        reassignment_status.show(found, as_json=as_json)
        lost = found.lost()
        if lost:
            raise CommandError(
                f"{counted(len(lost), 'partition')} neither there nor on the way: execute the file again, or see who "
                "has cancelled it"
            )

    run_with_client(bootstrap, body)


@command.command(name="cancel")
@click.argument("topics", metavar="[TOPIC[:0,2-4]]...", nargs=-1, shell_complete=complete_topics)
@click.option(
    "--from-file",
    "file",
    metavar="FILE",
    shell_complete=complete_files,
    help="The partitions of a file, as execute takes it.",
)
@click.option("--all", "is_all", is_flag=True, help="All that are being moved.")
@click.option("--preserve-throttles", is_flag=True, help="Leave the throttles as they are.")
@bootstrap_option
@json_option
def cancel(
    topics: tuple[str, ...], file: str | None, is_all: bool, preserve_throttles: bool, bootstrap: str, as_json: bool
) -> None:
    """End the moving of partitions: they stay where they were, and what was copied is deleted.

    So it is with replicas between the log directories of a broker; of a FILE, with those for which it names one.
    Throttles are removed where nothing is being moved any more: between brokers, between log directories, or with --all
    both, also when nothing was.
    """
    from barnabas.cli.partition_selection import parse_selection

    if bool(topics) + (file is not None) + is_all != 1:
        raise click.UsageError("say what to cancel, in one way: topics, --from-file or --all")
    try:
        selection = parse_selection(topics)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="TOPIC") from None

    async def body(client: Client) -> None:
        from barnabas.cli.reassignment_directories import locate, tell
        from barnabas.cli.reassignment_execution import cancel_moves, remove_found_throttles
        from barnabas.cli.reassignment_files import read_reassignment
        from barnabas.client.admin import Admin

        wanted = None if file is None else read_reassignment(file)

        def is_wanted(partition: TopicPartition) -> bool:
            return is_all or (_is_selected(selection, partition) if wanted is None else partition in wanted.replicas)

        async with Admin(client) as admin:
            ongoing = await admin.list_partition_reassignments()
            doomed = {each: found for each, found in ongoing.items() if is_wanted(each)}
            back = {
                each: tuple(node_id for node_id in found.replicas if node_id not in found.adding_replicas)
                for each, found in doomed.items()
            }
            # Of a file, those alone that it names, as with Kafka's tool.
            where = await locate(admin, client.cluster.brokers)
            futures = where.futures()
            staying = {
                replica: path
                for replica, path in futures.items()
                if is_wanted(replica[0]) and (wanted is None or replica in wanted.directories)
            }
            is_last = len(doomed) == len(ongoing) and len(staying) == len(futures) and not preserve_throttles
            await cancel_moves(admin, list(doomed))
            are_copied = bool(staying)
            # What is removed with its partition's reassignment goes by itself.
            staying = {each: path for each, path in staying.items() if each[1] in back.get(each[0], (each[1],))}
            await tell(admin, staying)
            if is_last:
                are_between = {"between_brokers": is_all or bool(doomed), "between_directories": is_all or are_copied}
                await remove_found_throttles(client, admin, **are_between)
        if not doomed and not staying and not is_all:
            raise CommandError(
                "none of that is being moved; `barnabas reassign status` shows what is", ExitStatus.MISSING
            )
        if as_json:
            print_json(
                {
                    "cancelled": [
                        {"topic": p.topic, "partition": p.partition, "replicas": list(back[p])} for p in back
                    ],
                    "directories": [
                        {"topic": p.topic, "partition": p.partition, "broker": node_id, "directory": path}
                        for (p, node_id), path in sorted(staying.items())
                    ],
                }
            )
        elif doomed or staying:
            _print_cancelled(back, staying)
        what = [counted(len(doomed), "partition")] if doomed else []
        if staying:
            what.append(f"{counted(len(staying), 'replica')} between log directories")
        say(f"Cancelled: {', '.join(what)}." if what else "Nothing is being moved.")

    run_with_client(bootstrap, body)


def plan_document(moves: Sequence[Move], throttle: int | None, directories: Directories) -> dict[str, Any]:
    """A plan as `reassign plan --json` has it: a file for execute, and what it means."""
    from barnabas.cli.reassignment_files import reassignment_document

    return {
        **reassignment_document({move.partition: move.after for move in moves}, directories),
        "moves": [
            {
                "topic": move.partition.topic,
                "partition": move.partition.partition,
                "before": list(move.before),
                "after": list(move.after),
                "copied_bytes": move.moved_bytes,
            }
            for move in moves
        ],
        "copied_bytes": sum(move.moved_bytes for move in moves),
        "seconds": None if throttle is None else seconds_at(moves, throttle),
    }


def print_moves(moves: Sequence[Move], directories: Directories) -> None:
    """A line for each partition; with the directory that each new replica comes into, as broker:path, where any has
    one.
    """
    rows: list[tuple[object, ...]] = []
    for move in moves:
        row = (move.partition.topic, move.partition.partition, move.before, move.after, size(move.moved_bytes))
        named = [(each, directories.get((move.partition, each))) for each in move.adding]
        into = tuple(f"{each}:{path}" for each, path in named if path is not None)
        rows.append((*row, into or None) if directories else row)
    print_table((*_MOVE_COLUMNS, _DIRECTORY_COLUMN) if directories else _MOVE_COLUMNS, rows)


def seconds_at(moves: Iterable[Move], bytes_per_second: int) -> int:
    """How long the copies take where each broker sends and gets so many bytes a second: as long as the broker that has
    most to send or to get. A partition is sent by its first replica that there is before.
    """
    sent: Counter[int] = Counter()
    got: Counter[int] = Counter()
    for move in moves:
        for node_id in move.adding:
            sent[move.before[0]] += move.size_bytes
            got[node_id] += move.size_bytes
    most = max([*sent.values(), *got.values()], default=0)
    return -(-most // bytes_per_second)


# Inside.


async def _directories(client: Client, moves: Sequence[Move]) -> Directories:
    """Into which log directory each replica comes, where its broker has several."""
    if not any(move.adding for move in moves):
        return {}
    from barnabas.cli.reassignment_directories import locate
    from barnabas.cli.reassignment_spread import spread
    from barnabas.client.admin import Admin

    async with Admin(client) as admin:
        return spread(moves, await locate(admin, {node_id for move in moves for node_id in move.adding}))


def _is_selected(selection: Mapping[str, Sequence[int] | None], partition: TopicPartition) -> bool:
    numbers = selection.get(partition.topic, ())
    return numbers is None or partition.partition in numbers


def _already_going_on(ongoing: Iterable[TopicPartition]) -> CommandError:
    from barnabas.cli.reassignment_files import named

    return CommandError(
        f"partitions are being moved already: {named(sorted(ongoing))}; `barnabas reassign status` shows how far that "
        "is, and `barnabas reassign cancel --all` ends it"
    )


def _named_moves(wish: Execution) -> str:
    """What is done of an execution, in words."""
    between = len(wish.between_directories())
    parts = [counted(len(wish.changes), "partition")] if wish.changes else []
    return ", ".join([*parts, f"{counted(between, 'replica')} between log directories"] if between else parts)


def _print_cancelled(back: Mapping[TopicPartition, Sequence[int]], staying: Directories) -> None:
    """What is where it was."""
    names = (Column("Topic", "topic"), Column("Partition", "partition", is_number=True))
    if back:
        print_table(
            (*names, Column("On", "on")),
            [(each.topic, each.partition, replicas) for each, replicas in sorted(back.items())],
        )
    if staying:
        print_table(
            (*names, Column("Broker", "broker", is_number=True), Column("In", "directory")),
            [(each.topic, each.partition, node_id, path) for (each, node_id), path in sorted(staying.items())],
        )


def _execution_document(wish: Execution, where: Map) -> dict[str, Any]:
    return {
        "partitions": [
            {"topic": each.topic, "partition": each.partition, "before": list(wish.current[each]), "after": list(after)}
            for each, after in sorted(wish.changes.items())
        ],
        "directories": [
            {
                "topic": replica[0].topic,
                "partition": replica[0].partition,
                "broker": replica[1],
                "before": where.at(replica).current,
                "after": path,
            }
            for replica, path in sorted(wish.directories.items())
        ],
    }


def _say_what_is_not_known(view: View, brokers: Sequence[Broker], wish: Wish) -> None:
    alive = {broker.node_id for broker in brokers}
    if view.silent:
        say(f"Sizes are not told by broker {', '.join(map(str, view.silent))}: its replicas count as others tell.")
    racks = {broker.rack for broker in brokers}
    if None in racks and len(racks) > 1:
        say("Racks do not count: not all brokers have one (broker.rack).")
    gone = Counter(each for placed in view.placed.values() for each in placed.replicas if each not in alive)
    for node_id in sorted({*gone} - wish.drain):
        say(
            f"Broker {node_id} is not in the cluster, and keeps its {counted(gone[node_id], 'replica')}: "
            f"start it, or move them with --drain {node_id}."
        )


def _print_plan(
    placed: Mapping[TopicPartition, Placed],
    brokers: Sequence[Broker],
    moves: Sequence[Move],
    directories: Directories,
    throttle: int | None,
    save: str | None,
) -> None:
    if not moves:
        say("Nothing to move.")
        return
    print_moves(moves, directories)
    click.echo()
    after = {**{each: one.replicas for each, one in placed.items()}, **{each.partition: each.after for each in moves}}
    had = _totals(placed, {each: one.replicas for each, one in placed.items()})
    has = _totals(placed, after)
    rows = []
    for node_id in sorted({*had, *has, *(broker.node_id for broker in brokers)}):
        before_after = zip(had.get(node_id, (0, 0, 0)), has.get(node_id, (0, 0, 0)), strict=True)
        (replicas, replicas_after), (leads, leads_after), (logs, logs_after) = before_after
        rows.append((node_id, replicas, replicas_after, leads, leads_after, size(logs), size(logs_after)))
    print_table(_BROKER_COLUMNS, rows)
    copied = sum(move.moved_bytes for move in moves)
    copies = sum(len(move.adding) for move in moves)
    takes = "" if throttle is None else f", some {_spoken_seconds(seconds_at(moves, throttle))} at {size(throttle)}/s"
    say(
        f"{counted(len(moves), 'partition')} to change, {counted(copies, 'copy', 'copies')} to make, "
        f"{size(copied)}{takes}."
    )
    if save is None:
        say("Nothing was moved: save the plan with --save FILE, and give it to `barnabas reassign execute`.")
    else:
        say(f"Nothing was moved: `barnabas reassign execute {printable(save)}` does it.")


def _totals(
    placed: Mapping[TopicPartition, Placed], replicas: Mapping[TopicPartition, Sequence[int]]
) -> dict[int, tuple[int, int, int]]:
    """Replicas, partitions preferred for, and bytes, by broker."""
    counts: Counter[int] = Counter()
    preferred: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for partition, node_ids in replicas.items():
        preferred.update(node_ids[:1])
        for node_id in node_ids:
            counts[node_id] += 1
            sizes[node_id] += placed[partition].size_bytes
    return {node_id: (counts[node_id], preferred[node_id], sizes[node_id]) for node_id in counts}


def _spoken_seconds(seconds: int) -> str:
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds} s"
