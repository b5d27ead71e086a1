"""What three public Grafana boards for Apache Kafka ask Prometheus for, by name, and which of it we do not have."""

from __future__ import annotations

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
"""The large board of KafOpticon."""

GRAFANA: Final = """
    kafka_log_log_logendoffset kafka_log_log_logstartoffset kafka_log_log_size
    kafka_network_requestmetrics_localtimems kafka_network_requestmetrics_remotetimems
    kafka_network_requestmetrics_requestqueuetimems kafka_network_requestmetrics_responsequeuetimems
    kafka_network_requestmetrics_responsesendtimems kafka_server_brokertopicmetrics_bytesin_total
    kafka_server_brokertopicmetrics_bytesout_total kafka_server_brokertopicmetrics_fetchmessageconversions_total
    kafka_server_brokertopicmetrics_messagesin_total
    kafka_server_brokertopicmetrics_producemessageconversions_total
    kafka_server_sessionexpirelistener_zookeeperauthfailures_total
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

BY_TOPIC: Final = frozenset(
    f"kafka_server_brokertopicmetrics_{name}_total"
    for name in (
        "bytesin bytesout failedfetchrequests failedproducerequests messagesin totalfetchrequests totalproducerequests"
    ).split()
)
"""What strimzi's board asks for where `topic!=""`."""

MISSING: Final = {
    "jvm_": "there is no Java machine; process_... tells of memory and processor time",
    "container_": "Kubernetes tells that",
    "kubelet_": "Kubernetes tells that",
    "kafka_topic_": "kafka_exporter tells that, a program of its own, which works with us",
    "kafka_network_requestmetrics_requestqueuetimems": "a request is handled in the turn in which it has come",
    "kafka_network_requestmetrics_responsequeuetimems": "a response is sent in the turn in which it is ready",
    "kafka_network_requestmetrics_responsesendtimems": "the system sends what does not fit into the socket at once",
}
"""Beginnings of names, and why there are none such."""
