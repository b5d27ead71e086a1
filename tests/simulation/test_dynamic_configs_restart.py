"""Every dynamic config of brokers across a restart, its owner acts on what `/config/brokers` says; and at run time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.config.key_table import broker_keys
from barnabas.config.keys import Support, UpdateMode
from barnabas.config.settings import take
from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.kernel.host import Host
from barnabas.log.manager.start_up import LogStartUp
from barnabas.sasl.mechanisms import Login
from barnabas.server.broker import Broker
from barnabas.server.entry import broker_main, coordinator_main
from barnabas.server.logins import listener_logins, login_at_brokers
from barnabas.testing.simulation import Simulation, simulation_seeds
from barnabas.tiered.settings import TieredSettings
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import CreateTopicsRequest, IncrementalAlterConfigsRequest
from barnabas.wire.topics import TopicPartition
from tests.simulation.test_broker_start import PORT, Requests, properties
from tests.unit.server.coordinated import pause

TOPIC = "dynamic"
PARTITIONS = 8
BROKER = 4
SET = 0
PLACES = {"one broker": "2", "all brokers": ""}
"""The name of the config resource, by what it is."""

Look = Callable[[Broker], Any]


def of_log(name: str) -> Look:
    """A config of a log that was there before the restart."""

    def look(broker: Broker) -> Any:
        log = broker.components.storage.log_manager.get_log(TopicPartition(TOPIC, 0))
        assert log is not None
        return getattr(log.config, name)

    return look


def fetchers(broker: Broker) -> int:
    return len(broker.components.replica_manager.fetchers.fetchers)


def producer_expiration_ms(broker: Broker) -> int:
    log = broker.components.storage.log_manager.get_log(TopicPartition(TOPIC, 0))
    assert log is not None
    return log.producers.expiration_ms


def verifies_transactions(broker: Broker) -> bool:
    return broker.components.verifier.is_enabled()


def connection_rate(broker: Broker) -> int:
    return broker.components.storage.connection_rates._broker.bound


def of_cleaner(name: str) -> Look:
    """A setting that the cleaner reads when it looks for work."""

    def look(broker: Broker) -> Any:
        return getattr(broker.components.storage.log_manager.settings, name)

    return look


def of_remote_storage(name: str) -> Look:
    """A setting that remote storage takes; a broker without it has it all the same."""

    def look(broker: Broker) -> Any:
        return getattr(take(TieredSettings, broker.components.config.values), name)

    return look


LOGS: dict[str, tuple[str, Look, Any]] = {
    "compression.gzip.level": ("7", of_log("compression_gzip_level"), 7),
    "compression.lz4.level": ("5", of_log("compression_lz4_level"), 5),
    "compression.type": ("lz4", of_log("compression_type"), "lz4"),
    "compression.zstd.level": ("4", of_log("compression_zstd_level"), 4),
    "log.cleaner.backoff.ms": ("14000", of_cleaner("cleaner_backoff_ms"), 14_000),
    "log.cleaner.dedupe.buffer.size": ("8388608", of_cleaner("cleaner_dedupe_buffer_size"), 8_388_608),
    "log.cleaner.delete.retention.ms": ("7654", of_log("delete_retention_ms"), 7_654),
    "log.cleaner.io.buffer.load.factor": ("0.7", of_cleaner("cleaner_io_buffer_load_factor"), 0.7),
    "log.cleaner.io.buffer.size": ("262144", of_cleaner("cleaner_io_buffer_size"), 262_144),
    "log.cleaner.io.max.bytes.per.second": ("1000000.0", of_cleaner("cleaner_io_max_bytes_per_second"), 1_000_000.0),
    "log.cleaner.max.compaction.lag.ms": ("8654321", of_log("max_compaction_lag_ms"), 8_654_321),
    "log.cleaner.min.cleanable.ratio": ("0.25", of_log("min_cleanable_dirty_ratio"), 0.25),
    "log.cleaner.min.compaction.lag.ms": ("4321", of_log("min_compaction_lag_ms"), 4_321),
    "log.cleaner.threads": ("2", of_cleaner("cleaner_threads"), 2),
    "log.cleanup.policy": ("compact,delete", of_log("cleanup_policy"), ("compact", "delete")),
    "log.flush.interval.messages": ("5000", of_log("flush_messages"), 5000),
    "log.flush.interval.ms": ("60001", of_log("flush_ms"), 60_001),
    "log.index.interval.bytes": ("8192", of_log("index_interval_bytes"), 8192),
    "log.index.size.max.bytes": ("1048576", of_log("segment_index_bytes"), 1_048_576),
    "log.local.retention.bytes": ("12345", of_log("local_retention_bytes"), 12_345),
    "log.local.retention.ms": ("54321", of_log("local_retention_ms"), 54_321),
    "log.message.downconversion.enable": ("false", of_log("message_downconversion_enable"), False),
    "log.message.timestamp.after.max.ms": ("3600001", of_log("message_timestamp_after_max_ms"), 3_600_001),
    "log.message.timestamp.before.max.ms": ("3600002", of_log("message_timestamp_before_max_ms"), 3_600_002),
    "log.message.timestamp.type": ("LogAppendTime", of_log("message_timestamp_type"), "LogAppendTime"),
    "log.retention.bytes": ("123456789", of_log("retention_bytes"), 123_456_789),
    "log.retention.ms": ("7654321", of_log("retention_ms"), 7_654_321),
    "log.roll.jitter.ms": ("1234", of_log("segment_jitter_ms"), 1_234),
    "log.roll.ms": ("7654000", of_log("segment_ms"), 7_654_000),
    "log.segment.bytes": ("1234567", of_log("segment_bytes"), 1_234_567),
    "log.segment.delete.delay.ms": ("4321", of_log("file_delete_delay_ms"), 4_321),
    "message.max.bytes": ("54321", of_log("message_bytes_max"), 54_321),
    "max.connection.creation.rate": ("7777", connection_rate, 7_777),
    "min.insync.replicas": ("2", of_log("min_insync_replicas"), 2),
    "num.replica.fetchers": ("3", fetchers, 3),
    "producer.id.expiration.ms": ("54000", producer_expiration_ms, 54_000),
    "remote.fetch.max.wait.ms": ("777", of_remote_storage("fetch_wait_max_ms"), 777),
    "remote.log.index.file.cache.total.size.bytes": ("1234567", of_remote_storage("index_cache_bytes"), 1_234_567),
    "remote.log.manager.copy.max.bytes.per.second": ("55555", of_remote_storage("copy_bytes_per_second"), 55_555),
    "remote.log.manager.fetch.max.bytes.per.second": ("44444", of_remote_storage("fetch_bytes_per_second"), 44_444),
    "transaction.partition.verification.enable": ("false", verifies_transactions, False),
}
"""A value that is not the default, where its owner has it, and what is found there then."""
OLDER: dict[str, tuple[str, Look, Any]] = {
    "log.message.timestamp.difference.max.ms": ("3600003", of_log("message_timestamp_before_max_ms"), 3_600_003)
}
"""Without effect beside the newer keys."""
LISTENERS = {
    "listeners": "PLAINTEXT://:9092,INSIDE://:9200",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
    "advertised.listeners": "PLAINTEXT://broker2:9092,INSIDE://elsewhere:1",
}
"""Of one broker each; they hold together only."""
CONNECTIONS = {
    "max.connections": ("7", 6),  # less the one that broker 1 has
    "max.connections.per.ip": ("5", 5),
    "max.connections.per.ip.overrides": ("client:4", 4),
    "listener.name.plaintext.max.connections": ("6", 5),
}
"""A bound, and how many connections a client gets at most."""
_SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="broker" password="secret";'
LOGINS_BEFORE = "\n".join(
    [
        f"listeners=PLAINTEXT://:{PORT},INSIDE://:9200",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INSIDE:SASL_PLAINTEXT",
        "inter.broker.listener.name=PLAINTEXT",
        "sasl.enabled.mechanisms=SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-256",
        f"listener.name.inside.scram-sha-256.sasl.jaas.config={_SCRAM}",
        f"listener.name.inside.scram-sha-512.sasl.jaas.config={_SCRAM}",
    ]
)
LOGINS = {
    "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
}
"""Of one broker, with a listener that asks for logins."""
JAAS = "listener.name.inside.scram-sha-256.sasl.jaas.config"
SECRETS = {"sasl.jaas.config"}
"""What is kept encrypted, where a broker has a secret for it."""
OF_TLS = "ssl."
"""What begins so is tried in tests/unit/server/test_tls.py and tests/clients/test_tls.py: the simulator has no TLS."""
OF_TOKENS = {"sasl.login.refresh.window.factor", "sasl.login.refresh.window.jitter"}
"""Of logins by OAUTHBEARER, which ask another server for tokens: tests/unit/link/test_token_source.py has them."""
UNCLEAN = "unclean.leader.election.enable"
RECOVERY = "num.recovery.threads.per.data.dir"


def test_every_dynamic_config_that_acts_is_tried() -> None:
    acting = {
        name
        for name, key in broker_keys().items()
        if key.update_mode is not UpdateMode.READ_ONLY and key.support is Support.ACTIVE and not name.startswith(OF_TLS)
    }
    tried = {*LOGS, *OLDER, *LISTENERS, *LOGINS, *CONNECTIONS, *SECRETS, *OF_TOKENS, RECOVERY, UNCLEAN}
    assert {name for name in tried if not name.startswith("listener.name.")} == acting


def running(simulation: Simulation, brokers: dict[int, Broker], more: str = "") -> None:
    """A coordinator and two brokers, with `more` in their files."""

    def started(broker: Broker) -> None:
        brokers[broker.broker_id] = broker

    simulation.machine("coordinator").start(coordinator_main(CoordinatorConfig("/data", host="0.0.0.0")))
    for broker_id in (1, 2):
        text = f"{properties(broker_id)}\ndefault.replication.factor=2\nmin.insync.replicas=1\n{more}"
        simulation.machine(f"broker{broker_id}").start(broker_main(text, on_started=started))
    simulation.run_until(lambda: knows_both(brokers, 1) and knows_both(brokers, 2), 30)


def knows_both(brokers: dict[int, Broker], broker_id: int) -> bool:
    return broker_id in brokers and set(brokers[broker_id].components.metadata_cache.image.brokers) == {1, 2}


async def make_topic(host: Host) -> None:
    requests = Requests(host, TOPIC, PARTITIONS)
    assignment = CreateTopicsRequest.CreatableReplicaAssignment
    topic = CreateTopicsRequest.CreatableTopic(
        name=TOPIC,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[assignment(partition_index=number, broker_ids=[1, 2]) for number in range(PARTITIONS)],
    )
    controller = (await requests.metadata()).controller_id
    response = await requests.send(controller, CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 5)
    assert response.topics[0].error_code == 0


def alter(place: str, configs: dict[str, str]) -> Callable[[Host], Any]:
    """A main that sets dynamic configs by a request to broker 2."""

    async def main(host: Host) -> None:
        alterable = IncrementalAlterConfigsRequest.AlterableConfig
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=BROKER,
            resource_name=PLACES[place],
            configs=[alterable(name=name, config_operation=SET, value=value) for name, value in configs.items()],
        )
        answer = await Requests(host).send(2, IncrementalAlterConfigsRequest(resources=[resource]), 1)
        assert (answer.responses[0].error_code, answer.responses[0].error_message) == (0, None)

    return main


def restarted(simulation: Simulation, place: str, configs: dict[str, str], more: str = "") -> Broker:
    """Broker 2, after these were set while it ran, and it then crashed and came back. It follows a topic."""
    brokers: dict[int, Broker] = {}
    running(simulation, brokers, more)
    client = simulation.machine("client")
    simulation.run_on(client, make_topic)
    simulation.run_on(client, alter(place, configs))
    machine = simulation.machine("broker2")
    del brokers[2]
    machine.crash()
    machine.restart()
    simulation.run_until(lambda: knows_both(brokers, 2), 60)
    simulation.run_until(lambda: len(brokers[2].components.replica_manager.partitions) == PARTITIONS, 60)
    return brokers[2]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("table", [LOGS, OLDER], ids=["all", "older"])
def test_owners_act_on_dynamic_configs_after_a_restart(table: dict[str, tuple[str, Look, Any]], place: str) -> None:
    with Simulation(1) as simulation:
        broker = restarted(simulation, place, {name: text for name, (text, _, _) in table.items()})
        found = {name: look(broker) for name, (_, look, _) in table.items()}
    assert found == {name: expected for name, (_, _, expected) in table.items()}


def test_listeners_set_dynamically_are_bound_and_advertised_after_a_restart() -> None:
    async def connect(host: Host) -> None:
        for port in (PORT, 9200):
            transport, _ = await host.loop.create_connection(asyncio.Protocol, "broker2", port)
            transport.close()

    with Simulation(1) as simulation:
        broker = restarted(simulation, "one broker", LISTENERS)
        told = broker.components.metadata_cache.image.brokers[2].endpoints
        assert {name: f"{each.host}:{each.port}" for name, each in told.items()} == {
            "PLAINTEXT": f"broker2:{PORT}",
            "INSIDE": "elsewhere:1",
        }
        simulation.run_on(simulation.machine("client"), connect)


def test_mechanisms_set_dynamically_are_those_of_logins_after_a_restart() -> None:
    with Simulation(1) as simulation:
        broker = restarted(simulation, "one broker", LOGINS, LOGINS_BEFORE)
        logins = listener_logins(broker.config, lambda *_: None, bytes)
        assert list(logins["INSIDE"].exchanges) == ["SCRAM-SHA-512", "SCRAM-SHA-256"]
        login = login_at_brokers(broker.config, "INSIDE")
        assert login is not None
        assert login.mechanism == "SCRAM-SHA-512"


def test_a_login_set_dynamically_is_kept_encrypted_and_that_of_the_broker_after_a_restart() -> None:
    # Of a listener that is new then: that of one that is there cannot be changed.
    dynamic = {
        **LISTENERS,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:SASL_PLAINTEXT",
        JAAS: _SCRAM.replace('"secret"', '"another"'),
    }
    mechanisms = LOGINS_BEFORE.partition("\n")[2].partition("\n")[2]
    more = f"{mechanisms}\npassword.encoder.secret=of the castle\npassword.encoder.iterations=1024"
    with Simulation(1) as simulation:
        broker = restarted(simulation, "one broker", dynamic, more)
        login = login_at_brokers(broker.config, "INSIDE")
        assert isinstance(login, Login)
        assert login.password == "another"


def test_logins_cannot_be_set_dynamically_without_a_secret() -> None:
    async def refused(host: Host) -> str:
        alterable = IncrementalAlterConfigsRequest.AlterableConfig
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=BROKER,
            resource_name="2",
            configs=[alterable(name=name, config_operation=SET, value=_SCRAM) for name in SECRETS],
        )
        answer = await Requests(host).send(2, IncrementalAlterConfigsRequest(resources=[resource]), 1)
        assert answer.responses[0].error_code == ErrorCode.INVALID_CONFIG
        return str(answer.responses[0].error_message)

    with Simulation(1) as simulation:
        running(simulation, {})
        told = simulation.run_on(simulation.machine("client"), refused)
    assert "Password encoder secret not configured" in told
    assert '"secret"' not in told


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", CONNECTIONS)
def test_bounds_of_connections_set_dynamically_hold_after_a_restart(name: str, place: str) -> None:
    text, expected = CONNECTIONS[name]

    async def connect(host: Host) -> int:
        transports = [
            (await host.loop.create_connection(asyncio.Protocol, "broker2", PORT))[0] for _ in range(expected + 5)
        ]
        await pause(1.0)
        return sum(not transport.is_closing() for transport in transports)

    with Simulation(1) as simulation:
        simulation.machine("client")
        restarted(simulation, place, {name: text})
        assert simulation.run_on(simulation.machine("client"), connect) == expected


@pytest.mark.parametrize("place", PLACES)
def test_logs_are_loaded_by_as_many_as_is_set_dynamically(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once: list[int] = []
    most: list[int] = []
    load_one = LogStartUp._load_one

    async def counted(start_up: LogStartUp, *arguments: Any) -> Any:
        at_once.append(1)
        most.append(len(at_once))
        try:
            return await load_one(start_up, *arguments)
        finally:
            at_once.pop()

    with Simulation(1) as simulation:
        monkeypatch.setattr(LogStartUp, "_load_one", counted)
        restarted(simulation, place, {RECOVERY: "2"})
    assert max(most) == 2 * 2  # in each of two directories


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", ["true", "false"])
def test_a_controller_that_comes_back_elects_uncleanly_when_that_is_set_dynamically(value: str, place: str) -> None:
    brokers: dict[int, Broker] = {}

    def leader() -> int:
        return brokers[2].components.metadata_cache.image.topics[TOPIC].partitions[0].leader

    def isr() -> tuple[int, ...]:
        return brokers[1].components.metadata_cache.image.topics[TOPIC].partitions[0].isr

    with Simulation(1) as simulation:
        running(simulation, brokers)
        client = simulation.machine("client")
        simulation.run_on(client, make_topic)
        simulation.run_on(client, alter(place, {UNCLEAN: value}))
        simulation.machine("broker2").crash()
        del brokers[2]
        simulation.run_until(lambda: isr() == (1,), 30)
        simulation.machine("broker1").crash()
        simulation.machine("broker2").restart()
        simulation.run_until(lambda: 2 in brokers and TOPIC in brokers[2].components.metadata_cache.image.topics, 60)
        if value == "true":
            simulation.run_until(lambda: leader() == 2, 60)
        else:
            simulation.run_for(20)
            assert leader() != 2


@pytest.mark.parametrize("seed", simulation_seeds(5))
def test_a_follower_spreads_over_more_and_fewer_fetchers_while_it_follows(seed: int) -> None:
    brokers: dict[int, Broker] = {}
    written: list[int] = []

    async def write(host: Host) -> None:
        requests = Requests(host, TOPIC, PARTITIONS)
        for number in range(20 * PARTITIONS):
            written.append(await requests.produce(number % PARTITIONS, b"%d" % number))

    def log_end(broker_id: int, number: int) -> int:
        log = brokers[broker_id].components.storage.log_manager.get_log(TopicPartition(TOPIC, number))
        assert log is not None
        return log.log_end_offset

    with Simulation(seed) as simulation:
        running(simulation, brokers)
        client = simulation.machine("client")
        simulation.run_on(client, make_topic)
        simulation.run_on(client, alter("all brokers", {"min.insync.replicas": "2"}))
        writer = simulation.machine("writer").start(write)
        for count in (4, 2, 5, 1):
            before = len(written)
            simulation.run_on(client, alter("one broker", {"num.replica.fetchers": str(count)}))
            simulation.run_until(lambda count=count: fetchers(brokers[2]) == count, 10)  # type: ignore[misc]
            simulation.run_until(lambda before=before: len(written) >= before + PARTITIONS, 30)  # type: ignore[misc]
        simulation.run_until(lambda: writer.ended, 120)
        writer.result()
        assert [log_end(2, number) for number in range(PARTITIONS)] == [20] * PARTITIONS


def test_bounds_and_expirations_change_while_the_broker_runs() -> None:
    brokers: dict[int, Broker] = {}

    async def connect(host: Host) -> int:
        opened = [(await host.loop.create_connection(asyncio.Protocol, "broker2", PORT))[0] for _ in range(9)]
        await pause(1.0)
        return sum(not transport.is_closing() for transport in opened)

    with Simulation(1) as simulation:
        running(simulation, brokers)
        client = simulation.machine("client")
        simulation.run_on(client, make_topic)
        simulation.run_on(
            client, alter("one broker", {"max.connections.per.ip": "3", "producer.id.expiration.ms": "54000"})
        )
        simulation.run_until(lambda: producer_expiration_ms(brokers[2]) == 54_000, 10)
        assert simulation.run_on(simulation.machine("other"), connect) == 3


def test_bounds_of_connections_are_raised_and_lowered_while_the_broker_runs() -> None:
    """A listener without a bound of its own has the broker's, also a later one."""
    brokers: dict[int, Broker] = {}

    async def connect(host: Host) -> int:
        opened = [(await host.loop.create_connection(asyncio.Protocol, "broker2", PORT))[0] for _ in range(12)]
        await pause(1.0)
        found = sum(not transport.is_closing() for transport in opened)
        for transport in opened:
            transport.abort()
        await pause(1.0)  # until the broker has heard of it
        return found

    with Simulation(1) as simulation:
        running(simulation, brokers, "max.connections=7")
        client, other = simulation.machine("client"), simulation.machine("other")
        found = [simulation.run_on(other, connect)]
        for name, value in (("max.connections", "10"), ("listener.name.plaintext.max.connections", "4")):
            simulation.run_on(client, alter("one broker", {name: value}))
            heard = brokers[2].components.storage.broker_configs
            simulation.run_until(lambda: name in heard.layers.broker, 10)  # noqa: B023 - called in this round only
            found.append(simulation.run_on(other, connect))
    assert [count - found[0] for count in found] == [0, 3, -3]
    assert 1 <= found[2] <= 4  # less those that others have
