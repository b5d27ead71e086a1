"""A simulated run of a whole cluster: production brokers and the coordinator, unchanged, on simulated machines;
users; faults; and the judgement of `checkers`.

    report = simulate(seed=7, plan=POWER)
    assert not report.findings

A run has three parts: the cluster forms and the users begin; faults strike for most of the time; everything is healed,
and the cluster has to come to rest. One seed of one plan is one run, bit for bit.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.client.producer import Producer
from barnabas.client.records import ProducerRecord
from barnabas.client.settings import ProducerSettings
from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.coordination.embedded.server import EmbeddedCoordinator
from barnabas.coordination.layout.admin import REASSIGN_PARTITIONS_PATH
from barnabas.server.config import read_server_config
from barnabas.server.entry import broker_main
from barnabas.testing.changed_rights import ChangedRights
from barnabas.testing.checkers import check_all
from barnabas.testing.cluster_configs import differing_configs
from barnabas.testing.cluster_effects import Effects, Listener
from barnabas.testing.cluster_faults import ClusterFaults
from barnabas.testing.cluster_history import LOOKING_SECONDS, Acknowledged, FinalLog, History, RecordId
from barnabas.testing.cluster_load import Users
from barnabas.testing.cluster_log_moves import LogMoves
from barnabas.testing.cluster_logs import StoredLog
from barnabas.testing.cluster_many import LargeRequests
from barnabas.testing.cluster_observer import COUNTING_SECONDS, Observer
from barnabas.testing.cluster_operator import Operator
from barnabas.testing.cluster_plan import BROKER_PORT, COORDINATOR_PORT, DIRECTORIES, Plan
from barnabas.testing.cluster_plans import POWER
from barnabas.testing.cluster_throttles import Throttles
from barnabas.testing.compacted_topic import CompactedTopic
from barnabas.testing.credential_faults import CredentialFaults
from barnabas.testing.faults import FaultKind, FaultSchedule, Nemesis, Striker
from barnabas.testing.fetches_in_parts import fetches_in_parts
from barnabas.testing.flushed_topics import FlushedTopics
from barnabas.testing.late_requests import LATE_SECONDS, late_copies
from barnabas.testing.marker_watch import MarkerWatch
from barnabas.testing.next_group_users import NextGroupUsers
from barnabas.testing.outbox_users import OutboxUsers
from barnabas.testing.renewed_topic import RenewedTopic
from barnabas.testing.secured_users import SecuredUsers, store_passwords, write_login
from barnabas.testing.simulation import Simulation
from barnabas.testing.tiered_topic import TieredTopic
from barnabas.testing.tokens_in_use import TokensInUse
from barnabas.testing.transactional_users import ENDING_SECONDS_MAX, TransactionalUsers
from barnabas.wire.topics import OFFSETS_TOPIC, TopicPartition

if TYPE_CHECKING:
    import logging

    from barnabas.kernel.host import Host
    from barnabas.server.broker import Broker
    from barnabas.testing.simulated_host import Main, SimulatedMachine, SimulatedProcess

Handler = Callable[[int], "logging.Handler"]

FORMING_SECONDS_MAX: Final = 30.0
SETTLING_SECONDS_MAX: Final = 40.0
AFTERMATH_SECONDS: Final = LATE_SECONDS[1] + 10.0
"""How long the last requests of controllers take to come, late copies too, and ISRs to lose who no longer fetches."""
PROBE_SECONDS_MAX: Final = 3.0
"""In a cluster at rest, an acknowledgement takes milliseconds."""
COVERAGE: Final = ("elections", "truncations", "ISR shrinks", "ISR growths", "expiries", "fenced requests", "retries")
"""What a suite of runs must have seen."""

_HARMLESS: Final = frozenset({FaultKind.RESET, FaultKind.SLOW_DISK, FaultKind.CLOCK_STEP, FaultKind.CONFIG_CHANGED})


@dataclass(frozen=True, slots=True)
class Report:
    """What a run has shown; `findings` is empty for a cluster that has done all it must."""

    seed: int
    plan: str
    findings: tuple[str, ...]
    coverage: Counter[str]
    strikes: Mapping[FaultKind, int]
    """By their effects: see `cluster_effects`."""
    seconds: float
    acknowledged: int
    consumed: int
    history: History


class ClusterSimulation:
    """One run. `run` it once."""

    def __init__(self, seed: int, plan: Plan, *, handler: Handler | None = None) -> None:
        """`handler` makes a handler for the log of each broker, given its id."""
        self.simulation = Simulation(seed)
        self.plan = plan
        self._broker_ids = tuple(range(1, plan.brokers + 1))
        self.history = History(
            excuses_losses=not plan.keeps_one_in_sync,
            allows_unclean=plan.load.topic_configs.get("unclean.leader.election.enable") == "true",
        )
        self.users = Users(
            tuple(f"broker{broker_id}:{BROKER_PORT}" for broker_id in self._broker_ids),
            plan.load,
            self.history,
            lambda: self.simulation.now,
        )
        self._coordinator = self.simulation.machine("coordinator")
        self._brokers = {broker_id: self.simulation.machine(f"broker{broker_id}") for broker_id in self._broker_ids}
        self._transactions = TransactionalUsers(self.users, self._brokers, DIRECTORIES)
        self._compacted = CompactedTopic(self.users, self._brokers, DIRECTORIES)
        self._tiered = TieredTopic(self.users, self._brokers)
        self._tokens = TokensInUse(self.users, self._brokers)
        self._rights = ChangedRights(self.users)
        self._secured = SecuredUsers(self.users, self._brokers, f"coordinator:{COORDINATOR_PORT}")
        self._outbox = OutboxUsers(self.simulation, self.users, self._brokers, DIRECTORIES)
        self.observer = Observer(
            self.history,
            lambda: self.simulation.now,
            plan.load.topic,
            plan.load.partitions,
            DIRECTORIES,
            [
                *self._transactions.watched,
                *self._compacted.watched,
                *self._tiered.watched,
                *self._outbox.watched,
            ],
        )
        self._next_group = NextGroupUsers(self.users, self._running, self.observer.leader)
        self._markers = MarkerWatch(self._transactions.ledger, self._running)
        self._handler = handler
        self._properties = plan.properties_of(seed)
        self._static = read_server_config(f"broker.id=0\n{self._properties}", "server.properties").values
        self._effects = Effects()
        self._flushed = FlushedTopics(self.users, self._brokers, DIRECTORIES)
        self._renewed = RenewedTopic(self.users, self._brokers, DIRECTORIES)
        operator = Operator(self.simulation, self.users, f"coordinator:{COORDINATOR_PORT}")
        self._credentials = (
            CredentialFaults(self.simulation, self.users, self._brokers, operator, self.observer, self._effects)
            if plan.load.has_credentials
            else None
        )
        self._log_moves = LogMoves(self.simulation, self.observer, operator, self._effects, self._brokers, DIRECTORIES)
        self._throttles = Throttles(
            self.simulation, self.observer, operator, self._effects, self._brokers, plan.load.topic
        )
        self._faults = ClusterFaults(
            self.simulation,
            plan,
            self._brokers,
            DIRECTORIES,
            self._broker,
            self.observer,
            operator,
            LargeRequests(
                self.users,
                self.observer.highest_seen,
                functools.partial(self._effects.happened, FaultKind.MANY_ASKED_FOR),
            ),
            self._renewed,
            self._log_moves,
            self._throttles,
            self._effects,
        )
        self._nemesis: Nemesis | None = None
        self._recovering: dict[int, None] = {}

    def run(self) -> Report:
        """Runs to the end, and judges. Raises SimulationFailedError where production code fails."""
        with ExitStack() as stack:
            stack.enter_context(self.observer.probes())
            stack.enter_context(fetches_in_parts(self.plan.few_partitions_of(self.simulation.seed)))
            if self.plan.load.flush_messages:
                stack.enter_context(self._flushed.probes())
            if self.plan.load.has_renewed_topic:
                stack.enter_context(self._renewed.probes())
            if self.plan.load.has_compacted_topic:
                stack.enter_context(self._compacted.probes())
            if self.plan.load.has_tiered_topic:
                stack.enter_context(self._tiered.probes())
            if self.plan.load.has_tokens:
                stack.enter_context(self._tokens.probes())
            if self._moves_logs:
                stack.enter_context(self._log_moves.probes())
            if self._throttles_replication:
                stack.enter_context(self._throttles.probes())
            if self.plan.load.transactional_ids:
                stack.enter_context(self._markers.probes())
            if self.plan.late_copies:
                source = self.simulation.world.random("late copies")
                stack.enter_context(late_copies(self.plan.late_copies, source))
            stack.enter_context(self.simulation)
            self._start()
            self._look()
            self._count()
            users = self._let_users_begin()
            self._strike()
            self._settle(users)
            self._finish()
        return self._report()

    # Parts of a run.

    def _start(self) -> None:
        self._coordinator.start(self._coordinate)
        if self._credentials is not None:
            self._credentials.begin()
        if self.plan.load.is_secured:
            self.simulation.run_on(self.simulation.machine("supervisor"), self._secured.make_users)
        for broker_id in self._broker_ids:
            self._brokers[broker_id].start(self._broker(broker_id))
        self.simulation.run_until(self._forms, FORMING_SECONDS_MAX)

    def _let_users_begin(self) -> list[SimulatedProcess]:
        simulation, users = self.simulation, self.users
        simulation.run_on(simulation.machine("administrator"), users.create_topic)
        mains: list[tuple[str, Main]] = [
            ("producers", users.produce),
            ("consumers", users.consume),
            ("administrator", users.administer),
            ("watcher", users.watch_offsets),
        ]
        if self.plan.load.flush_messages:
            mains.append(("flushed topics", self._flushed.produce))
        if self.plan.load.has_renewed_topic:
            mains += [("renewed topic", self._renewed.produce), ("renewed topic", self._renewed.consume)]
        if self.plan.load.has_compacted_topic:
            mains += [("compacted topic", self._compacted.produce), ("compacted topic", self._compacted.consume)]
        if self.plan.load.has_tiered_topic:
            mains += [("tiered topic", self._tiered.produce), ("tiered topic", self._tiered.consume)]
        if self.plan.load.has_tokens:
            mains += [("tokens", self._tokens.work), ("rights", self._rights.administer)]
        if self.plan.load.is_secured:
            mains += [("intruder", self._secured.try_brokers), ("intruder", self._secured.try_coordinator)]
        if self._credentials is not None:
            mains += self._credentials.mains()
        if self.plan.load.has_outbox:
            mains += [("outbox", self._outbox.make_topics), ("outbox", self._outbox.read)]
        if self.plan.load.has_next_group:
            mains += [("next group", self._next_group.belong), ("next group's topics", self._next_group.administer)]
        if self.plan.load.transactional_ids:
            mains += [("transactions", self._transactions.produce), ("transactions' readers", self._transactions.read)]
        return [simulation.machine(name).start(main) for name, main in mains]

    def _strike(self) -> None:
        schedule = FaultSchedule(
            per_minute=self.plan.per_minute,
            lasting_seconds_default=self.plan.lasting_seconds,
            down_at_most=self.plan.down_at_most,
            lasting_seconds=self.plan.lasting,
            clock_step_seconds=self.plan.clock_step_seconds,
        )
        machines = [*self._brokers.values(), self._coordinator]
        self._nemesis = nemesis = Nemesis(
            self.simulation, machines, schedule, permits=self._permits, strikers=self._strikers()
        )
        self._faults.nemesis = nemesis
        if self._credentials is not None:
            self._credentials.begin_to_strike(nemesis)
        nemesis.start()
        self.simulation.run_for(self.plan.faults_seconds)
        nemesis.stop()
        if self.plan.late_copies:
            # Nothing is broken any more but what the last copies break, and what the users show of it.
            self.simulation.run_for(AFTERMATH_SECONDS)

    def _settle(self, users: list[SimulatedProcess]) -> None:
        """Nothing breaks any more: everything has to come to rest, and then to work at once."""
        if self._moves_logs:
            self._log_moves.end_throttle()
        if self._throttles_replication:
            self._throttles.begin_rest()
        self.users.stop()
        self._wait("the users end what they are at", lambda: all(process.ended for process in users))
        for process in users:
            if process.ended:
                process.result()
        self._wait("the operators are done", lambda: not self._faults.is_busy)
        self._wait("the brokers form one cluster", self._forms)
        self._wait("every reassignment has ended", self._is_moved)
        self._wait("every partition has a leader, and all its replicas are in sync", self._is_whole)
        self._wait("every deleted topic is gone", self._is_deleted)
        self._wait("every replica is in the log directory that it was to go to", self._log_moves.are_done)
        self._wait("every broker has the dynamic configs", self._is_configured)
        if self.plan.load.transactional_ids:
            self._wait("every transaction has ended", self._are_transactions_ended, ENDING_SECONDS_MAX)
        if not self.history.unsettled:
            self.simulation.run_on(self.simulation.machine("watcher"), self._probe)
        if self.plan.load.transactional_ids and not self.history.unsettled:
            asker = self.simulation.machine("transactions' readers")
            self.simulation.run_on(asker, self._transactions.finish, limit_seconds=200.0)
            self._wait("every transaction has ended", self._are_transactions_ended)
            self._transactions.judge(self._leaders())
        if self.plan.load.has_outbox and not self.history.unsettled:
            self._outbox.judge(self._leaders())
        if self.plan.load.has_tiered_topic and not self.history.unsettled:
            self._wait("everything old is in remote storage only", lambda: self._tiered.is_at_rest(self._running()))
            reader = self.simulation.machine("tiered topic")
            self.simulation.run_on(reader, self._tiered.finish, limit_seconds=200.0)
        if self.plan.load.has_next_group and not self.history.unsettled:
            self.simulation.run_on(self.simulation.machine("next group"), self._next_group.finish, limit_seconds=200.0)
        if self.plan.load.has_compacted_topic:
            self._wait("no log is being replaced", self._compacted.is_at_rest)
        if self.plan.load.has_tokens:
            self._wait(
                "every broker holds the tokens that there are",
                lambda: self._tokens.are_known(self._running(), self.observer.tree()),
            )
            self.simulation.run_on(self.simulation.machine("tokens"), self._tokens.finish, limit_seconds=200.0)
            self._wait(
                "every broker has the passwords and ACLs that there are",
                lambda: self._rights.are_known(self._running(), self.observer.tree()),
            )
            self._rights.judge(self.observer.tree())
        if self.plan.load.is_secured:
            self._secured.judge(self.observer.tree())
        if self._credentials is not None:
            self._wait(
                "nothing is held of what is over, and no password is to be encoded", self._credentials.is_at_rest
            )
            self.simulation.run_on(self.simulation.machine("looker"), self._credentials.finish)

    def _finish(self) -> None:
        """Reads what every replica has in the end."""
        for running in self.observer.running.values():
            number = running.broker.components.coordinators.groups.partition_for(self.plan.load.group)
            self.history.offsets_partition = TopicPartition(OFFSETS_TOPIC, number)
        self.observer.look()
        self.observer.count()
        if self.plan.load.has_renewed_topic and not self.history.unsettled:
            self._renewed.judge()
        if self.plan.load.has_compacted_topic and not self.history.unsettled:
            self._compacted.judge()
        self._log_moves.judge()
        for broker_id, running in self.observer.running.items():
            for partition in self._watched():
                replica = running.broker.components.replica_manager.find_partition(partition)
                assignment = self.observer.assignment(partition)
                if replica is None or replica.log is None or assignment is None:
                    continue
                if broker_id not in assignment.replicas:
                    # A controller that ends before its request for the deletion is sent leaves it, as Kafka's.
                    self.observer.coverage["replicas left behind"] += 1
                    continue
                disk, directories = running.machine.disk, [replica.log.log_directory.path]
                self.history.final_logs.append(
                    FinalLog(
                        broker_id,
                        partition,
                        replica.is_leader,
                        replica.log.high_watermark,
                        StoredLog(disk, directories, partition).records(),
                        StoredLog(disk, directories, partition).read(),
                        replica.log.log_start_offset,
                    )
                )
        at = self.history.offsets_partition
        # Where it is compacted, what was shown may have been superseded since.
        if at is not None and not self.plan.load.has_compacted_topic:
            self.history.group_offsets = {
                offset
                for machine in self._brokers.values()
                for offset in StoredLog(machine.disk, DIRECTORIES, at).group_offsets()
            }

    def _report(self) -> Report:
        coverage = self.observer.coverage
        coverage["retries"] += self.users.retries
        self.history.torn += self._transactions.ledger.findings + self._outbox.findings
        self.history.misassigned += self._next_group.ledger.findings
        coverage += (
            self._flushed.counts
            + self._renewed.counts
            + self._compacted.counts
            + self._tiered.counts
            + self._tokens.counts
            + self._rights.counts
            + self._secured.counts
            + self._outbox.counts
            + self._transactions.ledger.counts
            + self._next_group.ledger.counts
            + (Counter() if self._credentials is None else self._credentials.counts)
        )
        return Report(
            self.simulation.seed,
            self.plan.name,
            tuple(check_all(self.history)),
            coverage,
            self._effects.of(self._nemesis.strikes) if self._nemesis is not None else {},
            self.simulation.now,
            len(self.history.acknowledged),
            len(self.history.consumed),
            self.history,
        )

    # Processes.

    async def _coordinate(self, host: Host) -> None:
        everywhere, passwords = "0.0.0.0", store_passwords(self.plan.load)  # noqa: S104 - a simulated machine
        config = CoordinatorConfig("/data", host=everywhere, port=COORDINATOR_PORT, passwords=passwords)
        coordinator = EmbeddedCoordinator(host, config)
        try:
            await coordinator.start()
            self.observer.coordinator = coordinator
            raise await coordinator.failure
        finally:
            await coordinator.stop()

    def _broker(self, broker_id: int) -> Main:
        machine = self._brokers[broker_id]

        def started(broker: Broker) -> None:
            self.observer.started(broker_id, machine, broker)
            self._recovering.pop(broker_id, None)

        handler = Listener(self._effects, None if self._handler is None else self._handler(broker_id))
        own = f"broker.id={broker_id}\n"
        if self.users.load.racks:
            own += f"broker.rack={self.users.load.racks[broker_id % len(self.users.load.racks)]}\n"

        async def run(host: Host) -> None:
            more = "" if self._credentials is None else self._credentials.more_of_broker(broker_id, host)
            main = broker_main(f"{own}{self._properties}{more}", handler=handler, on_started=started)
            self.observer.starting(broker_id, machine)
            if self.plan.load.is_secured:
                write_login(host)
            self._faults.expire_at_start(machine)
            await main(host)

        return run

    def _look(self) -> None:
        self.observer.look()
        self._log_moves.look()
        self._tokens.look()
        self._effects.look()
        self.simulation.after(LOOKING_SECONDS, self._look)

    def _count(self) -> None:
        self.observer.count()
        self.simulation.after(COUNTING_SECONDS, self._count)

    def _strikers(self) -> Mapping[FaultKind, Striker]:
        return {**self._faults.strikers(), **({} if self._credentials is None else self._credentials.strikers())}

    # What is the case.

    @property
    def _moves_logs(self) -> bool:
        return FaultKind.LOG_MOVED in self.plan.per_minute

    @property
    def _throttles_replication(self) -> bool:
        return FaultKind.THROTTLED in self.plan.per_minute

    def _watched(self) -> list[TopicPartition]:
        return [TopicPartition(self.plan.load.topic, number) for number in range(self.plan.load.partitions)]

    def _forms(self) -> bool:
        """Every broker knows just the brokers of the plan, and the same controller, which is one of them."""
        running = self.observer.running
        if set(running) != set(self._broker_ids):
            return False
        images = [process.broker.components.metadata_cache.image for process in running.values()]
        active = [each for each, process in running.items() if process.broker.components.controller.is_active]
        return len(active) == 1 and all(
            set(image.brokers) == set(self._broker_ids) and image.controller_id == active[0] for image in images
        )

    def _is_whole(self) -> bool:
        for process in self.observer.running.values():
            image = process.broker.components.metadata_cache.image
            for topic in image.topics.values():
                for state in topic.partitions.values():
                    if state.leader not in self._broker_ids or set(state.isr) != set(state.replicas):
                        return False
        return True

    def _is_moved(self) -> bool:
        tree = self.observer.tree()
        assignments = map(self.observer.assignment, self.observer.all_partitions())
        return (
            tree is not None
            and tree.find(REASSIGN_PARTITIONS_PATH) is None
            and not any(assignment is None or assignment.is_being_reassigned for assignment in assignments)
        )

    def _are_transactions_ended(self) -> bool:
        return self._transactions.are_ended(self._running())

    def _running(self) -> list[Broker]:
        return [process.broker for process in self.observer.running.values()]

    def _leaders(self) -> dict[TopicPartition, int]:
        return {
            partition: broker_id
            for broker_id, process in self.observer.running.items()
            for partition, replica in process.broker.components.replica_manager.partitions.items()
            if replica.is_leader
        }

    def _is_configured(self) -> bool:
        tree = self.observer.tree()
        return tree is not None and not any(
            True
            for process in self.observer.running.values()
            for _ in differing_configs(process.broker, tree, self.plan.load.topic, self._static)
        )

    def _is_deleted(self) -> bool:
        gone = {topic for topic, is_there in self.users.topics.items() if not is_there}
        for process in self.observer.running.values():
            components = process.broker.components
            hosted = {partition.topic for partition in components.replica_manager.partitions}
            if gone & (hosted | set(components.metadata_cache.image.topics)):
                return False
        tree = self.observer.coordinator.engine.tree if self.observer.coordinator is not None else None
        return tree is not None and not any(
            tree.find(f"{parent}/{topic}") for topic in gone for parent in ("/brokers/topics", "/admin/delete_topics")
        )

    def _permits(self, kind: FaultKind, machine: SimulatedMachine | None) -> bool:
        """Where nothing may be lost: whether everything that a machine has is safe, and at hand, elsewhere."""
        if not self.plan.keeps_one_in_sync or kind in _HARMLESS:
            return True
        if self._recovering:
            return False
        if kind is not FaultKind.POWER or machine is None or machine is self._coordinator:
            return True
        broken = 0 if self._nemesis is None else self._nemesis.broken
        if broken or set(self.observer.running) != set(self._broker_ids):
            return False
        broker_id = next(each for each, broker in self._brokers.items() if broker is machine)
        for partition in self.observer.all_partitions():
            state = self.observer.committed_state(partition)
            if state is not None and set(state.isr) <= {broker_id}:
                return False
        self._recovering[broker_id] = None
        return True

    def _wait(self, what: str, condition: Callable[[], bool], seconds: float = SETTLING_SECONDS_MAX) -> None:
        """Lets time pass until the condition holds; a cluster that does not get there is a finding."""
        ends_at = self.simulation.now + seconds
        while not condition():
            if self.simulation.now >= ends_at:
                self.history.unsettled.append(f"{seconds:g} s after the last fault: not {what}")
                return
            self.simulation.run_for(LOOKING_SECONDS)

    async def _probe(self, host: Host) -> None:
        """Sees that everything works at once in a cluster at rest."""
        async with self.users.client(host) as client:
            settings = ProducerSettings(delivery_timeout_ms=10_000)
            async with Producer(client, settings) as producer:
                # The first record of a producer has to ask for the producer's id and the topic.
                for attempt in range(2):
                    await asyncio.gather(
                        *(
                            self._probe_partition(producer, number, attempt)
                            for number in range(self.plan.load.partitions)
                        )
                    )
            if not await self.users.read_offsets(client, timeout_ms=10_000):
                self.history.unsettled.append("nobody tells the offsets of the group")

    async def _probe_partition(self, producer: Producer, number: int, attempt: int) -> None:
        partition = TopicPartition(self.plan.load.topic, number)
        record = RecordId(0, attempt * self.plan.load.partitions + number)
        self.history.sent[record] = partition
        begun_at = self.simulation.now
        try:
            metadata = await producer.send_and_wait(ProducerRecord(partition.topic, record.value(), partition=number))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
            self.history.unsettled.append(f"a cluster at rest does not take a record for {partition}: {error}")
            return
        now = self.simulation.now
        self.history.acknowledged[record] = Acknowledged(partition, metadata.offset, now)
        if attempt and now - begun_at > PROBE_SECONDS_MAX:
            self.history.unsettled.append(f"a cluster at rest took {now - begun_at:.3f} s for a record of {partition}")


def simulate(seed: int, plan: Plan = POWER, *, handler: Handler | None = None) -> Report:
    """One run of a plan. Raises SimulationFailedError where production code fails."""
    return ClusterSimulation(seed, plan, handler=handler).run()
