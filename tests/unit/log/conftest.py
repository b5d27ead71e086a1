"""What the tests of whole logs share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.real_host import real_host
from tests.unit.log.log_broker import LogBroker, log_broker

Scenario = Callable[[LogBroker], Coroutine[Any, Any, Any]]


@pytest.fixture
def with_broker(run: Callable[[Coroutine[Any, Any, Any]], Any], tmp_path: Path) -> Callable[..., Any]:
    """Runs scenarios, one broker after another on the same directories; returns what the last one returns."""

    def runner(*scenarios: Scenario, directories: int = 1, **options: Any) -> Any:
        paths = [str(tmp_path / f"logs-{number}") for number in range(directories)]

        async def main() -> Any:
            result = None
            for scenario in scenarios:
                async with (
                    real_host("broker-1", asyncio.get_running_loop()) as host,
                    log_broker(host, *paths, **options) as broker,
                ):
                    result = await scenario(broker)
            return result

        return run(main())

    return runner
