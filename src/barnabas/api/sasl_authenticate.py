"""SaslAuthenticate, 0 to 2: carries the messages of the mechanism that SaslHandshake has chosen.

Amid a login it is answered by `api.authentication`; here it comes from a client that is known, or from a listener
without SASL, and has no sense.
"""

from __future__ import annotations

from typing import NoReturn

from barnabas.api.authentication import AUTHENTICATE_VERSIONS
from barnabas.api.context import RequestContext
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import SaslAuthenticateRequest, SaslAuthenticateResponse


class SaslAuthenticateHandler:
    """Refuses every request."""

    api_key = ApiKey.SASL_AUTHENTICATE
    versions = AUTHENTICATE_VERSIONS

    def handle(self, _context: RequestContext, _request: SaslAuthenticateRequest) -> NoReturn:
        raise KafkaError(
            ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate request received after successful authentication"
        )

    def error_response(
        self, _context: RequestContext, _request: SaslAuthenticateRequest, error: KafkaError
    ) -> SaslAuthenticateResponse:
        return SaslAuthenticateResponse(error_code=error.code, error_message=error.message)
