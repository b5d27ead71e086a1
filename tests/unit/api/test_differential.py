"""Produce and Fetch, held against plain decode, handle and encode: two brokers of one seed get the same requests, with
the same events among them at the same virtual time. All bytes of all answers are equal, in their order and when they
come, and so are the files and what is kept in memory.

`BARNABAS_SIMULATION_SEEDS=n` runs more seeds, `BARNABAS_SIMULATION_SEED=n` one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from barnabas.api.follower_fetch import FollowerFetch
from barnabas.kernel.host import Host
from barnabas.network.connection import ServerConnection
from barnabas.testing.profile import OffloadProfile, Profile
from barnabas.testing.simulation import Simulation, simulation_seeds
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ApiVersionsRequest, FetchResponse, ProduceResponse
from barnabas.wire.topics import TopicPartition
from tests.unit.api.data_broker import data_broker
from tests.unit.api.differential_traffic import Connected, Fetcher, Producer
from tests.unit.api.differential_world import DIRECTORIES, STEADY, World, counted_entropy, make_plain, wake_in_order

SEEDS: Final = simulation_seeds(20)
OFFLOADED: Final = 4
STEPS: Final = 65
_STEP_SECONDS: Final = 0.25
_SAMPLED_SECONDS: Final = (0.01, 0.15)
"""Of each step: what is answered at once, or after a sync or two, and what has waited for 80 or 100 ms."""
_LONG_SECONDS: Final = 40.0
"""Longer than a follower may lag and than a producer waits."""
_UNIFORM_VERSION: Final = 9
_REPLICA_STATE_SINCE: Final = 15
QUICK: Final = dataclasses.replace(
    STEADY, offload=OffloadProfile(dispatch_seconds=(1e-6, 1e-6), compute_seconds=(1e-6, 1e-6))
)
"""Work off the loop is done before the next request comes, but for what syncs."""
LATER: Final = pytest.mark.skipif(
    not os.environ.get("BARNABAS_ALL_MUTANTS"), reason="needs ten stories and more: .ci/nightly does it"
)


class Story:
    """What happens to a broker, all of it by one seed and by what it answers."""

    def __init__(self, world: World, chance: random.Random, *, asks_behind: bool) -> None:
        """`asks_behind`: a Fetch may come behind a Produce on its connection."""
        self.world = world
        self._asks_behind = asks_behind
        self.told: list[tuple[str, object]] = []
        """All that is seen of it: what it is, and what it is like."""
        self._chance = chance
        self._producers = [
            Producer(world, client_id, chance, number) for number, client_id in enumerate(("p", "p", "p", "q", None))
        ]
        self._consumers = [Fetcher(world, chance) for _ in range(3)]
        self._followers = [Fetcher(world, chance, follower_id) for follower_id in (2, 3)]
        self._other = Connected(world, "other", chance)
        self._odd = Connected(world, "odd", chance)
        self._deleted: str | None = None
        self._time = 0.0
        if chance.random() < 0.5:
            self.told += [("at first", world.change_quota()) for _ in range(3)]

    @property
    def _all(self) -> list[Connected]:
        return [*self._producers, *self._consumers, *self._followers, self._other, self._odd]

    async def happen(self) -> None:
        loop = asyncio.get_running_loop()
        # In the middle of a millisecond, so that a few turns more or less make no other timestamp.
        self._time = round(loop.time(), 3) + 0.1005
        for number in range(STEPS):
            await self._sleep_until(self._time)
            what = await self._step()
            for seconds in _SAMPLED_SECONDS:
                await self._sleep_until(self._time + seconds)
                self._tell(f"step {number} ({what}) after {seconds} s")
            self.world.look_at_disk()
            self.told += [(f"{name} after step {number} ({what})", state) for name, state in self.world.state()]
            self._time += _STEP_SECONDS

    async def _sleep_until(self, when: float) -> None:
        await asyncio.sleep(when - asyncio.get_running_loop().time())

    def _tell(self, what: str) -> None:
        for number, each in enumerate(self._all):
            found = each.take()
            if found:
                self.told.append((f"answers to {each.client_id} ({number}), {what}", found))

    async def _step(self) -> str:
        """One poll of the loop, or several, or an event."""
        kind = self._chance.random()
        if kind < 0.2:
            return await self._event()
        if kind < 0.4:
            return await self._followed(self._one_sends())
        if kind < 0.5:
            return await self._followed(self._alone_sends())
        if kind < 0.6:
            return self._several_send()
        if kind < 0.7:
            return await self._followed(self._uniform_send())
        if kind < 0.78:
            return await self._event_meanwhile()
        if kind < 0.81:
            return self._odd_sends()
        if kind < 0.86:
            return await self._follower_keeps_up()
        return await self._each_fetches()

    async def _followed(self, sending: Any) -> str:
        """Then the followers fetch, so that what waits for them goes on."""
        what: str = await sending
        for follower in self._followers:
            await asyncio.sleep(0.0003)
            if not follower.unanswered and self._chance.random() < 0.8:
                self._send(follower, follower.frame(self.world.partitions(replicated=True)))
        return what

    # Requests.

    def _send(self, client: Connected, data: bytes) -> None:
        if client.caller.connection.is_throttled:  # what comes until it is read again comes in one poll
            if isinstance(client, Fetcher):
                client.unanswered -= 1
            return
        self.told.append((f"sent by {client.client_id}", data))
        client.caller.send_bytes(data)

    async def _one_sends(self) -> str:
        """Several requests, one behind the other, in any number of reads."""
        chance = self._chance
        producer = chance.choice(self._producers)
        partitions = self.world.some(chance.choice((1, 1, 3)))
        frames = producer.frames(partitions, chance.choice((1, 1, 2, 4, 15)))
        if self._asks_behind and chance.random() < 0.3:
            asking = Fetcher(self.world, chance)
            asking.client_id = producer.client_id
            asking.version = max(4, asking.version)
            frames.insert(chance.randrange(len(frames)), asking.frame(partitions))
        data = b"".join(frames)
        cuts = sorted(chance.sample(range(1, len(data)), chance.choice((0, 0, 1, 3))))
        for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
            self._send(producer, data[start:end])
            if chance.random() < 0.5:
                await asyncio.sleep(chance.choice((0, 0.0001)))
        return f"{len(frames)} of one in {len(cuts) + 1} reads"

    async def _alone_sends(self) -> str:
        """One request in each of several polls, in which nobody else sends anything."""
        chance = self._chance
        client = chance.choice(self._producers)
        partitions = self.world.some(chance.choice((1, 2)))
        acks, is_usual = chance.choice((1, -1, -1, 0)), chance.random() < 0.7
        for _ in range(chance.choice((2, 3, 6))):
            if is_usual:
                frame = client.usual(partitions[0], acks, chance.choice((16, 16, 4_000)), client.version)
            else:
                frame = client.frame(partitions, may_be_silent=True)
            self._send(client, frame)
            await asyncio.sleep(0.0005)
        return "one alone"

    def _several_send(self) -> str:
        """In one poll, each to partitions of its own: there is no order between connections."""
        chance = self._chance
        if self.world.is_disk_to_fail:  # and which of them hits it first would matter
            return "nothing"
        partitions = self.world.partitions()
        chance.shuffle(partitions)
        producers = chance.sample(self._producers, chance.choice((2, 3)))
        fetcher = chance.choice(self._consumers)
        for number, producer in enumerate(producers):
            own = partitions[number :: len(producers) + 1]
            self._send(producer, b"".join(producer.frames(own, chance.choice((1, 2, 5)))))
        if not fetcher.unanswered:
            own = partitions[len(producers) :: len(producers) + 1]
            self._send(fetcher, fetcher.frame(own, is_in_session=False))
        return "several"

    async def _uniform_send(self) -> str:
        """In one poll, several connections to one partition, all requests of one form."""
        chance = self._chance
        (topic_partition,) = self.world.some(1)
        producers = [each for each in self._producers if each.client_id == "p" and not each.is_limited]
        acks, size_bytes, version = chance.choice((1, 1, -1, 0)), chance.choice((16, 16, 200)), chance.choice((9, 11))
        for producer in producers:  # so that each has learnt what there is to learn
            self._send(producer, producer.usual(topic_partition, acks, size_bytes, version))
            await asyncio.sleep(0.0005)
        varies = chance.random() < 0.3
        for producer in producers:
            sizes = [size_bytes + (varies and chance.randint(0, 9)) for _ in range(chance.choice((1, 4, 15)))]
            self._send(producer, b"".join(producer.usual(topic_partition, acks, bytes_, version) for bytes_ in sizes))
        return "uniform"

    async def _each_fetches(self) -> str:
        chance = self._chance
        for fetcher in chance.sample([*self._consumers, *self._followers], 3):
            if fetcher.unanswered and chance.random() < 0.95:
                continue
            partitions = self.world.partitions(replicated=fetcher.is_follower)
            if self.world.aborted and not fetcher.is_follower and chance.random() < 0.5:
                partitions = list(self.world.aborted)
            self._send(fetcher, fetcher.frame(partitions))
            await asyncio.sleep(0.0003)
        return "fetches"

    async def _follower_keeps_up(self) -> str:
        """A follower that has all asks for one partition again and again, while records come or do not."""
        chance, follower = self._chance, self._chance.choice(self._followers)
        led = [each for each in self.world.partitions(replicated=True) if self.world.is_led(each)]
        if not led or follower.unanswered or follower.version < _REPLICA_STATE_SINCE:
            return "nothing to keep up with"
        follower.begin_session()
        for number in range(2):  # the second time there is nothing left to be told of
            self._send(follower, follower.keep_up(led, max_wait_ms=0))
            await asyncio.sleep(0.001)
            self._tell(f"time {number} of a follower that catches up")
        topic_partition, producer = chance.choice(led), chance.choice(self._producers)
        for number in range(chance.choice((5, 9))):
            if chance.random() < 0.7:
                self._send(producer, producer.usual(topic_partition, chance.choice((1, -1)), 16, producer.version))
                await asyncio.sleep(0.0003)  # there is no order between connections
            if not follower.unanswered:
                self._send(follower, follower.keep_up([topic_partition], max_wait_ms=100))
            await asyncio.sleep(0.003)
            self._tell(f"time {number} of a follower that keeps up")
        return "a follower keeps up"

    def _odd_sends(self) -> str:
        """A request of which a byte is another."""
        chance = self._chance
        makers: list[Producer | Fetcher] = [*self._producers, *self._consumers]
        maker = chance.choice(makers)
        data = bytearray(maker.frame(self.world.partitions()))
        if isinstance(maker, Fetcher):
            maker.unanswered -= 1
        data[chance.randrange(4, min(len(data), 90))] ^= 1 << chance.randrange(8)
        self._send(self._odd, bytes(data))
        return "an odd one"

    # Events.

    async def _event(self) -> str:
        """Something happens, and everything that follows from it."""
        chance, world = self._chance, self.world
        if self._deleted is not None and chance.random() < 0.6:
            return await self._go_on_deleting()
        kind = chance.random()
        if kind < 0.17:
            what = world.elect()
        elif kind < 0.31:
            what = world.change_isr()
        elif kind < 0.38:
            what = world.change_min_isr()
        elif kind < 0.58:
            what = world.transact()
        elif kind < 0.65:
            what = world.change_rights()
        elif kind < 0.7:
            what = world.change_quota()
        elif kind < 0.73:
            what = world.delete_records()
        elif kind < 0.8 and self._deleted is None:
            self._deleted = chance.choice(("flights", "ships", "trains"))
            what = world.announce_deletion(self._deleted)
        elif kind < 0.84 and not world.is_disk_to_fail:
            what = world.break_disk()
        elif kind < 0.88:
            self._time += _LONG_SECONDS
            await self._sleep_until(self._time)
            world.expire_followers()
            what = "much time passes"
        elif kind < 0.91:
            what = world.evict_session()
        else:
            client = chance.choice(self._all[:-2])
            client.caller.transport.abort()
            what = f"the connection of {client.client_id} is lost"
        self.told.append(("event", what))
        return what

    async def _go_on_deleting(self) -> str:
        name, world = self._deleted or "", self.world
        if TopicPartition(name, 0) in world.broker.replicas.partitions and not world.topics[name].exists:
            return await world.delete(name)
        self._deleted = None
        world.create(name)
        return f"{name} is created anew"

    async def _event_meanwhile(self) -> str:
        """The controller speaks in the same poll, after small requests of a connection that does not come alone; or
        while these are synced.
        """
        chance, world = self._chance, self.world
        producer = chance.choice(self._producers)
        partitions = world.some(chance.choice((1, 2)))
        if chance.random() < 0.6:
            acks = chance.choice((1, -1))
            usual = [producer.usual(partitions[0], acks, 16, producer.version) for _ in range(chance.choice((2, 5)))]
            if producer.is_limited:
                del usual[2:]
            self._send(producer, usual[0])
            await asyncio.sleep(0.0005)
            frames = usual[1:]
        else:
            frames = producer.frames(partitions, chance.choice((1, 3, 12)), only_small=True)
        self._send(self._other, self._other.encode(ApiKey.API_VERSIONS, 0, ApiVersionsRequest()))
        self._send(producer, b"".join(frames))
        if chance.random() < 0.4:
            await asyncio.sleep(0.0004)
        choices: list[Callable[[], str]] = [
            lambda: world.elect(chance.choice(partitions)),
            lambda: world.elect(chance.choice(partitions)),
            world.change_isr,
            world.change_min_isr,
        ]
        if self._deleted is None and chance.random() < 0.2:
            self._deleted = chance.choice(("flights", "ships", "trains"))
            return world.announce_deletion(self._deleted)
        return f"meanwhile {chance.choice(choices)()}"


def tell(
    seed: int,
    *,
    is_plain: bool,
    change: Callable[[Any], object] | None = None,
    writes: str = "loop",
    profile: Profile = STEADY,
    asks_behind: bool = True,
) -> list[tuple[str, object]]:
    """What is seen of a broker to which the story of the seed happens."""

    with Simulation(seed, profile=profile) as simulation:
        machine = simulation.machine("broker")

        async def main(host: Host) -> list[tuple[str, object]]:
            async with data_broker(counted_entropy(host), *DIRECTORIES, writes=writes) as broker:
                if is_plain:
                    make_plain(broker, change)
                chance = random.Random(seed)
                world = World(broker, machine.disk, chance)
                story = Story(world, chance, asks_behind=asks_behind)
                await story.happen()
                story.told += [(f"the file {path}", content) for path, content in sorted(world.files().items())]
                return story.told

        told: list[tuple[str, object]] = simulation.run_on(machine, main, limit_seconds=STEPS * 2 * _LONG_SECONDS)
    return told


@functools.lru_cache(maxsize=40)
def told_as_usual(seed: int) -> list[tuple[str, object]]:
    """What is seen where nothing is decoded first: the same for each fault that is put into the plain broker."""
    return tell(seed, is_plain=False)


def difference(seed: int, change: Callable[[Any], object] | None = None) -> str | None:
    """What is seen first that differs from plain decode, handle and encode; None if nothing does."""
    return _first_difference(seed, tell(seed, is_plain=True, change=change), told_as_usual(seed))


def _first_difference(
    seed: int, plain: Sequence[tuple[str, object]], found: Sequence[tuple[str, object]]
) -> str | None:
    for number, ((what, expected), (other, seen)) in enumerate(zip(plain, found, strict=False)):
        if (what, expected) != (other, seen):
            return f"seed {seed}, number {number}: {what}: {expected!r}\n{other}: {seen!r}"
    return None if len(plain) == len(found) else f"seed {seed}: {len(plain)} and {len(found)} things are seen"


@pytest.fixture(autouse=True)
def _woken_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    wake_in_order(monkeypatch)


@pytest.mark.parametrize("seeds", [SEEDS[start : start + 5] for start in range(0, len(SEEDS), 5)], ids=str)
def test_answers_as_plain_decode_handle_encode_do(seeds: Sequence[int]) -> None:
    for seed in seeds:
        assert difference(seed) is None


def test_stories_have_quotas_and_followers_that_repeat_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what is held against the plain broker has them."""
    counts = {"repeated": 0, "held back": 0}
    take, throttle = FollowerFetch.take, ServerConnection.throttle

    def counted_take(fetch: FollowerFetch, connection: Any, buffer: Any, start: int) -> bool:
        is_taken = take(fetch, connection, buffer, start)
        counts["repeated"] += is_taken
        return is_taken

    def counted_throttle(connection: ServerConnection, *arguments: Any) -> Any:
        counts["held back"] += 1
        return throttle(connection, *arguments)

    monkeypatch.setattr(FollowerFetch, "take", counted_take)
    monkeypatch.setattr(ServerConnection, "throttle", counted_throttle)
    for seed in range(1, 7):
        tell(seed, is_plain=False)
    assert min(counts.values()) > 2, counts


def test_answers_as_plain_decode_handle_encode_do_with_writes_off_the_loop() -> None:
    for seed in SEEDS[:OFFLOADED]:
        plain, found = (tell(seed, is_plain=is_plain, writes="offload") for is_plain in (True, False))
        assert _first_difference(seed, plain, found) is None


@pytest.mark.parametrize("seeds", [SEEDS[start : start + 5] for start in range(0, (len(SEEDS) + 1) // 2, 5)], ids=str)
def test_answers_with_writes_off_the_loop_as_with_writes_on_it(seeds: Sequence[int]) -> None:
    """But to a Fetch behind a Produce, which may come before what is not written yet (0025). The queue is worked off
    before anybody asks for anything else; and followers are given what is written while syncs go on.
    """
    for seed in seeds:
        plain, found = (
            tell(seed, is_plain=is_plain, writes=writes, profile=QUICK, asks_behind=False)
            for is_plain, writes in ((True, "loop"), (False, "offload"))
        )
        assert _first_difference(seed, plain, found) is None


def produced(message: Any, code: ErrorCode) -> list[Any]:
    """What a response to Produce says of partitions with that code."""
    topics = message.responses if isinstance(message, ProduceResponse) else ()
    return [each for topic in topics for each in topic.partition_responses if each.error_code == code]


def fetched(message: Any) -> list[Any]:
    """What a response to Fetch gives records of."""
    topics = message.responses if isinstance(message, FetchResponse) else ()
    return [each for topic in topics for each in topic.partitions if each.records]


def throttle(message: Any) -> None:
    message.throttle_time_ms = 1


def raise_log_start(message: Any) -> None:
    for each in produced(message, ErrorCode.NONE):
        each.log_start_offset += each.log_start_offset > 0


def acknowledge_too_early(message: Any) -> None:
    for each in produced(message, ErrorCode.REQUEST_TIMED_OUT):
        each.error_code = ErrorCode.NONE


def forget_offset(message: Any) -> None:
    for each in produced(message, ErrorCode.REQUEST_TIMED_OUT):
        each.base_offset = -1


def tell_offset_of_what_failed(message: Any) -> None:
    for each in produced(message, ErrorCode.KAFKA_STORAGE_ERROR):
        each.base_offset = 1


def forget_leader(message: Any) -> None:
    for each in produced(message, ErrorCode.NOT_LEADER_OR_FOLLOWER):
        each.current_leader = None


def accept_with_too_few(message: Any) -> None:
    for each in produced(message, ErrorCode.NOT_ENOUGH_REPLICAS):
        each.error_code = ErrorCode.NONE


def raise_high_watermark(message: Any) -> None:
    for each in fetched(message):
        each.high_watermark += 1


def allow_to_produce(message: Any) -> None:
    for each in produced(message, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
        each.error_code = ErrorCode.NONE


def allow_to_fetch(message: Any) -> None:
    topics = message.responses if isinstance(message, FetchResponse) else ()
    for each in (each for topic in topics for each in topic.partitions):
        each.error_code *= each.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED


def forget_aborted(message: Any) -> None:
    for each in fetched(message):
        each.aborted_transactions = each.aborted_transactions and []


@pytest.mark.parametrize(
    "change",
    [
        throttle,
        pytest.param(raise_log_start, marks=LATER),
        acknowledge_too_early,
        forget_offset,
        pytest.param(tell_offset_of_what_failed, marks=LATER),
        forget_leader,
        accept_with_too_few,
        raise_high_watermark,
        forget_aborted,
        pytest.param(allow_to_produce, marks=LATER),
        pytest.param(allow_to_fetch, marks=LATER),
    ],
)
def test_stories_have_what_would_show_a_fault(change: Callable[[Any], object]) -> None:
    """A fault in the answers of the plain broker is found, so there are such answers of both."""
    assert any(difference(seed, change) is not None for seed in range(1, 41))
