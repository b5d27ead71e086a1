"""What docs/commands.md shows in its blocks: each command as it stands, and what it prints, as that stands there too
but for what is another each time (ids, times, ports, room on disks), which is named with each block.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import barnabas
from barnabas.client.partitioners import partition_of_key
from barnabas.testing import KafkaCluster
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import ProduceRequest
from barnabas.wire.record_builder import RecordBatchBuilder
from tests.support import hanging_transactions
from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.documented import COMMAND_SECONDS, Folder, blocks_of, commands_of, placed, prints
from tests.support.retention import RETENTION_DOES_NOT_RUN
from tests.support.waiting import wait_until
from tests.support.wire_calls import call, create_assigned_topic, leaders

PAGE = "commands.md"
OVERRIDES = {
    "zookeeper.session.timeout.ms": 18_000,
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 3,
    "group.initial.rebalance.delay.ms": 0,
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
    "auto.leader.rebalance.enable": "false",
    # So that a broker that stops is missed at once, as one that was killed is after its session.
    "controlled.shutdown.enable": "false",
    **RETENTION_DOES_NOT_RUN,
}
GROUP_SECONDS = 90.0
SESSION_MS = 30_000
NUMBER, SIZE, TIME = r"\d+", r"\d[\d.,]* \w+", r"[\d-]+T[\d:.]+Z"
ADDRESS = r"127\.0\.0\.1:\d+"
EVERYWHERE = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]

ELSEWHERE = {
    "$ barnabas doctor -b kafka.example:9092": "what it finds is this machine's, and one of the two wants brokers at "
    "another address than the loopback: tests/unit/cli/test_doctor.py has each finding",
}
"""Blocks that are not run here, and where instead or why not."""
_taken: set[str] = set()


def block(first: str) -> str:
    """The one block of the page with this first line."""
    (found,) = [each for each in blocks_of(PAGE) if each.startswith(f"{first}\n")]
    _taken.add(first)
    return found


CREATE = block("$ barnabas up --brokers 3 &                       # a cluster on this machine")
DESCRIBE = block("$ barnabas topic describe flights")
COPY = block("$ barnabas topic copy flights flights --to backup:9092 --create --configs --state flights.json")
EXPORT = block("barnabas topic export flights backup/flights --compression zstd")
STATS = block("$ barnabas topic stats flights")
CONFIG = block("$ barnabas config set topic:flights retention.ms=3600000 cleanup.policy+=compact")
QUOTA = block("$ barnabas quota set --user ANONYMOUS --client-id loader producer_byte_rate=5000000")
ACL = block("$ barnabas acl add topic:flights group:board --consumer --principal User:alice")
HANGING = block("$ barnabas txn find-hanging")
PRODUCE = block("$ barnabas produce flights --file flights.txt --key-separator :")
PIPED = block("$ barnabas consume flights --until-end --json | barnabas produce copy --format json")
DELETE = block("$ barnabas records delete flights --before 7d")
DUMP = block("$ barnabas log dump --records data/departures-0")
AUDIT = block("$ barnabas audit data/broker-1/data data/broker-2/data data/broker-3/data")
GROUP = block("$ barnabas group describe readers")
RESET = block("$ barnabas group reset readers --to 2h")
ELECT = block("$ barnabas elect preferred --all")
LOG_DIRS = block("$ barnabas log-dirs describe flights:0")
CONTROLLER = block("$ barnabas controller show --transitions 1")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with broker_cluster(
        tmp_path_factory.mktemp("output"), 3, overrides=OVERRIDES, log_directories=("disk-1", "disk-2")
    ) as running:
        yield running
        running.check_that_none_exited_by_itself()


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Another cluster, of one broker, with its data in `broker-1/data` below its directory."""
    directory = str(tmp_path_factory.mktemp("backup"))
    with KafkaCluster(
        config=hanging_transactions.OVERRIDES, directory=directory, session_timeout_ms=SESSION_MS
    ) as running:
        yield running


@pytest.fixture
def folder(cluster: BrokerCluster, tmp_path: Path) -> Iterator[Folder]:
    """Where the commands of a test are typed; the topic flights goes with it."""
    made = Folder(tmp_path, cluster.bootstrap_servers)
    yield made
    made.run("barnabas topic delete flights --if-exists")


def hold(
    folder: Folder,
    shown: str,
    varying: Mapping[str, str] | None = None,
    *,
    statuses: Sequence[int] = (),
    **variables: object,
) -> None:
    """Types what a block has behind its prompts; it prints what stands below, and ends with 0 or with these."""
    for part in varying or {}:
        assert " ".join(part.split()) in " ".join(shown.split()), f"{part} is not in:\n{shown}"
    commands = commands_of(shown)
    for (command, documented), status in zip(commands, statuses or [0] * len(commands), strict=True):
        found, output = folder.typed(command, COMMAND_SECONDS, **variables)
        assert found == status, f"{command}\n{output}"
        if documented:
            assert prints(documented, output, varying), f"the page has\n{documented}\nand it is\n{output}"


def new_flights(cluster: BrokerCluster, replicas: Sequence[Sequence[int]]) -> None:
    """The topic, with these replicas of its partitions, led by the first of each."""

    def is_made() -> bool:
        try:
            create_assigned_topic(cluster.brokers[1].port, "flights", replicas)
        except RuntimeError as error:
            # No broker knows the one of the test before, and the controller is not done with it.
            if "marked for deletion" not in str(error):
                raise
            return False
        return True

    wait_until(is_made, "flights is made")
    wanted = {partition: each[0] for partition, each in enumerate(replicas)}
    for broker in cluster.brokers.values():
        wait_until(lambda: leaders(broker.port, "flights") == wanted, "all know flights")  # noqa: B023


def fill(cluster: BrokerCluster, counts: Sequence[int], values: Sequence[bytes], old: int = 0, old_ms: int = 0) -> None:
    """So many records in each partition, which have these keys in turn; the first `old` are of this time."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 50})
    for partition, count in enumerate(counts):
        for number in range(count):
            stamp = old_ms if number < old else 0
            producer.produce("flights", values[number % len(values)], partition=partition, timestamp=stamp)
            if number % 10_000 == 0:
                producer.poll(0)
    assert producer.flush(GROUP_SECONDS) == 0


def test_every_block_of_the_page_is_run_here_or_it_is_said_where() -> None:
    there = {each.partition("\n")[0] for each in blocks_of(PAGE)}
    assert there == _taken | ELSEWHERE.keys()
    assert not _taken & ELSEWHERE.keys()


def test_output_that_is_not_the_pages_is_seen() -> None:
    page = "Topic    Since\nflights  12:00\n...\n2 topics\n"
    varying = {"12:00": r"\d\d:\d\d"}
    assert prints(page, "Topic      Since\nflights    13:30\n2 topics\n", varying)
    assert prints(page, "Topic      Since\nflights    13:30\nmore 13:31\nand more\n2 topics\n", varying)
    assert not prints(page, "Topic      Since\nflights    13:30\n2 topics\n")
    assert not prints(page, "Topic      Since\nflights    noon\n2 topics\n", varying)
    assert not prints(page, "Topic      Since\nflights    13:30\n3 topics\n", varying)
    assert not prints(page, "Topic      Since\nflights    13:30\n2 topics\nand more\n", varying)
    assert not prints("2 topics\n", "")
    assert commands_of("$ a b\nc\nd\n$ e\n") == [("a b", "c\nd\n"), ("e", "")]


def test_a_topic_is_made_and_goes_into_files_and_into_another(folder: Folder, cluster: BrokerCluster) -> None:
    up, _, rest = CREATE.partition("\n")
    assert up.startswith("$ barnabas up --brokers 3 &"), "by tests/cluster/test_documented_servers.py"
    hold(folder, rest)
    fill(cluster, [10] * 6, [b"value"])
    folder.run(EXPORT)
    folder.run("barnabas topic create copy --partitions 6")
    hold(folder, PIPED)
    for topic in ("flights-again", "copy"):
        found = json.loads(folder.run(f"barnabas offsets {topic} --json")[0])
        assert [each["end_offset"] for each in found["partitions"]] == [10] * 6
    folder.run("barnabas topic delete copy flights-again")


def test_a_file_is_produced_and_the_topic_copied_to_another_cluster(
    folder: Folder, cluster: BrokerCluster, backup: KafkaCluster
) -> None:
    new_flights(cluster, EVERYWHERE * 2)
    (folder.directory / "flights.txt").write_bytes(_flights([5_550, 4_920, 5_000, 5_000, 4_765, 4_765]))
    hold(folder, PRODUCE, {"0.6 s": r"\d+\.\d s"})
    hold(folder, placed(COPY, {"backup:9092": backup.bootstrap_servers}))
    hold(folder, CONFIG)


def _flights(counts: Sequence[int]) -> bytes:
    """Lines with so many keys of each partition, and values of 41 bytes."""
    keys: dict[int, bytes] = {}
    for number in itertools.count():
        keys.setdefault(partition_of_key(b"%d" % number, len(counts)), b"%d" % number)
        if len(keys) == len(counts):
            break
    return b"".join((keys[partition] + b":%s\n" % (b"v" * 41)) * count for partition, count in enumerate(counts))


def test_statistics_of_a_topic_say_what_is_uneven(folder: Folder, cluster: BrokerCluster) -> None:
    new_flights(cluster, [[3, 1, 2], [1, 2, 3]])
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 50})
    others = [b"%c%c" % pair for pair in itertools.islice(itertools.product(b"BCDE", b"WXYZ"), 13)]
    for partition, count, keys in (
        (0, 106_552, [b"UA"] * 61 + others * 3),
        (1, 10_570, [b"AA"] * 72 + others[:1] * 28),
    ):
        for number in range(count):
            producer.produce("flights", b"v" * 12, keys[number % 100], partition=partition)
            if number % 10_000 == 0:
                producer.flush()
    assert producer.flush(GROUP_SECONDS) == 0
    # Nobody writes meanwhile: rates are tests/cluster/test_commands_data.py's.
    varying = {
        "2.2 MiB": SIZE,
        "229.9 KiB": SIZE,
        "11.6 KiB  510.6": rf"{SIZE} \d+\.\d",
        "1.2 KiB  53.8": rf"{SIZE} \d+\.\d",
    }
    hold(folder, STATS, varying)


def test_quotas_are_set_and_acls_added_and_checked(folder: Folder) -> None:
    hold(folder, QUOTA)
    hold(folder, ACL, statuses=[0, 1])


def test_a_hanging_transaction_is_found_and_aborted(folder: Folder, backup: KafkaCluster) -> None:
    hanging_transactions.prepare(int(backup.bootstrap_servers.rpartition(":")[2]))
    varying = {"1       2      0  2026-11-21T09:00:00.000Z": f"1 {NUMBER} 0 {TIME}", "producer 2": f"producer {NUMBER}"}
    hold(folder, HANGING, varying, BARNABAS_BOOTSTRAP_SERVERS=backup.bootstrap_servers)


def test_old_records_would_be_deleted(folder: Folder, cluster: BrokerCluster) -> None:
    new_flights(cluster, [[1, 2, 3]])
    fill(cluster, [5_550], [b"value"], 4_021, _ms_ago(days=8))
    hold(folder, DELETE)


def _ms_ago(days: float) -> int:
    return int((time.time() - days * 86_400) * 1_000)


def test_the_log_of_a_partition_is_dumped(folder: Folder, backup: KafkaCluster) -> None:
    (folder.directory / "data").symlink_to(Path(backup.directory, "broker-1", "data"))
    servers = {"BARNABAS_BOOTSTRAP_SERVERS": backup.bootstrap_servers}
    folder.run("barnabas topic create departures --partitions 1", **servers)
    folder.run("barnabas produce departures --key-separator :", 'UA:{"flight":1}\nAA:{"flight":2}\n', **servers)
    varying = {
        "q49SABCSSGSjj-2VbI5_iw": r"[\w-]{22}",
        "7/0 0..1": rf"{NUMBER}/0 0\.\.1",
        "2026-11-21T10:43:37.374Z": TIME,
    }
    hold(folder, DUMP, varying)


def test_damage_in_the_logs_of_three_brokers_is_found(folder: Folder) -> None:
    with KafkaCluster(3, directory=str(folder.directory / "data"), session_timeout_ms=SESSION_MS) as running:
        ports = {broker_id: int(running.address(broker_id).rpartition(":")[2]) for broker_id in running.broker_ids}
        running.create_topic("flights", partitions=3, config={"segment.bytes": 30 * _BATCH_BYTES})
        led_by = leaders(ports[1], "flights")
        for partition, number in itertools.product(range(3), range(50)):
            _append(ports[led_by[partition]], partition, number)
    for offsets in (folder.directory / "data").glob("broker-*/data/__consumer_offsets-*"):
        shutil.rmtree(offsets)
    log = folder.directory / "data/broker-2/data/flights-2/00000000000000000060.log"
    damaged = bytearray(log.read_bytes())
    damaged[_BATCH_BYTES - 2] ^= 1
    log.write_bytes(damaged)
    varying = {"0x5a0c2c1e": "0x[0-9a-f]+", "0x1e40f3c7": "0x[0-9a-f]+"}
    hold(folder, placed(AUDIT, {"/home/me": folder.directory}), varying, statuses=[1])


_BATCH_BYTES = 61 + 2 * 8


def _append(port: int, partition: int, number: int) -> None:
    """A batch of two records of a byte each, from this broker on."""
    batch = RecordBatchBuilder()
    for _ in range(2):
        batch.append(_ms_ago(days=0), None, b"%d" % (number % 10))
    records = bytes(batch.build())
    assert len(records) == _BATCH_BYTES
    data = ProduceRequest.PartitionProduceData(index=partition, records=records)
    topic = ProduceRequest.TopicProduceData(name="flights", partition_data=[data])
    answer = call(port, ApiKey.PRODUCE, 8, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]))
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_a_group_is_shown_and_would_go_back(folder: Folder, cluster: BrokerCluster) -> None:
    new_flights(cluster, [[1, 2, 3], [2, 3, 1]])
    fill(cluster, [110, 116], [b"value"], 40, _ms_ago(days=1))
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "readers",
            "client.id": "reader-0",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe(["flights"])

        def has_all() -> bool:
            consumer.poll(0.1)
            return len(consumer.assignment()) == 2

        wait_until(has_all, "the member has both partitions", GROUP_SECONDS)
        consumer.commit(offsets=[TopicPartition("flights", 0, 102)], asynchronous=False)
        varying = {
            "broker 3 at 127.0.0.1:9094": f"broker [123] at {ADDRESS}",
            "reader-0-1c5c1108-fcd2-4b99-9915-66cb1abc74fe": "reader-0-[0-9a-f-]{36}",
        }
        hold(folder, GROUP, varying)
    finally:
        consumer.close()
    hold(folder, RESET)
    folder.run("barnabas group delete readers")


def test_the_preferred_replica_leads_again(folder: Folder, cluster: BrokerCluster) -> None:
    new_flights(cluster, [[1, 2, 3], [2, 1, 3]])
    folder.typed("barnabas elect preferred --all")
    first = {"topic": "flights", "partition": 1, "replicas": [1, 2, 3]}
    folder.write("first.json", json.dumps({"version": 1, "partitions": [first]}))
    folder.run("barnabas reassign execute first.json")
    hold(folder, ELECT, {"5 partitions": f"{NUMBER} partitions"})


def test_log_directories_show_what_is_copied_between_them(folder: Folder, cluster: BrokerCluster) -> None:
    new_flights(cluster, [[1, 2]])
    fill(cluster, [10_000], [b"v" * 1_000])
    (here,) = cluster.brokers[1].directory.glob("disk-*/flights-0")
    other = next(each for each in cluster.brokers[1].directory.glob("disk-*") if each != here.parent)
    move = {"topic": "flights", "partition": 0, "replicas": [1, 2], "log_dirs": [str(other), "any"]}
    folder.write("move.json", json.dumps({"version": 1, "partitions": [move]}))
    rate = "replica.alter.log.dirs.io.max.bytes.per.second"
    folder.run(f"barnabas config set broker:1 {rate}=10000 && barnabas reassign execute move.json --no-wait")
    try:
        wait_until(lambda: any(other.glob("flights-0.*-future")), "the copy has begun")
        room = {f"{each} 63.3 GiB 252.0 GiB": f"{NUMBER} {SIZE} {SIZE} {SIZE}" for each in _IN_DIRECTORIES}
        base = cluster.brokers[1].directory.parent
        places = {
            f"/broker-{broker}/disk-{disk}": rf"{base}/broker-{broker}/disk-\d"
            for broker, disk in itertools.product([1, 2, 3], [1, 2])
        }
        hold(folder, LOG_DIRS, {**room, **places, "9.6 MiB": SIZE, "976.5 KiB  9010": f"{SIZE} {NUMBER}"})
    finally:
        folder.run(f"barnabas reassign cancel --all && barnabas config unset broker:1 {rate}")


_IN_DIRECTORIES = ("2 976.5 KiB", "1 9.6 MiB", "1 0 B", "0 0 B")


def test_a_broker_that_is_gone_is_seen_in_a_topic_and_by_the_controller(folder: Folder, cluster: BrokerCluster) -> None:
    new_flights(cluster, [[1, 3, 2], [2, 1, 3], [3, 1, 2], [1, 2, 3], [2, 3, 1], [3, 2, 1]])
    folder.run("barnabas config set topic:flights retention.ms=100000")

    def is_controlled_by_another() -> bool:
        if json.loads(folder.run("barnabas controller show --json")[0])["id"] != 2:
            return True
        folder.run(f"barnabas controller move --zookeeper {cluster.coordinator.address}")
        return False

    wait_until(is_controlled_by_another, "the controller is not broker 2")
    cluster.brokers[2].stop()
    try:

        def is_missed() -> bool:
            found = json.loads(folder.run("barnabas topic describe flights --json")[0])
            return all(2 not in each["isr"] for each in found["topics"][0]["partitions"])

        wait_until(is_missed, "broker 2 is missed")
        hold(folder, DESCRIBE, {"rWnskaxLTp6PBGSKhzZ6_A": r"[\w-]{22}"})
        varying = {
            "broker 3 at 127.0.0.1:9094": f"broker [13] at {ADDRESS}",
            "0.1.0": re.escape(barnabas.__version__),
            "Epoch 1": f"Epoch {NUMBER}",
            "2026-11-21 10:02:19.481 UTC, 7 min 24 s ago": r"[\d-]+ [\d:.]+ UTC, .* ago",
            "nothing": ".*",
            "0 events": rf"{NUMBER} events?.*",
            "0 to broker 1, 0 to broker 3": f"{NUMBER} to broker 1, {NUMBER} to broker 3",
            "10:09:43.194 flights-4": r"[\d-]*.?[\d:.]+ [\w-]+-\d",
            "10:09:43.239 flights-5": r"[\d-]*.?[\d:.]+ [\w-]+-\d",
            "3      1  3,1": "[13] 1 ([13],)?[13]",
        }
        hold(folder, CONTROLLER, varying)
    finally:
        cluster.brokers[2].start()
