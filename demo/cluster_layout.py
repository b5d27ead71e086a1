"""A small cluster as Kafka describes it in ZooKeeper: three brokers, a controller, topics with ids and leaders."""

from __future__ import annotations

from dataclasses import dataclass

from barnabas.coordination.client import Client
from barnabas.coordination.errors import ConnectionLossError, CoordinationError, NoNodeError
from barnabas.coordination.layout import brokers, cluster, configs, controller, topics
from barnabas.coordination.operations import Create
from barnabas.coordination.paths import parent_of
from barnabas.coordination.protocol import CreateMode
from barnabas.kernel.host import Host
from barnabas.kernel.ids import Uuid

BROKER_IDS = (1, 2, 3)
FIRST_PORT = 9092
TOPICS = {"flights": 6, "airlines": 1, "airports": 1, "weather": 2}
"""Partitions of each topic of the main job to come."""


@dataclass(frozen=True, slots=True)
class Znode:
    """One znode as it was read back."""

    path: str
    data: bytes
    version: int
    ephemeral: bool


def _znodes_of_the_cluster(host: Host) -> list[tuple[str, bytes]]:
    now_ms = host.clock.time_ms()
    epoch = controller.encode_controller_epoch(1)
    return [
        (cluster.CLUSTER_ID_PATH, cluster.ClusterId(str(Uuid.generate(host.entropy))).encode()),
        (controller.CONTROLLER_EPOCH_PATH, epoch),
        (controller.CONTROLLER_PATH, controller.ControllerRegistration(BROKER_IDS[0], now_ms).encode()),
    ]


def _broker(host: Host, broker_id: int) -> tuple[str, bytes]:
    endpoint = brokers.BrokerEndpoint("PLAINTEXT", "127.0.0.1", FIRST_PORT + broker_id - 1, "PLAINTEXT")
    registration = brokers.BrokerRegistration((endpoint,), host.clock.time_ms(), rack="laptop")
    return brokers.broker_id_path(broker_id), registration.encode()


def _topic(host: Host, topic: str, partitions: int) -> list[tuple[str, bytes]]:
    """The znodes of one topic, in the order in which the controller would write them."""
    count = len(BROKER_IDS)
    replicas = {
        number: tuple(BROKER_IDS[(number + step) % count] for step in range(count)) for number in range(partitions)
    }
    assignment = topics.TopicAssignment(
        {number: topics.ReplicaAssignment(assigned) for number, assigned in replicas.items()},
        Uuid.generate(host.entropy),
    )
    topic_configs = configs.EntityConfig({"min.insync.replicas": "2"})
    znodes = [
        (configs.config_path(configs.ConfigEntityType.TOPICS, topic), topic_configs.encode()),
        (topics.topic_path(topic), assignment.encode()),
    ]
    for number, assigned in replicas.items():
        state = topics.PartitionState(leader=assigned[0], leader_epoch=0, isr=assigned, controller_epoch=1)
        znodes.append((topics.partition_state_path(topic, number), state.encode()))
    return znodes


async def write(client: Client, host: Host) -> int:
    """Writes the layout, pipelined, and returns the number of znodes that have a payload."""
    ephemeral = {controller.CONTROLLER_PATH, *(brokers.broker_id_path(broker_id) for broker_id in BROKER_IDS)}
    znodes = _znodes_of_the_cluster(host) + [_broker(host, broker_id) for broker_id in BROKER_IDS]
    for topic, partitions in TOPICS.items():
        znodes += _topic(host, topic, partitions)
    parents = sorted({ancestor for path, _ in znodes for ancestor in _ancestors(path)} - {path for path, _ in znodes})
    operations = [Create(path, None) for path in parents]
    for path, data in znodes:
        mode = CreateMode.EPHEMERAL if path in ephemeral else CreateMode.PERSISTENT
        operations.append(Create(path, data, mode=mode))
    operations.sort(key=lambda create: create.path.count("/"))
    for outcome in await client.submit(operations):
        if isinstance(outcome, CoordinationError):
            raise outcome
    return len(znodes)


def _ancestors(path: str) -> list[str]:
    found = []
    while (path := parent_of(path)) != "/":
        found.append(path)
    return found


async def read(client: Client) -> list[Znode]:
    """Every znode but ZooKeeper's own, breadth first. Reads again from the top when the connection was lost meanwhile;
    the client attaches to the session again by itself. Raises other errors.
    """
    while True:
        try:
            return await _read_once(client)
        except ConnectionLossError:
            continue  # the next read waits for the connection, and fails for good when the session is over


async def _read_once(client: Client) -> list[Znode]:
    """Each level of the tree in two bulk reads."""
    found: list[Znode] = []
    level = ["/"]
    while level:
        data_of_level = await client.get_many(level)
        names_of_level = await client.get_children_names_of_many(level)
        below: list[str] = []
        for path, data, names in zip(level, data_of_level, names_of_level, strict=True):
            if isinstance(data, NoNodeError) or isinstance(names, NoNodeError):
                continue  # deleted since its parent was read
            if isinstance(data, CoordinationError):
                raise data
            if isinstance(names, CoordinationError):
                raise names
            found.append(Znode(path, data.data or b"", data.stat.version, bool(data.stat.ephemeral_owner)))
            prefix = "" if path == "/" else path
            below += [f"{prefix}/{name}" for name in sorted(names) if f"{prefix}/{name}" != "/zookeeper"]
        level = below
    return found
