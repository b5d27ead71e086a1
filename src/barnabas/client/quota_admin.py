"""What an administrator asks for about the quotas of clients (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from barnabas.client.admin_calls import AdminCalls
from barnabas.wire import messages
from barnabas.wire.errors import raise_for_code

if TYPE_CHECKING:
    from barnabas.client.cluster import BrokerNode
    from barnabas.client.quotas_of_clients import ClientQuotas

_EXACT, _DEFAULT = 0, 1
QUOTA_ENTITY_TYPES: Final = ("user", "client-id", "ip")


class QuotaAdmin(AdminCalls):
    """Calls about quotas; users make an `Admin`."""

    async def describe_client_quotas(
        self, entity: Mapping[str, str | None] | None = None, timeout_ms: float | None = None
    ) -> list[ClientQuotas]:
        """All quotas that are set, or those of entities that have these names among theirs (None is the default), in
        the order of their names."""
        from barnabas.client.quotas_of_clients import ClientQuotas

        components = [
            messages.DescribeClientQuotasRequest.ComponentData(
                entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name
            )
            for kind, name in (entity or {}).items()
        ]
        request = messages.DescribeClientQuotasRequest(components=components, strict=False)

        async def ask(node: BrokerNode, attempt_ms: float) -> list[ClientQuotas]:
            response: messages.DescribeClientQuotasResponse = await self._client.ask(
                node, self._lane, request, attempt_ms
            )
            raise_for_code(response.error_code, f"quotas: {response.error_message or ''}")
            found = [
                ClientQuotas(
                    {part.entity_type: part.entity_name for part in entry.entity},
                    {value.key: value.value for value in sorted(entry.values, key=lambda value: value.key)},
                )
                for entry in response.entries or ()
            ]
            return sorted(found, key=_order)

        return await self._somewhere("describing quotas", ask, timeout_ms)

    async def alter_client_quotas(
        self, entity: Mapping[str, str | None], changes: Mapping[str, float | None], timeout_ms: float | None = None
    ) -> None:
        """Sets the quotas of one entity that have a value in `changes`, and removes those that have None."""
        ops = [
            messages.AlterClientQuotasRequest.OpData(
                key=key, value=0.0 if value is None else value, remove=value is None
            )
            for key, value in changes.items()
        ]
        parts = [
            messages.AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name)
            for kind, name in entity.items()
        ]
        request = messages.AlterClientQuotasRequest(
            entries=[messages.AlterClientQuotasRequest.EntryData(entity=parts, ops=ops)], validate_only=False
        )

        async def ask(node: BrokerNode, attempt_ms: float) -> None:
            response: messages.AlterClientQuotasResponse = await self._client.ask(node, self._lane, request, attempt_ms)
            for entry in response.entries:
                raise_for_code(entry.error_code, f"quotas: {entry.error_message or ''}")

        await self._somewhere("changing quotas", ask, timeout_ms, is_change=True)


def _order(quotas: ClientQuotas) -> tuple[tuple[int, str], ...]:
    """Users first, then client ids and addresses; names before defaults of nothing, defaults after names."""

    def part(kind: str) -> tuple[int, str]:
        if kind not in quotas.entity:
            return (0, "") if kind == "client-id" and "user" in quotas.entity else (3, "")
        name = quotas.entity[kind]
        return (2, "") if name is None else (1, name)

    return tuple(part(kind) for kind in QUOTA_ENTITY_TYPES)
