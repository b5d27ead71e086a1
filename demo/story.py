"""What `make run` does, from the first step to the last."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from barnabas.kernel.real_host import RealHost
from barnabas.server.cluster_plan import ClusterPlan
from barnabas.server.supervisor import Supervisor
from barnabas.server.supervisor_events import ProcessEnded, SupervisorEvent
from demo import pipeline, plot, results, tables, traffic
from demo.expected import MEASURES, expected_delays
from demo.screen import Screen
from demo.source import FLIGHTS, RECORD_COUNT, SOURCE_TOPICS, SourceRecord, load_tables, records_of
from demo.workplace import Workplace

BROKERS: Final = 3
DELAYS_TOPIC: Final = "delays"
DELAYS_PARTITIONS: Final = 3
KILL_AFTER_BATCHES: Final = 2
BATCHES_WITHOUT_BROKER: Final = 2
WITHOUT_BROKER_SECONDS_MAX: Final = 30.0
IN_SYNC_SECONDS_MAX: Final = 60.0
_LOOK_EVERY_SECONDS: Final = 0.2


class StoryError(RuntimeError):
    """A step did not come out as it must; the message says what differs."""


@dataclass(slots=True)
class Story:
    """One run. `play` does everything; whatever ends it early, threads that it started end by `stopping`."""

    host: RealHost
    screen: Screen
    place: Workplace
    stopping: threading.Event = field(default_factory=threading.Event)
    broken: asyncio.Future[None] = field(init=False)

    async def play(self) -> None:
        """Raises whatever goes wrong; every process is stopped then."""
        self.broken = self.host.loop.create_future()
        for number in (signal.SIGTERM, signal.SIGHUP):
            self.host.loop.add_signal_handler(number, self._break, f"stopped by {number.name}")
        playing = asyncio.create_task(self._play())
        try:
            await asyncio.wait([playing, self.broken], return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                self.broken.result()
            await playing
        finally:
            self.stopping.set()
            playing.cancel()
            await asyncio.wait([playing])
            self.broken.cancel()

    async def _play(self) -> None:
        began = time.monotonic()
        source = await asyncio.to_thread(load_tables)
        self.screen.step(f"Read {FLIGHTS.row_count:,} flights that left New York in 2013, and the weather")
        plan = ClusterPlan(brokers=BROKERS, data_directory=str(self.place.cluster), port=0)
        start_began = time.monotonic()
        async with Supervisor(self.host, plan, on_event=self._ended) as cluster:
            took = time.monotonic() - start_began
            self.screen.step(f"Three brokers and their coordinator are ready for clients after {took:.2f} s")
            numbers = ", ".join(f"{name} {number}" for name, number in cluster.processes.items())
            self.screen.detail(f"processes: {numbers}")
            await self._create_topics(cluster)
            await self._produce(cluster, source)
            await self._run_pipeline(cluster)
            delays = await self._check(cluster, source)
            stop_began = time.monotonic()
        self.screen.step(f"Stopped the brokers and the coordinator in order, in {time.monotonic() - stop_began:.1f} s")
        await asyncio.to_thread(plot.draw, delays, self.place.plot)
        self.screen.show(tables.table_of(delays))
        self.screen.step(f"Done after {time.monotonic() - began:.0f} s, and nothing is left running")

    # The steps.

    async def _create_topics(self, cluster: Supervisor) -> None:
        partitions = {topic.name: topic.partitions for topic in SOURCE_TOPICS} | {DELAYS_TOPIC: DELAYS_PARTITIONS}
        await asyncio.to_thread(traffic.create_topics, cluster.bootstrap_servers, partitions)
        self.screen.step(f"Created topics {', '.join(partitions)}")
        self.screen.detail(
            f"{sum(partitions.values())} partitions, each on {traffic.REPLICAS} brokers; "
            f"{traffic.MIN_IN_SYNC_REPLICAS} of them must have a record before it counts"
        )

    async def _produce(self, cluster: Supervisor, source: Mapping[str, Any]) -> None:
        began = time.monotonic()
        with self.screen.meter("producing", RECORD_COUNT) as meter:
            count = await asyncio.to_thread(
                traffic.produce, cluster.bootstrap_servers, _records(source), meter, self.stopping
            )
        rate = count / (time.monotonic() - began)
        self.screen.step(f"Produced {count:,} records with confluent-kafka, {rate:,.0f} a second")
        self.screen.detail("JSON, acks=all, idempotent; flights by carrier, in the order in which they were to leave")
        ends = await asyncio.to_thread(traffic.end_offsets, cluster.bootstrap_servers, FLIGHTS.name)
        if sum(ends.values()) != FLIGHTS.row_count:
            raise StoryError(f"topic flights has {sum(ends.values()):,} records instead of {FLIGHTS.row_count:,}")

    async def _run_pipeline(self, cluster: Supervisor) -> None:
        began = time.monotonic()
        with self.screen.meter("pipeline", FLIGHTS.row_count) as meter:
            async with pipeline.Pipeline(
                cluster.bootstrap_servers,
                self.place.pipeline_output,
                self.place.temporary,
                lambda progress: meter(progress.rows, progress.doing),
            ) as run:
                name = f"{pipeline.FILE.parent.name}/{pipeline.FILE.name}"
                self.screen.step(f"Started barnabas pipeline run {name} --once")
                hurting = asyncio.create_task(self._hurt(cluster, run))
                try:
                    progress, batches_before = await asyncio.gather(run.finish(), hurting)
                finally:
                    hurting.cancel()
        if batches_before >= progress.batches:
            raise StoryError("the pipeline was over before a broker was killed")
        if progress.rows != FLIGHTS.row_count:
            raise StoryError(f"the pipeline read {progress.rows:,} flights instead of {FLIGHTS.row_count:,}")
        if progress.rows_dropped_by_watermark:
            raise StoryError(f"the watermark dropped {progress.rows_dropped_by_watermark:,} rows; it must drop none")
        took = time.monotonic() - began
        self.screen.step(f"The pipeline took {progress.rows:,} flights in {progress.batches} batches and {took:.0f} s")
        self.screen.detail("rows that came too late for the watermark: 0")

    async def _hurt(self, cluster: Supervisor, run: pipeline.Pipeline) -> int:
        """Kills the broker that leads most partitions of flights, and starts it when batches were done without it.

        Returns how many batches were done before.
        """
        await run.after_batch(KILL_AFTER_BATCHES)
        leaders = await asyncio.to_thread(traffic.leaders, cluster.bootstrap_servers, FLIGHTS.name)
        ((victim, led),) = Counter(leaders.values()).most_common(1)
        process_id = cluster.processes[f"broker-{victim}"]
        before, began = run.progress.batches, time.monotonic()
        await cluster.kill_broker(victim)
        self.screen.step(f"Killed broker {victim} (kill -9 {process_id}), leader of {led} partitions of flights")
        self.screen.detail(f"the pipeline had done {before} batches and goes on")
        with suppress(TimeoutError):
            async with asyncio.timeout(WITHOUT_BROKER_SECONDS_MAX):
                await run.after_batch(before + BATCHES_WITHOUT_BROKER)
        without = run.progress.batches - before
        await cluster.start_broker(victim)
        took = time.monotonic() - began
        self.screen.step(f"Started broker {victim} again after {took:.0f} s; batches done without it: {without}")
        return before

    async def _check(self, cluster: Supervisor, source: Mapping[str, Any]) -> Any:
        """Compares everything with everything; the daily rows."""
        servers = cluster.bootstrap_servers
        expected = await asyncio.to_thread(expected_delays, source)
        table = await asyncio.to_thread(results.read_parquet, self.place.table)
        results.check_equal(table, expected, "the Parquet table", "the source")
        self.screen.step(
            f"Checked the Parquet table: {len(table):,} rows of {len(MEASURES)} sums, all as pandas counts"
        )
        for line in tables.totals_of(table):
            self.screen.detail(line)
        written = await asyncio.to_thread(traffic.end_offsets, servers, DELAYS_TOPIC)
        with self.screen.meter("reading the result", sum(written.values())) as meter:
            records = await asyncio.to_thread(traffic.committed_records, servers, DELAYS_TOPIC, meter, self.stopping)
        count = await asyncio.to_thread(results.check_each_once, [value for _, value in records], self.place.table)
        self.screen.step(
            f"Checked topic {DELAYS_TOPIC}: each of the {count:,} rows of all batches is there exactly once"
        )
        self.screen.detail("sent in a transaction for each batch, while a leader was killed; read as read_committed")
        newest = dict(records)
        results.check_equal(results.from_topic(newest.values()), table, f"topic {DELAYS_TOPIC}", "the Parquet table")
        self.screen.step(f"Checked topic {DELAYS_TOPIC}: the newest record of each of {len(newest):,} keys is that row")
        ends = await asyncio.to_thread(traffic.end_offsets, servers, FLIGHTS.name)
        committed = await asyncio.to_thread(traffic.committed_offsets, servers, pipeline.GROUP, FLIGHTS.name)
        lag = {number: end - committed.get(number, 0) for number, end in ends.items()}
        if any(lag.values()):
            raise StoryError(f"group {pipeline.GROUP} has not committed the end of flights; lag by partition: {lag}")
        self.screen.step(f"Checked group {pipeline.GROUP}: it has committed the end of flights, lag 0")
        await self._until_in_sync(servers)
        return table

    async def _until_in_sync(self, servers: str) -> None:
        """The broker that was killed has everything again."""
        topics = [topic.name for topic in SOURCE_TOPICS] + [DELAYS_TOPIC]
        deadline = time.monotonic() + IN_SYNC_SECONDS_MAX
        while behind := await asyncio.to_thread(traffic.replicas_behind, servers, topics):
            if time.monotonic() > deadline:
                raise StoryError(f"{behind} replicas are not in sync a minute after the pipeline ended")
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
        self.screen.step("Checked the brokers: every replica of every partition is in sync again")

    # Inside.

    def _ended(self, event: SupervisorEvent) -> None:
        """A process that nobody killed is gone: nothing that comes after it can be trusted."""
        if isinstance(event, ProcessEnded):
            self._break(f"{event.name} ended by itself with status {event.status}: {event.reason}")

    def _break(self, reason: str) -> None:
        if not self.broken.done():
            self.broken.set_exception(StoryError(reason))


def _records(source: Mapping[str, Any]) -> Iterator[SourceRecord]:
    for topic in SOURCE_TOPICS:
        yield from records_of(topic, source[topic.name])
