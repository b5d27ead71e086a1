"""ApiVersions, 0 to 4: which APIs and versions this broker answers; exactly those that have a handler.

Versions that are not known are answered by the dispatcher, in version 0. Features are none, as on every Apache Kafka in
ZooKeeper mode; the epoch is that of `/feature`. Left out: `zk_migration_ready`, there being no migration to KRaft.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from barnabas.api.context import RequestContext
from barnabas.api.registry import Registry
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ApiVersionsRequest, ApiVersionsResponse
from barnabas.wire.sentinels import NO_EPOCH

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")
_SOFTWARE_SINCE: Final = 3


class ApiVersionsHandler:
    """Answers from the registry."""

    api_key = ApiKey.API_VERSIONS
    versions = (0, 4)

    def __init__(self, registry: Registry, features_epoch: Callable[[], int] = lambda: NO_EPOCH) -> None:
        """`features_epoch` is the version of the znode `/feature`; -1 while there is none."""
        self._registry = registry
        self._features_epoch = features_epoch

    def handle(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        if context.api_version >= _SOFTWARE_SINCE:
            for field, text in (
                ("name", request.client_software_name),
                ("version", request.client_software_version),
            ):
                if not _SOFTWARE.fullmatch(text):
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST,
                        f"the client's software {field} {text!r} may hold letters, digits, dots and hyphens,"
                        " and begins and ends with a letter or digit",
                    )
        return ApiVersionsResponse(
            api_keys=[
                ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in self._registry.versions().items()
            ],
            finalized_features_epoch=self._features_epoch(),
        )

    def error_response(
        self, _context: RequestContext, _request: ApiVersionsRequest, error: KafkaError
    ) -> ApiVersionsResponse:
        return ApiVersionsResponse(error_code=error.code)
