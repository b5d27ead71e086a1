"""`barnabas controller`: shows it, and has it move to another broker, without deleting znodes by hand."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from barnabas.cli.later_commands import LaterCommands

if TYPE_CHECKING:
    from barnabas.coordination.client import Client
    from barnabas.kernel.real_host import RealHost

CONNECT_TIMEOUT_MS = 5_000
SESSION_TIMEOUT_MS = 10_000
ELECTION_TIMEOUT_SECONDS = 30.0
_POLL_SECONDS = 0.02
_SHOWN_AT = (
    "`barnabas config get broker:ID zookeeper.connect` shows the address, and `barnabas up` prints it as coordinator."
)


class _Servers(click.Option):
    """Who does not give it may not know where it is shown."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter:
            raise click.MissingParameter(_SHOWN_AT, ctx=ctx, param=self) from None


@click.group(name="controller", cls=LaterCommands, later={"show": "barnabas.cli.controller_show:command"})
def command() -> None:
    """Look after the controller of a cluster."""


@command.command(name="move", short_help="Make the brokers elect a new controller.")
@click.option(
    "--zookeeper",
    "connect",
    cls=_Servers,
    required=True,
    metavar="HOST:PORT[/CHROOT]",
    help=f"The cluster's ZooKeeper servers. {_SHOWN_AT}",
)
@click.option("--json", "as_json", is_flag=True, help="Print what happened as one line of JSON.")
def move(connect: str, as_json: bool) -> None:
    """End the term of the broker that is controller now; the brokers elect a new one, perhaps the same.

    It happens only if nobody else has been elected meanwhile. Brokers go on serving. The new controller tells every
    broker everything, so this also mends a broker that has missed something. Works with Apache Kafka's brokers too.
    """
    from barnabas.kernel.real_host import run

    sys.exit(run(lambda host: _move(host, connect, as_json), name="controller"))


async def _move(host: RealHost, connect: str, as_json: bool) -> int:
    """The exit status."""
    from barnabas.coordination.client import Client
    from barnabas.coordination.errors import CoordinationError
    from barnabas.coordination.session_settings import ClientSettings

    try:
        client = Client(host, ClientSettings(connect, session_timeout_ms=SESSION_TIMEOUT_MS))
    except ValueError as error:
        click.echo(f"barnabas controller move: --zookeeper: {error}. {_SHOWN_AT}", err=True)
        return 1
    try:
        try:
            await client.connect(CONNECT_TIMEOUT_MS)
        except (CoordinationError, TimeoutError) as error:
            click.echo(f"barnabas controller move: {error}. {_SHOWN_AT}", err=True)
            return 1
        before, after = await _elect_anew(host, client)
    except (CoordinationError, TimeoutError, LookupError) as error:
        click.echo(f"barnabas controller move: {error}", err=True)
        return 1
    finally:
        await client.close()
    if as_json:
        click.echo(json.dumps({"before": _shown(before), "after": _shown(after)}, separators=(",", ":")))
    else:
        click.echo(
            f"The controller was broker {before[0]}, epoch {before[1]}; it is broker {after[0]}, epoch {after[1]}."
        )
    return 0


async def _elect_anew(host: RealHost, client: Client) -> tuple[tuple[int, int], tuple[int, int]]:
    """Broker and epoch of the controller before and after.

    Raises LookupError where there is none, where it has moved already or must not be, and TimeoutError where none is
    elected.
    """
    import asyncio

    from barnabas.coordination.errors import ErrorCode, MultiFailedError
    from barnabas.coordination.layout.controller import CONTROLLER_EPOCH_PATH, CONTROLLER_PATH
    from barnabas.coordination.operations import Check, Delete

    found = await _present(client)
    if found is None:
        raise LookupError("there is no controller: no broker is running, or an election is under way")
    before, version, epoch_version = found
    try:
        await client.multi([Check(CONTROLLER_EPOCH_PATH, epoch_version), Delete(CONTROLLER_PATH, version)])
    except MultiFailedError as error:
        why = "the controller has already moved by itself"
        if error.error.code is ErrorCode.NO_AUTH:
            why = "ZooKeeper's znodes are the brokers' own (zookeeper.set.acl), and this command does not log in there"
        raise LookupError(f"{why}; nothing was done") from error
    deadline = host.loop.time() + ELECTION_TIMEOUT_SECONDS
    while host.loop.time() < deadline:
        found = await _present(client)
        if found is not None and found[0][1] > before[1]:
            return before, found[0]
        await asyncio.sleep(_POLL_SECONDS)
    raise TimeoutError(f"no broker became controller within {ELECTION_TIMEOUT_SECONDS:.0f} s: check the brokers' logs")


async def _present(client: Client) -> tuple[tuple[int, int], int, int] | None:
    """Broker and epoch of the controller, the version of its znode, and of the epoch; None while there is none."""
    from barnabas.coordination.errors import NoNodeError
    from barnabas.coordination.layout.controller import (
        CONTROLLER_EPOCH_PATH,
        CONTROLLER_PATH,
        ControllerRegistration,
        decode_controller_epoch,
    )

    try:
        epoch = await client.get_data(CONTROLLER_EPOCH_PATH)
        registered = await client.get_data(CONTROLLER_PATH)
    except NoNodeError:
        return None
    broker_id = ControllerRegistration.decode(registered.data).broker_id
    return (broker_id, decode_controller_epoch(epoch.data)), registered.stat.version, epoch.stat.version


def _shown(controller: tuple[int, int]) -> dict[str, int]:
    return {"broker": controller[0], "epoch": controller[1]}
