"""SaslHandshake, 0 and 1: a client chooses the mechanism by which it logs in.

On a listener with SASL it comes first, or after ApiVersions, and is answered by `api.authentication`. Here it comes
from a client that is known, which may log in again as the same principal after a second; and on other listeners, where
it has no sense.
"""

from __future__ import annotations

from barnabas.api.authentication import HANDSHAKE_VERSIONS, ClientLogin
from barnabas.api.context import RequestContext
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import SaslHandshakeRequest, SaslHandshakeResponse


class SaslHandshakeHandler:
    """Lets a client that is known log in again."""

    api_key = ApiKey.SASL_HANDSHAKE
    versions = HANDSHAKE_VERSIONS

    def handle(self, context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse | None:
        login: ClientLogin | None = context.connection.login
        if login is None:
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE)
        return login.begin_again(context, request)

    def error_response(
        self, _context: RequestContext, _request: SaslHandshakeRequest, error: KafkaError
    ) -> SaslHandshakeResponse:
        return SaslHandshakeResponse(error_code=error.code)
