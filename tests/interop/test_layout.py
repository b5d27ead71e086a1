"""Kafka's znodes: Apache Kafka 3.9.1 writes what we read and write again alike, and picks up what we write."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.coordination.client import Client
from barnabas.coordination.layout import access, acls, admin, brokers, cluster, configs, controller, topics
from barnabas.coordination.operations import Create
from barnabas.coordination.paths import child_of
from barnabas.coordination.protocol import CreateMode
from barnabas.kernel.ids import Uuid
from barnabas.kernel.real_host import real_host
from barnabas.kernel.timers import Timers
from barnabas.security.acl_rules import AclRules
from barnabas.security.acl_store import AclDeletion, AclStore
from barnabas.security.acls import (
    AccessControlEntry,
    AccessControlEntryFilter,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from barnabas.wire.topics import TopicPartition
from tests.support.apache_kafka import (
    CONFIG_COMMAND,
    TOPIC_COMMAND,
    ApacheKafkaBroker,
    apache_kafka_broker,
    run_tool,
    tool_run,
)
from tests.support.waiting import wait_until
from tests.support.zookeeper import ZooKeeperServer
from tests.unit.coordination.client_suite import client_of

Run = Callable[[Coroutine[Any, Any, Any]], Any]
CHROOT = "/layout"
ACL_COMMAND = "kafka.admin.AclCommand"


@pytest.fixture(scope="module")
def kafka(
    oracle_jars: Path, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheKafkaBroker]:
    """A broker with an authorizer, dynamic configs, quotas, a SCRAM user and ACLs."""
    overrides = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
        "broker.rack": "rack-1",
    }
    directory = tmp_path_factory.mktemp("layout-kafka")
    with apache_kafka_broker(directory, zookeeper_server.address + CHROOT, overrides=overrides) as broker:
        server = ["--bootstrap-server", broker.address]
        run_tool(
            TOPIC_COMMAND,
            [*server, "--create", "--topic", "kept", "--partitions", "2", "--config", "cleanup.policy=compact"],
        )
        for entity, added in (
            (["--entity-type", "users", "--entity-name", "ali ce"], "SCRAM-SHA-256=[password=x]"),
            (
                ["--entity-type", "users", "--entity-default", "--entity-type", "clients", "--entity-name", "c"],
                "request_percentage=50",
            ),
            (["--entity-type", "brokers", "--entity-default"], "log.cleaner.threads=2"),
        ):
            run_tool(CONFIG_COMMAND, [*server, "--alter", *entity, "--add-config", added])
        literal = ["--topic", "kept"]
        run_tool(ACL_COMMAND, [*server, "--add", "--allow-principal", "User:a", "--operation", "Read", *literal])
        prefixed = ["--topic", "pre", "--resource-pattern-type", "prefixed"]
        run_tool(ACL_COMMAND, [*server, "--add", "--deny-principal", "User:b", "--operation", "All", *prefixed])
        yield broker


async def znodes(client: Client) -> dict[str, bytes]:
    """Every znode that has data."""
    found: dict[str, bytes] = {}
    level = ["/"]
    while level:
        for path, each in zip(level, await client.get_many(level), strict=True):
            if not isinstance(each, Exception) and each.data:
                found[path] = each.data
        children = await client.get_children_names_of_many(level)
        level = [
            child_of(path, name)
            for path, names in zip(level, children, strict=True)
            if isinstance(names, list)
            for name in names
        ]
    return found


def rewritten(path: str, data: bytes) -> bytes:
    """The payload, decoded and encoded again by the codec of its path."""
    parent = path.rsplit("/", 1)[0]
    if path == controller.CONTROLLER_EPOCH_PATH:
        return controller.encode_controller_epoch(controller.decode_controller_epoch(data))
    if parent in {acls.LITERAL_ACL_CHANGES_PATH, acls.EXTENDED_ACL_CHANGES_PATH}:
        return acls.encode_acl_change(acls.decode_acl_change(data, path))
    if parent == brokers.BROKER_IDS_PATH:
        return brokers.BrokerRegistration.decode(data, path).encode()
    if parent == topics.TOPICS_PATH:
        return topics.TopicAssignment.decode(data, path).encode()
    if path.startswith(topics.TOPICS_PATH) and path.endswith("/state"):
        return topics.PartitionState.decode(data, path).encode()
    if parent == configs.CONFIG_CHANGES_PATH:
        return configs.ConfigChange.decode(data, path).encode()
    if path.startswith(configs.CONFIG_PATH):
        return configs.EntityConfig.decode(data, path).encode()
    if path.startswith(acls.LITERAL_ACLS_PATH):
        return acls.ResourceAcls.decode(data, path).encode()
    single: dict[str, Any] = {
        controller.CONTROLLER_PATH: controller.ControllerRegistration,
        cluster.CLUSTER_ID_PATH: cluster.ClusterId,
        cluster.FEATURE_PATH: cluster.FinalizedFeatures,
        cluster.PRODUCER_ID_BLOCK_PATH: cluster.ProducerIdBlock,
    }
    return bytes(single[path].decode(data, path).encode())


def test_all_that_kafka_wrote_is_read_and_written_alike(
    run: Run, kafka: ApacheKafkaBroker, zookeeper_server: ZooKeeperServer
) -> None:
    async def scenario() -> None:
        async with client_of(zookeeper_server.address + CHROOT) as client:
            found = await znodes(client)
            assert {path: rewritten(path, data) for path, data in found.items()} == found
            assert {
                "/brokers/ids/0",
                "/brokers/topics/kept/partitions/1/state",
                "/config/users/ali%20ce",
                "/config/users/<default>/clients/c",
                "/kafka-acl/Topic/kept",
                "/kafka-acl-extended/prefixed/Topic/pre",
                "/kafka-acl-changes/acl_changes_0000000000",
                "/kafka-acl-extended-changes/acl_changes_0000000000",
                "/config/changes/config_change_0000000000",
            } <= set(found)
            for path in access.PERSISTENT_PATHS:
                assert await client.exists(path) is not None

    run(scenario())


def test_kafka_takes_up_a_topic_a_config_and_a_reassignment_that_we_write(
    run: Run, kafka: ApacheKafkaBroker, zookeeper_server: ZooKeeperServer
) -> None:
    async def scenario(topic: str) -> None:
        async with client_of(zookeeper_server.address + CHROOT) as client:
            path = configs.config_path(configs.ConfigEntityType.TOPICS, topic)
            assigned = {0: topics.ReplicaAssignment((0,)), 1: topics.ReplicaAssignment((0,))}
            topic_id = Uuid(uuid.uuid4().bytes)
            entity = configs.EntityConfig({"retention.ms": "123456"})
            change = configs.ConfigChange(f"topics/{topic}").encode()
            for outcome in await client.submit(
                [
                    Create(path, entity.encode()),
                    Create(topics.topic_path(topic), topics.TopicAssignment(assigned, topic_id).encode()),
                    Create(configs.config_change_path(), change, mode=CreateMode.PERSISTENT_SEQUENTIAL),
                ]
            ):
                assert not isinstance(outcome, Exception)
            states = [topics.partition_state_path(topic, number) for number in (0, 1)]
            async with asyncio.timeout(60):
                while not all([await client.exists(state) for state in states]):
                    await asyncio.sleep(0.02)
            state = topics.PartitionState.decode((await client.get_data(states[0])).data, states[0])
            assert (state.leader, state.isr) == (0, (0,))
            describe = ["--bootstrap-server", kafka.address, "--describe", "--topic", topic]
            expected = (f"TopicId: {topic_id}", "PartitionCount: 2", "retention.ms=123456")

            def is_described() -> bool:
                """Once the broker has been told of the topic, and of its config."""
                said = tool_run(TOPIC_COMMAND, describe).output
                return all(text in said for text in expected)

            await asyncio.to_thread(wait_until, is_described, f"{topic} is described with {expected}")
            # A reassignment to where the replicas are is done at once: Kafka removes what it has read and carried out.
            wanted = admin.Reassignment({TopicPartition(topic, 0): (0,)})
            await client.create(admin.REASSIGN_PARTITIONS_PATH, wanted.encode())
            await client.create(
                admin.PREFERRED_REPLICA_ELECTION_PATH,
                admin.PreferredReplicaElection((TopicPartition(topic, 1),)).encode(),
            )
            async with asyncio.timeout(60):
                for taken in (admin.REASSIGN_PARTITIONS_PATH, admin.PREFERRED_REPLICA_ELECTION_PATH):
                    while await client.exists(taken) is not None:
                        await asyncio.sleep(0.02)
            await client.create(admin.delete_topic_path(topic))
            async with asyncio.timeout(60):
                while await client.exists(topics.topic_path(topic)) is not None:
                    await asyncio.sleep(0.02)

    run(scenario(f"ours-{uuid.uuid4().hex}"))


def test_kafka_takes_up_acls_that_we_write(
    run: Run, kafka: ApacheKafkaBroker, zookeeper_server: ZooKeeperServer
) -> None:
    async def scenario() -> None:
        async with client_of(zookeeper_server.address + CHROOT) as client:
            resource = acls.AclResource(acls.AclResourceType.GROUP, "ours", acls.AclPatternType.PREFIXED)
            rules = acls.ResourceAcls((acls.AclEntry("User:carol", "Allow", "*", "Describe"),))
            path = acls.acls_path(resource)
            if await client.exists(path) is not None:
                await client.delete(path)
            await client.create(path, rules.encode())
            await client.create(
                acls.acl_change_path(resource.pattern_type),
                acls.encode_acl_change(resource),
                mode=CreateMode.PERSISTENT_SEQUENTIAL,
            )
            expected = (
                "resourceType=GROUP, name=ours, patternType=PREFIXED",
                "principal=User:carol, host=*, operation=DESCRIBE, permissionType=ALLOW",
            )

            def is_listed() -> bool:
                said = run_tool(ACL_COMMAND, ["--bootstrap-server", kafka.address, "--list"])
                return all(text in said for text in expected)

            await asyncio.to_thread(wait_until, is_listed, f"{expected} is listed")

    run(scenario())


def test_kafka_and_we_change_the_same_acls(
    run: Run, kafka: ApacheKafkaBroker, zookeeper_server: ZooKeeperServer
) -> None:
    pattern = ResourcePattern(ResourceType.GROUP, f"shared-{uuid.uuid4().hex}", PatternType.PREFIXED)
    ours = AccessControlEntry("User:carol", "10.0.0.1", AclOperation.DESCRIBE, AclPermissionType.ALLOW)
    kafkas = AccessControlEntry("User:dave", "*", AclOperation.READ, AclPermissionType.DENY)
    mine = AclBindingFilter(ResourcePatternFilter(*pattern))

    async def scenario() -> None:
        async def tool(*arguments: str) -> str:
            return await asyncio.to_thread(run_tool, ACL_COMMAND, ["--bootstrap-server", kafka.address, *arguments])

        loop = asyncio.get_running_loop()
        async with client_of(zookeeper_server.address + CHROOT) as client, real_host("acls", loop) as host:
            rules = AclRules()
            timers = Timers(loop)
            try:
                store = AclStore(host, client, rules, timers=timers, logger=logging.getLogger("acls"))
                await store.create_paths()
                assert await store.create([AclBinding(pattern, ours)]) == [None]
                named = ["--group", pattern.name, "--resource-pattern-type", "prefixed"]
                await tool("--add", "--deny-principal", "User:dave", "--operation", "Read", *named)
                await store.load()
                assert rules.entries(pattern) == {ours, kafkas}
                allowed = AccessControlEntry("User:a", "*", AclOperation.READ, AclPermissionType.ALLOW)
                assert rules.entries(ResourcePattern(ResourceType.TOPIC, "kept")) == {allowed}
                ((deleted,),) = await store.delete([mine._replace(entry=AccessControlEntryFilter("User:dave"))])
                assert deleted == AclDeletion(AclBinding(pattern, kafkas))
                # Kafka hears of it from the announcement, soon.
                listing = ["--bootstrap-server", kafka.address, "--list", *named]
                await asyncio.to_thread(
                    wait_until, lambda: "User:dave" not in run_tool(ACL_COMMAND, listing), "Kafka has heard of it"
                )
                listed = await tool("--list", *named)
                assert "principal=User:carol, host=10.0.0.1, operation=DESCRIBE, permissionType=ALLOW" in listed
                assert "User:dave" not in listed
                await tool("--remove", "--force", *named)
                await store.refresh([pattern])
                assert not rules.entries(pattern)
            finally:
                timers.close()

    run(scenario())


def test_registration_says_what_the_broker_was_told(
    run: Run, kafka: ApacheKafkaBroker, zookeeper_server: ZooKeeperServer
) -> None:
    async def scenario() -> None:
        async with client_of(zookeeper_server.address + CHROOT) as client:
            data = (await client.get_data(brokers.broker_id_path(0))).data
            registration = brokers.BrokerRegistration.decode(data, brokers.broker_id_path(0))
            assert registration.rack == "rack-1"
            assert [endpoint.port for endpoint in registration.endpoints] == [kafka.port]
            assert json.loads(registration.encode())["port"] == kafka.port

    run(scenario())
