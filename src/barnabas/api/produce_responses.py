"""The responses of Produce: what became of the batches of a request, and who leads where this broker does not.

Every response is made here. One of the usual shape, a batch that counts, comes from a template that its schema file
gives; all others, whichever path their requests took, from the messages that the codec encodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.api.current_leader import CurrentLeaders
from barnabas.api.named_once import named_once
from barnabas.kernel.steps import Steps, each_within
from barnabas.serving.produce import Outcomes, ProduceOutcome
from barnabas.wire import codec
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.compiler_templates import Template, response_template
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ProduceRequest, ProduceResponse
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.api.produce_pipeline import ProduceKind
    from barnabas.serving.ports import MetadataSource, Replicas
    from barnabas.wire.primitives import Buffer

_LEADER_SINCE: Final = 10
_HOLES: Final = ("base_offset", "log_append_time_ms", "log_start_offset", "throttle_time_ms")
_NO_CODE: Final = ProduceOutcome(ErrorCode.NONE)


class ProduceResponses:
    """Makes the responses of a broker."""

    def __init__(self, replicas: Replicas, metadata: MetadataSource) -> None:
        self._replicas = replicas
        self._metadata = metadata

    def template(self, kind: ProduceKind) -> Template:
        """The response to one batch that counts: (correlation id, first offset, append time, log start offset, throttle
        time) -> its frame."""
        return response_template(ApiKey.PRODUCE, kind.api_version, _of_one(kind, _NO_CODE), _HOLES)

    def frame(
        self, kind: ProduceKind, listener_name: str, correlation_id: int, outcome: ProduceOutcome, throttle_time_ms: int
    ) -> list[Buffer]:
        """The response to one batch."""
        response = _of_one(kind, outcome)
        response.throttle_time_ms = throttle_time_ms
        if kind.api_version >= _LEADER_SINCE:
            self._add_leaders(listener_name, response)
        return codec.response_encoder(ApiKey.PRODUCE, kind.api_version)(correlation_id, response)

    def response(
        self,
        api_version: int,
        listener_name: str,
        request: ProduceRequest,
        outcomes: Outcomes,
        default: ProduceOutcome,
        throttle_time_ms: int = 0,
    ) -> Steps[ProduceResponse]:
        """The outcomes in the order of the request, one for each partition, `default` where there is none; a topic
        without partitions is left out.
        """
        named = yield from named_once(request.topic_data, lambda topic: topic.partition_data, lambda data: data.index)
        topics = yield from each_within(
            named,
            lambda topic: topic.partitions,
            lambda topic, data: _of_partition(
                data.index, outcomes.get(TopicPartition(topic.name, data.index), default)
            ),
            lambda topic, found: ProduceResponse.TopicProduceResponse(name=topic.name, partition_responses=found),
        )
        response = ProduceResponse(responses=topics, throttle_time_ms=throttle_time_ms)
        if api_version >= _LEADER_SINCE:
            self._add_leaders(listener_name, response)
        return response

    def _add_leaders(self, listener_name: str, response: ProduceResponse) -> None:
        """Names the leaders to a client that has come to the wrong broker (KIP-951)."""
        leaders = CurrentLeaders(response, self._replicas, self._metadata, listener_name)
        for topic in response.responses:
            for partition in topic.partition_responses:
                if partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    leaders.name_in(partition, TopicPartition(topic.name, partition.index))


def _of_one(kind: ProduceKind, outcome: ProduceOutcome) -> ProduceResponse:
    topic, index = kind.topic_partition
    partitions = [_of_partition(index, outcome)]
    return ProduceResponse(responses=[ProduceResponse.TopicProduceResponse(name=topic, partition_responses=partitions)])


def _of_partition(index: int, outcome: ProduceOutcome) -> ProduceResponse.PartitionProduceResponse:
    return ProduceResponse.PartitionProduceResponse(
        index=index,
        error_code=outcome.code,
        base_offset=outcome.first_offset,
        log_append_time_ms=outcome.log_append_time_ms,
        log_start_offset=outcome.log_start_offset,
        record_errors=[
            ProduceResponse.BatchIndexAndErrorMessage(
                batch_index=error.batch_index, batch_index_error_message=error.message
            )
            for error in outcome.record_errors
        ],
        error_message=outcome.message,
    )
