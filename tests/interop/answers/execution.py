"""Runs steps against one broker, and writes down what it answers, comparable with what another broker does."""

from __future__ import annotations

import re
import select
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from barnabas.kernel.ids import Uuid
from barnabas.wire import catalogue
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.codec import request_encoder, response_decoder
from barnabas.wire.errors import ErrorCode
from tests.interop.answers.steps import ZERO_UUID, Ref, Step
from tests.support.waiting import wait_until
from tests.support.wire_messages import to_message, to_tree
from tests.support.wire_values import Tree

ANSWER_SECONDS: Final = 10.0
_CLIENT_ID: Final = "answers"
_MAY_BE_PARKED: Final = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
_MEMBER_ID: Final = re.compile(r"(?:answers|static)?-?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_METADATA_VERSION: Final = 12
_SIZE_BYTES: Final = 4
_UNKNOWN_TAGS: Final = b"\x02\x64\x03abc\xc8\x01\x00"
"""Two of them: tag 100 of three bytes, and tag 200 of none."""
PARKED: Final = "parked"
SILENT: Final = "no answer"
"""Some requests make Apache Kafka fail in a way that leaves them without an answer."""
CLOSED: Final = "the connection was closed"
_A_MESSAGE: Final = "<a message>"
Answer = Any
"""A tree of what was answered, or one of the words above."""


class _Connection:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def send(self, key: ApiKey, version: int, message: Any, *, has_unknown_tag: bool = False) -> None:
        self._correlation_id += 1
        frame = b"".join(request_encoder(key, version, _CLIENT_ID)(self._correlation_id, message))
        if has_unknown_tag:
            assert frame.endswith(b"\0")  # it ends with the count of its tagged fields
            frame = frame[_SIZE_BYTES:-1] + _UNKNOWN_TAGS
            frame = struct.pack(">i", len(frame)) + frame
        self._socket.sendall(frame)

    def is_answered(self, seconds: float) -> bool:
        return bool(select.select([self._socket], [], [], seconds)[0])

    def receive(self, key: ApiKey, version: int) -> Any:
        """The response; None where the broker hung up. TimeoutError after `ANSWER_SECONDS`."""
        try:
            size = struct.unpack(">i", self._exactly(4))[0]
            data = self._exactly(size)
        except ConnectionError:
            return None
        correlation_id = struct.unpack_from(">i", data)[0]
        if correlation_id != self._correlation_id:
            raise AssertionError(f"the answer to {correlation_id} came for {self._correlation_id}")
        return response_decoder(key, version)(data, 0, len(data))[0]

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            piece = self._socket.recv(count - len(found))
            if not piece:
                raise ConnectionError
            found += piece
        return bytes(found)


@dataclass(slots=True)
class _Waiting:
    step: Step
    connection: _Connection


@dataclass(slots=True)
class Run:
    """One run of steps on one broker. `prefix` begins all names; runs on other brokers have one of the same length."""

    port: int
    prefix: str
    patience_seconds: float
    """After how long a request that may be parked counts as such."""
    _answers: dict[int, Any] = field(default_factory=dict)
    """The messages, by the number of their steps."""
    _waiting: list[_Waiting] = field(default_factory=list)
    _topic_ids: dict[str, bytes] = field(default_factory=dict)
    """The last known id of each topic."""
    _id_names: dict[bytes, str] = field(default_factory=dict)
    _member_ids: dict[str, str] = field(default_factory=dict)
    _silent: set[int] = field(default_factory=set)
    _connection: _Connection | None = None

    def transcript(self, steps: Sequence[Step]) -> list[Answer]:
        """One answer for each step, whenever it came, with everything that is a broker's own choice replaced."""
        try:
            for step in steps:
                self._run(step)
                self._take_late(0.0)
            self._take_late(self.patience_seconds)
            return [self._shown(step) for step in steps]
        finally:
            for waiting in self._waiting:
                waiting.connection.close()
            if self._connection is not None:
                self._connection.close()

    # Asking.

    def _run(self, step: Step) -> None:
        message = to_message(catalogue.request(step.key), self._resolved(step.tree))
        connection = self._connection or _Connection(self.port)
        self._connection = None
        connection.send(step.key, step.version, message, has_unknown_tag=step.has_unknown_tag)
        if step.key in _MAY_BE_PARKED and not connection.is_answered(self.patience_seconds):
            self._waiting.append(_Waiting(step, connection))
            return
        if self._take(step, connection):
            self._connection = connection
        self._settle(step)

    def _take(self, step: Step, connection: _Connection) -> bool:
        try:
            answer = connection.receive(step.key, step.version)
        except TimeoutError:
            self._silent.add(step.number)
            answer = None
        self._answers[step.number] = answer
        if answer is None:
            connection.close()
            return False
        self._notice(step, answer)
        return True

    def _take_late(self, seconds: float) -> None:
        for waiting in list(self._waiting):
            if waiting.connection.is_answered(seconds):
                self._waiting.remove(waiting)
                if self._take(waiting.step, waiting.connection):
                    waiting.connection.close()

    def _call(self, key: ApiKey, version: int, tree: Tree) -> Any:
        """A request beside the steps."""
        connection = self._connection or _Connection(self.port)
        self._connection = connection
        connection.send(key, version, to_message(catalogue.request(key), tree))
        return connection.receive(key, version)

    def _resolved(self, value: Any) -> Any:
        match value:
            case Ref("topic id", str(name)):
                return self._topic_ids.get(name.replace("@", self.prefix), ZERO_UUID)
            case Ref(kind, int(number)):
                answer = self._answers.get(number)
                missing: Any = "" if kind == "member_id" else -1
                return missing if answer is None else getattr(answer, kind)
            case str():
                return value.replace("@", self.prefix)
            case dict():
                return {name: self._resolved(each) for name, each in value.items()}
            case list():
                return [self._resolved(each) for each in value]
            case _:
                return value

    # What is to be over before the next step.

    def _settle(self, step: Step) -> None:
        answer = self._answers.get(step.number)
        if answer is None:
            return
        if step.key is ApiKey.CREATE_TOPICS:
            late = [topic.name for topic in answer.topics if topic.error_code == ErrorCode.REQUEST_TIMED_OUT]
            self._await_leaders(late)
            self._learn_ids()
        elif step.key is ApiKey.CREATE_PARTITIONS:
            ended = (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT)
            self._await_leaders([topic.name for topic in answer.results if topic.error_code in ended])
        elif step.key is ApiKey.METADATA:
            # A topic that is made because somebody asked for it comes some time after the answer.
            coming = (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            made = [topic.name for topic in answer.topics if topic.name and topic.error_code in coming]
            if made and step.tree.get("allow_auto_topic_creation", True):
                self._await_leaders(made)
                self._learn_ids()
        elif step.key is ApiKey.DELETE_TOPICS:
            ended = (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT)
            for topic in answer.responses:
                if topic.name is not None and topic.error_code in ended:
                    wait_until(lambda: self._is_gone(topic.name), f"{topic.name} is deleted")  # noqa: B023

    def _await_leaders(self, names: list[str]) -> None:
        if not names:
            return
        tree = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False}

        def are_led() -> bool:
            topics = self._call(ApiKey.METADATA, 8, tree).topics
            return all(
                topic.error_code == ErrorCode.NONE and all(partition.leader_id >= 0 for partition in topic.partitions)
                for topic in topics
            )

        wait_until(are_led, f"{names} have leaders")

    def _is_gone(self, name: str) -> bool:
        """Whether the name is free: its topic is no longer known, nor marked for deletion."""
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        tree = {"topics": [topic], "timeout_ms": 1_000, "validate_only": True}
        (result,) = self._call(ApiKey.CREATE_TOPICS, 4, tree).topics
        return bool(result.error_code != ErrorCode.TOPIC_ALREADY_EXISTS)

    def _learn_ids(self) -> None:
        answer = self._call(ApiKey.METADATA, _METADATA_VERSION, {"topics": None, "allow_auto_topic_creation": False})
        for topic in answer.topics:
            topic_id = bytes(topic.topic_id)
            if topic.name.startswith(self.prefix) and topic_id not in self._id_names:
                self._topic_ids[topic.name] = topic_id
                earlier = sum(name.endswith(f" of {topic.name}>") for name in self._id_names.values())
                self._id_names[topic_id] = f"<id {earlier} of {topic.name}>"

    # What is a broker's own.

    def _notice(self, step: Step, answer: Any) -> None:
        if step.key is ApiKey.JOIN_GROUP and _MEMBER_ID.search(answer.member_id):
            self._member_ids.setdefault(answer.member_id, f"<member {step.number}>")

    def _shown(self, step: Step) -> Answer:
        if step.number not in self._answers:
            return PARKED
        answer = self._answers[step.number]
        if answer is None:
            return SILENT if step.number in self._silent else CLOSED
        return self._of_everybody(step, to_tree(answer, step.version))

    def _of_everybody(self, step: Step, value: Any, name: str = "") -> Any:
        match value:
            case {"name": str(config)} if config in NOT_ALIKE and step.key is ApiKey.DESCRIBE_CONFIGS:
                return config
            case dict():
                return {
                    key: self._of_everybody(step, each, key)
                    for key, each in value.items()
                    if key not in _IGNORED.get(step.key, _NOTHING) and key not in _ALWAYS_IGNORED
                }
            case list():
                shown = [self._of_everybody(step, each, name) for each in value if self._is_ours(step, name, each)]
                # Kafka answers in the order of its hash tables.
                return sorted(_merged(shown, step), key=_order)
            case bytes() | bytearray() | memoryview() if len(value) == len(ZERO_UUID):
                return self._text(self._id_names.get(bytes(value), repr(value)))
            case bytes() | bytearray() | memoryview():
                is_old = step.key is ApiKey.FETCH and step.version < _RECORD_BATCHES_SINCE
                return _without_filler(bytes(value)) if is_old else bytes(value)
            case None if name == "records":
                return b""
            case int() if name == "producer_id" and step.key is ApiKey.INIT_PRODUCER_ID:
                return min(value, 0)  # the next one, whatever that is
            case str():
                # Errors are told in words of our own.
                return _A_MESSAGE if name == "error_message" and value else self._text(value)
            case _:
                return value

    def _is_ours(self, step: Step, name: str, entry: Any) -> bool:
        """Leaves out what other runs have made, where everything is listed."""
        match step.key, name, entry:
            case (ApiKey.METADATA, "topics", {"name": str(topic)}) if (
                step.tree.get("topics") is None or not step.tree["topics"]
            ):
                return topic.startswith(self.prefix)
            case (ApiKey.OFFSET_FETCH, "topics", {"name": str(topic)}):
                return topic.startswith(self.prefix) or not topic.startswith("r")
            case (ApiKey.LIST_GROUPS, "groups", {"group_id": str(group)}):
                return group.startswith(self.prefix)
            case (ApiKey.DESCRIBE_CONFIGS, "configs", {"name": str(config)}):
                return not config.startswith("barnabas.")
            case (ApiKey.DESCRIBE_LOG_DIRS, "topics", {"name": str(topic)}):
                return topic.startswith(self.prefix)
            case _:
                return True

    def _text(self, text: str) -> str:
        for topic_id, name in self._id_names.items():
            text = text.replace(str(Uuid(topic_id)), name)
        for member_id, name in self._member_ids.items():
            text = text.replace(member_id, name)
        return _MEMBER_ID.sub("<a member>", text).replace(self.prefix, "@")


def _order(entry: Any) -> str:
    """What an entry is about comes before what is said of it."""
    if not isinstance(entry, dict):
        return repr(entry)
    about = [entry[name] for name in _NAMES if name in entry]
    return repr((about, entry))


def _merged(entries: list[Any], step: Step) -> list[Any]:
    """Partitions of one topic in one entry: Kafka's Fetch has several, where some were refused before others. And what
    does not exist once, where Kafka answers OffsetCommit and OffsetDelete as often as it was named.
    """
    if step.key in _ANSWERED_AS_OFTEN_AS_NAMED:
        distinct = {repr(entry): entry for entry in entries}.values()
        return [entry for entry in distinct if not isinstance(entry, dict) or entry.get("partitions", True)]
    if step.key is not ApiKey.FETCH or not all(isinstance(entry, dict) and "partitions" in entry for entry in entries):
        return entries
    topics: dict[Any, Any] = {}
    for entry in entries:
        key = entry.get("topic", entry.get("topic_id"))
        topics.setdefault(key, {**entry, "partitions": []})["partitions"] += entry["partitions"]
    return [{**topic, "partitions": sorted(topic["partitions"], key=_order)} for topic in topics.values()]


def _without_filler(records: bytes) -> bytes:
    """Messages of old versions without the incomplete one that Kafka fills up with what it had converted less."""
    position = 0
    while position + _LOG_OVERHEAD_BYTES <= len(records):
        offset, size_bytes = struct.unpack_from(">qi", records, position)
        if offset < 0:
            break
        position += _LOG_OVERHEAD_BYTES + size_bytes
    return records[:position]


_ANSWERED_AS_OFTEN_AS_NAMED: Final = frozenset({ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_DELETE})
_RECORD_BATCHES_SINCE: Final = 4
_LOG_OVERHEAD_BYTES: Final = 12
_NAMES: Final = (
    *(
        "name",
        "topic",
        "topic_id",
        "topic_name",
        "partition_index",
        "partition",
        "partition_id",
        "index",
        "group_id",
        "key",
    ),
    *("resource_type", "resource_name", "member_id"),
)
NOT_ALIKE: Final = frozenset(
    {
        *("listeners", "log.dirs", "zookeeper.connect"),
        *("num.network.threads", "num.io.threads", "background.threads", "log.cleaner.dedupe.buffer.size"),
        *("transaction.state.log.num.partitions", "transaction.state.log.replication.factor"),
        *("transaction.state.log.min.isr", "controlled.shutdown.retry.backoff.ms"),
    }
)
"""Configs that brokers of one test do not have in common; `test_administration` says why."""
_NOTHING: Final[frozenset[str]] = frozenset()
_ALWAYS_IGNORED: Final = frozenset({"throttle_time_ms", "port", "cluster_id", "session_id"})
_IGNORED: Final = {
    ApiKey.PRODUCE: frozenset({"log_append_time_ms"}),
    ApiKey.DESCRIBE_LOG_DIRS: frozenset({"log_dir", "total_bytes", "usable_bytes"}),
    # Apache Kafka tells version 0 of no config that it is a default.
    ApiKey.DESCRIBE_CONFIGS: frozenset({"documentation", "is_default"}),
    ApiKey.CREATE_TOPICS: frozenset(),
}
