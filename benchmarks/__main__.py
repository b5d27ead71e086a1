"""Every benchmark, one after another: `python -m benchmarks [NAME ...]`."""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = {
    "startup": "how long the command takes to start",
    "codec": "encode and decode, against kafka-python and kio",
    "records": "record batches, against kafka-python and aiokafka",
    "kernel.timers": "the timers, against other structures",
    "commands": "records into a topic and out of it by the command line, against kcat",
    "commands.starts": "what short commands take, against an empty Python and kcat",
    "controller": "how long the controller takes, alone",
    "controller.beside_kafka": "our controller, against Apache Kafka's",
    "controller.growth": "how the controller alone grows with its partitions",
    "brokers": "our brokers, against Apache Kafka",
    "large_requests": "who waits for a large request, of our broker and of Apache Kafka",
    "starts": "a broker with many partitions, or much that was not flushed, starts, against Apache Kafka",
    "stalls": "a disk that stops answering: who waits, of our cluster and of Apache Kafka's",
    "reassignment": "partitions move onto a new broker: what producers notice, against Apache Kafka",
    "cleaner": "a log of keyed records is compacted, against Apache Kafka",
    "catching_up": "a follower is far behind: what producers of others notice, against Apache Kafka",
    "groups": "a large group settles, by the classic protocol and by the next one",
    "groups.memory": "what many groups cost, of either protocol",
    "groups.turns": "the turn in which a group goes over to the other protocol",
    "spark": "Spark on our brokers, against Spark on Apache Kafka",
    "coordination": "the coordinator and its client, against ZooKeeper and kazoo",
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}: there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    failed = []
    for name in names or BENCHMARKS:
        print(f"\n=== {name}: {BENCHMARKS[name]}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
