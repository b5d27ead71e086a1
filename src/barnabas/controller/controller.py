"""The controller of one broker: stands for election, and while it is elected carries out everything that happens.

One queue of events, processed one at a time. What an event does is decided by the `ControllerTerm`; this is the shell
around it, which owns the queue, knows whether the broker is the controller, and answers those who wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable
from typing import TypeVar

from barnabas.controller.channels import BrokerChannels
from barnabas.controller.controller_election import (
    Incumbent,
    claim_controllership,
    give_back,
    leave_office,
    mend_registration,
    read_incumbent,
)
from barnabas.controller.description import ControllerDescription
from barnabas.controller.effects import BrokerRequest, ControllerMovedError, SessionOverError, Steps
from barnabas.controller.events import (
    AllocateProducerIds,
    AlterPartitionReceived,
    AnsweredEvent,
    ControlledShutdown,
    ControllerChange,
    ControllerEvent,
    ControllerMoved,
    Expire,
    LeaderAndIsrResponseReceived,
    ReadAgain,
    Reelect,
    RegisterBrokerAndReelect,
    Startup,
    TermEvent,
    TopicDeletionStopReplicaResponseReceived,
    TopicUncleanLeaderElectionEnable,
    UncleanElectionDelayOver,
    UncleanLeaderElectionEnable,
    UpdateMetadataResponseReceived,
)
from barnabas.controller.gauges import ControllerGauges
from barnabas.controller.ports import ControllerPorts
from barnabas.controller.recent_transitions import RecentTransitions
from barnabas.controller.settings import READ_AGAIN_MS, ControllerSettings
from barnabas.controller.shell import ControllerShell
from barnabas.controller.states import ControllerState
from barnabas.controller.term import ControllerTerm
from barnabas.controller.term_events import steps_of
from barnabas.controller.watches import ControllerWatches
from barnabas.coordination.layout.cluster import ProducerIdBlock
from barnabas.coordination.layout.controller import ControllerRegistration
from barnabas.coordination.ports import Store
from barnabas.coordination.protocol import EventType, WatcherEvent
from barnabas.coordination.session_state import SessionState
from barnabas.kernel.event_queue import EventQueue, EventQueueClosedError
from barnabas.kernel.host import Host
from barnabas.kernel.ids import Uuid
from barnabas.kernel.logs import Logs
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.timers import Timers
from barnabas.wire.classes import Message
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from barnabas.wire.topics import TopicPartition

Answer = TypeVar("Answer")
URGENT, IN_ORDER = 0, 1
STOP_LIMIT_MS = 5_000
"""How long the event in processing may take when the broker stops."""
RETRY_BACKOFF_MS = 1_000
"""Before a broker stands again after it failed to take over, or registers again after that failed."""


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
    ) -> None:
        self._host = host
        self._settings = settings
        self._ports = ports
        self._timers = timers
        self._metrics = metrics
        self._logger = logs.logger("kafka.controller.KafkaController")
        self._channel_logger = logs.logger("kafka.controller.ControllerChannelManager")
        self._state_change_logger = logs.logger("state.change.logger")
        self._queue: EventQueue[ControllerEvent] = EventQueue(
            "controller-event-thread",
            host.loop,
            self._process,
            logger=self._logger,
            kind=lambda event: event.state,
            levels=2,
            # Who puts is bounded: watches are one-shot, a broker has one request in flight, the network bounds clients.
            capacity=None,
        )
        self._gauges = ControllerGauges(self, self._queue, metrics)
        self._recent_moves = RecentTransitions(host.clock)
        self._store: Store | None = None
        self._shell: ControllerShell | None = None
        self._incumbent: Incumbent | None = None
        self._term: ControllerTerm | None = None
        self._watches: ControllerWatches | None = None
        self._channels: BrokerChannels | None = None
        # What this session has written, or may have written, into /controller.
        self._registration: ControllerRegistration | None = None
        self._session = 0
        self._stands_again_at = 0.0
        self._is_stopped = False

    # The controller as the broker sees it.

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self._term is not None

    @property
    def epoch(self) -> int:
        """The epoch of this controller; 0 when it is not active."""
        return 0 if self._term is None else self._term.context.epoch

    @property
    def controller_id(self) -> int | None:
        """The broker that holds `/controller`, as last seen."""
        return None if self._incumbent is None else self._incumbent.broker_id

    @property
    def term(self) -> ControllerTerm | None:
        """The present term, for gauges and tests."""
        return self._term

    @property
    def state(self) -> ControllerState:
        """What it is doing."""
        event = self._queue.processing
        return ControllerState.IDLE if event is None else event.state

    async def idle(self) -> None:
        """Returns when no event waits and none is in processing."""
        await self._queue.idle()

    @property
    def channel_queue_size(self) -> int:
        """How many requests wait to be sent, to all brokers."""
        return 0 if self._channels is None else self._channels.queue_size

    def is_topic_queued_for_deletion(self, topic: str) -> bool:
        """Whether the active controller is deleting the topic; False when this is not the active one."""
        return self._term is not None and self._term.context.is_queued_for_deletion(topic)

    def start(self, store: Store) -> None:
        """Stands for election; `store` goes on over sessions. The broker is registered already."""
        if self._store is not None:
            raise RuntimeError("the controller was started already")
        self._store = store
        self._shell = ControllerShell(
            store,
            self._settings,
            self._ports.features,
            timers=self._timers,
            state_change_logger=self._state_change_logger,
            recent_transitions=self._recent_moves,
            unclean_elections=self._gauges.unclean_leader_elections,
        )
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
        await self._resign()
        self._gauges.remove()

    def reconfigure(self, *, unclean_leader_election_enable: bool) -> None:
        """Takes over the broker's default of unclean.leader.election.enable; once it is true, partitions without a
        leader may get one.
        """
        before = self._settings.unclean_leader_election_enable
        self._settings = dataclasses.replace(
            self._settings, unclean_leader_election_enable=unclean_leader_election_enable
        )
        if self._term is not None:
            self._term.reconfigure(self._settings)
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
        """Ends what is under way in the session and puts `Expire` before everything else."""
        done = self._host.loop.create_future()
        self._session += 1
        if self._shell is not None:
            self._shell.session_over()
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
            self._put(RegisterBrokerAndReelect(self._session))

    # Requests.

    async def alter_partition(self, request: AlterPartitionRequest, version: int) -> AlterPartitionResponse:
        """Changes ISRs as a leader asks; refusals are in the response. `KafkaError` (NOT_CONTROLLER,
        STALE_BROKER_EPOCH) when nothing was looked at.
        """
        return await self._ask(lambda answer: AlterPartitionReceived(answer, request, version))

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> list[TopicPartition]:
        """Moves leadership off a broker that is about to stop; returns the partitions that it leads still.

        Raises `KafkaError`: NOT_CONTROLLER, STALE_BROKER_EPOCH, BROKER_NOT_AVAILABLE.
        """
        return await self._ask(lambda answer: ControlledShutdown(answer, broker_id, broker_epoch))

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        """Gives a broker a block of producer ids that nobody else has.

        Raises `KafkaError`: NOT_CONTROLLER, STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED, UNKNOWN_SERVER_ERROR.
        """
        return await self._ask(lambda answer: AllocateProducerIds(answer, broker_id, broker_epoch))

    def describe(self, moves_max: int) -> ControllerDescription:
        """The controller as it is now, with at most so many of its last moves of partitions, and as many of replicas.

        It does not wait for the queue: what keeps a controller busy is to be seen. Raises `KafkaError`, NOT_CONTROLLER.
        """
        if self._term is None or self._registration is None or self._is_stopped:
            raise _not_controller()
        return ControllerDescription(
            controller_id=self._settings.broker_id,
            epoch=self.epoch,
            elected_at_ms=self._registration.timestamp_ms,
            state=self.state,
            queued_events=len(self._queue),
            oldest_event_age_ms=self._queue.oldest_age_ms,
            counts=self._gauges.counts(),
            timings=self._gauges.timings(),
            queued_requests={} if self._channels is None else self._channels.queue_sizes,
            moves=self._recent_moves.latest(moves_max),
        )

    async def _ask(self, event: Callable[[asyncio.Future[Answer]], AnsweredEvent]) -> Answer:
        if not self.is_active or self._is_stopped:
            raise _not_controller()
        answer: asyncio.Future[Answer] = self._host.loop.create_future()
        self._put(event(answer))
        return await answer

    # The queue.

    def _put(self, event: ControllerEvent) -> None:
        # Once the queue is closed, nobody is left whom the event would concern.
        with contextlib.suppress(EventQueueClosedError):
            self._queue.put(event, IN_ORDER)

    def _preempt(self, events: list[ControllerEvent]) -> None:
        """Answers those who wait for events that will not be processed."""
        for event in events:
            _finish(event)

    async def _process(self, event: ControllerEvent) -> None:
        try:
            await self._dispatch(event)
        except ControllerMovedError as error:
            self._logger.info("Another broker is the controller, as was found by %s: %s", type(event).__name__, error)
            _finish(event)
            await self._process(ControllerMoved())
        except SessionOverError:
            self._logger.info("The session ended during %s", type(event).__name__)
        except Exception as error:
            if isinstance(event, AnsweredEvent):
                detail = f"the controller failed: {type(error).__name__}"
                _answer_error(event, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, detail))
            elif event.state is ControllerState.CONTROLLER_CHANGE and not isinstance(event, Expire):
                # Without it this broker would never stand again.
                self._put_later(Reelect())
            raise
        finally:
            _finish(event)

    async def _dispatch(self, event: ControllerEvent) -> None:
        match event:
            case Startup():
                await self._watch_controller()
                await self._elect()
            case ControllerChange() | Reelect():
                await self._maybe_resign()
                # It may be gone already, before the watch was there to say so.
                await self._elect()
            case ControllerMoved():
                await self._maybe_resign()
                if self._term is not None:
                    # The znode is ours, but the epoch is not: under it nothing can be written.
                    await self._give_back()
                await self._elect()
            case RegisterBrokerAndReelect():
                if event.session == self._session:
                    await self._register(event)
            case Expire():
                await self._resign()
                # What was written went with the session.
                self._registration = None
                self._incumbent = None
            case AnsweredEvent():
                await self._process_request(event)
            case TermEvent():
                if self._term is not None:
                    steps = steps_of(event, self._term)
                    if steps is not None:
                        await self._run(steps)

    async def _process_request(self, event: AnsweredEvent) -> None:
        """Processes an event that somebody waits for, and answers it."""
        if self._term is None:
            _answer_error(event, _not_controller())
            return
        try:
            match event:
                case AlterPartitionReceived():
                    _answer(event.answer, await self._run(self._term.alter_partition(event.request, event.version)))
                case ControlledShutdown():
                    _answer(event.answer, await self._run(self._term.shut_down(event.broker_id, event.broker_epoch)))
                case AllocateProducerIds():
                    steps = self._term.allocate_producer_ids(event.broker_id, event.broker_epoch)
                    _answer(event.answer, await self._run(steps))
        except KafkaError as error:
            self._logger.info("Refused %s: %s", type(event).__name__, error)
            _answer_error(event, error)

    async def _run(self, steps: Steps[Answer]) -> Answer:
        if self._shell is None:
            raise RuntimeError("the controller was not started")
        return await self._shell.run(steps)

    # The office.

    def _on_controller_change(self, fired: WatcherEvent) -> None:
        if fired.type is EventType.NODE_DELETED:
            self._put(Reelect())
        elif fired.type in {EventType.NODE_CREATED, EventType.NODE_DATA_CHANGED}:
            self._put(ControllerChange())

    async def _watch_controller(self) -> None:
        self._incumbent = await self._run(read_incumbent(self._on_controller_change))

    async def _maybe_resign(self) -> None:
        """Looks who the controller is, and resigns if this broker was and is no longer."""
        await self._watch_controller()
        incumbent = self._incumbent
        if incumbent is not None and incumbent.broker_id is None:
            # It says nothing of another controller, whose election would have changed the epoch.
            self._logger.error("The controller's znode cannot be read: %s", incumbent.fault)
            if self._term is not None and self._registration is not None:
                payload = self._registration.encode()
                try:
                    await self._run(mend_registration(payload, self._term.context.epoch_version))
                except ControllerMovedError as error:
                    self._logger.info("The znode is another controller's: %s", error)
                    await self._resign()
        elif self._term is not None and not self._is_mine(incumbent):
            await self._resign()

    def _is_mine(self, incumbent: Incumbent | None) -> bool:
        """Whether the znode is the one that was made in this session; a former life's has this broker's id too."""
        return (
            incumbent is not None
            and self._registration is not None
            and incumbent.payload == self._registration.encode()
        )

    async def _elect(self) -> None:
        """Stands for election where there is no controller, and takes over when elected."""
        if self._term is not None:
            return
        incumbent = self._incumbent = await self._run(read_incumbent())
        if self._is_mine(incumbent):
            await self._give_back()
            return
        if incumbent is not None:
            self._logger.debug("Broker %s is the controller, so there is no election", incumbent.broker_id)
            return
        if self._host.loop.time() < self._stands_again_at:
            self._put_later(Reelect())
            return
        self._registration = ControllerRegistration(self._settings.broker_id, self._host.clock.time_ms())
        try:
            elected = await self._run(claim_controllership(self._registration))
        except ControllerMovedError as error:
            self._logger.info("Not elected: %s", error)
            await self._watch_controller()
            if self._incumbent is None:
                # Whoever was faster is gone again, and no watch has seen it.
                self._put(Reelect())
            return
        self._logger.info("Elected controller of epoch %d (epoch version %d)", elected.epoch, elected.epoch_version)
        self._incumbent = Incumbent(self._settings.broker_id, self._registration.encode())
        self._watches = ControllerWatches(self._put)
        self._term = ControllerTerm(
            elected,
            self._settings,
            self._watches,
            self._new_topic_id,
            self._logger,
            self._state_change_logger,
            self._ports.told_leadership,
        )
        self._recent_moves.clear()
        self._open_channels(elected.epoch)
        try:
            await self._run(self._term.take_over())
        except (ControllerMovedError, SessionOverError):
            raise
        except Exception:
            self._logger.exception("Could not take over as controller of epoch %d; another broker may", elected.epoch)
            await self._move(elected.epoch_version)
            return
        delay_over = UncleanElectionDelayOver(elected.epoch)
        self._timers.call_after(self._settings.unclean_election_delay_ms, self._put, delay_over)
        self._timers.call_after(READ_AGAIN_MS, self._read_again, elected.epoch)

    def _read_again(self, epoch: int) -> None:
        """As long as the term lasts."""
        if self._term is not None and self._term.context.epoch == epoch:
            if self._term.must_read_again:
                self._put(ReadAgain(epoch))
            self._timers.call_after(READ_AGAIN_MS, self._read_again, epoch)

    async def _move(self, epoch_version: int) -> None:
        """Gives the office up, for any broker to take it."""
        self._stands_again_at = self._host.loop.time() + RETRY_BACKOFF_MS / 1000
        await self._resign()
        try:
            await self._run(leave_office(epoch_version))
        except ControllerMovedError:
            self._logger.warning("The controller has moved already")

    async def _give_back(self) -> None:
        """Gives up an office in which this broker cannot serve."""
        self._stands_again_at = self._host.loop.time() + RETRY_BACKOFF_MS / 1000
        await self._resign()
        if self._registration is not None:
            await self._run(give_back(self._registration.encode()))

    def _new_topic_id(self) -> Uuid:
        return Uuid.generate(self._host.entropy)

    def _open_channels(self, epoch: int) -> None:
        self._channels = BrokerChannels(
            self._host,
            self._settings,
            self._ports.connections,
            timers=self._timers,
            logger=self._channel_logger,
            metrics=self._metrics,
            on_response=lambda request, response: self._on_response(epoch, request, response),
        )
        if self._shell is not None:
            self._shell.channels = self._channels

    def _on_response(self, epoch: int, request: BrokerRequest, response: Message) -> None:
        broker_id = request.broker_id
        match request.message, response:
            case LeaderAndIsrRequest(broker_epoch=broker_epoch), LeaderAndIsrResponse():
                self._put(LeaderAndIsrResponseReceived(epoch, broker_id, broker_epoch, response))
            case UpdateMetadataRequest(), UpdateMetadataResponse():
                self._put(UpdateMetadataResponseReceived(epoch, broker_id, response))
            case StopReplicaRequest() as asked, StopReplicaResponse() if _deletes(asked):
                self._put(TopicDeletionStopReplicaResponseReceived(epoch, broker_id, asked, response))

    async def _resign(self) -> None:
        """Ends the term: no watch of it fires any more, no channel sends, nothing of what it knew is left."""
        if self._watches is not None:
            self._watches.end()
        if self._shell is not None:
            self._shell.channels = None
        was_active = self._term is not None
        self._term, self._watches = None, None
        channels, self._channels = self._channels, None
        if channels is not None:
            await channels.close_all()
        if was_active:
            self._logger.info("Resigned")

    async def _register(self, event: RegisterBrokerAndReelect) -> None:
        """Registers the broker in a new session, and stands for election."""
        try:
            broker_epoch = await self._ports.registration.register()
        except Exception:
            self._logger.exception("The broker could not be registered; trying again")
            self._put_later(event)
            return
        self._logger.info("Registered broker %d with epoch %d", self._settings.broker_id, broker_epoch)
        await self._maybe_resign()
        await self._elect()

    def _put_later(self, event: ControllerEvent) -> None:
        self._timers.call_after(RETRY_BACKOFF_MS, self._put, event)


def _deletes(request: StopReplicaRequest) -> bool:
    return any(state.delete_partition for topic in request.topic_states for state in topic.partition_states)


def _not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")


def _answer(future: asyncio.Future[Answer], result: Answer) -> None:
    # Nobody may wait any more.
    if not future.done():
        future.set_result(result)


def _answer_error(event: AnsweredEvent, error: KafkaError) -> None:
    if not event.answer.done():
        event.answer.set_exception(error)


def _finish(event: ControllerEvent) -> None:
    """Whoever still waits for the event learns that it is over."""
    if isinstance(event, AnsweredEvent):
        _answer_error(event, _not_controller())
    elif isinstance(event, Expire) and not event.done.done():
        event.done.set_result(None)
