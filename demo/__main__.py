"""`make run`: a year of flights through three brokers and a Spark pipeline; one broker is killed, all is checked."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from rich.console import Console

from barnabas.kernel.real_host import run
from barnabas.server.supervisor import ClusterStartError
from demo.screen import Screen
from demo.story import Story
from demo.workplace import RESULTS, Workplace, workplace

FAILED = 1
INTERRUPTED = 130
NEXT = (
    ("barnabas up --brokers 3 --data data", "a cluster of your own, for any Kafka client"),
    ("barnabas topic list", "what is in it; --help shows more"),
    ("barnabas pipeline init mine.yaml", "a pipeline of your own, from an example"),
)


def main() -> int:
    """Exit status 0 when every step went well and every check held."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="keep what was printed as a picture")
    options = parser.parse_args()
    screen = Screen(Console(highlight=False, soft_wrap=True))
    try:
        with workplace() as place:
            run(lambda host: Story(host, screen, place).play(), name="demo")
            _say_what_is_next(screen, place)
        if options.picture is not None:
            screen.save_picture(options.picture, "make run")
    # KafkaException is no RuntimeError; ValueError is what pyarrow says of files that are no Parquet.
    except (ClusterStartError, KafkaException, OSError, RuntimeError, ValueError) as error:
        return _stopped(_reason(error), FAILED)
    except KeyboardInterrupt:
        return _stopped("interrupted", INTERRUPTED)
    return 0


def _say_what_is_next(screen: Screen, place: Workplace) -> None:
    screen.detail(f"the plot is {_relative(place.plot)}, the table {_relative(place.table)}")
    screen.show("Try next, in [bold].venv/bin[/bold]:")
    for command, what in NEXT:
        screen.show(f"  [bold]{command:<38}[/bold]{what}")


def _stopped(reason: str, status: int) -> int:
    logs = RESULTS / "logs"
    kept = f" (logs: {_relative(logs)})" if logs.is_dir() else ""
    print(f"make run stopped: {reason}{kept}", file=sys.stderr)
    return status


def _reason(error: Exception) -> str:
    """One line."""
    if error.args and isinstance(error.args[0], KafkaError):
        return f"Kafka's client says: {error.args[0].str()}"
    return " ".join(str(error).split()) or type(error).__name__


def _relative(path: Path) -> str:
    return os.path.relpath(path)


if __name__ == "__main__":
    sys.exit(main())
