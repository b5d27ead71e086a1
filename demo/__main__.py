"""`make run`: the coordinator comes up, takes the layout of a small cluster, is killed and keeps it, and shows it.

Brokers, real flight events and a Spark pipeline will take this place as they are built.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.text import Text
from rich.tree import Tree

from barnabas.coordination.client import Client
from barnabas.coordination.errors import CoordinationError
from barnabas.coordination.session import ClientSettings
from barnabas.kernel.real_host import RealHost, run
from demo import cluster_layout
from demo.coordinator import CoordinatorError, CoordinatorProcess

SESSION_TIMEOUT_MS = 20_000


def tree_of(znodes: list[cluster_layout.Znode]) -> Tree:
    """The znodes as a tree for the terminal; ephemeral ones are marked."""
    root = Tree("[bold]/[/bold]")
    branches = {"/": root}
    for znode in znodes:
        if znode.path == "/":
            continue
        parent, _, name = znode.path.rpartition("/")
        label = Text(name, style="bold", no_wrap=True, overflow="ellipsis")
        if znode.ephemeral:
            label.append(" (ephemeral)", style="not bold yellow")
        if znode.data:
            label.append("  " + znode.data.decode(errors="replace"), style="not bold dim")
        branches[znode.path] = branches[parent or "/"].add(label)
    return root


async def play(host: RealHost, console: Console, coordinator: CoordinatorProcess) -> None:
    """The steps, one line each. Raises what goes wrong."""
    console.print(f"[bold]1.[/bold] Coordinator ready in {coordinator.start():.2f} s on port {coordinator.port}.")
    client = Client(host, ClientSettings(f"127.0.0.1:{coordinator.port}", session_timeout_ms=SESSION_TIMEOUT_MS))
    await client.connect()
    began = time.monotonic()
    written = await cluster_layout.write(client, host)
    took_ms = (time.monotonic() - began) * 1000
    topics = ", ".join(cluster_layout.TOPICS)
    console.print(
        f"[bold]2.[/bold] Wrote {written} znodes, synced to disk, in {took_ms:.0f} ms: "
        f"{len(cluster_layout.BROKER_IDS)} brokers, topics {topics}."
    )
    before = await cluster_layout.read(client)
    coordinator.kill()
    took = coordinator.start()
    after = await cluster_layout.read(client)
    if after != before:
        raise RuntimeError("the coordinator came back with other znodes than it had: please report this")
    console.print(
        f"[bold]3.[/bold] Killed the coordinator (-9) and started it again in {took:.2f} s: the session went on, "
        f"all {len(after)} znodes are as they were."
    )
    console.print(tree_of(after), soft_wrap=False)
    registered = [json.loads(znode.data)["port"] for znode in after if znode.path.startswith("/brokers/ids/")]
    console.print(
        f"[bold]4.[/bold] This is what Apache Kafka's own brokers write and read; three of them run on this "
        f"coordinator in the tests. The brokers above (ports {', '.join(map(str, registered))}) are only described."
    )
    await client.close()
    console.print("Next to come: broker processes that real clients use, then flights through a Spark pipeline.")
    console.print("Try: [bold].venv/bin/barnabas coordinator --data data --port 2181[/bold] with any ZooKeeper client.")


def main() -> int:
    """Exit status 0 when every step went well."""
    console = Console(highlight=False, soft_wrap=True)
    with (
        tempfile.TemporaryDirectory(prefix="barnabas-run-") as directory,
        CoordinatorProcess(Path(directory) / "coordinator") as coordinator,
    ):
        try:
            run(lambda host: play(host, console, coordinator), name="demo")
        except (CoordinatorError, CoordinationError, OSError, RuntimeError) as error:
            console.print(f"[red]make run stopped:[/red] {escape(str(error))}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
