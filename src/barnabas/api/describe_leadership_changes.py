"""DescribeLeadershipChanges (key 20001, version 0): how leaders and ISRs were before, for the console.

An API of our own, which Kafka lacks: its brokers tell how partitions are, and not how they were. Every broker answers,
from the latest changes that controllers have told it of since it started. Clients pass over keys that they do not know.
"""

from __future__ import annotations

from typing import Final

from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.cluster.leadership_changes import LeadershipChange, LeadershipChanges
from barnabas.kernel.host import Clock
from barnabas.security.acls import AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import DescribeLeadershipChangesRequest, DescribeLeadershipChangesResponse

CHANGES_MAX: Final = 500
"""Of one response: a few milliseconds."""


class DescribeLeadershipChangesHandler:
    """Answers from what this broker remembers."""

    api_key = ApiKey.DESCRIBE_LEADERSHIP_CHANGES
    versions = (0, 0)

    def __init__(self, changes: LeadershipChanges, clock: Clock) -> None:
        self._changes = changes
        self._clock = clock

    def handle(
        self, context: RequestContext, request: DescribeLeadershipChangesRequest
    ) -> DescribeLeadershipChangesResponse:
        check_cluster(context, AclOperation.DESCRIBE)
        since_ms = self._changes.since_ms
        return DescribeLeadershipChangesResponse(
            now_ms=self._clock.time_ms(),
            since_ms=-1 if since_ms is None else since_ms,
            last=self._changes.last,
            changes=[
                _change(number, change)
                for number, change in self._changes.after(request.after, min(request.changes_max, CHANGES_MAX))
            ],
        )

    def error_response(
        self, _context: RequestContext, _request: DescribeLeadershipChangesRequest, error: KafkaError
    ) -> DescribeLeadershipChangesResponse:
        return DescribeLeadershipChangesResponse(error_code=error.code, error_message=error.message)


def _change(number: int, change: LeadershipChange) -> DescribeLeadershipChangesResponse.Change:
    before, after = change.before, change.after
    found = DescribeLeadershipChangesResponse.Change(
        number=number,
        time_ms=change.time_ms,
        topic=change.partition.topic,
        topic_id=change.topic_id,
        partition=change.partition.partition,
        leader=after.leader,
        leader_epoch=after.leader_epoch,
        isr=list(after.isr),
        replicas=list(after.replicas),
    )
    if before is not None:
        found.leader_before, found.leader_epoch_before = before.leader, before.leader_epoch
        found.isr_before, found.replicas_before = list(before.isr), list(before.replicas)
    return found
