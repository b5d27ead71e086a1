"""DescribeCluster, 0 and 1: the brokers, at the listener that the client came in by, and the controller.

Everybody is answered; whoever may not describe the cluster is told that he may do nothing with it.
"""

from __future__ import annotations

from typing import Final

from barnabas.api.authorized_operations import cluster_operations
from barnabas.api.context import RequestContext
from barnabas.serving.ports import MetadataSource
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DescribeClusterRequest, DescribeClusterResponse
from barnabas.wire.sentinels import NO_BROKER

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


class DescribeClusterHandler:
    """Answers from the metadata cache."""

    api_key = ApiKey.DESCRIBE_CLUSTER
    versions = (0, 1)

    def __init__(self, metadata: MetadataSource, cluster_id: str) -> None:
        self._metadata = metadata
        self._cluster_id = cluster_id

    def handle(self, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
        if request.endpoint_type == _CONTROLLERS:
            raise KafkaError(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is a broker, and endpoints of controllers were asked for"
            )
        if request.endpoint_type != _BROKERS:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"there are no endpoints of type {request.endpoint_type}"
            )
        image = self._metadata.image
        nodes = image.nodes(context.listener_name)
        controller_id = image.controller_id
        if controller_id is None or all(node.broker_id != controller_id for node in nodes):
            controller_id = NO_BROKER
        response = DescribeClusterResponse(
            cluster_id=self._cluster_id,
            controller_id=controller_id,
            brokers=[
                DescribeClusterResponse.DescribeClusterBroker(
                    broker_id=node.broker_id, host=node.host, port=node.port, rack=node.rack
                )
                for node in nodes
            ],
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = cluster_operations(context)
        return response

    def error_response(
        self, _context: RequestContext, _request: DescribeClusterRequest, error: KafkaError
    ) -> DescribeClusterResponse:
        return DescribeClusterResponse(error_code=error.code, error_message=error.message, cluster_id="", brokers=[])
