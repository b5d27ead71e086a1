"""Who may produce what, by the authorizer: whoever may WRITE the topic. It is `produce_pipeline.ProduceAccess`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.security.acls import AclOperation, ResourceType

if TYPE_CHECKING:
    from barnabas.api.client_throttles import QuotaAccess
    from barnabas.api.produce_pipeline import ProduceQuota
    from barnabas.security.authorizer import Authorizer


class AuthorizedAccess:
    """As the authorizer allows, and as fast as the quotas say."""

    def __init__(self, authorizer: Authorizer, quotas: QuotaAccess) -> None:
        self._authorizer = authorizer
        self._quotas = quotas

    @property
    def epoch(self) -> int:
        # Both only grow, and so does the sum with each change of either.
        return self._authorizer.epoch + self._quotas.epoch

    def place_of(self, address: str) -> str:
        return address

    def may_write(self, principal: str, place: str, topic: str) -> bool:
        return self._authorizer.authorize(principal, place, AclOperation.WRITE, ResourceType.TOPIC, topic)

    def quota(self, principal: str, client_id: str | None) -> ProduceQuota | None:
        return self._quotas.quota(principal, client_id)
