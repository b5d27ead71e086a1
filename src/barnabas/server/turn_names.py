"""What a broker's turn of the loop is named by when it was too long: an API, an event of the controller, a task."""

from __future__ import annotations

from typing import Any

from barnabas.api.dispatch import Dispatcher
from barnabas.follower.replica_fetcher import ReplicaFetcher
from barnabas.kernel.event_queue import EventQueue
from barnabas.kernel.metrics_prometheus import scrape_in_steps
from barnabas.kernel.real_turn_watch import Naming
from barnabas.kernel.scheduler import ScheduledTask
from barnabas.wire.api_keys import ApiKey


def broker_turn_names() -> list[Naming]:
    """For `TurnWatch`."""
    return [
        Naming(Dispatcher._decode_and_handle, "route", lambda route: ApiKey(route.api_key).api_name),  # noqa: SLF001
        Naming(Dispatcher._finish, "responder", lambda responder: _api(responder.context)),  # noqa: SLF001
        Naming(Dispatcher.encode, "context", _api),
        Naming(EventQueue._process_one, "event", lambda event: f"event {type(event).__name__}"),  # noqa: SLF001
        Naming(ScheduledTask._call, "self", lambda task: f"task {task.name}"),  # noqa: SLF001
        Naming(ScheduledTask._await, "self", lambda task: f"task {task.name}"),  # noqa: SLF001
        Naming(ReplicaFetcher._run, "self", lambda _: "replica fetcher"),  # noqa: SLF001
        Naming(ReplicaFetcher._received, "self", lambda _: "replica fetcher"),  # noqa: SLF001
        Naming(scrape_in_steps, "registry", lambda _: "metrics"),
    ]


def _api(context: Any) -> str:
    return ApiKey(context.api_key).api_name
