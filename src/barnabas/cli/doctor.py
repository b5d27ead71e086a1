"""`barnabas doctor`: what is wrong on this machine and with this cluster, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from barnabas.cli.completed_files import complete_files
from barnabas.cli.connection import (
    CommandError,
    ExitStatus,
    bootstrap_option,
    client_of_command,
    json_option,
    run_on_host,
)
from barnabas.cli.output import Column, Mark, Marked, counted, print_json, print_table, say

if TYPE_CHECKING:
    import asyncio

    from barnabas.cli.doctor_findings import Finding
    from barnabas.kernel.real_host import RealHost

_COLUMNS: Final = (Column("", "state"), Column("What", "what"), Column("What to do", "advice"))
_MARKS: Final = {"critical": Mark.BAD, "warning": Mark.WARNING, "note": Mark.FAINT, "ok": Mark.GOOD}


@click.command(name="doctor")
@click.option("--local", is_flag=True, help="Look at this machine only, and at no cluster.")
@click.option(
    "--file",
    "properties",
    metavar="FILE",
    shell_complete=complete_files,
    help="The server.properties of a broker of this machine.",
)
@click.option(
    "--data",
    "directories",
    metavar="DIR",
    shell_complete=complete_files,
    multiple=True,
    help="A data directory of this machine.",
)
@click.option("--all", "shows_all", is_flag=True, help="Show also what is as it should be.")
@bootstrap_option
@json_option
def command(
    local: bool,
    properties: str | None,
    directories: tuple[str, ...],
    shows_all: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Show what is wrong here, the worst first, and what to do; the exit status is 1 where something is.

    Of this machine: Python, the limits of open files and of a container, the clock, its name, Java for pipelines, and
    disk space and file system of data directories: those of --data, of the properties, and of brokers of the cluster
    that run here, and where that is a cluster of `up --secure` its secrets and certificates; with --file also the
    properties themselves and the ports. Of the cluster: whether each broker's advertised address means something here
    and can be reached, which versions they have, and all that `barnabas cluster health` finds.
    """
    from barnabas.cli import doctor_java
    from barnabas.cli.doctor_aside import begin

    # A Java takes a while to say its version: it does so while the client is loaded, and the cluster asked.
    java = begin(doctor_java.check_java)

    async def body(host: RealHost) -> None:
        from barnabas.cli.doctor_machine import check_surroundings

        surroundings = host.loop.create_task(check_surroundings(java))
        try:
            await look(host, surroundings)
        finally:
            surroundings.cancel()

    async def look(host: RealHost, surroundings: asyncio.Task[list[Finding]]) -> None:
        from barnabas.cli.doctor_findings import ORDER
        from barnabas.cli.doctor_machine import check_machine

        found: list[Finding] = []
        wanted = list(directories)
        if properties is not None:
            found += await _of_properties(properties, wanted)
        partitions = 0
        if not local:
            partitions = await _of_cluster(host, bootstrap, found, wanted)
        on_machine = await check_machine(dict.fromkeys(wanted), partitions, surroundings)
        found = [*on_machine, *await _of_security(wanted), *found]
        found.sort(key=lambda finding: ORDER.index(finding.state))
        _show(found, shows_all=shows_all, as_json=as_json)
        problems = sum(finding.is_problem for finding in found)
        if problems:
            raise CommandError(counted(problems, "problem"))

    run_on_host(body)


# Inside.


async def _of_properties(file: str, directories: list[str]) -> list[Finding]:
    """What is wrong with a broker's file; adds its data directories."""
    from pathlib import Path

    from barnabas.cli.doctor_aside import ANSWER_SECONDS, aside
    from barnabas.cli.doctor_findings import Finding, State
    from barnabas.cli.doctor_machine import check_ports
    from barnabas.config.broker_config import BrokerConfigError
    from barnabas.server.config import read_server_config

    try:
        data = await aside(Path(file).read_bytes)
    except TimeoutError:
        raise CommandError(f"{file}: it cannot be read within {ANSWER_SECONDS:.0f} s") from None
    try:
        config = read_server_config(data, file, ())
    except BrokerConfigError as error:
        return [Finding("properties", State.CRITICAL, problem, f"edit {file}") for problem in error.problems]
    directories += config.log_dirs
    return [Finding("properties", State.OK, f"{file} is in order"), *await check_ports(config.listeners.bound)]


async def _of_security(directories: list[str]) -> list[Finding]:
    """What is wrong with the secrets and certificates of clusters of `barnabas up --secure`."""
    import datetime as dt

    from barnabas.cli.doctor_aside import found_aside
    from barnabas.cli.doctor_findings import Finding, State
    from barnabas.cli.doctor_security import check_security, secured_directories

    def look() -> list[Finding]:
        now = dt.datetime.now(dt.UTC)
        return [each for directory in secured_directories(directories) for each in check_security(directory, now)]

    instead = Finding("security", State.WARNING, "secrets and certificates cannot be read in time", "look at the mount")
    try:
        return await found_aside(look, instead)
    except OSError as error:
        return [Finding("security", State.WARNING, f"{error.filename}: {error.strerror}", "run as the brokers' user")]


async def _of_cluster(host: RealHost, bootstrap: str, found: list[Finding], directories: list[str]) -> int:
    """Adds what is found in the cluster, and the data directories of its brokers that are on this machine; returns how
    many partitions one of these has at most.
    """
    import asyncio

    from barnabas.cli.doctor_cluster import check_brokers, check_health, check_servers, local_directories
    from barnabas.cli.doctor_findings import Finding, State
    from barnabas.cli.doctor_machine import existing
    from barnabas.link.errors import AuthenticationFailedError
    from barnabas.wire.errors import KafkaError

    servers = [server.strip() for server in bootstrap.split(",") if server.strip()]
    try:
        async with client_of_command(host, bootstrap) as client:
            found += await check_brokers(client, servers)  # by itself: it tells how long that takes
            of_health, by_broker = await asyncio.gather(check_health(client), local_directories(client))
            found += of_health
    except CommandError as error:
        if error.status is not ExitStatus.UNREACHABLE:
            raise
        found += await check_servers(servers)
        return 0
    except (AuthenticationFailedError, KafkaError) as error:
        advice = "check --command-config, and what its user may do (barnabas acl check)"
        found.append(Finding("login", State.CRITICAL, f"the cluster tells this user nothing: {error}", advice))
        return 0
    directories += await existing(directory.path for some in by_broker.values() for directory in some)
    return max((sum(len(directory.logs) for directory in some) for some in by_broker.values()), default=0)


def _show(found: list[Finding], *, shows_all: bool, as_json: bool) -> None:
    if as_json:
        print_json({"findings": [finding.document() for finding in found]})
        return
    shown = [finding for finding in found if shows_all or finding.advice]
    if shown:
        rows = [(Marked(each.state.value, _MARKS[each.state.value]), each.what, each.advice) for each in shown]
        print_table(_COLUMNS, rows)
    well = sum(finding.state.value == "ok" for finding in found)
    say(f"{counted(well, 'check')} found nothing wrong{'' if shows_all else '; --all shows them'}.")
