"""The controller of one broker: stands for election, and processes the events of the cluster while it is elected.

One queue of events, processed one at a time. An event says itself what it does, to the `Candidacy` or to the present
`ControllerTerm`; the controller owns the queue, has the events processed, and answers those who wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from barnabas.controller.candidacy import RETRY_BACKOFF_MS, Candidacy
from barnabas.controller.description import ControllerDescription
from barnabas.controller.effects import ControllerMovedError, SessionOverError
from barnabas.controller.events import (
    EVENT_LEVELS,
    ControllerEvent,
    ControllerMoved,
    ElectionEvent,
    Expire,
    Reelect,
    RegisterBrokerAndReelect,
    Startup,
)
from barnabas.controller.features import FeatureUpdate, UpdateOutcomes
from barnabas.controller.gauges import ControllerGauges
from barnabas.controller.ports import ControllerPorts
from barnabas.controller.reassignment import Target
from barnabas.controller.recent_transitions import RecentTransitions
from barnabas.controller.replica_elections import ElectionOutcomes
from barnabas.controller.settings import ControllerSettings
from barnabas.controller.shell import ControllerShell
from barnabas.controller.states import ControllerState
from barnabas.controller.term import ControllerTerm
from barnabas.controller.term_events import (
    AllocateProducerIds,
    AlterPartitionReceived,
    AnsweredEvent,
    ApiPartitionReassignment,
    ControlledShutdown,
    ListPartitionReassignments,
    ReplicaLeaderElection,
    TermEvent,
    TopicUncleanLeaderElectionEnable,
    UncleanLeaderElectionEnable,
    UpdateFeatures,
    not_controller,
)
from barnabas.controller.traces import ControllerTraces
from barnabas.coordination.layout.cluster import ProducerIdBlock
from barnabas.coordination.layout.topics import ReplicaAssignment
from barnabas.coordination.ports import Store
from barnabas.coordination.session_state import SessionState
from barnabas.kernel.event_queue import EventQueue, EventQueueClosedError
from barnabas.kernel.host import Host
from barnabas.kernel.logs import Logs
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.timers import Timers
from barnabas.kernel.tracing import Traces
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import AlterPartitionRequest, AlterPartitionResponse
from barnabas.wire.topics import ElectionType, TopicPartition

Answer = TypeVar("Answer")
STOP_LIMIT_MS = 5_000
"""How long the present event may take when the broker stops."""


class Controller:
    """Make it, `start()` it once the broker is registered, `stop()` it. Nothing but its loop changes its state.

    `metrics` gets Kafka's gauges and timings of the controller under their names.
    """

    def __init__(
        self,
        host: Host,
        settings: ControllerSettings,
        ports: ControllerPorts,
        *,
        timers: Timers,
        logs: Logs,
        metrics: MetricsRegistry,
        traces: Traces | None = None,
    ) -> None:
        """Without `traces` nothing is traced."""
        self._host = host
        self._settings = settings
        self._ports = ports
        self._timers = timers
        self._metrics = metrics
        self._logger = logs.logger("kafka.controller.KafkaController")
        self._state_change_logger = logs.logger("state.change.logger")
        traced = None if traces is None else ControllerTraces(host, traces)
        self._queue: EventQueue[ControllerEvent] = EventQueue(
            "controller-event-thread",
            host.loop,
            self._process if traced is None else partial(traced.process, process=self._process, term=lambda: self.term),
            logger=self._logger,
            kind=lambda event: event.state,
            levels=EVENT_LEVELS,
            # The sources of events are bounded: watches are one-shot, a broker has one request in flight, the network
            # bounds clients.
            capacity=None,
        )
        self._gauges = ControllerGauges(self, self._queue, metrics)
        self._recent_transitions = traced or RecentTransitions(host.clock)
        self._candidacy = Candidacy(
            host,
            settings,
            ports,
            self._put,
            timers=timers,
            logs=logs,
            metrics=metrics,
            recent_transitions=self._recent_transitions,
        )
        self._store: Store | None = None
        self._is_stopped = False

    # The controller as the broker sees it.

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self._candidacy.term is not None

    @property
    def epoch(self) -> int:
        """The epoch of this controller; 0 when it is not active."""
        return 0 if self._candidacy.term is None else self._candidacy.term.context.epoch

    @property
    def controller_id(self) -> int | None:
        """The broker that holds `/controller`, as last seen."""
        return None if self._candidacy.incumbent is None else self._candidacy.incumbent.broker_id

    @property
    def term(self) -> ControllerTerm | None:
        """The present term, for gauges and tests."""
        return self._candidacy.term

    @property
    def state(self) -> ControllerState:
        """The state of the event in process."""
        event = self._queue.processing
        return ControllerState.IDLE if event is None else event.state

    async def idle(self) -> None:
        """Returns when no event is queued or in process."""
        await self._queue.idle()

    @property
    def channel_queue_size(self) -> int:
        """How many requests wait to be sent, to all brokers."""
        return 0 if self._candidacy.channels is None else self._candidacy.channels.queue_size

    def is_topic_queued_for_deletion(self, topic: str) -> bool:
        """Whether the active controller is deleting the topic; False when this is not the active one."""
        return self._candidacy.term is not None and self._candidacy.term.context.is_queued_for_deletion(topic)

    def start(self, store: Store) -> None:
        """Stands for election; `store` outlives sessions. The broker is already registered."""
        if self._store is not None:
            raise RuntimeError("the controller was started already")
        self._store = store
        shell = ControllerShell(
            store,
            self._settings,
            self._ports.features,
            timers=self._timers,
            state_change_logger=self._state_change_logger,
            recent_transitions=self._recent_transitions,
            unclean_elections=self._gauges.unclean_leader_elections,
        )
        self._candidacy.start(shell)
        store.add_state_listener(self._on_session_state)
        self._queue.start()
        self._put(Startup())

    async def stop(self) -> None:
        """Resigns and ends all tasks; `/controller` goes with the session."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._store is not None:
            self._store.remove_state_listener(self._on_session_state)
        self._preempt(await self._queue.close(STOP_LIMIT_MS))
        await self._candidacy.resign()
        self._gauges.remove()

    def reconfigure(self, *, unclean_leader_election_enable: bool) -> None:
        """Sets the broker's default of unclean.leader.election.enable; once it is true, partitions without a leader may
        get one.
        """
        before = self._settings.unclean_leader_election_enable
        self._settings = dataclasses.replace(
            self._settings, unclean_leader_election_enable=unclean_leader_election_enable
        )
        self._candidacy.reconfigure(self._settings)
        if unclean_leader_election_enable and not before:
            self._put(UncleanLeaderElectionEnable())

    def enable_topic_unclean_leader_election(self, topic: str) -> None:
        """The topic's unclean.leader.election.enable has become true: its partitions may get leaders."""
        if self.is_active:
            self._put(TopicUncleanLeaderElectionEnable(topic))

    # Sessions.

    def _on_session_state(self, state: SessionState) -> None:
        if state in {SessionState.EXPIRED, SessionState.AUTH_FAILED}:
            self._end_session()

    def _end_session(self) -> asyncio.Future[None]:
        """Ends the session's work and puts `Expire` before all other events."""
        done = self._host.loop.create_future()
        self._candidacy.end_session()
        try:
            self._preempt(self._queue.clear_and_put(Expire(done)))
        except EventQueueClosedError:
            done.set_result(None)
        return done

    async def before_new_session(self) -> None:
        """The former session is over; returns when this broker has resigned, before a new session begins."""
        if self._store is not None:
            await self._end_session()

    async def after_new_session(self) -> None:
        """A new session has begun: the broker registers in it, and stands for election again."""
        if self._store is not None:
            self._put(RegisterBrokerAndReelect(self._candidacy.session))

    # Requests.

    async def alter_partition(self, request: AlterPartitionRequest, version: int) -> AlterPartitionResponse:
        """Changes ISRs as a leader asks; refusals are in the response. Raises `KafkaError` (NOT_CONTROLLER,
        STALE_BROKER_EPOCH) for the request as a whole.
        """
        return await self._ask(lambda answer: AlterPartitionReceived(answer, request, version))

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> list[TopicPartition]:
        """Moves leadership off a broker that is about to stop; returns the partitions that it still leads.

        Raises `KafkaError`: NOT_CONTROLLER, STALE_BROKER_EPOCH, BROKER_NOT_AVAILABLE.
        """
        return await self._ask(lambda answer: ControlledShutdown(answer, broker_id, broker_epoch))

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition], election_type: ElectionType
    ) -> ElectionOutcomes:
        """Elects leaders of the partitions: the new leader of each, or why it has none. Raises `KafkaError`,
        NOT_CONTROLLER.
        """
        return await self._ask(lambda answer: ReplicaLeaderElection(answer, partitions, election_type))

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        """Gives a broker a block of producer ids that nobody else has.

        Raises `KafkaError`: NOT_CONTROLLER, STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED, UNKNOWN_SERVER_ERROR.
        """
        return await self._ask(lambda answer: AllocateProducerIds(answer, broker_id, broker_epoch))

    async def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> UpdateOutcomes:
        """Finalizes features (KIP-584), or only says what it would refuse. Raises `KafkaError`, NOT_CONTROLLER."""
        return await self._ask(lambda answer: UpdateFeatures(answer, updates, validate_only))

    async def alter_reassignments(
        self, targets: Mapping[TopicPartition, Target]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Moves partitions to other replicas, or with None cancels that; returns the error of each partition, None
        where the reassignment has begun. Raises `KafkaError`, NOT_CONTROLLER.
        """
        return await self._ask(lambda answer: ApiPartitionReassignment(answer, targets))

    async def list_reassignments(
        self, partitions: Sequence[TopicPartition] | None
    ) -> dict[TopicPartition, ReplicaAssignment]:
        """The assignments of those of the partitions, or of all, that are being moved. Raises `KafkaError`,
        NOT_CONTROLLER.
        """
        return await self._ask(lambda answer: ListPartitionReassignments(answer, partitions))

    def describe(self, transitions_max: int) -> ControllerDescription:
        """The controller as it is now, with at most so many of its last transitions of partitions, and as many of
        replicas.

        It does not wait for the queue: what keeps a controller busy is to be seen. Raises `KafkaError`, NOT_CONTROLLER.
        """
        registration, channels = self._candidacy.registration, self._candidacy.channels
        if not self.is_active or registration is None or self._is_stopped:
            raise not_controller()
        return ControllerDescription(
            controller_id=self._settings.broker_id,
            epoch=self.epoch,
            elected_at_ms=registration.timestamp_ms,
            state=self.state,
            queued_events=len(self._queue),
            oldest_event_age_ms=self._queue.oldest_age_ms,
            counts=self._gauges.counts(),
            timings=self._gauges.timings(),
            queued_requests={} if channels is None else channels.queue_sizes,
            transitions=self._recent_transitions.latest(transitions_max),
        )

    async def _ask(self, event: Callable[[asyncio.Future[Answer]], AnsweredEvent]) -> Answer:
        if not self.is_active or self._is_stopped:
            raise not_controller()
        answer: asyncio.Future[Answer] = self._host.loop.create_future()
        self._put(event(answer))
        return await answer

    # The queue.

    def _put(self, event: ControllerEvent) -> None:
        # Once the queue is closed, nobody needs the event any more.
        with contextlib.suppress(EventQueueClosedError):
            self._queue.put(event, event.level)

    def _preempt(self, events: list[ControllerEvent]) -> None:
        """Finishes events that will not be processed, so that nobody waits for them."""
        for event in events:
            event.finish()

    async def _process(self, event: ControllerEvent) -> None:
        try:
            await self._dispatch(event)
        except ControllerMovedError as error:
            self._logger.info("Another broker is the controller, as %s has found: %s", event.name, error)
            event.finish()
            await self._process(ControllerMoved())
        except SessionOverError:
            self._logger.info("The session ended during %s", event.name)
        except Exception as error:
            if isinstance(event, AnsweredEvent):
                detail = f"the controller failed: {type(error).__name__}"
                event.refuse(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, detail))
            elif isinstance(event, ElectionEvent) and event.is_election_retried:
                self._put_later(Reelect())
            raise
        finally:
            event.finish()

    async def _dispatch(self, event: ControllerEvent) -> None:
        term = self._candidacy.term
        if isinstance(event, ElectionEvent):
            retried = await event.process(self._candidacy)
            if retried is not None:
                self._put_later(retried)
        elif isinstance(event, AnsweredEvent) and term is not None:
            try:
                event.complete(await self._candidacy.run(event.steps(term)))
                later = event.later_steps(term)
                if later is not None:
                    await self._candidacy.run(later)
            except KafkaError as error:
                self._logger.info("Refused %s: %s", event.name, error)
                event.refuse(error)
        elif isinstance(event, TermEvent) and term is not None and event.concerns(term):
            await self._candidacy.run(event.steps(term))

    def _put_later(self, event: ControllerEvent) -> None:
        self._timers.call_after(RETRY_BACKOFF_MS, self._put, event)
