"""The log of a partition as leaders, followers and readers use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.real_host import real_host
from tests.unit.log.log_broker import FLIGHTS, LogBroker, log_broker, records

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Scenario = Callable[[LogBroker], Coroutine[Any, Any, Any]]


@pytest.fixture
def with_broker(run: Run, tmp_path: Path) -> Callable[..., Any]:
    """Runs scenarios, one broker after another on the same directory."""

    def runner(*scenarios: Scenario, **options: Any) -> Any:
        async def main() -> Any:
            result = None
            for scenario in scenarios:
                async with (
                    real_host("broker-1", asyncio.get_running_loop()) as host,
                    log_broker(host, str(tmp_path / "logs"), **options) as broker,
                ):
                    result = await scenario(broker)
            return result

        return run(main())

    return runner


def test_what_a_leader_appends_is_read_back_after_a_restart(with_broker: Callable[..., Any]) -> None:
    async def write(broker: LogBroker) -> None:
        log = broker.log()
        for number in range(20):
            result = log.append_as_leader(records(b"a%d" % number, b"b%d" % number), 3)
            assert (result.first_offset, result.last_offset) == (2 * number, 2 * number + 1)
        await broker.written(log)
        log.increase_high_watermark(40)
        assert [each.value for each in await broker.records(log)][:3] == [b"a0", b"b0", b"a1"]

    async def read(broker: LogBroker) -> None:
        log = broker.manager.get_log(broker.log().partition)
        assert log is not None
        assert (log.log_start_offset, log.log_end_offset, log.recovery_point, log.latest_epoch) == (0, 40, 40, 3)
        assert [each.offset for each in await broker.records(log, 7)] == list(range(6, 40))

    with_broker(write, read, read)


def test_what_a_leader_appends_is_read_back_after_a_crash(with_broker: Callable[..., Any]) -> None:
    async def write(broker: LogBroker) -> None:
        log = broker.log()
        for number in range(20):
            log.append_as_leader(records(b"a%d" % number, producer_id=7, producer_epoch=0, base_sequence=number), 3)
        await broker.written(log)

    async def read(broker: LogBroker) -> None:
        log = broker.manager.logs[FLIGHTS]
        assert (log.log_end_offset, log.recovery_point, log.latest_epoch) == (20, 0, 3)
        entry = log.producers.get(7)
        assert entry is not None
        assert [batch.last_sequence for batch in entry.batches] == [15, 16, 17, 18, 19]

    with_broker(write, read, is_clean=False)
