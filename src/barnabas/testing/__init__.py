"""What users and our own tests drive clusters with: clusters in this process with faults by call, the deterministic
simulator, checkers.

`KafkaCluster`, `KafkaContainer`, `SimulatedCluster` and `PipelineTester` are made for tests of users
(`docs/testing.md`); the plugin of pytest finds them here. Nothing is imported before it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from barnabas.testing.kafka_cluster import KafkaCluster as KafkaCluster
    from barnabas.testing.kafka_container import KafkaContainer as KafkaContainer
    from barnabas.testing.real_node import NodeError as NodeError
    from barnabas.testing.real_pipelines import PipelineTester as PipelineTester
    from barnabas.testing.simulated_cluster import SimulatedCluster as SimulatedCluster

_PLACES = {
    "KafkaCluster": "kafka_cluster",
    "KafkaContainer": "kafka_container",
    "NodeError": "real_node",
    "SimulatedCluster": "simulated_cluster",
    "PipelineTester": "real_pipelines",
}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
