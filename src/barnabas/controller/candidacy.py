"""One broker's part in the elections of the controller: it stands, holds the term while elected, and resigns."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from barnabas.controller.channels import BrokerChannels
from barnabas.controller.controller_election import (
    Incumbent,
    claim_controllership,
    delete_controller_znode,
    give_back,
    mend_registration,
    read_incumbent,
)
from barnabas.controller.effects import BrokerRequest, ControllerMovedError, SessionOverError, Steps, operate
from barnabas.controller.event_watches import EventWatches
from barnabas.controller.events import ControllerChange, ControllerEvent, Reelect, RegistrationChange
from barnabas.controller.ports import ControllerPorts
from barnabas.controller.recent_transitions import RecentTransitions
from barnabas.controller.settings import FIRST_LEADER_IMBALANCE_CHECK_MS, READ_AGAIN_MS, WRITE_ON_MS, ControllerSettings
from barnabas.controller.shell import ControllerShell
from barnabas.controller.term import ControllerTerm
from barnabas.controller.term_events import (
    AutoPreferredReplicaLeaderElection,
    ReadAgain,
    UncleanElectionDelayOver,
    response_event,
)
from barnabas.coordination.layout.brokers import broker_id_path
from barnabas.coordination.layout.controller import ControllerRegistration
from barnabas.coordination.operations import Exists
from barnabas.coordination.protocol import EventType, WatcherEvent
from barnabas.kernel.host import Host
from barnabas.kernel.ids import Uuid
from barnabas.kernel.logs import Logs
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.timers import Timers
from barnabas.wire.classes import Message

Result = TypeVar("Result")
RETRY_BACKOFF_MS = 1_000
"""Before a broker stands again after it failed to take over, or registers again after that failed."""


class Candidacy:
    """The `Candidate` of the election events, which alone call what changes it."""

    def __init__(
        self,
        host: Host,
        settings: ControllerSettings,
        ports: ControllerPorts,
        put: Callable[[ControllerEvent], None],
        *,
        timers: Timers,
        logs: Logs,
        metrics: MetricsRegistry,
        recent_transitions: RecentTransitions,
    ) -> None:
        """`put` puts an event into the controller's queue."""
        self._host = host
        self._settings = settings
        self._ports = ports
        self._put = put
        self._timers = timers
        self._metrics = metrics
        self._recent_transitions = recent_transitions
        self._logger: logging.Logger = logs.logger("kafka.controller.KafkaController")
        self._channel_logger = logs.logger("kafka.controller.ControllerChannelManager")
        self._state_change_logger = logs.logger("state.change.logger")
        self._shell: ControllerShell | None = None
        self._watches: EventWatches | None = None
        self._stands_again_at = 0.0
        self.term: ControllerTerm | None = None
        """The present term; None while this broker is not the controller."""
        self.channels: BrokerChannels | None = None
        """Those of the present term."""
        self.incumbent: Incumbent | None = None
        """What `/controller` held when it was last read."""
        self.registration: ControllerRegistration | None = None
        """What this session has written, or may have written, into `/controller`."""
        self.session = 0
        """The number of the present session."""

    @property
    def is_elected(self) -> bool:
        return self.term is not None

    def start(self, shell: ControllerShell) -> None:
        """From now on steps run on this shell."""
        self._shell = shell

    def reconfigure(self, settings: ControllerSettings) -> None:
        """The present term and later ones follow these settings."""
        self._settings = settings
        if self.term is not None:
            self.term.reconfigure(settings)

    def end_session(self) -> None:
        """The session is over: what is under way in it goes no further. The events see to the rest."""
        self.session += 1
        if self._shell is not None:
            self._shell.session_over()

    def forget_session(self) -> None:
        """What was written went with the session."""
        self.registration = None
        self.incumbent = None

    async def run(self, steps: Steps[Result]) -> Result:
        if self._shell is None:
            raise RuntimeError("the controller was not started")
        return await self._shell.run(steps)

    def _on_controller_change(self, fired: WatcherEvent) -> None:
        if fired.type is EventType.NODE_DELETED:
            self._put(Reelect())
        elif fired.type in {EventType.NODE_CREATED, EventType.NODE_DATA_CHANGED}:
            self._put(ControllerChange())

    async def watch_controller(self) -> None:
        self.incumbent = await self.run(read_incumbent(self._on_controller_change))

    async def maybe_resign(self) -> None:
        """Reads who the controller is, and resigns if this broker was it and is no longer."""
        await self.watch_controller()
        incumbent = self.incumbent
        if incumbent is not None and incumbent.broker_id is None:
            # Not a sign of another controller: its election would have changed the epoch.
            self._logger.error("The controller's znode cannot be read: %s", incumbent.fault)
            if self.term is not None and self.registration is not None:
                payload = self.registration.encode()
                try:
                    await self.run(mend_registration(payload, self.term.context.epoch_version))
                except ControllerMovedError as error:
                    self._logger.info("The znode is another controller's: %s", error)
                    await self.resign()
        elif self.term is not None and not self._is_mine(incumbent):
            await self.resign()

    def _is_mine(self, incumbent: Incumbent | None) -> bool:
        """Whether this session created the znode; one from an earlier run of this broker has its id too."""
        return (
            incumbent is not None and self.registration is not None and incumbent.payload == self.registration.encode()
        )

    async def elect(self) -> None:
        """Stands for election where there is no controller, and takes over when elected."""
        if self.term is not None:
            return
        incumbent = self.incumbent = await self.run(read_incumbent())
        if self._is_mine(incumbent):
            await self.give_back()
            return
        if incumbent is not None:
            self._logger.debug("Broker %s is the controller, so there is no election", incumbent.broker_id)
            return
        if self._host.loop.time() < self._stands_again_at:
            self._put_later(Reelect())
            return
        self.registration = ControllerRegistration(self._settings.broker_id, self._host.clock.time_ms())
        try:
            elected = await self.run(claim_controllership(self.registration, self._ports.heard_epoch()))
        except ControllerMovedError as error:
            self._logger.info("Not elected: %s", error)
            await self.watch_controller()
            if self.incumbent is None:
                # The broker that was faster is gone again, and no watch has seen it.
                self._put(Reelect())
            return
        self._logger.info("Elected controller of epoch %d (epoch version %d)", elected.epoch, elected.epoch_version)
        self.incumbent = Incumbent(self._settings.broker_id, self.registration.encode())
        self._watches = EventWatches(self._put)
        self.term = ControllerTerm(
            elected,
            self._settings,
            self._watches,
            self._new_topic_id,
            self._logger,
            self._state_change_logger,
            self._ports.told_leadership,
        )
        self._recent_transitions.clear()
        self._open_channels(elected.epoch)
        try:
            await self.run(self.term.take_over())
        except (ControllerMovedError, SessionOverError):
            raise
        except Exception:
            self._logger.exception("Could not take over as controller of epoch %d; another broker may", elected.epoch)
            await self._move(elected.epoch_version)
            return
        self._ports.elected()
        delay_over = UncleanElectionDelayOver(elected.epoch)
        self._timers.call_after(self._settings.unclean_election_delay_ms, self._put, delay_over)
        self._read_again_later(elected.epoch)
        if self._settings.auto_leader_rebalance_enable:
            self._check_balance_after(FIRST_LEADER_IMBALANCE_CHECK_MS, elected.epoch)

    def _read_again_later(self, epoch: int) -> None:
        """Has the term read again what it could not read, `READ_AGAIN_MS` after it has done so, as long as it lasts;
        sooner where that goes on with what one reading had not enough writes for.
        """
        term = self.term
        if term is not None and term.context.epoch == epoch:
            delay_ms = WRITE_ON_MS if term.has_more_to_write else READ_AGAIN_MS
            self._timers.call_after(delay_ms, self._read_again, epoch)

    def _read_again(self, epoch: int) -> None:
        if self.term is not None and self.term.context.epoch == epoch:
            if self.term.must_read_again:
                self._put(ReadAgain(epoch, self._read_again_later))
            else:
                self._read_again_later(epoch)

    def _check_balance_after(self, delay_ms: int, epoch: int) -> None:
        check = AutoPreferredReplicaLeaderElection(epoch, self._balance_checked)
        self._timers.call_after(delay_ms, self._put, check)

    def _balance_checked(self, epoch: int) -> None:
        """The next check comes an interval after the end of the former, so that checks never wait for one another."""
        if self.term is not None and self.term.context.epoch == epoch:
            self._check_balance_after(self._settings.leader_imbalance_check_interval_ms, epoch)

    async def _move(self, epoch_version: int) -> None:
        """Gives controllership up, so that any broker can be elected."""
        self._stands_again_at = self._host.loop.time() + RETRY_BACKOFF_MS / 1000
        await self.resign()
        try:
            await self.run(delete_controller_znode(epoch_version))
        except ControllerMovedError:
            self._logger.warning("The controller has moved already")

    async def give_back(self) -> None:
        """Deletes a `/controller` of this session under which this broker cannot serve."""
        self._stands_again_at = self._host.loop.time() + RETRY_BACKOFF_MS / 1000
        await self.resign()
        if self.registration is not None:
            await self.run(give_back(self.registration.encode()))

    def _new_topic_id(self) -> Uuid:
        return Uuid.generate(self._host.entropy)

    def _open_channels(self, epoch: int) -> None:
        self.channels = BrokerChannels(
            self._host,
            self._settings,
            self._ports.connections,
            timers=self._timers,
            logger=self._channel_logger,
            metrics=self._metrics,
            on_response=lambda request, response: self._on_response(epoch, request, response),
        )
        if self._shell is not None:
            self._shell.channels = self.channels

    def _on_response(self, epoch: int, request: BrokerRequest, response: Message) -> None:
        event = response_event(epoch, request, response)
        if event is not None:
            self._put(event)

    async def resign(self) -> None:
        """Ends the term: its watches fire no more, its channels send no more, and what it knew is forgotten."""
        if self._watches is not None:
            self._watches.end()
        if self._shell is not None:
            self._shell.channels = None
        was_active = self.term is not None
        self.term, self._watches = None, None
        channels, self.channels = self.channels, None
        if channels is not None:
            await channels.close_all()
        if was_active:
            self._logger.info("Resigned")

    async def register(self) -> bool:
        """Registers the broker in a new session; returns whether that worked. A failure is logged."""
        try:
            broker_epoch = await self._ports.registration.register()
        except Exception:
            self._logger.exception("The broker could not be registered; trying again")
            return False
        self._logger.info("Registered broker %d with epoch %d", self._settings.broker_id, broker_epoch)
        return True

    async def renew_registration(self) -> bool:
        """Registers the broker again where its znode is gone in this session: somebody has deleted it, and nobody would
        count on the broker any more, which knows nothing of that. Returns whether it is registered, or that failed. The
        next change of the znode is an event.
        """
        session = self.session

        def changed(_fired: WatcherEvent) -> None:
            if session == self.session:
                self._put(RegistrationChange(session))

        watched = Exists(broker_id_path(self._settings.broker_id), changed)
        while True:
            (found,) = await self.run(operate([watched]))
            if isinstance(found, Exception):
                raise found
            if found is not None:
                return True
            self._logger.warning("The registration of broker %d is gone; making it again", self._settings.broker_id)
            if not await self.register():
                return False

    def _put_later(self, event: ControllerEvent) -> None:
        self._timers.call_after(RETRY_BACKOFF_MS, self._put, event)
