"""A simulated cluster that is secured as `barnabas up --secure` does it, but for TLS; and who tries to come in.

Brokers log in at ZooKeeper and at each other, users at brokers, and all again while they work. Whoever has no password,
a wrong one, or no rights asks all the time for what is not his, of every broker and of the coordinator. Invariants:
none of them is ever given or told anything, and whatever is in ZooKeeper, whenever it was made, is the brokers' own.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from barnabas.coordination.client import Client as StoreClient
from barnabas.coordination.digest_login import DigestLoginError, DigestUser
from barnabas.coordination.errors import AuthFailedError, CoordinationError, NoAuthError, NoNodeError
from barnabas.coordination.jute import Reader
from barnabas.coordination.layout.access import default_acl
from barnabas.coordination.protocol import ANYONE, Permission, read_acls
from barnabas.coordination.session_settings import ClientSettings
from barnabas.kernel.timers import Timers
from barnabas.link.errors import AuthenticationFailedError
from barnabas.sasl.mechanisms import Login
from barnabas.server.cluster_security import ADMIN, BROKERS, CLIENT, MECHANISM, digest_login, scram_login
from barnabas.server.cluster_users import close_coordinator, write_users
from barnabas.server.private_files import PrivateFiles
from barnabas.testing.asking_user import AskingUser
from barnabas.testing.cluster_load import password_of
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    AlterUserScramCredentialsRequest,
    ControlledShutdownRequest,
    CreateAclsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DescribeAclsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    ProduceRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.sentinels import NO_EPOCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from barnabas.coordination.embedded.tree import ZnodeTree
    from barnabas.kernel.host import Host
    from barnabas.testing.cluster_load import Load, Users
    from barnabas.testing.simulated_host import SimulatedMachine
    from barnabas.wire.classes import Message

STRANGER: Final = "stranger"
"""Logs in, and may do nothing."""
_DIRECTORY: Final = "/security"
_LOGIN_FILE: Final = f"{_DIRECTORY}/brokers.jaas"
_PORT: Final = 9092
PROPERTIES: Final = {
    "listeners": f"SASL_PLAINTEXT://:{_PORT}",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": MECHANISM,
    "sasl.mechanism.inter.broker.protocol": MECHANISM,
    f"listener.name.sasl_plaintext.{MECHANISM.lower()}.sasl.jaas.config": scram_login(BROKERS, password_of(BROKERS)),
    "connections.max.reauth.ms": "2500",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": f"User:{BROKERS};User:{ADMIN}",
    "allow.everyone.if.no.acl.found": "false",
    "zookeeper.set.acl": "true",
    "barnabas.zookeeper.login.config": _LOGIN_FILE,
}
COVERAGE: Final = (
    "secured: refused without a login",
    "secured: refused with a wrong password",
    "secured: denied to who has no rights",
    "secured: denied to a client",
    "secured: refused at the coordinator",
    "secured: refused at the coordinator with a wrong password",
)
"""What must have happened."""
_PAUSE_MS: Final = 120.0
_CONNECT_MS: Final = 4_000
_WRONG: Final = "?"
_INTRUDED: Final = "intruded"
_DENIALS: Final = frozenset(
    (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    )
)
_NOT_HERE: Final = frozenset((ErrorCode.NOT_CONTROLLER,))
"""Said before anybody asks whether it were allowed, as in Kafka."""
_EPOCH: Final = 1_000_000


def _login_of(user: str) -> Login:
    return Login(MECHANISM, user, password_of(user))


def store_login() -> DigestUser:
    """How brokers and operators log in at ZooKeeper."""
    return DigestUser(BROKERS, password_of(BROKERS))


def store_passwords(load: Load) -> dict[str, str]:
    """Who may log in there."""
    login = store_login()
    return {login.username: login.password} if load.is_secured else {}


def write_login(host: Host) -> None:
    """The file that a broker has for that."""
    host.files.make_directories(_DIRECTORY)
    PrivateFiles(host.files).write(_LOGIN_FILE, digest_login(password_of(BROKERS)))


class SecuredUsers:
    """Makes the users of a cluster, and has others try to be some."""

    def __init__(self, users: Users, brokers: Mapping[int, SimulatedMachine], coordinator: str) -> None:
        """`coordinator` is host:port."""
        self.counts: Counter[str] = Counter()
        self._users = users
        self._broker_ids = tuple(brokers)
        self._coordinator = ClientSettings(coordinator, session_timeout_ms=6_000)

    async def make_users(self, host: Host) -> None:
        """As the supervisor does, before the first broker starts."""
        settings = dataclasses.replace(self._coordinator, login=store_login())
        logger = logging.getLogger("barnabas.simulated.supervisor")
        await close_coordinator(host, settings, logger)
        passwords = {user: password_of(user) for user in (ADMIN, CLIENT, STRANGER)}
        await write_users(host, settings, password_of(BROKERS), passwords, frozenset(), logger)

    # Who tries.

    async def try_brokers(self, host: Host) -> None:
        """Asks brokers for what is not his, until the users are to stop."""
        stranger, client = AskingUser(host, _login_of(STRANGER), _PORT), AskingUser(host, _login_of(CLIENT), _PORT)
        try:
            while self._users.goes_on():
                await client.client.timers.sleep(host.random.expovariate(1 / _PAUSE_MS))
                match host.random.choice(("nobody", "wrong", "stranger", "stranger", "client")):
                    case "nobody":
                        await self._try_without(host, None, "refused without a login")
                    case "wrong":
                        user = host.random.choice((CLIENT, ADMIN, BROKERS))
                        wrong = dataclasses.replace(_login_of(user), password=_WRONG)
                        await self._try_without(host, wrong, "refused with a wrong password")
                    case "stranger":
                        message, version, codes = host.random.choice(self._of_strangers())
                        await self._try_denied(stranger, message, version, codes, "denied to who has no rights")
                    case _:
                        message, version, codes = host.random.choice(self._of_clients())
                        await self._try_denied(client, message, version, codes, "denied to a client")
        finally:
            await stranger.client.close()
            await client.client.close()

    async def _try_without(self, host: Host, login: Login | None, what: str) -> None:
        user = AskingUser(host, login, _PORT)
        broker_id = host.random.choice(self._broker_ids)
        try:
            answer = await user.ask(broker_id, MetadataRequest(topics=None), 9)
        except AuthenticationFailedError:
            self.counts[f"secured: {what}"] += 1
        else:
            if answer is not None:
                self._note(f"broker {broker_id} answers whom it should have {what}: {answer}")
            elif login is None and user.has_asked:
                self.counts[f"secured: {what}"] += 1
        finally:
            await user.client.close()

    async def _try_denied(
        self, user: AskingUser, message: Message, version: int, codes: Callable[[Any], list[int]], what: str
    ) -> None:
        broker_id = user.client.host.random.choice(self._broker_ids)
        try:
            answer = await user.ask(broker_id, message, version)
        except AuthenticationFailedError as error:
            self._note(f"broker {broker_id} refuses the password of {user.name}: {error}")
            return
        if answer is None:
            return
        found = {ErrorCode.for_code(code) for code in codes(answer)}
        if not found or found - _DENIALS - _NOT_HERE:
            self._note(f"broker {broker_id} answers {type(message).__name__} of {user.name} with {answer}")
        self.counts[f"secured: {what}"] += bool(found & _DENIALS)

    def _of_strangers(self) -> list[tuple[Message, int, Callable[[Any], list[int]]]]:
        """What somebody without rights asks for, the version, and where an answer has its codes."""
        topic, group = self._users.load.topic, self._users.load.group
        return [
            (
                MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)]),
                9,
                lambda answer: [each.error_code for each in answer.topics],
            ),
            (
                FindCoordinatorRequest(coordinator_keys=[group], key_type=0),
                4,
                lambda answer: [each.error_code for each in answer.coordinators],
            ),
            (
                DeleteGroupsRequest(groups_names=[group]),
                2,
                lambda answer: [each.error_code for each in answer.results],
            ),
            (
                ProduceRequest(
                    acks=-1,
                    timeout_ms=2_000,
                    topic_data=[
                        ProduceRequest.TopicProduceData(
                            name=topic,
                            partition_data=[ProduceRequest.PartitionProduceData(index=0, records=_intruders_record())],
                        )
                    ],
                ),
                9,
                lambda answer: [each.error_code for topic in answer.responses for each in topic.partition_responses],
            ),
            (
                FetchRequest(
                    replica_id=-1,
                    max_wait_ms=0,
                    min_bytes=0,
                    max_bytes=1_000_000,
                    topics=[
                        FetchRequest.FetchTopic(
                            topic=topic,
                            partitions=[
                                FetchRequest.FetchPartition(
                                    partition=0, fetch_offset=0, log_start_offset=-1, partition_max_bytes=1_000_000
                                )
                            ],
                        )
                    ],
                ),
                12,
                lambda answer: [
                    answer.error_code or each.error_code for topic in answer.responses for each in topic.partitions
                ],
            ),
            *self._of_clients(),
        ]

    def _of_clients(self) -> list[tuple[Message, int, Callable[[Any], list[int]]]]:
        """What nobody but brokers and administrators may do."""
        topic = self._users.load.topic
        creation = CreateAclsRequest.AclCreation(
            resource_type=2,
            resource_name="*",
            resource_pattern_type=3,
            principal=f"User:{STRANGER}",
            host="*",
            operation=2,
            permission_type=3,
        )
        replica = StopReplicaRequest.StopReplicaTopicState(
            topic_name=topic,
            partition_states=[
                StopReplicaRequest.StopReplicaPartitionState(
                    partition_index=0, leader_epoch=_EPOCH, delete_partition=True
                )
            ],
        )
        upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
            name=ADMIN, mechanism=2, iterations=4096, salt=b"salt", salted_password=b"password"
        )
        internal = CreateTopicsRequest.CreatableTopic(name="__" + _INTRUDED, num_partitions=1, replication_factor=1)
        return [
            (
                UpdateMetadataRequest(controller_id=1, controller_epoch=_EPOCH, broker_epoch=NO_EPOCH),
                8,
                lambda answer: [answer.error_code],
            ),
            (
                StopReplicaRequest(
                    controller_id=1, controller_epoch=_EPOCH, broker_epoch=NO_EPOCH, topic_states=[replica]
                ),
                4,
                lambda answer: [answer.error_code],
            ),
            (ControlledShutdownRequest(broker_id=1, broker_epoch=NO_EPOCH), 3, lambda answer: [answer.error_code]),
            (
                CreateAclsRequest(creations=[creation]),
                3,
                lambda answer: [each.error_code for each in answer.results],
            ),
            (
                DescribeAclsRequest(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1),
                3,
                lambda answer: [answer.error_code],
            ),
            (
                AlterUserScramCredentialsRequest(upsertions=[upsertion]),
                0,
                lambda answer: [each.error_code for each in answer.results],
            ),
            (
                CreateTopicsRequest(topics=[internal], timeout_ms=2_000),
                7,
                lambda answer: [each.error_code for each in answer.topics],
            ),
        ]

    async def try_coordinator(self, host: Host) -> None:
        """Asks the coordinator for what is the brokers', until the users are to stop."""
        logger, timers = logging.getLogger("barnabas.simulated.intruder"), Timers(host.loop)
        wrong = dataclasses.replace(self._coordinator, login=DigestUser(BROKERS, _WRONG))
        try:
            while self._users.goes_on():
                await timers.sleep(host.random.expovariate(1 / _PAUSE_MS))
                is_wrong = host.random.random() < 0.3
                store = StoreClient(host, wrong if is_wrong else self._coordinator, logger=logger)
                try:
                    await store.connect(_CONNECT_MS)
                    if is_wrong:
                        self._note("the coordinator lets somebody in with a wrong password")
                    for _ in range(host.random.randint(1, 12)):
                        await self._try_store(host, store)
                except (AuthFailedError, DigestLoginError):
                    self.counts["secured: refused at the coordinator with a wrong password"] += is_wrong
                except CoordinationError as error:
                    logger.info("%s", error)
                finally:
                    await store.close()
        finally:
            timers.close()

    async def _try_store(self, host: Host, store: StoreClient) -> None:
        partition = f"/brokers/topics/{self._users.load.topic}/partitions/0/state"
        attempts: Mapping[str, Callable[[], Any]] = {
            "to be the controller": lambda: store.create("/controller", b'{"version":1,"brokerid":9}'),
            "to depose the controller": lambda: store.delete("/controller"),
            "to be a broker": lambda: store.create("/brokers/ids/9", b"{}"),
            "to make a znode": lambda: store.create(f"/{_INTRUDED}", b""),
            "to set the epoch": lambda: store.set_data("/controller_epoch", b"1000000"),
            "to set a state": lambda: store.set_data(partition, b"{}"),
            "to delete a state": lambda: store.delete(partition),
            "to give himself a password": lambda: store.create(f"/config/users/{_INTRUDED}", b"{}"),
            "to read a password": lambda: store.get_data(f"/config/users/{ADMIN}"),
            "to open the root": lambda: store.set_acl("/", default_acl("/", secure=False)),
            "to announce ACLs": lambda: store.create("/kafka-acl-changes/acl_changes_0", b"Topic:*"),
        }
        what = host.random.choice(list(attempts))
        try:
            await attempts[what]()
        except NoAuthError:
            self.counts["secured: refused at the coordinator"] += 1
        except NoNodeError:
            pass
        else:
            self._note(f"the coordinator has let somebody without a login try {what}")

    # At rest.

    def judge(self, tree: ZnodeTree | None) -> None:
        """Notes every znode that is anybody's."""
        if tree is not None:
            self._users.history.mistaken += _open_znodes(tree)

    def _note(self, finding: str) -> None:
        self._users.history.mistaken.append(f"at {self._users.now():.3f} s: {finding}")


def _intruders_record() -> bytes:
    builder = RecordBatchBuilder()
    builder.append(0, None, _INTRUDED.encode())
    return bytes(builder.build())


def _open_znodes(tree: ZnodeTree) -> Iterator[str]:
    for path, node in tree.nodes.items():
        given = sum({acl.permissions for acl in read_acls(Reader(node[2])) if acl.id == ANYONE})
        readable = any(acl.id == ANYONE for acl in default_acl(path, secure=True))
        if given & ~int(Permission.READ) or (given and not readable):
            yield f"anybody has the rights {given} at {path}"
