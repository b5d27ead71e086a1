"""DescribeController (key 20000, version 0): what the controller does, for `barnabas controller show`.

An API of our own, which Kafka lacks: its brokers tell who the controller is and no more. Clients pass over keys that
they do not know. The active controller answers at once, from what it knows, also while its event queue stands still;
every other broker says NOT_CONTROLLER.
"""

from __future__ import annotations

from typing import Final

from barnabas import __version__
from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.controller.controller import Controller
from barnabas.controller.recent_transitions import TimedTransition
from barnabas.security.acls import AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import DescribeControllerRequest, DescribeControllerResponse

_THE_PARTITION: Final = -1


class DescribeControllerHandler:
    """Answers from the controller of this broker, if it is the active one."""

    api_key = ApiKey.DESCRIBE_CONTROLLER
    versions = (0, 0)

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def handle(self, context: RequestContext, request: DescribeControllerRequest) -> DescribeControllerResponse:
        check_cluster(context, AclOperation.DESCRIBE)
        found = self._controller.describe(request.transitions_max)
        response = DescribeControllerResponse
        return response(
            software_version=__version__,
            controller_id=found.controller_id,
            controller_epoch=found.epoch,
            elected_at_ms=found.elected_at_ms,
            state=found.state.name,
            queued_events=found.queued_events,
            oldest_event_age_ms=found.oldest_event_age_ms,
            counts=[response.Count(name=name, value=value) for name, value in found.counts.items()],
            timings=[
                response.Timing(
                    name=timing.name, count=timing.count, mean_ms=timing.mean_ms, maximum_ms=timing.maximum_ms
                )
                for timing in found.timings
            ],
            channels=[
                response.Channel(broker_id=broker_id, queued_requests=queued)
                for broker_id, queued in found.queued_requests.items()
            ],
            transitions=[_transition(timed) for timed in found.transitions],
        )

    def error_response(
        self, _context: RequestContext, _request: DescribeControllerRequest, error: KafkaError
    ) -> DescribeControllerResponse:
        return DescribeControllerResponse(error_code=error.code, error_message=error.message)


def _transition(timed: TimedTransition) -> DescribeControllerResponse.Transition:
    move, known = timed.move, timed.move.leadership
    found = DescribeControllerResponse.Transition(
        time_ms=timed.time_ms,
        topic=move.topic,
        partition=move.partition,
        broker_id=_THE_PARTITION if move.broker_id is None else move.broker_id,
        before=move.before,
        after=move.after,
        fault=move.fault,
    )
    if known is not None:
        found.leader, found.leader_epoch, found.isr = known.leader, known.leader_epoch, list(known.isr)
    return found
