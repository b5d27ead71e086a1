"""What three public Grafana boards for Apache Kafka ask Prometheus for, by name and by labels, and what of it we do not
have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

STRIMZI: Final = """
    container_cpu_usage_seconds_total container_memory_usage_bytes jvm_gc_collection_seconds_count
    jvm_gc_collection_seconds_sum jvm_memory_used_bytes jvm_threads_current kafka_cluster_partition_atminisr
    kafka_cluster_partition_replicascount kafka_cluster_partition_underminisr
    kafka_controller_controllerstats_uncleanleaderelections_total
    kafka_controller_kafkacontroller_activecontrollercount kafka_controller_kafkacontroller_offlinepartitionscount
    kafka_log_log_size kafka_network_socketserver_networkprocessoravgidle_percent
    kafka_server_brokertopicmetrics_bytesin_total kafka_server_brokertopicmetrics_bytesout_total
    kafka_server_brokertopicmetrics_failedfetchrequests_total
    kafka_server_brokertopicmetrics_failedproducerequests_total kafka_server_brokertopicmetrics_messagesin_total
    kafka_server_brokertopicmetrics_totalfetchrequests_total
    kafka_server_brokertopicmetrics_totalproducerequests_total
    kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent
    kafka_server_kafkaserver_linux_disk_read_bytes kafka_server_kafkaserver_linux_disk_write_bytes
    kafka_server_replicamanager_leadercount kafka_server_replicamanager_partitioncount
    kafka_server_replicamanager_underreplicatedpartitions kafka_server_socket_server_metrics_connection_count
    kubelet_volume_stats_available_bytes process_open_fds
"""
"""The Kafka board among the examples of strimzi-kafka-operator."""

KAFOPTICON: Final = """
    jvm_gc_collection_seconds_count jvm_gc_collection_seconds_sum kafka_cluster_partition_insyncreplicascount
    kafka_cluster_partition_replicascount kafka_cluster_partition_underreplicated
    kafka_controller_controllerstats_uncleanleaderelectionenablerateandtimems_count
    kafka_controller_kafkacontroller_activebrokercount kafka_controller_kafkacontroller_activecontrollercount
    kafka_controller_kafkacontroller_offlinepartitionscount kafka_network_requestmetrics_errors_total
    kafka_network_requestmetrics_requests_total kafka_network_requestmetrics_totaltimems
    kafka_server_brokertopicmetrics_bytesin_total kafka_server_brokertopicmetrics_bytesout_total
    kafka_server_brokertopicmetrics_failedproducerequests_total
    kafka_server_brokertopicmetrics_totalproducerequests_total
    kafka_server_delayedoperationpurgatory_purgatorysize kafka_server_fetcherlagmetrics_consumerlag
    kafka_server_replicafetchermanager_failedpartitionscount kafka_server_replicamanager_isrexpands_total
    kafka_server_replicamanager_isrshrinks_total kafka_server_replicamanager_underreplicatedpartitions
    kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms
"""
"""The large board of KafOpticon, in lower case: its exporter keeps capitals (`kafka_cluster_Partition_ReplicasCount`),
those of the other boards do not (`lowercaseOutputName`), nor do we. Its queries have to be changed to that.
"""

GRAFANA: Final = """
    kafka_cluster_partition_underminisr kafka_cluster_partition_underreplicated kafka_consumergroup_current_offset
    kafka_consumergroup_lag kafka_controller_controllerstats_uncleanleaderelections_total
    kafka_controller_kafkacontroller_activecontrollercount kafka_controller_kafkacontroller_offlinepartitionscount
    kafka_controller_kafkacontroller_preferredreplicaimbalancecount kafka_log_log_logendoffset
    kafka_log_log_logstartoffset kafka_log_log_size kafka_network_requestmetrics_localtimems
    kafka_network_requestmetrics_remotetimems kafka_network_requestmetrics_requestqueuetimems
    kafka_network_requestmetrics_responsequeuetimems kafka_network_requestmetrics_responsesendtimems
    kafka_server_brokertopicmetrics_bytesin_total kafka_server_brokertopicmetrics_bytesout_total
    kafka_server_brokertopicmetrics_fetchmessageconversions_total kafka_server_brokertopicmetrics_messagesin_total
    kafka_server_brokertopicmetrics_producemessageconversions_total kafka_server_kafkaserver_brokerstate
    kafka_server_replicamanager_isrexpands_total kafka_server_replicamanager_isrshrinks_total
    kafka_server_replicamanager_partitioncount kafka_server_sessionexpirelistener_zookeeperauthfailures_total
    kafka_server_sessionexpirelistener_zookeeperdisconnects_total
    kafka_server_sessionexpirelistener_zookeeperexpires_total
    kafka_server_sessionexpirelistener_zookeepersyncconnects_total
    kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms kafka_topic_partition_current_offset
"""
"""The boards of kafka-observ-lib in grafana/jsonnet-libs, with its source `prometheus`."""

BOARDS: Final = {
    name: frozenset(text.split())
    for name, text in (("strimzi", STRIMZI), ("kafopticon", KAFOPTICON), ("grafana", GRAFANA))
}

ANY: Final = ""
"""Of a label: there has to be one. A topic, for which `topic!="..."` asks, is that of the test."""
_TOPICS: Final = (
    "bytesin bytesout failedfetchrequests failedproducerequests messagesin totalfetchrequests totalproducerequests"
)


def _of_topics(names: str) -> tuple[str, ...]:
    return tuple(f"kafka_server_brokertopicmetrics_{name}_total" for name in names.split())


SELECTED: Final[Mapping[str, Sequence[tuple[str, Mapping[str, str]]]]] = {
    "strimzi": [
        *((name, {"topic": ANY}) for name in _of_topics(_TOPICS)),
        ("kafka_log_log_size", {"topic": ANY, "partition": ANY}),
        ("kafka_server_socket_server_metrics_connection_count", {"listener": ANY}),
    ],
    "kafopticon": [
        ("kafka_cluster_partition_insyncreplicascount", {"topic": ANY, "partition": ANY}),
        ("kafka_cluster_partition_replicascount", {"topic": ANY, "partition": ANY}),
        ("kafka_cluster_partition_underreplicated", {"topic": ANY, "partition": ANY}),
        ("kafka_server_fetcherlagmetrics_consumerlag", {"topic": ANY, "partition": ANY, "clientId": ANY}),
        *((name, {"topic": ANY}) for name in _of_topics("bytesin bytesout totalproducerequests")),
        ("kafka_network_requestmetrics_totaltimems", {"request": "Produce", "quantile": ANY}),
        ("kafka_network_requestmetrics_totaltimems", {"request": "Fetch", "quantile": ANY}),
        ("kafka_network_requestmetrics_requests_total", {"request": "Produce", "version": ANY}),
        ("kafka_network_requestmetrics_errors_total", {"request": ANY, "error": ANY}),
        ("kafka_server_delayedoperationpurgatory_purgatorysize", {"delayedOperation": "Produce"}),
        ("kafka_server_delayedoperationpurgatory_purgatorysize", {"delayedOperation": "Fetch"}),
    ],
    "grafana": [
        *((name, {"topic": ANY}) for name in _of_topics("bytesin bytesout")),
        *(
            (f"kafka_log_log_{name}", {"topic": ANY, "partition": ANY})
            for name in ("logendoffset", "logstartoffset", "size")
        ),
        *(
            (f"kafka_network_requestmetrics_{name}", {"request": request, "quantile": "0.95"})
            for name in ("localtimems", "remotetimems")
            for request in ("Fetch", "FetchFollower", "Produce")
        ),
        ("kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms", {"quantile": "0.95"}),
    ],
}
"""By board: the labels by which its queries select or group, and its legends tell samples apart, name by name."""

MISSING: Final = {
    "jvm_": "there is no Java machine; process_... tells of memory and processor time",
    "container_": "Kubernetes tells that",
    "kubelet_": "Kubernetes tells that",
    "kafka_topic_": "kafka_exporter tells that, a program of its own, which works with us",
    "kafka_consumergroup_": "kafka_exporter tells that",
    "kafka_network_requestmetrics_requestqueuetimems": "a request is handled in the turn in which it has come",
    "kafka_network_requestmetrics_responsequeuetimems": "a response is sent in the turn in which it is ready",
    "kafka_network_requestmetrics_responsesendtimems": "the system sends what does not fit into the socket at once",
}
"""Beginnings of names, and why there are none such."""
