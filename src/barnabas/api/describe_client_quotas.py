"""DescribeClientQuotas, 0 and 1: the quotas of users, client ids and addresses, as they are set in ZooKeeper (KIP-546).

Any broker answers. Left out: types of entities that other software defines, which are refused (UNSUPPORTED_VERSION), as
in Kafka.
"""

from __future__ import annotations

from typing import Final

from barnabas.api.administration.quota_alteration import QuotaReader, describes
from barnabas.api.administration.quota_entities import CLIENT_ID, ENTITY_TYPES, IP, USER, Parts
from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.kernel.steps import each
from barnabas.security.acls import AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DescribeClientQuotasRequest, DescribeClientQuotasResponse

_EXACT, _DEFAULT, _SPECIFIED = range(3)
_TYPE_NAMES: Final = {USER: "user", CLIENT_ID: "client", IP: "ip"}

Entry = DescribeClientQuotasResponse.EntryData


class DescribeClientQuotasHandler:
    """Reads them."""

    api_key = ApiKey.DESCRIBE_CLIENT_QUOTAS
    versions = (0, 1)

    def __init__(self, reader: QuotaReader) -> None:
        self._reader = reader

    async def handle(
        self, context: RequestContext, request: DescribeClientQuotasRequest
    ) -> DescribeClientQuotasResponse:
        check_cluster(context, AclOperation.DESCRIBE_CONFIGS)
        wanted = _wanted(request)
        has_ip, has_client = IP in wanted, not wanted.keys().isdisjoint((USER, CLIENT_ID))
        if has_ip and has_client:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Invalid entity filter component combination, IP filter component should not be used with user or"
                " clientId filter component.",
            )
        found = await self._reader.read(
            lambda parts: describes(parts, wanted, strict=request.strict),
            with_clients=not has_ip,
            with_ips=not has_client,
        )
        entries = each(lambda each_found: _entry(*each_found), found)
        return DescribeClientQuotasResponse(entries=await context.in_steps(entries))

    def error_response(
        self, _context: RequestContext, _request: DescribeClientQuotasRequest, error: KafkaError
    ) -> DescribeClientQuotasResponse:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.detail, entries=None)


def _wanted(request: DescribeClientQuotasRequest) -> dict[str, tuple[bool, str | None]]:
    """As `describes` has it. Raises `KafkaError`."""
    wanted: dict[str, tuple[bool, str | None]] = {}
    for component in request.components:
        if component.match_type not in (_EXACT, _DEFAULT, _SPECIFIED):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unexpected match type: {component.match_type}")
    for component in request.components:
        entity_type = component.entity_type
        if entity_type == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Unexpected empty filter component entity type")
        if entity_type not in ENTITY_TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type '{entity_type}' not supported")
        if entity_type in wanted:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Duplicate {_TYPE_NAMES[entity_type]} filter component entity type"
            )
        is_any = component.match_type == _SPECIFIED
        wanted[entity_type] = (is_any, component.match if component.match_type == _EXACT else None)
    return wanted


def _entry(parts: Parts, values: dict[str, float]) -> Entry:
    return Entry(
        entity=[
            DescribeClientQuotasResponse.EntityData(entity_type=entity_type, entity_name=name)
            for entity_type, name in parts.items()
        ],
        values=[DescribeClientQuotasResponse.ValueData(key=key, value=value) for key, value in values.items()],
    )
