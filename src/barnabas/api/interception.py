"""Requests that somebody looks at before their handler does, to have them fail: for tests of clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from barnabas.api.context import RequestContext
from barnabas.api.registry import Handler

Intercept = Callable[[RequestContext, Any], None]
"""Called with a request; a KafkaError that it raises is what the request is answered with."""


class InterceptedHandler:
    """Stands before a handler, without its fast path."""

    def __init__(self, handler: Handler, look: Intercept) -> None:
        self.api_key = handler.api_key
        self.versions = handler.versions
        self.error_response = handler.error_response
        self._handle = handler.handle
        self._look = look

    def handle(self, context: RequestContext, request: Any) -> Any:
        self._look(context, request)
        return self._handle(context, request)
