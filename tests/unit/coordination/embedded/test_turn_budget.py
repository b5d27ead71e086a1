"""No request, event or session holds the coordinator's loop: what is long is cut, and others go on in between.

Counted in elements of the turn's budget and in turns, not in time.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from barnabas.coordination.embedded import commits as commits_module
from barnabas.coordination.embedded.engine import _EPHEMERALS_PER_TRANSACTION
from barnabas.coordination.embedded.server import EmbeddedCoordinator
from barnabas.coordination.embedded.transactions import SHORT_MULTI_BYTES_MAX
from barnabas.coordination.embedded.turn_budget import ELEMENTS_PER_TURN, PIECE_ELEMENTS, TurnBudget, Work
from tests.support.raw_zookeeper import (
    Operation,
    Reply,
    Request,
    WatchEvent,
    check,
    create,
    multi,
    on_path,
    read,
    set_data,
    set_watches,
)
from tests.unit.coordination.embedded.caller import Caller, CallerDisconnectedError
from tests.unit.coordination.embedded.serving import HOST, Run, serving, until

CHILDREN = 40_000
OVERSHOOT_ELEMENTS = 60_000
"""What the last request of a turn may cost more: 16 KiB of a multi, or a list that is not yet cut."""
EPHEMERAL = 1


def fill(coordinator: EmbeddedCoordinator, *, owner: int = 0) -> None:
    """Puts a parent with many children into the tree, as if they had always been there."""
    tree = coordinator.engine.tree
    tree.create("/many", b"", b"\0\0\0\0", tree.zxid, 0)
    for number in range(CHILDREN):
        tree.create(f"/many/child-{number:06d}", b"", b"\0\0\0\0", tree.zxid, 0, owner=owner)
    tree.changes.clear()
    for path, (data, stat, _, children) in list(tree.nodes.items()):
        if path.startswith("/many"):
            tree.nodes[path] = (data, stat, tree.nodes["/"][2], children)


class Turns:
    """The budget's counts since a moment."""

    def __init__(self, coordinator: EmbeddedCoordinator) -> None:
        self.budget = coordinator.budget
        self.budget.most_spent = 0
        self.began = self.budget.turns

    @property
    def count(self) -> int:
        return self.budget.turns - self.began

    def check(self, turns_min: int) -> None:
        assert self.count + 1 >= turns_min
        assert self.budget.most_spent <= ELEMENTS_PER_TURN + OVERSHOOT_ELEMENTS


@pytest.mark.parametrize(
    "operation",
    [Operation.GET_CHILDREN, Operation.GET_CHILDREN2, Operation.GET_EPHEMERALS, Operation.GET_ALL_CHILDREN_NUMBER],
)
def test_long_lists_in_a_pipeline_take_turns_with_others(operation: Operation, run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            asker = await Caller.open(HOST, coordinator.port)
            fill(coordinator, owner=asker.session_id if operation is Operation.GET_EPHEMERALS else 0)
            other = await Caller.open(HOST, coordinator.port)
            turns = Turns(coordinator)
            plain = operation in {Operation.GET_EPHEMERALS, Operation.GET_ALL_CHILDREN_NUMBER}
            request = on_path(operation, "/many") if plain else read(operation, "/many")
            asked = [asker.send(request) for _ in range(5)]
            await asyncio.sleep(0)
            assert (await other.call(on_path(Operation.SYNC, "/"))).error == 0
            replies = [await each for each in asked]
            turns.check(5 * CHILDREN // ELEMENTS_PER_TURN)
            found = {repr(reply.body) for reply in replies}
            assert len(found) == 1
            body = replies[0].body
            if operation is Operation.GET_ALL_CHILDREN_NUMBER:
                assert body == CHILDREN
            else:
                names = body[0] if operation is Operation.GET_CHILDREN2 else body
                assert len(set(names)) == CHILDREN

    run(scenario())


def test_lists_that_are_read_together_count_by_their_names(run: Run, tmp_path: Path) -> None:
    """A short request may ask for very many names, and short names are few bytes."""

    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            tree = coordinator.engine.tree
            for parent, count in (("/few", 100), ("/more", 1_000), ("/many", CHILDREN)):
                tree.create(parent, b"", b"\0\0\0\0", tree.zxid, 0)
                for number in range(count):
                    tree.create(f"{parent}/{number}", b"", b"\0\0\0\0", tree.zxid, 0)
            tree.changes.clear()
            for path, (data, stat, _, children) in list(tree.nodes.items()):
                tree.nodes[path] = (data, stat, tree.nodes["/"][2], children)
            asker = await Caller.open(HOST, coordinator.port)
            other = await Caller.open(HOST, coordinator.port)
            for requests, parents in ((20, ["/few"] * 100), (1, ["/more"] * 100), (2, ["/many"] * 2)):
                turns = Turns(coordinator)
                request = multi([read(Operation.GET_CHILDREN, path) for path in parents], Operation.MULTI_READ)
                assert len(request.body) <= SHORT_MULTI_BYTES_MAX
                asked = [asker.send(request) for _ in range(requests)]
                await asyncio.sleep(0)
                made = other.send(create(f"{parents[0]}/new{requests}", b""))
                answers = [(await each).body for each in asked]
                assert (await made).error == 0
                for found in answers:
                    # Each is of one moment, though others write meanwhile.
                    assert len({repr(names) for names in found}) == 1
                total = sum(len(names[-1]) for found in answers for names in found)
                assert total >= requests * len(parents) * 100
                assert turns.count >= total // ELEMENTS_PER_TURN
                assert turns.budget.most_spent <= ELEMENTS_PER_TURN + 2 * PIECE_ELEMENTS + 4_000

    run(scenario())


def test_four_letter_words_list_piece_by_piece(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            watcher = await Caller.open(HOST, coordinator.port)
            fill(coordinator, owner=watcher.session_id)
            connection = next(iter(coordinator._connections))
            for number in range(CHILDREN):
                coordinator.engine.watches.data.add(f"/many/child-{number:06d}", connection)
            for word, times in ((b"dump", 2), (b"wchp", CHILDREN), (b"wchc", 1)):
                turns = Turns(coordinator)
                reader, writer = await asyncio.open_connection(HOST, coordinator.port)
                writer.write(word)
                answer = await reader.read()
                assert answer.count(b"/many/child-") == CHILDREN
                assert answer.count(b"%#x" % watcher.session_id) == times
                turns.check(2)
                writer.close()

    run(scenario())


def test_watches_are_taken_over_piece_by_piece_and_what_changes_meanwhile_is_told_once(
    run: Run, tmp_path: Path
) -> None:
    count = 20_000

    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            fill(coordinator)
            paths = [f"/many/child-{number:06d}" for number in range(count)]
            other = await Caller.open(HOST, coordinator.port)
            watcher = await Caller.open(HOST, coordinator.port)
            turns = Turns(coordinator)
            taken_over = watcher.send(set_watches(coordinator.engine.tree.zxid, paths, [], []))
            await until(lambda: bool(coordinator.engine.watches.count))
            assert coordinator.engine.watches.count < count
            changed = [other.send(set_data(path, b"new")) for path in (paths[0], paths[-1])]
            assert (await taken_over).error == 0
            assert [(await each).error for each in changed] == [0, 0]
            await watcher.ping()
            events = [each.path for each in watcher.take() if isinstance(each, WatchEvent)]
            assert sorted(events) == [paths[0], paths[-1]]
            assert coordinator.engine.watches.count == count - 2
            turns.check(count // 1_000 * PIECE_ELEMENTS // ELEMENTS_PER_TURN)

    run(scenario())


def test_watches_of_a_connection_that_ends_go_piece_by_piece(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            watcher = await Caller.open(HOST, coordinator.port)
            connection = next(iter(coordinator._connections))
            for number in range(CHILDREN):
                coordinator.engine.watches.data.add(f"/many/child-{number:06d}", connection)
            turns = Turns(coordinator)
            watcher.drop()
            await until(lambda: not coordinator.engine.watches.count)
            turns.check(CHILDREN // 1_000 * PIECE_ELEMENTS // ELEMENTS_PER_TURN)
            assert not coordinator.engine.watches.data.by_watcher

    run(scenario())


@pytest.mark.parametrize("fails", [False, True])
def test_a_long_multi_is_seen_whole_or_not_at_all_though_others_ask_meanwhile(
    run: Run, tmp_path: Path, fails: bool
) -> None:
    count = 5_000

    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            writer = await Caller.open(HOST, coordinator.port)
            other = await Caller.open(HOST, coordinator.port)
            await writer.body(create("/many", b""))
            turns = Turns(coordinator)
            parts = [create(f"/many/{number}", b"") for number in range(count)]
            written = writer.send(multi([*parts, check("/missing", 1)] if fails else parts))
            behind = writer.send(read(Operation.GET_CHILDREN, "/many"))
            seen = set()
            while not written.done():
                seen.add(len(await other.body(read(Operation.GET_CHILDREN, "/many"))))
            assert seen <= {0, count}
            assert (await written).body[-1][:2] == ((-1, -101) if fails else (1, 0))
            assert len((await behind).body) == (0 if fails else count)
            assert not coordinator.budget.has_work_alone
            turns.check(count // 200 * PIECE_ELEMENTS // ELEMENTS_PER_TURN)
        # And what the log has of it is the same.
        async with serving(tmp_path) as coordinator:
            again = await Caller.open(HOST, coordinator.port)
            assert len(await again.body(read(Operation.GET_CHILDREN, "/many"))) == (0 if fails else count)

    run(scenario())


def test_a_stop_in_the_middle_of_a_long_multi_finishes_it(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            writer = await Caller.open(HOST, coordinator.port)
            writer.send(multi([create(f"/n{number}", b"") for number in range(5_000)])).add_done_callback(_look_away)
            await until(lambda: bool(coordinator.budget.has_work_alone))
            await coordinator.stop()
        async with serving(tmp_path) as coordinator:
            assert coordinator.engine.tree.count - 5 in {0, 5_000}

    run(scenario())


def _look_away(future: asyncio.Future[Reply]) -> None:
    future.exception()


def test_a_session_with_many_ephemeral_znodes_ends_in_pieces_and_durably(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, max_session_timeout_ms=60_000) as coordinator:
            owner = await Caller.open(HOST, coordinator.port)
            other = await Caller.open(HOST, coordinator.port)
            await owner.body(create("/many", b""))
            for start in range(0, 6_000, 300):
                numbers = range(start, start + 300)
                await owner.body(multi([create(f"/many/{number}", b"", EPHEMERAL) for number in numbers]))
            for number in (0, 3_000, 5_999):
                await other.body(read(Operation.EXISTS, f"/many/{number}", watch=True))
            session_id, password = owner.session_id, owner.password
            turns = Turns(coordinator)
            ended = asyncio.get_running_loop().create_task(owner.end())
            await until(lambda: bool(coordinator.engine.closing))
            await ended
            assert not coordinator.engine.closing
            # Before that nobody is told that it is over: he would find what is left of it.
            coordinator.engine.closing.add(session_id)
            with pytest.raises(CallerDisconnectedError, match="lost"):
                await Caller.open(HOST, coordinator.port, session_id=session_id, password=password)
            coordinator.engine.closing.clear()
            with pytest.raises(CallerDisconnectedError, match="expired"):
                await Caller.open(HOST, coordinator.port, session_id=session_id, password=password)
            await other.ping()
            events = [each.path for each in other.take() if isinstance(each, WatchEvent)]
            assert events == ["/many/0", "/many/3000", "/many/5999"]
            turns.check(6_000 // _EPHEMERALS_PER_TRANSACTION * PIECE_ELEMENTS // ELEMENTS_PER_TURN)
        async with serving(tmp_path) as coordinator:
            assert coordinator.engine.sessions.get(session_id) is None
            assert coordinator.engine.tree.ephemeral_count == 0

    run(scenario())


@pytest.mark.parametrize("count", [1, _EPHEMERALS_PER_TRANSACTION + 1])
def test_who_ends_its_session_hears_of_its_own_znodes_before_the_reply(run: Run, tmp_path: Path, count: int) -> None:
    """Clients read nothing behind it."""

    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            caller = await Caller.open(HOST, coordinator.port)
            await caller.body(multi([create(f"/{number}", b"", EPHEMERAL) for number in range(count)]))
            await caller.body(read(Operation.EXISTS, "/0", watch=True))
            caller.take()
            await caller.end()
            event, reply = caller.take()
            assert isinstance(event, WatchEvent)
            assert event.path == "/0"
            assert isinstance(reply, Reply)

    run(scenario())


def test_events_for_many_watchers_leave_in_several_turns_and_in_order(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits_module, "RELEASED_PER_TURN", 2)

    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            writer = await Caller.open(HOST, coordinator.port)
            await writer.body(create("/a", b""))
            watchers = [await Caller.open(HOST, coordinator.port) for _ in range(20)]
            for watcher in watchers:
                await watcher.body(read(Operation.EXISTS, "/a", watch=True))
                watcher.take()
            await writer.body(set_data("/a", b"1"))
            # Asked while the events of the first half are on their way.
            answers = [watcher.send(read(Operation.GET_DATA, "/a")) for watcher in watchers]
            for watcher, answer in zip(watchers, answers, strict=True):
                assert (await answer).body[0] == b"1"
                assert [type(each) for each in watcher.take()] == [WatchEvent, Reply]
            assert not coordinator.engine.commits._releasing

    run(scenario())


# The budget itself.


def counting(pieces: int, log: list[str], name: str) -> Work[str]:
    for _ in range(pieces):
        log.append(name)
        yield PIECE_ELEMENTS
    return name


def test_works_take_turns_and_work_alone_goes_before_all(run: Run) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        budget = TurnBudget(loop)
        log: list[str] = []
        finished: list[str] = []
        all_done = loop.create_future()

        def done(name: str) -> None:
            finished.append(name)
            if len(finished) == 3:
                all_done.set_result(None)

        budget.run(counting(9, log, "a"), done)
        budget.run(counting(5, log, "b"), done)
        assert log == ["a"] * 4
        assert budget.is_over
        budget.run_alone(counting(5, log, "c"), done)
        with pytest.raises(RuntimeError, match="alone"):
            budget.run_alone(counting(1, log, "d"), done)
        await all_done
        assert finished == ["c", "b", "a"] or finished == ["c", "a", "b"]
        # Four pieces fit into a turn; nobody is served while "c" is half done.
        assert "".join(log).startswith("aaaaccccc")
        assert budget.most_spent == ELEMENTS_PER_TURN

    run(scenario())


def test_work_alone_that_fails_frees_the_way(run: Run) -> None:
    async def scenario() -> None:
        budget = TurnBudget(asyncio.get_running_loop())

        def failing() -> Work[None]:
            yield 1
            raise ValueError("a defect")

        with pytest.raises(ValueError, match="a defect"):
            budget.run_alone(failing(), lambda _none: None)
        assert not budget.has_work_alone

    run(scenario())


def test_a_defect_in_one_work_does_not_keep_the_others_waiting(run: Run) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: met.append(context["exception"]))
        met: list[BaseException] = []
        budget = TurnBudget(loop)
        finished = loop.create_future()
        budget.spend(ELEMENTS_PER_TURN)

        def defect() -> None:
            raise ValueError("a defect")

        budget.wait(defect)
        budget.run(counting(9, [], "a"), finished.set_result)
        assert await finished == "a"
        assert [str(error) for error in met] == ["a defect"]

    run(scenario())


def test_a_stop_while_a_session_ends_leaves_the_rest_of_it_to_the_next_start(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as coordinator:
            owner = await Caller.open(HOST, coordinator.port)
            for start in range(0, 6_000, 300):
                await owner.body(multi([create(f"/e{number}", b"", EPHEMERAL) for number in range(start, start + 300)]))
            owner.send(Request(Operation.CLOSE_SESSION, b"")).add_done_callback(_look_away)
            await until(lambda: bool(coordinator.engine.closing))
            left = coordinator.engine.tree.ephemeral_count
            assert 0 < left < 6_000
            await coordinator.stop()
            assert not coordinator.failure.done()
        async with serving(tmp_path) as coordinator:
            assert 0 < coordinator.engine.tree.ephemeral_count <= left
            session = coordinator.engine.sessions.get(owner.session_id)
            assert session is not None
            coordinator.engine.close_session(session)
            assert coordinator.engine.tree.ephemeral_count == 0

    run(scenario())
