"""`barnabas controller move` where it must not; tests/cluster/test_controller_move.py has it move one."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from barnabas.cli.controller import _elect_anew, command
from barnabas.coordination.client import Client
from barnabas.coordination.layout.access import default_acl
from barnabas.coordination.layout.controller import (
    CONTROLLER_EPOCH_PATH,
    CONTROLLER_PATH,
    ControllerRegistration,
    encode_controller_epoch,
)
from barnabas.coordination.session_settings import ClientSettings
from tests.unit.server.coordinated import COORDINATOR, PORT, TIMEOUT_MS, run_on_broker


def test_says_that_the_znodes_are_the_brokers_own() -> None:
    async def move(host: Any) -> None:
        connect = f"{COORDINATOR}:{PORT}"
        broker = Client(host, ClientSettings(connect, TIMEOUT_MS, credentials=(("digest", b"kafka:secret"),)))
        await broker.connect()
        znodes = {"": b"", CONTROLLER_EPOCH_PATH: encode_controller_epoch(3)}
        znodes[CONTROLLER_PATH] = ControllerRegistration(1, 0).encode()
        for path, data in znodes.items():
            await broker.create(f"/secured{path}", data, acl=default_acl(path, secure=True))
        stranger = Client(host, ClientSettings(f"{connect}/secured", TIMEOUT_MS))
        await stranger.connect()
        with pytest.raises(LookupError, match=r"the brokers' own \(zookeeper.set.acl\)"):
            await _elect_anew(host, stranger)
        assert (await broker.get_data(f"/secured{CONTROLLER_PATH}")).data == znodes[CONTROLLER_PATH]
        for client in (broker, stranger):
            await client.close()

    run_on_broker(1, move)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing option '--zookeeper'"),
        (["--zookeeper", "127.0.0.1:1"], "barnabas controller move: the operation took too long"),
        (["--zookeeper", "no port:x"], "barnabas controller move: --zookeeper: "),
        (["--help"], "End the term"),
    ],
)
def test_says_where_the_address_of_the_coordinator_is_shown(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.setattr("barnabas.cli.controller.CONNECT_TIMEOUT_MS", 100)
    outcome = CliRunner().invoke(command, ["move", *arguments])
    text = " ".join(outcome.output.split())
    assert said in text
    assert "`barnabas config get broker:ID zookeeper.connect` shows the address, and `barnabas up` prints it" in text
