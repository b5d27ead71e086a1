"""Whether who fetches may: a consumer READ each topic, a follower CLUSTER_ACTION on the cluster, as in Kafka.

Asked for each partition that is looked at, also when a parked fetch is answered: what was decided is kept for as long
as the rules are the same. It is `serving.fetch_reads.FetchAccess`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.security.acls import CLUSTER_NAME, AclOperation, ResourceType

if TYPE_CHECKING:
    from barnabas.api.context import RequestContext
    from barnabas.security.authorizer import Authorizer

_TOPICS_KEPT: Final = 4096


class ConsumerAccess:
    """That of a consumer, by topic."""

    __slots__ = ("_address", "_authorizer", "_decided", "_epoch", "_principal")

    def __init__(self, authorizer: Authorizer, principal: str, address: str) -> None:
        self._authorizer = authorizer
        self._principal = principal
        self._address = address
        self._epoch = authorizer.epoch
        self._decided: dict[str, bool] = {}

    @property
    def epoch(self) -> int:
        return self._authorizer.epoch

    def may_fetch(self, topic: str) -> bool:
        decided = self._decided
        epoch = self._authorizer.epoch
        if epoch != self._epoch or len(decided) > _TOPICS_KEPT:
            decided.clear()
            self._epoch = epoch
        known = decided.get(topic)
        if known is None:
            known = decided[topic] = self._authorizer.authorize(
                self._principal, self._address, AclOperation.READ, ResourceType.TOPIC, topic
            )
        return known


class FollowerAccess:
    """That of a broker, to all topics or to none."""

    __slots__ = ("_address", "_authorizer", "_decided", "_epoch", "_principal")

    def __init__(self, authorizer: Authorizer, principal: str, address: str) -> None:
        self._authorizer = authorizer
        self._principal = principal
        self._address = address
        self._epoch = authorizer.epoch
        self._decided: bool | None = None

    @property
    def epoch(self) -> int:
        return self._authorizer.epoch

    def may_fetch(self, topic: str) -> bool:  # noqa: ARG002 - all or none
        epoch = self._authorizer.epoch
        if self._decided is None or epoch != self._epoch:
            self._epoch = epoch
            self._decided = self._authorizer.authorize(
                self._principal, self._address, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
            )
        return self._decided


def fetch_access(context: RequestContext, *, is_follower: bool) -> ConsumerAccess | FollowerAccess | None:
    """That of who has sent the request; None where everybody may fetch everything."""
    authorizer = context.authorizer
    if authorizer is None:
        return None
    kind = FollowerAccess if is_follower else ConsumerAccess
    return kind(authorizer, context.principal, context.client_host)
