"""Envelope (key 58, version 0): would carry a client's request from a broker to the controller (KIP-590).

Brokers in ZooKeeper mode forward nothing, so that nobody of theirs sends one: as in Kafka 3.9 its connection is closed.
"""

from __future__ import annotations

from typing import NoReturn

from barnabas.api.context import RequestContext
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import EnvelopeRequest, EnvelopeResponse
from barnabas.wire.primitives import ProtocolError


class EnvelopeHandler:
    """Refuses every request."""

    api_key = ApiKey.ENVELOPE
    versions = (0, 0)

    def handle(self, _context: RequestContext, _request: EnvelopeRequest) -> NoReturn:
        raise ProtocolError("forwarding is not enabled on this broker; send the request itself to the controller")

    def error_response(
        self, _context: RequestContext, _request: EnvelopeRequest, error: KafkaError
    ) -> EnvelopeResponse:
        return EnvelopeResponse(error_code=error.code)
