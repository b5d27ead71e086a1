"""The metadata for clients, by the rules of Apache Kafka 3.9 in ZooKeeper mode."""

from __future__ import annotations

from barnabas.cluster.image import MetadataImage, PartitionMetadata, TopicMetadata
from barnabas.kernel.steps import STEP_ELEMENTS, Steps, each
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import MetadataResponse
from barnabas.wire.sentinels import NO_LEADER
from barnabas.wire.topics import INTERNAL_TOPICS


def is_internal(topic: str) -> bool:
    return topic in INTERNAL_TOPICS


def broker_responses(image: MetadataImage, listener_name: str) -> list[MetadataResponse.MetadataResponseBroker]:
    """The brokers that are alive and reached by the listener, by id."""
    return [
        MetadataResponse.MetadataResponseBroker(node_id=node.broker_id, host=node.host, port=node.port, rack=node.rack)
        for node in image.nodes(listener_name)
    ]


class TopicResponses:
    """Topics with their partitions, for one request."""

    def __init__(
        self, image: MetadataImage, listener_name: str, *, is_version_0: bool, names_missing_listener: bool
    ) -> None:
        """`is_version_0`: leave out replicas that cannot be reached, and say REPLICA_NOT_AVAILABLE of the partition.
        `names_missing_listener` (Metadata 6 and above): LISTENER_NOT_FOUND where the leader is alive and has no such
        listener; LEADER_NOT_AVAILABLE before.
        """
        self._leader_errors = _leader_errors(image, listener_name, names_missing_listener=names_missing_listener)
        self._is_version_0 = is_version_0

    def topic(self, name: str, topic: TopicMetadata) -> Steps[MetadataResponse.MetadataResponseTopic]:
        """A topic with all its partitions."""
        if len(topic.partitions) <= STEP_ELEMENTS:
            partitions = [self._partition(known) for known in topic.partitions.items()]
        else:
            partitions = yield from each(self._partition, topic.partitions.items())
        return MetadataResponse.MetadataResponseTopic(
            error_code=ErrorCode.NONE,
            name=name,
            topic_id=topic.topic_id,
            is_internal=is_internal(name),
            partitions=partitions,
        )

    def _partition(self, known: tuple[int, PartitionMetadata]) -> MetadataResponse.MetadataResponsePartition:
        return _partition_response(*known, self._leader_errors, is_version_0=self._is_version_0)


def _leader_errors(image: MetadataImage, listener_name: str, *, names_missing_listener: bool) -> dict[int, ErrorCode]:
    """For each live broker, the metadata of the partitions that it leads."""
    unreachable = ErrorCode.LISTENER_NOT_FOUND if names_missing_listener else ErrorCode.LEADER_NOT_AVAILABLE
    return {
        broker_id: ErrorCode.NONE if listener_name in broker.endpoints else unreachable
        for broker_id, broker in image.brokers.items()
    }


def _partition_response(
    number: int, partition: PartitionMetadata, leader_errors: dict[int, ErrorCode], *, is_version_0: bool
) -> MetadataResponse.MetadataResponsePartition:
    error = leader_errors.get(partition.leader, ErrorCode.LEADER_NOT_AVAILABLE)
    leader = partition.leader if error is ErrorCode.NONE else NO_LEADER
    replicas, isr = list(partition.replicas), list(partition.isr)
    if is_version_0:
        replicas = [replica for replica in replicas if leader_errors.get(replica) is ErrorCode.NONE]
        isr = [replica for replica in isr if leader_errors.get(replica) is ErrorCode.NONE]
        if error is ErrorCode.NONE and (len(replicas) < len(partition.replicas) or len(isr) < len(partition.isr)):
            error = ErrorCode.REPLICA_NOT_AVAILABLE
    return MetadataResponse.MetadataResponsePartition(
        error_code=error,
        partition_index=number,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=list(partition.offline_replicas),
    )
