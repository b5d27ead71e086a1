"""Fetches of followers that are behind with some partitions and in sync with others, with real logs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from barnabas.serving.catching_up import PIECE_BYTES, CatchUpShare
from tests.unit.api.data_broker import DataBroker
from tests.unit.api.fetching import Run, Session, asked, scenario, settled, values

FOLLOWER = 2
BEHIND, OTHER_BEHIND, LIVE = 0, 1, 2
COUNT, VALUE = 30, bytes(100_000)
BYTES_MAX = 10 << 20
SHARE = 256 * 1024
"""For each millisecond of the shortest round, and of a round that the loop's clock sees no time of."""
AT_LEAST = 64 * 1024
"""For each millisecond since the last share."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No round takes any time: on a busy machine the shortest takes some milliseconds, and the share grows with it."""
    monkeypatch.setattr(CatchUpShare, "asked", lambda *_: None)


@pytest.fixture
def slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round takes 0.02 s longer, as one of 10 MB does with four gigabits per second."""
    asked_at = CatchUpShare.asked
    monkeypatch.setattr(CatchUpShare, "asked", lambda share, now: asked_at(share, now + 0.02))


async def some_behind(broker: DataBroker, *, batch_values: int = 1) -> None:
    """Two partitions with 3 MB each that the follower is behind with, and one that it is in sync with."""
    for number in (BEHIND, OTHER_BEHIND):
        broker.lead("flights", number, isr=(1,), replicas=(1, FOLLOWER))
        for _ in range(COUNT // batch_values):
            await broker.produce("flights", *[VALUE] * batch_values, number=number)
    broker.lead("flights", LIVE, isr=(1, FOLLOWER), replicas=(1, FOLLOWER))
    await settled()


class Follower:
    """One that appends what it gets."""

    def __init__(self, broker: DataBroker, version: int, *partitions: int) -> None:
        self.session = Session(broker.connect(), version, FOLLOWER)
        self.ends = dict.fromkeys(partitions, 0)
        self.named = set(partitions)

    async def fetch(self) -> dict[int, int]:
        """What came of each partition, in records."""
        named = [
            asked(number, end, log_start_offset=0, partition_max_bytes=BYTES_MAX)
            for number, end in sorted(self.ends.items())
            if number in self.named
        ]
        found = await self.session.fetch(*named, max_bytes=BYTES_MAX)
        got = {number: len(values(data)) for number, data in found.items() if data.records}
        for number, count in got.items():
            self.ends[number] += count
        self.named = set(got)
        return got


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("version", [12, 17])
def test_what_a_follower_is_behind_with_has_a_share_while_it_is_in_sync_with_others(
    run: Run, tmp_path: Path, version: int
) -> None:
    async def body(broker: DataBroker) -> None:
        await some_behind(broker)
        follower = Follower(broker, version, BEHIND, OTHER_BEHIND, LIVE)
        await follower.fetch()
        # The first request opens the session, and cannot know yet.
        sizes = []
        follower.ends |= {BEHIND: 0, OTHER_BEHIND: 0}
        follower.named = {BEHIND, OTHER_BEHIND}
        while min(follower.ends[BEHIND], follower.ends[OTHER_BEHIND]) < COUNT:
            got = await follower.fetch()
            assert got, "every response brings some"
            sizes.append(sum(got.values()) * len(VALUE))
        assert max(sizes) <= SHARE
        assert sum(sizes) == 2 * COUNT * len(VALUE)

    scenario(run, tmp_path, body)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("version", [12, 17])
def test_a_follower_that_is_in_sync_with_nothing_gets_a_piece_at_a_time(run: Run, tmp_path: Path, version: int) -> None:
    """Other partitions of its leader wait no longer than it takes to read and send that, and its own to append it."""

    async def body(broker: DataBroker) -> None:
        await some_behind(broker)
        follower = Follower(broker, version, BEHIND, OTHER_BEHIND)
        await follower.fetch()
        # The first request opens the session.
        follower.ends, follower.named = {BEHIND: 0, OTHER_BEHIND: 0}, {BEHIND, OTHER_BEHIND}
        sizes = []
        while min(follower.ends.values()) < COUNT:
            sizes.append(sum((await follower.fetch()).values()) * len(VALUE))
        assert PIECE_BYTES / 2 < max(sizes) <= PIECE_BYTES
        assert sum(sizes) == 2 * COUNT * len(VALUE)
        assert len(sizes) <= 2 * COUNT * len(VALUE) / PIECE_BYTES + 3

    scenario(run, tmp_path, body)


@pytest.mark.usefixtures("slow_link")
@pytest.mark.parametrize("bytes_per_second", [None, 1 << 40])
def test_a_throttle_without_a_rate_bounds_no_share_of_a_long_way(
    run: Run, tmp_path: Path, bytes_per_second: int | None
) -> None:
    """The list of throttled replicas is left behind in a topic's configs more often than not."""

    async def body(broker: DataBroker) -> None:
        await some_behind(broker)
        broker.leader_quota.throttle("flights", ["*"], 1)
        if bytes_per_second is not None:
            broker.leader_quota.limit(bytes_per_second)
        follower = Follower(broker, 17, BEHIND, OTHER_BEHIND)
        await follower.fetch()
        follower.ends, follower.named = {BEHIND: 0, OTHER_BEHIND: 0}, {BEHIND, OTHER_BEHIND}
        sizes = []
        while min(follower.ends.values()) < COUNT:
            sizes.append(sum((await follower.fetch()).values()) * len(VALUE))
        assert (max(sizes) > PIECE_BYTES) is (bytes_per_second is None)

    scenario(run, tmp_path, body)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("version", [12, 17])
def test_what_it_is_in_sync_with_comes_alone_in_every_second_response(run: Run, tmp_path: Path, version: int) -> None:
    """Its records wait for no others, and those of the others are never left out twice."""

    async def body(broker: DataBroker) -> None:
        await some_behind(broker)
        follower = Follower(broker, version, BEHIND, LIVE)
        await follower.fetch()
        follower.ends[BEHIND] = 0
        follower.named = {BEHIND}
        responses = []
        while follower.ends[BEHIND] < COUNT:
            await broker.produce("flights", b"now", number=LIVE)
            responses.append(set(await follower.fetch()))
        assert responses[:6] == [{LIVE}, {BEHIND, LIVE}] * 3
        assert follower.ends[LIVE] == len(responses)

    scenario(run, tmp_path, body)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("version", [12, 17])
def test_a_batch_that_is_larger_than_the_share_comes_nevertheless(run: Run, tmp_path: Path, version: int) -> None:
    async def body(broker: DataBroker) -> None:
        await some_behind(broker, batch_values=COUNT // 3)
        follower = Follower(broker, version, BEHIND, OTHER_BEHIND, LIVE)
        await follower.fetch()
        follower.ends |= {BEHIND: 0, OTHER_BEHIND: 0}
        follower.named = {BEHIND, OTHER_BEHIND}
        for expected in ([BEHIND], [OTHER_BEHIND]) * 3:
            assert list(await follower.fetch()) == expected, "one batch, and then it is the other's turn"
        assert follower.ends == {BEHIND: COUNT, OTHER_BEHIND: COUNT, LIVE: 0}

    scenario(run, tmp_path, body)


def test_a_share_grows_with_the_shortest_way_there_and_back() -> None:
    share = CatchUpShare()
    assert share.bytes == SHARE
    for answered, asked_at, milliseconds in ((1.0, 1.050, 50), (2.0, 2.100, 50), (3.0, 3.020, 20), (4.0, 4.0, 1)):
        share.answered(answered, is_share=True)
        share.asked(asked_at)
        since = AT_LEAST * (asked_at - answered) * 1000
        assert share.bytes == pytest.approx(milliseconds * SHARE + since, rel=0.01)
        share.asked(asked_at + 0.0001)  # after a response without records: it says nothing
        assert share.bytes == pytest.approx(milliseconds * SHARE + since, rel=0.05)


@pytest.mark.parametrize("round_seconds", [0.005, 0.02, 0.2])
def test_a_busy_leader_gives_its_followers_more_than_it_may_be_given_itself(round_seconds: float) -> None:
    """One quick round does not bound for ever what a follower can catch up with."""
    share = CatchUpShare()
    share.answered(0.0, is_share=True)
    share.asked(0.0005)
    now, given, rounds = 0.0005, 0, 200
    for number in range(rounds):
        if number % 2:  # in every second response there are records that it is in sync with
            given += share.bytes
            share.answered(now, is_share=True)
        now += round_seconds
        share.asked(now)
    assert given / now > 60_000_000


@pytest.mark.parametrize("is_alone", [True, False])
def test_the_pauses_of_a_throttle_make_no_share_larger(is_alone: bool) -> None:
    """At 10 MB a second what gathers in a pause would make the next pause longer, up to ten megabytes at once."""
    share = CatchUpShare()
    now, sizes = 0.0, []
    for _ in range(50):
        share.asked(now)
        sizes.append(share.limit(is_alone=is_alone, is_throttled=True))
        share.answered(now, is_share=not is_alone)
        share.asked(now + 0.001)  # of what is not throttled
        now += sizes[-1] / 10e6
    assert max(sizes) == PIECE_BYTES


def test_who_is_in_sync_with_nothing_gets_more_at_a_time_where_rounds_take_long() -> None:
    share = CatchUpShare()
    assert share.limit(is_alone=True, is_throttled=False) == PIECE_BYTES
    assert share.limit(is_alone=False, is_throttled=False) == SHARE
    share.answered(0.0, is_share=False)
    share.asked(0.05)
    assert share.limit(is_alone=True, is_throttled=False) == SHARE + 50 * AT_LEAST


@pytest.mark.parametrize("link_bytes_per_second", [125_000_000, 80_000_000])
def test_a_share_that_takes_long_makes_the_next_one_no_larger(link_bytes_per_second: int) -> None:
    share = CatchUpShare()
    share.answered(0.0, is_share=False)
    now = BYTES_MAX / link_bytes_per_second
    sizes = []
    for _ in range(100):
        share.asked(now)
        sizes.append(min(share.bytes, BYTES_MAX))
        share.answered(now, is_share=True)
        now += 0.0002 + sizes[-1] / link_bytes_per_second
    assert sizes[-1] < BYTES_MAX / 4


@pytest.mark.usefixtures("slow_link")
@pytest.mark.parametrize("version", [12, 17])
def test_a_way_that_was_long_for_ten_megabytes_makes_no_share_of_ten(run: Run, tmp_path: Path, version: int) -> None:
    """After a start a follower is behind with all: what it is given then takes long, which says nothing of the way."""

    async def body(broker: DataBroker) -> None:
        await some_behind(broker)
        follower = Follower(broker, version, BEHIND, OTHER_BEHIND)
        assert await follower.fetch() == {BEHIND: COUNT, OTHER_BEHIND: COUNT}
        follower.ends |= {BEHIND: 0, OTHER_BEHIND: 0, LIVE: 0}
        follower.named = {BEHIND, OTHER_BEHIND, LIVE}
        started = asyncio.get_running_loop().time()
        await follower.fetch()
        follower.ends |= {BEHIND: 0, OTHER_BEHIND: 0}
        follower.named = {BEHIND, OTHER_BEHIND}
        given = sum((await follower.fetch()).values()) * len(VALUE)
        # 0.02 s by the link of the test, and what the machine needs.
        since = (asyncio.get_running_loop().time() - started + 0.02) * 1000
        assert given <= SHARE + AT_LEAST * since + 2 * len(VALUE)

    scenario(run, tmp_path, body)
