"""The turn of the loop in which a group goes over to the other protocol while it has members, there and back.

    python -m benchmarks.groups.turns [--rounds N] [--json FILE]

The coordinator alone, over a log in memory and in virtual time: processor time of the one turn that makes the batch,
appends and replays it, with the broker's thresholds of the collector. The groups are as large as they may be, by
members and by what they name and own; and larger ones, which are refused.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from barnabas.coordinators.consumer_group.conversion import CONVERTED_MEMBERS_MAX
from barnabas.kernel.real_collector import rest_while_importing
from tests.unit.coordinators.consumer_group.classic_consumer import ClassicConsumer
from tests.unit.coordinators.consumer_group.consumer_world import ConsumerWorld, FakeTopics, NextMember
from tests.unit.coordinators.consumer_group.mixed_groups import is_classic

ROUNDS = 5
TURN_MS_MAX = 50.0
SHAPES = {
    "400 members, a partition each": (CONVERTED_MEMBERS_MAX, 1, CONVERTED_MEMBERS_MAX),
    "400 members, 2,000 partitions": (CONVERTED_MEMBERS_MAX, 1, 2_000),
    "100 members of 95 topics of one partition": (100, 95, 1),
    "10 members of 5,000 topics of one partition": (10, 5_000, 1),
    "1,000 members, a partition each": (1_000, 1, 1_000),
}
"""Members, topics that each subscribes to, and partitions of each."""


class ManyTopics(FakeTopics):
    """Which finds the name of one of many as fast as a broker does."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        super().__init__(**counts)
        self._names = {self.id(name): name for name in counts}

    def name(self, topic_id: bytes, /) -> str | None:
        return self._names.get(topic_id)  # type: ignore[call-overload, no-any-return]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.groups.turns", description="Time the turn in which a group changes its protocol."
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    rest_while_importing()
    found = {name: [measure(*shape) for _ in range(given.rounds)] for name, shape in SHAPES.items()}
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    print("| group | there: least, most | back: least, most | goal |\n|---|---|---|---|")
    for name, rounds in found.items():
        there = [each["there"] for each in rounds]
        back = [each["back"] for each in rounds if "back" in each]
        longest = max(there + back)
        refused = "" if back else ", refused"
        print(
            f"| {name} | {min(there):.1f}, {max(there):.1f} ms{refused} |"
            f" {f'{min(back):.1f}, {max(back):.1f} ms' if back else ''} |"
            f" at most {TURN_MS_MAX:.0f} ms: {'met' if longest <= TURN_MS_MAX else '**NOT met**'} |"
        )
    return 0


def measure(member_count: int, topic_count: int, partition_count: int) -> dict[str, float]:
    """Milliseconds of processor time `there`, and `back` where the group goes over."""
    names = [f"topic-{number:05d}" for number in range(topic_count)]
    topics = ManyTopics(dict.fromkeys(names, partition_count))
    world = ConsumerWorld(topics, migration_policy="bidirectional", initial_rebalance_delay_ms=3_000)
    members = [ClassicConsumer(world, *names, protocols=("range", "cooperative-sticky")) for _ in range(member_count)]
    for member in members:
        member.join()
    world.pass_ms(7_000)
    last = NextMember(world, *names)
    began = time.thread_time()
    last.join(waits=False)
    found = {"there": (time.thread_time() - began) * 1000}
    world.pass_ms(10)
    if not is_classic(world):
        last.owned = {}
        began = time.thread_time()
        last.beat(epoch=-1, owned=None, waits=False)
        found["back"] = (time.thread_time() - began) * 1000
        if not is_classic(world):
            raise RuntimeError("the group has not gone back")
    world.close()
    return found


if __name__ == "__main__":
    sys.exit(main())
