"""A pipeline's driver in a simulated cluster, which is killed at any moment and started again, and now and then a copy
of its state, which is used at the same time and afterwards: what topics are written exactly once by, by one sender
(0035) or several (0057).

Invariants, of a cluster that may lose nothing, for readers of committed records:

- Every input is in each topic once, of all batches that the state which goes on has finished, and nothing else is.
- A batch is in both topics as it was computed once, however often it was computed.
- A reader that reads on sees no input twice.
- A driver is stopped only where a copy was in use, and of two copies one can go on.
- No transaction stays open when all drivers have ended.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Final

from barnabas.client.consumer import Consumer
from barnabas.client.errors import ClientError
from barnabas.client.settings import ConsumerSettings, IsolationLevel, OffsetReset
from barnabas.testing.cluster_history import RecordId
from barnabas.testing.cluster_logs import StoredLog
from barnabas.testing.outbox_driver import TOPICS, Driver, State
from barnabas.testing.single_records import PARTITION_COUNT, make_topic
from barnabas.testing.transaction_ledger import seen
from barnabas.testing.transactional_users import STATE_PARTITION_COUNT
from barnabas.wire.errors import KafkaError
from barnabas.wire.topics import TRANSACTION_TOPIC, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from barnabas.kernel.host import Host
    from barnabas.testing.cluster_load import Users
    from barnabas.testing.simulated_host import SimulatedMachine, SimulatedProcess
    from barnabas.testing.simulation import Simulation

COVERAGE: Final = (
    "outbox: sent",
    "outbox: killed",
    "outbox: killed between steps",
    "outbox: was staged before",
    "outbox: was sent before",
    "outbox: attempts failed",
    "outbox: turned out to be committed",
    "outbox: copied",
    "outbox: taken",
    "outbox: refused",
    "outbox: shares",
    "outbox: went on with a part",
    "outbox: read",
)
"""What a suite of runs must have seen."""
_LIFE_SECONDS: Final = 2.5
"""Of a driver, on average, until it is killed."""
_COPY_PAUSE_SECONDS: Final = 6.0
_COPY_LIFE_SECONDS: Final = (0.2, 3.0)
_LOOK_SECONDS: Final = 0.05
_READER_LIFE_SECONDS: Final = 12.0
_FINDINGS_MAX: Final = 20


class OutboxUsers:
    """The driver, the copy that there may be, readers, and who looks after them."""

    def __init__(
        self,
        simulation: Simulation,
        users: Users,
        brokers: Mapping[int, SimulatedMachine],
        directories: Sequence[str],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.findings: list[str] = []
        self._simulation = simulation
        self._users = users
        self._brokers = brokers
        self._directories = directories
        self._random = simulation.world.random("outbox")
        self._partitions = [TopicPartition(topic, number) for topic in TOPICS for number in range(PARTITION_COUNT)]
        self._computed = itertools.count(1)
        self._main = self._driver(State("the state"))
        self._copy: Driver | None = None
        self._copy_ends_at = 0.0
        self._copies = 0
        self._is_resolving = False
        """A copy has ended, and which of the two goes on is not yet known."""
        self._processes: dict[str, SimulatedProcess] = {}

    @property
    def watched(self) -> list[TopicPartition]:
        """Partitions of which one replica in sync has to be kept."""
        if not self._users.load.has_outbox:
            return []
        state = [TopicPartition(TRANSACTION_TOPIC, number) for number in range(STATE_PARTITION_COUNT)]
        return [*self._partitions, *state]

    # Drivers.

    async def make_topics(self, host: Host) -> None:
        """Makes what the driver writes to, and has the driver begin; as a user it ends when the driver has ended."""
        async with self._users.client(host) as client:
            for topic in TOPICS:
                await make_topic(client, topic, {})
            self._simulation.after(0.0, self._look)
            while self._users.goes_on() or not self._are_done:
                await client.timers.sleep(100)

    @property
    def _are_done(self) -> bool:
        state = self._main.state
        is_idle = not any(process.running for process in self._processes.values())
        return is_idle and self._copy is None and not self._is_resolving and state.finished == len(state.ends) - 1

    def _driver(self, state: State) -> Driver:
        return Driver(self._users, state, self.counts, self._computed)

    def _look(self) -> None:
        """What init, and a person, do."""
        if self._users.goes_on():
            self._begin_copy_perhaps()
        self._look_after_copy()
        self._look_after_main()
        if self._users.goes_on() or not self._are_done:
            self._simulation.after(_LOOK_SECONDS, self._look)

    def _look_after_main(self) -> None:
        main = self._main
        if self._is_resolving and main.is_open:
            self._is_resolving = False
            self._copy = None
        if self._is_running(main) or (not self._users.goes_on() and self._are_done):
            return
        if main.stopped_by == "refused" and self._is_resolving and self._copy is not None:
            # The copy's batches are there: it is the state from now on.
            self._main, self._copy, self._is_resolving = self._copy, None, False
            self._main.is_to_end, self._main.batches_left = False, None
            self.counts["outbox: copies that went on"] += 1
            self._start(self._main)
        elif main.stopped_by and self._copy is None:
            self._find(f"{main.state.name} was stopped, and no other is in use: {main.messages[-1]}")
            main.stopped_by = ""
        elif not main.stopped_by or self._is_resolving:
            self._start(main)

    def _look_after_copy(self) -> None:
        copy = self._copy
        if copy is None or self._is_resolving:
            return
        is_over = copy.stopped_by or copy.batches_left == 0 or self._simulation.now > self._copy_ends_at
        is_over = is_over or not self._users.goes_on()
        if self._is_running(copy):
            copy.is_to_end = bool(is_over)
        elif not is_over:
            self._start(copy)
        else:
            # One of the two goes on. Whether that is the former is for the cluster to say.
            self._is_resolving = True
            self._kill(self._main)
            self._main.is_open = False

    def _begin_copy_perhaps(self) -> None:
        if self._copy is not None or self._random.random() > _LOOK_SECONDS / _COPY_PAUSE_SECONDS:
            return
        self._copies += 1
        self.counts["outbox: copied"] += 1
        self._copy = self._driver(self._main.state.copied(f"copy {self._copies}"))
        self._copy.batches_left = self._random.choice((1, 1, 1, 2, 10))
        self._copy_ends_at = self._simulation.now + self._random.uniform(*_COPY_LIFE_SECONDS)

    def _start(self, driver: Driver) -> None:
        machine = self._simulation.machine(f"driver of {driver.state.name}")
        process = self._processes[driver.state.name] = machine.start(driver.run)
        if self._users.goes_on():
            self._simulation.after(self._random.expovariate(1 / _LIFE_SECONDS), lambda: self._kill_one(process))

    def _kill(self, driver: Driver) -> None:
        process = self._processes.get(driver.state.name)
        if process is not None:
            process.crash()

    def _kill_one(self, process: SimulatedProcess) -> None:
        if process.running and self._users.goes_on():
            self.counts["outbox: killed"] += 1
            process.crash()

    def _is_running(self, driver: Driver) -> bool:
        process = self._processes.get(driver.state.name)
        return process is not None and process.running

    # Readers.

    async def read(self, host: Host) -> None:
        """Reads what is committed, from the beginning, again and again, until the users are to stop."""
        users = self._users
        settings = ConsumerSettings(
            offset_reset=OffsetReset.EARLIEST, isolation=IsolationLevel.READ_COMMITTED, fetch_wait_ms=500
        )
        async with users.client(host) as client:
            while users.goes_on():
                ends_at = users.now() + client.host.random.expovariate(1 / _READER_LIFE_SECONDS)
                read: set[tuple[str, int]] = set()
                async with Consumer(client, settings) as consumer:
                    consumer.assign(self._partitions)
                    while users.goes_on() and users.now() < ends_at:
                        try:
                            records = await consumer.poll(500)
                        except (ClientError, KafkaError):
                            await client.timers.sleep(200)
                            continue
                        for record in records:
                            self.counts["outbox: read"] += 1
                            identity = RecordId.of_value(record.value)
                            place = (record.partition.topic, -1 if identity is None else identity.number)
                            if place in read:
                                self._find(f"a reader was given input {place[1]} of {place[0]} twice")
                            read.add(place)

    # In the end.

    def judge(self, leaders: Mapping[TopicPartition, int]) -> None:
        """Judges by the logs of the leaders, by their broker ids, what readers of committed records are given."""
        state = self._main.state
        computed: list[dict[int, list[int]]] = []
        for topic in TOPICS:
            found: dict[int, list[int]] = {}
            for number in range(PARTITION_COUNT):
                partition = TopicPartition(topic, number)
                if partition not in leaders:
                    self._find(f"{topic}-{number} has no leader in the end")
                    continue
                disk = self._brokers[leaders[partition]].disk
                records, is_open = seen(StoredLog(disk, self._directories, partition).raw_batches())
                for offset in is_open:
                    self._find(f"a transaction is open in {topic}-{number} from {offset} on")
                for _, record in records:
                    found.setdefault(record.number, []).append(record.producer)
            self._judge_topic(topic, found, state.ends[-1] if state.ends else 0)
            computed.append(found)
        for begin, end in itertools.pairwise([0, *state.ends]):
            made = {each for found in computed for number in range(begin, end) for each in found.get(number, ())}
            if len(made) > 1:
                self._find(f"inputs {begin} to {end - 1} are one batch, and were computed {sorted(made)}")
        self.counts["outbox: inputs"] += state.ends[-1] if state.ends else 0

    def _judge_topic(self, topic: str, found: Mapping[int, Sequence[int]], end: int) -> None:
        missing = [number for number in range(end) if number not in found]
        if missing:
            self._find(f"{topic} lacks {len(missing)} of {end} inputs: {missing[:5]}")
        twice = [number for number, made in found.items() if len(made) > 1]
        if twice:
            self._find(f"{topic} has {len(twice)} inputs more than once: {twice[:5]}")
        beyond = [number for number in found if number >= end]
        if beyond:
            self._find(f"{topic} has inputs that the state knows nothing of: {beyond[:5]}")

    def _find(self, what: str) -> None:
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(f"{self._simulation.now:.3f} s: {what}")
