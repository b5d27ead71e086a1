"""`barnabas`, of which a broker's authorizer can be taken out and put back while it runs.

    python -m benchmarks.brokers.switchable broker server.properties

On SIGUSR2 requests are handled as by a broker that was started without an authorizer, on SIGUSR1 by the one that it was
started with. So both can be measured in one process: two alike differ by more than ACLs cost.
"""

from __future__ import annotations

import functools
import signal
from typing import Any

from barnabas.api.client_throttles import QuotaAccess
from barnabas.api.dispatch import Dispatcher
from barnabas.api.produce_pipeline import ProducePipeline
from barnabas.cli.entry import run
from barnabas.network.server import NetworkServer


def main() -> None:
    made: dict[type, Any] = {}
    for kind in (Dispatcher, NetworkServer, ProducePipeline):
        _note(kind, made)
    accesses: list[Any] = []

    def switch(*, authorizes: bool) -> None:
        dispatcher, pipeline = made[Dispatcher], made[ProducePipeline]
        if not accesses:
            accesses[:] = [
                (None, QuotaAccess(dispatcher.throttles)),
                (dispatcher.authorizer, pipeline.access),
            ]
        dispatcher.authorizer, pipeline.access = accesses[authorizes]
        made[NetworkServer].forget_fast_paths()  # which may know what their clients may do

    signal.signal(signal.SIGUSR1, lambda *_: switch(authorizes=True))
    signal.signal(signal.SIGUSR2, lambda *_: switch(authorizes=False))
    run()


def _note(kind: type[Any], made: dict[type, Any]) -> None:
    """Has the one object of this kind be found there."""
    make = kind.__init__

    @functools.wraps(make)
    def noted(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        made[kind] = self

    kind.__init__ = noted


if __name__ == "__main__":
    main()
