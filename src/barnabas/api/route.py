"""What the dispatcher keeps of one API in one version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.api.registry import FastPathHandler, Handler
from barnabas.wire import codec, headers
from barnabas.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from barnabas.api.request_metrics import RequestMetrics

CONTROLLER_APIS: Final = frozenset((ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA))


class Route:
    """One API in one version: everything that a request of it needs."""

    __slots__ = (
        "api_key",
        "api_version",
        "decode",
        "encode",
        "fast_path",
        "handler",
        "header_version",
        "is_from_controller",
        "metrics",
        "requests",
    )

    def __init__(self, handler: Handler, api_version: int, metrics: RequestMetrics) -> None:
        key = handler.api_key
        self.handler = handler
        self.api_key = int(key)
        self.api_version = api_version
        self.decode = codec.request_decoder(key, api_version)
        self.encode = codec.response_encoder(key, api_version)
        self.header_version = headers.request_header_version(key, api_version)
        self.is_from_controller = key in CONTROLLER_APIS
        self.metrics = metrics
        self.requests = metrics.meter(api_version)
        self.fast_path = handler.fast_path if isinstance(handler, FastPathHandler) else None
