"""Announcements beside a real coordinator in virtual time: in what order things are read, and when again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from barnabas.coordination.announcements import AnnouncedChanges, Source
from barnabas.coordination.errors import ConnectionLossError
from barnabas.coordination.layout.payload import decode_text
from barnabas.coordination.protocol import CreateMode
from tests.unit.api.administration.admin_world import AdminWorld, in_world

ONE, OTHER = "/one", "/other"
SOURCES = tuple(Source(path, "change_", decode_text) for path in (ONE, OTHER))


class Noting:
    """Notes what it is asked for, of which it does nothing but what a test wants."""

    def __init__(self, world: AdminWorld) -> None:
        self.world = world
        self.noted: list[str | list[str]] = []
        self.while_loading: Callable[[], Awaitable[object]] | None = None
        self.changes = AnnouncedChanges(
            world.host, world.client, self, SOURCES, "Things", timers=world.timers, logger=world.logger, thread="things"
        )

    async def create_paths(self) -> None:
        self.noted.append("paths")
        for path in (ONE, OTHER):
            if await self.world.client.exists(path) is None:
                await self.world.client.create(path)

    async def load(self) -> None:
        self.noted.append("all")
        work, self.while_loading = self.while_loading, None
        if work is not None:
            await work()

    async def refresh(self, changes: Iterable[str]) -> None:
        self.noted.append(list(changes))

    async def announce(self, path: str, change: str) -> None:
        await self.world.client.create(f"{path}/change_", change.encode(), mode=CreateMode.PERSISTENT_SEQUENTIAL)

    async def rest(self) -> None:
        await asyncio.sleep(0.5)


def noting(test: Callable[[Noting], Awaitable[None]]) -> None:
    async def main(world: AdminWorld) -> None:
        reader = Noting(world)
        try:
            await test(reader)
        finally:
            await reader.changes.stop()

    in_world(main)


def test_reads_all_and_then_what_is_announced_at_any_place() -> None:
    async def main(reader: Noting) -> None:
        await reader.create_paths()
        await reader.announce(ONE, "before")
        await reader.changes.start()
        await reader.rest()
        assert reader.noted == ["paths", "paths", "all"]
        reader.noted.clear()
        for path, change in ((ONE, "a"), (OTHER, "b"), (ONE, "c")):
            await reader.announce(path, change)
            await reader.rest()
        assert reader.noted == [["a"], ["b"], ["c"]]

    noting(main)


def test_what_is_announced_while_all_is_read_is_read_after_it() -> None:
    async def main(reader: Noting) -> None:
        reader.while_loading = lambda: reader.announce(OTHER, "meanwhile")
        await reader.changes.start()
        await reader.rest()
        assert reader.noted == ["paths", "all", ["meanwhile"]]

    noting(main)


def test_all_is_read_again_when_that_has_failed_and_after_a_session() -> None:
    async def main(reader: Noting) -> None:
        async def fail() -> None:
            raise ConnectionLossError("/")

        await reader.changes.start()
        reader.noted.clear()
        reader.while_loading = fail
        await reader.changes.before_new_session()
        await reader.rest()
        assert reader.noted == []
        await reader.changes.after_new_session()
        await reader.rest()
        assert reader.noted == ["paths", "all"]
        await asyncio.sleep(1)
        assert reader.noted == ["paths", "all"] * 2

    noting(main)


def test_an_announcement_that_says_nothing_is_passed_over() -> None:
    async def main(reader: Noting) -> None:
        await reader.changes.start()
        reader.noted.clear()
        await reader.world.client.create(f"{ONE}/of nobody", b"x")
        await reader.world.client.create(f"{ONE}/change_", b"", mode=CreateMode.PERSISTENT_SEQUENTIAL)
        await reader.announce(ONE, "something")
        await reader.rest()
        assert [change for noted in reader.noted for change in noted] == ["something"]

    noting(main)
