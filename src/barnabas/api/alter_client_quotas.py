"""AlterClientQuotas, 0 and 1: sets and removes the quotas of users, client ids and addresses (KIP-546).

Any broker answers. Two changes of one entity at once are both kept. On purpose, what is below 0 or no number is refused
(INVALID_REQUEST), which Kafka's brokers store, and so is the removal of a SCRAM credential by its name, which they do;
an IPv6 address can have a quota.
"""

from __future__ import annotations

from barnabas.api.administration.quota_alteration import Changes, QuotaAlterer
from barnabas.api.administration.quota_entities import Parts
from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.kernel.steps import Steps, each, each_within
from barnabas.security.acls import AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import AlterClientQuotasRequest, AlterClientQuotasResponse

Entry = AlterClientQuotasResponse.EntryData


class AlterClientQuotasHandler:
    """Changes one entity after another."""

    api_key = ApiKey.ALTER_CLIENT_QUOTAS
    versions = (0, 1)

    def __init__(self, alterer: QuotaAlterer) -> None:
        self._alterer = alterer

    async def handle(self, context: RequestContext, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
        check_cluster(context, AclOperation.ALTER_CONFIGS)
        outcomes: dict[tuple[tuple[str, str | None], ...], KafkaError | None] = {}  # of several the last, as in Kafka
        for entry in request.entries:
            parts: Parts = {part.entity_type: part.entity_name for part in entry.entity}
            changes: Changes = {op.key: None if op.remove else op.value for op in entry.ops}
            try:
                await self._alterer.alter(parts, changes, validate_only=request.validate_only)
            except KafkaError as error:
                outcomes[tuple(parts.items())] = error
            else:
                outcomes[tuple(parts.items())] = None
            await context.turn()
        entries = each(lambda outcome: _entry(*outcome), list(outcomes.items()))
        return AlterClientQuotasResponse(entries=await context.in_steps(entries))

    def error_response(
        self, _context: RequestContext, request: AlterClientQuotasRequest, error: KafkaError
    ) -> Steps[AlterClientQuotasResponse]:
        entries = yield from each_within(
            request.entries,
            lambda entry: entry.entity,
            lambda _, part: _part(part.entity_type, part.entity_name),
            lambda _, parts: Entry(error_code=error.code, error_message=error.detail, entity=parts),
        )
        return AlterClientQuotasResponse(entries=entries)


def _entry(parts: tuple[tuple[str, str | None], ...], error: KafkaError | None) -> Entry:
    return Entry(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.detail,
        entity=[_part(*part) for part in parts],
    )


def _part(entity_type: str, name: str | None) -> AlterClientQuotasResponse.EntityData:
    return AlterClientQuotasResponse.EntityData(entity_type=entity_type, entity_name=name)
