"""`barnabas reassign`: its files, what it says of time, how it shows progress, and how throttles are taken away."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from barnabas.cli.connection import CommandError
from barnabas.cli.reassign import SizeOption, print_moves, seconds_at
from barnabas.cli.reassignment_files import Reassignment, read_reassignment, reassignment_document, write_reassignment
from barnabas.cli.reassignment_planner import Move
from barnabas.cli.reassignment_progress import BarProgress, LineProgress, Progress
from barnabas.cli.reassignment_throttles import (
    LISTS,
    RATES,
    Rates,
    Throttles,
    remove_throttles,
    set_throttles,
    tell_what_is_left,
)
from barnabas.client.admin import ConfigEntry, ConfigOperation
from barnabas.client.errors import ClientTimeoutError
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import FakeCluster

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
Barnabas = Callable[..., Done]


def test_kafkas_file_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_reassignment(str(path), {B0: (3,), A0: (1, 2)})
    assert json.loads(path.read_text()) == {
        "version": 1,
        "partitions": [
            {"topic": "a", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]},
            {"topic": "b", "partition": 0, "replicas": [3], "log_dirs": ["any"]},
        ],
    }
    assert read_reassignment(str(path)) == Reassignment({A0: (1, 2), B0: (3,)}, {})
    with pytest.raises(FileExistsError):
        write_reassignment(str(path), {A0: (1,)})
    # As people write it, and with what `plan --json` says besides.
    path.write_text(json.dumps({"partitions": [{"topic": "a", "partition": 0, "replicas": [7]}], "seconds": 1}))
    assert read_reassignment(str(path)) == Reassignment({A0: (7,)}, {})
    path.unlink()
    with_directory = Reassignment({A0: (1, 2)}, {(A0, 2): "/disk"})
    write_reassignment(str(path), with_directory.replicas, {**with_directory.directories, (A0, 3): "/other"})
    assert json.loads(path.read_text())["partitions"][0]["log_dirs"] == ["any", "/disk"]
    assert read_reassignment(str(path)) == with_directory


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("{}", "it has no list of partitions"),
        ('{"version": 2, "partitions": []}', "only version 1 is known"),
        ('{"partitions": []}', "there is no partition in it"),
        ('{"partitions": [{"partition": 0, "replicas": [1]}]}', "partition 1 of the list: it names no topic"),
        ('{"partitions": [{"topic": "a", "partition": -1, "replicas": [1]}]}', "-1 is no partition"),
        ('{"partitions": [{"topic": "a", "partition": 0, "replicas": 1}]}', "1 are no replicas"),
        ('{"partitions": [{"topic": "a", "partition": 0, "replicas": [true]}]}', "are no replicas"),
        (f'{{"partitions": [{{"topic": "a", "partition": 0, "replicas": [{"9" * 5_000}]}}]}}', "are no replicas"),
        ('{"partitions": [{"topic": "a", "partition": 0, "replicas": []}]}', "would have no replica"),
        ('{"partitions": [{"topic": "a", "partition": 0, "replicas": [1, 1]}]}', "two replicas on one broker"),
        (
            '{"partitions": [{"topic": "a", "partition": 0, "replicas": [1], "log_dirs": ["/d", "/e"]}]}',
            "log_dirs must have an entry for each of the 1 replicas",
        ),
        (
            '{"partitions": [{"topic": "a", "partition": 0, "replicas": [1], "log_dirs": [7]}]}',
            "[7] are no log directories: write a path",
        ),
        (
            '{"partitions": [{"topic": "a", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", ""]}]}',
            "are no log directories: write a path",
        ),
        (
            json.dumps({"partitions": [{"topic": "a", "partition": 0, "replicas": [each]} for each in (1, 2)]}),
            "a-0 is there twice",
        ),
    ],
)
def test_a_file_with_garbage_says_where(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(CommandError) as raised:
        read_reassignment(str(path))
    assert error in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("text", "number_bytes"),
    [("1", 1), ("50MiB", 50 << 20), ("50 MB/s", 50_000_000), ("1.5KiB", 1536), ("2G", 2_000_000_000)],
)
def test_sizes_as_people_write_them(text: str, number_bytes: int) -> None:
    assert SizeOption().convert(text, None, None) == number_bytes


@pytest.mark.parametrize("text", ["", "0", "-5", "fast", "9" * 5_000, "1Z"])
def test_what_is_no_size(barnabas: Barnabas, text: str) -> None:
    done = barnabas("reassign", "plan", f"--throttle={text}")
    assert done.status == 2
    assert "is no size: write 50MiB" in " ".join(done.errors.split())


def test_the_broker_with_most_to_do_says_how_long() -> None:
    moves = [Move(A0, (1, 2), (3, 2), 1_000), Move(A1, (1,), (4,), 500), Move(B0, (2, 1), (1, 2), 9_000)]
    assert seconds_at(moves, 100) == 15
    assert seconds_at([], 100) == 0


def test_the_table_of_a_plan_names_directories_where_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    moves = [Move(A0, (1,), (2, 3), 1_000), Move(A1, (1,), (4,), 0), Move(B0, (2, 1), (1, 2), 9_000)]
    print_moves(moves, {(A0, 2): "/data/one", (A0, 3): "/data/two", (B0, 2): "/not/of/this/move"})
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0][-1] == "Into"
    assert [row[-1] for row in rows[1:]] == ["2:/data/one,3:/data/two", "-", "-"]
    print_moves(moves, {})
    plain = capsys.readouterr().out
    assert "Into" not in plain
    assert [line.split()[-1] for line in plain.splitlines()[1:]] == ["KiB", "B", "B"]


def test_bars_fit_a_narrow_terminal() -> None:
    for width in (40, 60, 120):
        console = Console(file=io.StringIO(), width=width, height=10, force_terminal=True, color_system=None)
        bars = BarProgress(console)
        bars.update([])
        console.print(bars)
        bars.update(
            [Progress(TopicPartition("t" * 100, each), (1, 2), each << 20, 30 << 20, each == 3) for each in range(30)]
        )
        console.print(bars)
        lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
        assert max(map(len, lines)) <= width
        assert "100%" not in lines[0]
        # Those that fit, and one for all.
        assert len(lines) == 1 + 7 + 1
        assert lines[-1].startswith("1 of 30 there")


def test_lines_tell_of_each_partition_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = LineProgress(is_quiet=False)
    for is_done in (False, True, True):
        lines.update([Progress(A0, (3,), 5, 2_048, is_done), Progress(A1, (), 0, 0, is_done)])
    assert capsys.readouterr().err.splitlines() == ["a-0 onto 3, 2.0 KiB (1 of 2)", "a-1, order only (2 of 2)"]


class _Configs:
    """An administrator of configs; what a broker in `silent` is asked for fails."""

    def __init__(self, silent: int | None = None) -> None:
        self.silent = silent
        self.configs: dict[str, dict[str, str]] = {"1": {RATES[0]: "77"}}
        self.moving: list[TopicPartition] = []

    async def describe_topic_configs(self, names: Iterable[str], _keys: object) -> dict[str, dict[str, ConfigEntry]]:
        return {name: await self.describe_configs(None, name, 0, 1) for name in names}

    async def list_topics(self) -> list[str]:
        await asyncio.sleep(0)
        return [name for name in self.configs if not name.isdigit()]

    async def list_partition_reassignments(self) -> dict[TopicPartition, None]:
        return dict.fromkeys(self.moving)

    async def describe_configs(
        self, _kind: object, name: str, _timeout_ms: float, source: int = 2
    ) -> dict[str, ConfigEntry]:
        await asyncio.sleep(0)
        return {
            key: ConfigEntry(key, value, source, is_read_only=False, is_sensitive=False)
            for key, value in self.configs.get(name, {}).items()
        }

    async def alter_configs(
        self, _kind: object, name: str, changes: list[tuple[str, ConfigOperation, str | None]], _ms: float = 0
    ) -> None:
        await asyncio.sleep(0)
        if name == str(self.silent):
            raise ClientTimeoutError("altering configs was not done within 8 s")
        own = self.configs.setdefault(name, {})
        for key, operation, value in changes:
            if operation is ConfigOperation.SET and value is not None:
                own[key] = value
            else:
                own.pop(key, None)


def test_throttles_are_those_of_kafkas_tool_and_go_again(capsys: pytest.CaptureFixture[str]) -> None:
    admin: Any = _Configs()
    throttles = Throttles((1, 2, 3), ("a",))

    async def main() -> None:
        await set_throttles(admin, throttles, Rates(5_000), {A0: ((1, 2), (3, 2)), A1: ((2,), (1,))})
        assert admin.configs["a"] == {
            "leader.replication.throttled.replicas": "0:1,0:2,1:2",
            "follower.replication.throttled.replicas": "0:3,1:1",
        }
        assert [admin.configs[each] for each in "123"] == [dict.fromkeys(RATES[:2], "5000")] * 3
        assert await remove_throttles(admin, throttles)
        # A rate that somebody had set before is there again.
        assert admin.configs == {"1": {RATES[0]: "77"}, "2": {}, "3": {}, "a": {}}

    asyncio.run(main())
    assert capsys.readouterr().err == ""


def test_what_somebody_else_holds_back_stays_held_back() -> None:
    admin: Any = _Configs()
    lists = {"a": {LISTS[0]: "0:1,7:9", LISTS[1]: "*"}, "b": {LISTS[1]: "5:5"}}
    admin.configs |= {topic: dict(values) for topic, values in lists.items()}
    admin.configs["2"] = {RATES[2]: "99"}
    throttles = Throttles((1, 2, 3), ("a", "b", "c"))
    moves = {A0: ((1, 2), (3, 2)), B0: ((1,), (2,)), TopicPartition("c", 0): ((1,), (2,))}

    async def main() -> None:
        await set_throttles(admin, throttles, Rates(5_000), moves)
        assert admin.configs["a"] == {LISTS[0]: "0:1,7:9,0:2", LISTS[1]: "*"}
        assert admin.configs["b"] == {LISTS[0]: "0:1", LISTS[1]: "5:5,0:2"}
        # Also what comes while it goes on.
        admin.configs["c"][LISTS[0]] += ",4:4"
        admin.configs["3"][RATES[2]] = "88"
        assert await remove_throttles(admin, throttles)
        assert admin.configs == {
            **lists,
            "c": {LISTS[0]: "4:4"},
            "1": {RATES[0]: "77"},
            "2": {RATES[2]: "99"},
            "3": {RATES[2]: "88"},
        }

    asyncio.run(main())


MOVES = {A0: ((1,), (2,)), B0: ((1,), (2,)), TopicPartition("c", 0): ((2,), (1,))}


@pytest.mark.parametrize("rates", [(5, 7, 6), (5, 5, 5), (5, 7, 7)])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("begin_together", [False, True])
def test_of_several_reassignments_at_once_the_last_one_leaves_no_rate(
    rates: tuple[int, ...], order: tuple[int, ...], begin_together: bool
) -> None:
    """Whichever ends first: the rate of another that goes on stays, and none is left at the end."""
    admin: Any = _Configs()
    admin.configs = {"1": {}, "2": {}, "3": {RATES[0]: "77"}}
    executions = [Throttles((1, 2), (partition.topic,)) for partition in MOVES]

    async def main() -> None:
        setting = [
            set_throttles(admin, throttles, Rates(rate), {partition: move})
            for throttles, rate, (partition, move) in zip(executions, rates, MOVES.items(), strict=True)
        ]
        if begin_together:
            await asyncio.gather(*setting)
        else:
            for each in setting:
                await each
        admin.moving = list(MOVES)
        for place, number in enumerate(order):
            partition = list(MOVES)[number]
            admin.moving.remove(partition)
            assert await remove_throttles(admin, executions[number])
            if place < 2:
                assert [admin.configs[each].keys() for each in "12"] == 2 * [set(RATES[:2])]
        assert admin.configs == {"1": {}, "2": {}, "3": {RATES[0]: "77"}, "a": {}, "b": {}, "c": {}}

    asyncio.run(main())


def test_a_rate_that_was_there_before_all_is_there_after_all() -> None:
    admin: Any = _Configs()
    first, second = Throttles((1, 2), ("a",)), Throttles((1, 2), ("b",))

    async def main() -> None:
        await set_throttles(admin, first, Rates(5), {A0: MOVES[A0]})
        await set_throttles(admin, second, Rates(7), {B0: MOVES[B0]})
        admin.moving = [A0, B0]
        admin.moving.remove(B0)
        assert await remove_throttles(admin, second)
        assert admin.configs["1"] == dict.fromkeys(RATES[:2], "5")
        admin.moving.remove(A0)
        assert await remove_throttles(admin, first)
        assert (admin.configs["1"], admin.configs["2"]) == ({RATES[0]: "77"}, {})

    asyncio.run(main())


def test_a_rate_is_not_given_back_to_somebody_who_ends_meanwhile() -> None:
    first, second = Throttles((1, 2), ("a",)), Throttles((1, 2), ("b",))

    class Meeting(_Configs):
        async def alter_configs(self, kind: object, name: str, changes: Any, _ms: float = 0) -> None:
            if (name, changes[0][2]) == ("2", "5") and first.rates and second.rates and A0 in self.moving:
                self.moving.remove(A0)
                assert await remove_throttles(admin, first)
            await super().alter_configs(kind, name, changes)

    admin: Any = Meeting()

    async def main() -> None:
        await set_throttles(admin, first, Rates(5), {A0: MOVES[A0]})
        await set_throttles(admin, second, Rates(7), {B0: MOVES[B0]})
        admin.moving = [A0]
        assert await remove_throttles(admin, second)
        assert admin.moving == []
        assert admin.configs["2"] == {}

    asyncio.run(main())


@pytest.mark.parametrize("failing", ["the lists cannot be read", "its own list stays"])
def test_where_it_cannot_be_told_who_holds_whom_back_the_rate_goes(
    failing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(_Configs):
        has_failed = False

        async def list_topics(self) -> list[str]:
            if self.has_failed and failing == "the lists cannot be read":
                raise ClientTimeoutError("listing topics was not done within 8 s")
            return await super().list_topics()

        async def alter_configs(self, kind: object, name: str, changes: Any, _ms: float = 0) -> None:
            if self.has_failed and failing == "its own list stays" and name == "a":
                raise ClientTimeoutError("altering configs was not done within 8 s")
            await super().alter_configs(kind, name, changes)

    admin: Any = Failing()
    throttles = Throttles((1, 2), ("a",))

    async def main() -> None:
        admin.configs["b"] = {LISTS[0]: "9:9"}
        await set_throttles(admin, throttles, Rates(5), {A0: MOVES[A0]})
        admin.has_failed = True
        admin.moving = [A0]
        await remove_throttles(admin, throttles)
        assert (admin.configs["1"], admin.configs["2"]) == ({RATES[0]: "77"}, {})

    asyncio.run(main())
    assert ("config unset topic:a" in capsys.readouterr().err) == (failing == "its own list stays")


def test_a_rate_that_somebody_sets_for_replicas_of_their_own_stays() -> None:
    admin: Any = _Configs()
    throttles = Throttles((1, 2), ("a",))

    async def main() -> None:
        await set_throttles(admin, throttles, Rates(5), {A0: MOVES[A0]})
        admin.configs["b"] = {LISTS[0]: "3:1"}
        admin.configs["1"][RATES[0]] = "9"
        assert await remove_throttles(admin, throttles)
        assert (admin.configs["1"], admin.configs["2"]) == ({RATES[0]: "9"}, {})

    asyncio.run(main())


def test_throttles_that_cannot_be_taken_away_are_told_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    admin: Any = _Configs(silent=2)
    throttles = Throttles((1, 2, 3), ("a",), {1: {}, 2: {RATES[0]: "7", RATES[1]: None}, 3: dict.fromkeys(RATES)})
    throttles.added["a"] = {LISTS[0]: frozenset({"0:1"})}
    admin.configs |= {"3": dict.fromkeys(RATES, "5"), "a": {LISTS[0]: "0:1"}}

    async def main() -> None:
        assert not await remove_throttles(admin, throttles)
        assert (admin.configs["3"], admin.configs["a"]) == ({}, {})

    asyncio.run(main())
    assert capsys.readouterr().err.splitlines() == [
        "To remove the throttles:",
        f"  barnabas config unset broker:2 {RATES[1]}",
        f"  barnabas config set broker:2 {RATES[0]}=7",
    ]


def test_nobody_interrupts_the_removal_of_throttles(capsys: pytest.CaptureFixture[str]) -> None:
    """Not a second Ctrl-C either: a throttle that is left slows replicas down for ever."""
    admin: Any = _Configs()
    throttles = Throttles((2, 3), ("a", "b"))

    async def main() -> None:
        await set_throttles(admin, throttles, Rates(5_000), {A0: ((2,), (3,))})
        removal = asyncio.create_task(remove_throttles(admin, throttles))
        interruptions = 0
        await asyncio.sleep(0)
        while not removal.done():
            interruptions += removal.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await removal
        assert interruptions > 2
        assert [admin.configs[each] for each in ("2", "3", "a")] == [{}, {}, {}]

    asyncio.run(main())
    assert "Still removing the throttles" in capsys.readouterr().err


def test_a_broker_to_be_filled_that_is_not_there_is_told_before_anything_is_measured(
    cluster: FakeCluster, barnabas: Barnabas
) -> None:
    done = barnabas("reassign", "plan", "--onto", "9")
    assert (done.status, done.errors) == (
        4,
        "barnabas reassign plan: there is no broker 9; the cluster has 1, 2, 3\n",
    )
    assert cluster.seconds == 0.0


def test_the_file_of_a_plan_is_a_plan() -> None:
    assert reassignment_document({}) == {"version": 1, "partitions": []}


def test_throttles_that_a_killed_command_has_left_are_told_where_nothing_is_being_moved(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found: Any = _Configs()
    found.configs = {"1": {RATES[0]: "5000"}, "2": {}, "a": {LISTS[0]: "0:1"}, "b": {}}
    elsewhere, without_lists, moving, may_not = _Configs(), _Configs(), _Configs(), _Configs()
    elsewhere.configs = {"1": {}, "2": {}, "a": {LISTS[0]: "0:1"}}
    without_lists.configs = {"1": {RATES[0]: "5000"}, "2": {}, "a": {}}
    moving.configs, moving.moving = found.configs, [A0]

    async def refuse(*_: object) -> None:
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    others: list[Any] = [elsewhere, without_lists, moving, may_not]
    others[-1].describe_configs = refuse
    for admin in others:
        asyncio.run(tell_what_is_left(admin, (1, 2)))
    assert capsys.readouterr().err == ""
    asyncio.run(tell_what_is_left(found, (1, 2)))
    said = capsys.readouterr().err
    assert said.startswith("Throttles are set already, though nothing is being moved: broker 1, topic a. ")
    assert "`barnabas reassign cancel --all` removes them" in said


def test_a_broker_that_does_not_answer_keeps_nobody_long_from_draining_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.cli.reassignment_throttles._LEFT_WITHIN_SECONDS", 0.05)
    admin: Any = _Configs()

    async def hang(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    admin.describe_configs = hang

    async def main() -> None:
        async with asyncio.timeout(30.0):
            await tell_what_is_left(admin, (1, 2))

    asyncio.run(main())


def test_a_broker_that_fails_leaves_no_throttle_at_those_that_answer_later() -> None:
    class Slow:
        def __init__(self) -> None:
            self.rates: dict[str, dict[str, str]] = {"2": {RATES[0]: "77"}, "3": {}}

        async def describe_configs(self, _kind: object, name: str, _timeout_ms: float) -> dict[str, ConfigEntry]:
            if name == "1":
                raise ClientTimeoutError("broker 1 does not answer")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return {}

        async def describe_topic_configs(self, names: Iterable[str], _keys: object) -> dict[str, Any]:
            return {name: {} for name in names}

        async def list_topics(self) -> list[str]:
            return []

        async def alter_configs(self, _kind: object, name: str, changes: Any, _timeout_ms: float = 0) -> None:
            for key, operation, value in changes if name in self.rates else ():
                if operation is ConfigOperation.SET:
                    self.rates[name][key] = value
                else:
                    self.rates[name].pop(key, None)

    async def run() -> dict[str, dict[str, str]]:
        admin: Any = Slow()
        throttles = Throttles((1, 2, 3), ("a",))
        with pytest.raises(ClientTimeoutError):
            await set_throttles(admin, throttles, Rates(5_000), {A0: ((1, 2), (3, 2))})
        assert await remove_throttles(admin, throttles)
        for _ in range(10):
            await asyncio.sleep(0)
        found: dict[str, dict[str, str]] = admin.rates
        return found

    assert asyncio.run(run()) == {"2": {RATES[0]: "77"}, "3": {}}
