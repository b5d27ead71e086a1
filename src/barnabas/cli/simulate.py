"""`barnabas simulate`: a whole cluster in virtual time, broken at random from a seed, and judged."""

from __future__ import annotations

import functools
import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from barnabas.cli.completed_files import complete_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from barnabas.testing.cluster_simulation import Report

_PLANS = (
    "power",
    "keeping",
    "late",
    "older",
    "expiry",
    "office",
    "together",
    "unclean",
    "directories",
    "hanging",
    "configs",
    "retention",
    "spoiled",
    "deleted",
    "former",
    "groups",
    "lives",
    "watermarks",
    "moves",
    "elections",
    "demand",
    "log-moves",
    "at-once",
    "flushed",
    "renewed",
    "doubt",
    "near",
    "throttles",
    "connections",
    "transactions",
    "compaction",
    "tiered",
    "tokens",
    "secured",
    "credentials",
    "outbox",
    "next-groups",
)
"""The names of `testing.cluster_plans.PLANS`, which takes a while to import."""


@click.command(name="simulate")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(min=0), help="The first seed.")
@click.option("--runs", default=1, show_default=True, type=click.IntRange(min=1), help="Runs, each with the next seed.")
@click.option(
    "--plan",
    type=click.Choice([*_PLANS, "all"]),
    default="all",
    show_default=True,
    help="Which faults to inject, and what they may lose: docs/simulation.md describes each plan.",
)
@click.option(
    "--logs",
    "logs_directory",
    metavar="DIR",
    shell_complete=complete_files,
    help="Write the brokers' logs there, one file each.",
)
def command(seed: int, runs: int, plan: str, logs_directory: str | None) -> None:
    """Run three brokers (moves: six) and the coordinator, as they are, in virtual time, with users and faults.

    All that happens comes from the seed.

    One seed is one run, bit for bit. Prints a line for each run and whatever must not be; exits with 1 then.
    """
    from barnabas.testing.cluster_plans import PLANS
    from barnabas.testing.cluster_simulation import simulate
    from barnabas.testing.simulation import SimulationFailedError

    # What the simulated users log is theirs; what they found is in the report.
    logging.getLogger("barnabas").addHandler(logging.NullHandler())
    failed = 0
    plans = _possible(PLANS) if plan == "all" else [plan]
    if plan == "credentials":
        _check_libraries()
    for number in range(seed, seed + runs):
        for name in plans:
            begun_at = time.perf_counter()
            try:
                report = simulate(number, PLANS[name], handler=_log_files(logs_directory, f"{name}-{number}"))
            except SimulationFailedError as error:
                click.echo(f"seed {number}, plan {name}: {error}")
                failed += 1
                continue
            click.echo(_line(report, time.perf_counter() - begun_at))
            for finding in report.findings:
                click.echo(f"  {finding}")
            failed += bool(report.findings)
    sys.exit(1 if failed else 0)


def _possible(plans: Iterable[str]) -> list[str]:
    """Without the one that makes certificates and signs tokens, where the libraries for that are not there."""
    try:
        _check_libraries()
    except click.ClickException as error:
        click.echo(f"{error.message}. The other plans are run.", err=True)
        return [name for name in plans if name != "credentials"]
    return list(plans)


def _check_libraries() -> None:
    """Raises ClickException."""
    from barnabas.sasl.errors import LoginConfigError
    from barnabas.sasl.json_web_keys import check_library

    try:
        check_library()
    except LoginConfigError as error:
        raise click.ClickException(f"The plan credentials: {error}") from None


def _log_files(directory: str | None, run: str) -> Callable[[int], logging.Handler] | None:
    """What makes the handler for each broker's log file of a run; a broker that comes back goes on in its file."""
    if directory is None:
        return None
    Path(directory).mkdir(parents=True, exist_ok=True)

    @functools.cache
    def make(broker_id: int) -> logging.Handler:
        return logging.FileHandler(Path(directory, f"{run}-broker-{broker_id}.log"), mode="w")

    return make


def _line(report: Report, real_seconds: float) -> str:
    strikes = ", ".join(f"{count} {kind.value}" for kind, count in report.strikes.items() if count)
    seen = ", ".join(f"{count} {what}" for what, count in sorted(report.coverage.items()))
    return (
        f"seed {report.seed}, plan {report.plan}: {len(report.findings)} findings in {report.seconds:.1f} s of virtual "
        f"time, simulated in {real_seconds:.1f} s; "
        f"{report.acknowledged} records acknowledged, {report.consumed} read; struck by {strikes or 'nothing'}; {seen}"
    )
