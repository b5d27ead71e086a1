"""Announcements of failed log directories, beside a real coordinator in virtual time."""

from __future__ import annotations

from typing import Any, cast

from barnabas.coordination.layout.notifications import LOG_DIR_EVENTS_PATH
from barnabas.coordination.operations import Create, GetChildrenNames
from barnabas.kernel.host import Host
from barnabas.kernel.logs import Logs
from barnabas.kernel.timers import Timers
from barnabas.log.directories.log_directory import LogDirectory
from barnabas.server.log_failures import LogFailures
from tests.unit.server.coordinated import Lines, pause, run_on_broker, session_on


class FailedDirectory:
    path = "/data/one"


def test_an_announcement_that_is_refused_is_tried_again_at_a_measured_pace() -> None:
    lines = Lines()

    async def main(host: Host) -> tuple[int, list[str]]:
        session = session_on(host, Lines())
        await session.connect()
        timers = Timers(host.loop)
        failures = LogFailures(1, session, host.loop, timers=timers, logs=Logs(host.name, host.clock, lines))
        # The znode that it goes below is not there: somebody has deleted it.
        failures.announce(cast("LogDirectory", FailedDirectory()))
        await pause(3.5)
        refusals = sum("trying again" in line for line in lines.lines)
        await session.perform(Create(LOG_DIR_EVENTS_PATH, None))
        await pause(1.5)
        names: Any = await session.perform(GetChildrenNames(LOG_DIR_EVENTS_PATH))
        await failures.stop()
        timers.close()
        await session.close()
        return refusals, names

    refusals, names = run_on_broker(1, main)
    assert refusals == 4
    assert len(names) == 1
