"""A broker, or a coordinator, as one coroutine function of a host: what a process or a simulated machine runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.kernel.host import Host
from barnabas.kernel.logs import Logs
from barnabas.server.broker import Broker
from barnabas.server.config import LOGS_LEVELS, log_levels, read_server_config
from barnabas.server.errors import BrokerStartError

if TYPE_CHECKING:
    from barnabas.coordination.embedded.server import EmbeddedCoordinator

Main = Callable[[Host], Coroutine[Any, Any, None]]


def broker_main(
    text: str,
    *,
    overrides: Iterable[str] = (),
    handler: logging.Handler | None = None,
    on_started: Callable[[Broker], object] = lambda _broker: None,
) -> Main:
    """Runs one broker from the text of a `server.properties` until it is cancelled, or fails with BrokerStartError.

    Its log goes to `handler`, or nowhere. `on_started` is called with the broker when it serves, before it is ready.
    """
    config = read_server_config(text, "server.properties", overrides)

    async def main(host: Host) -> None:
        levels = log_levels(config.values[LOGS_LEVELS.name])
        logs = Logs(host.name, host.clock, handler or logging.NullHandler(), levels=levels)
        broker = Broker(config, host, logs)
        try:
            await broker.start()
            on_started(broker)
            reason = await broker.failure
        finally:
            await broker.stop()
        raise BrokerStartError(reason)

    return main


def coordinator_main(
    config: CoordinatorConfig, *, on_started: Callable[[EmbeddedCoordinator], object] = lambda _coordinator: None
) -> Main:
    """Runs an embedded coordinator until it is cancelled, or its disk fails. `on_started` is called when it serves."""

    async def main(host: Host) -> None:
        from barnabas.coordination.embedded.server import EmbeddedCoordinator

        coordinator = EmbeddedCoordinator(host, config)
        try:
            await coordinator.start()
            on_started(coordinator)
            raise await coordinator.failure
        finally:
            await coordinator.stop()

    return main
