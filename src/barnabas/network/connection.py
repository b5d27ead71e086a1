"""A client's connection, seen by the broker: requests to the handler, responses in the order of the requests."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from barnabas.kernel.tick import DATA_BYTES_PER_TICK
from barnabas.link.connection import JOINED_BYTES_MAX, Connection, LinkContext, Pause, Phase
from barnabas.link.frames import SIZE_BYTES, KeptFrame
from barnabas.network.ports import FastPath, RequestHandler
from barnabas.network.request_costs import BYTES_PER_REQUEST, BYTES_PER_TURN, ENCODED_BYTE_COST, REQUESTS_PER_TURN
from barnabas.network.request_queue import RequestQueue
from barnabas.wire.primitives import Buffer, ProtocolError

if TYPE_CHECKING:
    from barnabas.kernel.timers import Timer
    from barnabas.network.config import ListenerConfig
    from barnabas.network.request_memory import Claim, RequestMemory

# What a buffer that is held back costs beside its bytes.
_OBJECT_BYTES: Final = 64
_OPEN: Final = Phase.OPEN
_NOT_BY_CLIENT: Final = int(Pause.MUTED | Pause.WORKING | Pause.MEMORY | Pause.THROTTLED)
ANONYMOUS: Final = "User:ANONYMOUS"
"""Everybody, where no listener authenticates."""
Handle = Callable[["ServerConnection", bytearray | memoryview, int, int], "list[Buffer] | None"]
"""As `RequestHandler.handle`."""
_api_key_at = struct.Struct(">h").unpack_from
_API_KEY_END: Final = SIZE_BYTES + 2


class Slot:
    """The place of a request's response among those of its connection. Made by `ServerConnection.park`."""

    __slots__ = (
        "_behind",
        "_connection",
        "_is_done",
        "_is_queued",
        "_response",
        "claim",
        "held_back_bytes",
        "when_lost",
    )

    def __init__(self, connection: ServerConnection, *, is_queued: bool) -> None:
        self._connection = connection
        self._is_queued = is_queued
        self._is_done = False
        self._response: list[Buffer] | None = None
        # Responses to later requests that were ready at once, up to the next slot.
        self._behind: list[Buffer] | None = None
        self.held_back_bytes = 0
        """For the connection: what the slot keeps from leaving."""
        self.claim: Claim | None = None
        """The memory of the request; ends with the slot or the connection."""
        self.when_lost: Callable[[], object] | None = None
        """Called when the connection is over before the slot was completed: nobody needs the answer any more."""

    def complete(self, response: list[Buffer] | None) -> None:
        """Gives the response, or None if there is none; it leaves when all those ahead of it have.

        Nothing happens if the connection is over. Raises RuntimeError if the slot was completed before.
        """
        if self._is_done:
            raise RuntimeError("this request has been answered already")
        self._is_done = True
        self._response = response
        claim = self.claim
        if claim is not None:
            claim.end()
        self._connection.slot_done(self, response)

    @property
    def is_done(self) -> bool:
        return self._is_done

    @property
    def is_queued(self) -> bool:
        """It counts against `queued.max.requests`."""
        return self._is_queued

    def leave_queue(self) -> None:
        """Says that it waits for something to happen from now on, and not for work of this broker."""
        if self._is_queued:
            self._is_queued = False
            self._connection.slot_left_queue()

    def put_behind(self, response: list[Buffer]) -> None:
        """For the connection: keeps the response to a later request."""
        if self._behind is None:
            self._behind = response
        else:
            self._behind += response

    def output(self) -> list[Buffer]:
        """For the connection, once: the response, and what waits behind it.

        The slot lets go of both: a parked request refers to it in a cycle, which may live for long, and must not keep a
        sent megabyte alive.
        """
        response, behind = self._response or [], self._behind
        self._response = self._behind = self.when_lost = None
        return response + behind if behind else response


class Owner(Protocol):
    """The server that connections belong to."""

    handler: RequestHandler[ServerConnection]
    queue: RequestQueue
    memory: RequestMemory
    requests_received: int

    def opened(self, connection: ServerConnection) -> bool:
        """Counts the connection; False if there are too many, or it is to wait."""
        ...

    def closed(self, connection: ServerConnection) -> None:
        """Counts the connection no more."""
        ...


class ServerConnection(Connection):
    """One connection of a listener."""

    __slots__ = (
        "_announced",
        "_draining",
        "_frame_claim",
        "_handle",
        "_held_back_bytes",
        "_holds",
        "_owner",
        "_principal",
        "_slots",
        "_spent_max",
        "_throttle_end",
        "_unread_claim",
        "address",
        "collected",
        "fast_path",
        "is_authenticated",
        "is_by_token",
        "listener",
        "login",
    )

    def __init__(self, context: LinkContext, owner: Owner, listener: ListenerConfig) -> None:
        super().__init__(context)
        self._owner = owner
        self._handle: Handle = owner.handler.handle
        if listener.authenticates:
            self._handle = _refuse
        self._slots: deque[Slot] | None = None
        self._held_back_bytes = 0
        self._holds = 0
        self._spent_max = 0
        self._draining = False
        self._announced = False
        self._frame_claim: Claim | None = None
        self._unread_claim: Claim | None = None
        self._throttle_end: Timer | None = None
        self.listener = listener
        """The listener that the client came in by."""
        self.address = ""
        """The client's IP address."""
        self.fast_path: FastPath[ServerConnection] | None = None
        """For the handler: what it has learnt of this connection's requests."""
        self.collected = 0
        """Requests that its fast path has taken and not answered yet."""
        self.is_control = listener.is_control_plane
        self._principal = ANONYMOUS
        self.is_authenticated = not listener.authenticates
        """It is known who the client is, or its listener does not ask: its requests may go ahead of others'."""
        self.is_by_token = False
        """The client has logged in by a delegation token."""
        self.login: Any = None
        """For the handler: how far the client is with its login, where the listener asks for one."""

    def divert(self, handle: Handle) -> None:
        """Has requests from now on handled by this, in place of what has handled them so far."""
        self._forget_fast_path()
        self._handle = handle

    def learn(self, fast_path: FastPath[ServerConnection]) -> None:
        """Takes the fast path that a request has taught, which may have been handled in later turns: not where its
        requests were diverted meanwhile, since they would go past who is to have them.
        """
        if self._handle == self._owner.handler.handle:
            self.fast_path = fast_path

    def limit_frames(self, frame_bytes_max: int | None) -> None:
        """Ends the connection for a larger frame than this from now on; None: than the bound of all connections."""
        bound = self._context.limits.frame_bytes_max
        self._receiver.limit(bound if frame_bytes_max is None else min(frame_bytes_max, bound))

    @property
    def principal(self) -> str:
        """Who the client is. What its fast path has learnt is of that principal, and is forgotten when it changes."""
        return self._principal

    @principal.setter
    def principal(self, principal: str) -> None:
        self._forget_fast_path()
        self._principal = principal

    def _forget_fast_path(self) -> None:
        fast_path, self.fast_path = self.fast_path, None
        if fast_path is not None and self.collected:
            fast_path.finish()

    @property
    def socket(self) -> Any:
        """The transport's socket, for its options; None if the connection is over."""
        return self._transport.get_extra_info("socket") if self._transport is not None else None

    @property
    def unanswered(self) -> int:
        """How many requests have a slot."""
        return len(self._slots) if self._slots else 0

    def park(self, *, is_queued: bool = False) -> Slot:
        """Takes the place of the response to the request that is being handled, which is answered later.

        `is_queued` says that it waits for work of this broker (the disk, a computation), which `queued.max.requests`
        bounds; not so what waits for something to happen (replication, new records, a group).
        """
        slot = Slot(self, is_queued=is_queued)
        slots = self._slots
        if slots is None:
            slots = self._slots = deque()
        slots.append(slot)
        if is_queued:
            self._owner.queue.add()
        if len(slots) >= self._context.limits.unanswered_requests_max:
            self._pause(Pause.UNANSWERED)
        return slot

    def keep(self, frame: bytearray | memoryview, start: int, end: int) -> KeptFrame:
        """The frame that is being handled, to be used for longer."""
        kept = self._receiver.keep(frame, start, end)
        claim = self._frame_claim
        if claim is not None and kept.buffer is frame:
            self._frame_claim = None
            claim.progress = None
            claim.is_working = True  # what it waits for now is its turn, in another line
            kept.when_released = lambda: _end_work(claim)
        return kept

    def claim_work(self, frame_bytes: int) -> Claim | None:
        """Room for a request that is worked on in steps, of which so many bytes are kept; None where none is needed."""
        return None if self.is_control else self._owner.memory.of_work(frame_bytes, self.fail)

    def claim_copy(self, size: int) -> Callable[[], None]:
        """Counts so many bytes that were copied out of the frame that is being handled, until what it returns is
        called: whether the connection is still there or not.
        """
        claim = self._owner.memory.of_copy(size, self.fail)
        return lambda: _end_work(claim)

    def hold(self) -> None:
        """Handles no more requests until `go_on` was called as often: the present one goes on in later turns, and they
        are handled in their order.
        """
        self._holds += 1
        self._pause(Pause.WORKING)

    def go_on(self) -> None:
        """Ends what `hold` began."""
        self._holds -= 1
        if not self._holds:
            self._go_on(Pause.WORKING)

    def throttle(self, throttle_ms: int) -> None:
        """Reads and handles nothing for so long, since the client has taken more than its quota (KIP-219); of several
        that overlap, the one that ends last holds. What was handled before is answered meanwhile.
        """
        if not self.is_open or throttle_ms <= 0:
            return
        former, end = self._throttle_end, self._context.timers.call_after(throttle_ms, self._end_throttle)
        if former is not None:
            sooner, end = (former, end) if former.tick < end.tick else (end, former)
            sooner.cancel()
        self._throttle_end = end
        self._pause(Pause.THROTTLED)

    def _end_throttle(self) -> None:
        self._throttle_end = None
        self._go_on(Pause.THROTTLED)

    @property
    def quietness(self) -> tuple[bool, int]:
        """By which the quietest of connections comes first: those without a request on its way, then those of which
        nothing has been heard for longest.
        """
        return self._busy, self.active_step

    @property
    def is_throttled(self) -> bool:
        """Whether it waits because of a quota."""
        return self._throttle_end is not None

    def drain(self) -> None:
        """Handles no more requests, and closes when those on their way are answered."""
        if self.is_open and not self._draining:
            self._draining = True
            self._pause(Pause.MUTED)
            self._close_if_drained()

    def unmute(self) -> None:
        if not self._draining:
            super().unmute()

    def answer_collected(self, response: list[Buffer] | None) -> None:
        """For the fast path: answers a collected request, or says that there is no response, or that it has a slot."""
        self.collected -= 1
        if response is not None:
            self._respond(response)
        if self._draining:
            self._close_if_drained()

    def answer_at_once(self, response: Buffer) -> None:
        """Like `answer_collected`, for a response that nothing of this tick can change any more: it leaves now, unless
        others of this connection have to go before it, or can go with it.
        """
        self.collected -= 1
        transport = self._transport
        if self.collected or self._slots or self._output is not None or self._pauses or transport is None:
            self._respond([response])
        elif self.phase is _OPEN:
            transport.write(response)
        if self._draining:
            self._close_if_drained()

    # The slots' calls.

    def slot_left_queue(self) -> None:
        """A slot counts no more against `queued.max.requests`."""
        self._owner.queue.remove()

    def slot_done(self, slot: Slot, response: list[Buffer] | None) -> None:
        """A slot was completed: sends what may leave now."""
        if slot.is_queued:
            self._owner.queue.remove()
        slots = self._slots
        if not slots or not self.is_open:
            return
        if slots[0] is not slot:
            self._hold_back(slot, response)
            return
        while slots and slots[0].is_done:
            first = slots.popleft()
            self._held_back_bytes -= first.held_back_bytes
            output = first.output()
            if output:
                self.send(output)
        if not slots:
            self._slots = None
        if self._pauses & Pause.UNANSWERED.value and self._has_room():
            self._go_on(Pause.UNANSWERED)
        if self._draining:
            self._close_if_drained()

    # The link's calls.

    def _opened(self) -> None:
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        self.address = str(name[0]) if isinstance(name, tuple) else ""
        if self._owner.opened(self):
            self.announce()

    def announce(self) -> None:
        """For the server: tells the handler of a connection that is let in."""
        self._announced = True
        self._owner.handler.connection_opened(self)

    def _lost(self, _error: Exception | None) -> None:
        # The work for queued slots goes on, and counts until they are completed.
        slots, self._slots = self._slots, None
        for claim in (self._frame_claim, self._unread_claim):
            if claim is not None:
                claim.end()
        self._frame_claim = self._unread_claim = None
        if self._throttle_end is not None:
            self._throttle_end.cancel()
            self._throttle_end = None
        for slot in slots or ():
            if slot.claim is not None and slot.claim.is_held:
                slot.claim.end()
            if slot.when_lost is not None and not slot.is_done:
                slot.when_lost()
        self._owner.closed(self)
        if self._announced:
            self._owner.handler.connection_closed(self)

    def buffer_updated(self, count: int) -> None:
        fast_path = self.fast_path
        if fast_path is None or self.is_control:
            super().buffer_updated(count)
            return
        if self.phase is not _OPEN:
            return
        tick = self._tick
        is_sole_ready = tick.is_sole_ready(self)
        if not (self._pauses or self._turn_is_due or tick.held or tick.spent >= DATA_BYTES_PER_TICK):
            receiver = self._receiver
            if is_sole_ready:
                tick.begin()
            try:
                if is_sole_ready and receiver.offer_only(count, fast_path.take_alone, self):
                    taken, count = 1, 0
                else:
                    # Requests that are only collected need not wait for their turn: what they bring about does.
                    taken, count = receiver.offer(count, fast_path.take, self, REQUESTS_PER_TURN)
            finally:
                if is_sole_ready:
                    tick.finish()
            self._owner.requests_received += taken
            tick.spent += taken * fast_path.cost_bytes
            if not count:
                self.active_step = self._idle.step
                return
        if self.phase is _OPEN:
            self._receive(count, is_sole_ready=is_sole_ready)

    def _receive(self, count: int, *, is_sole_ready: bool) -> None:
        super()._receive(count, is_sole_ready=is_sole_ready)
        if self._tick.held and not self.is_control:
            self._look_for_control()

    def spend(self, cost_bytes: int) -> None:
        """Counts what a request costs this tick beside what its fast path says of all of them."""
        self._tick.spent += cost_bytes

    def deliver(self) -> int:
        self._spent_max = self._tick.spent + BYTES_PER_TURN
        handled = super().deliver()
        if self._receiver.large_bytes or self._frame_claim is not None:
            self._claim_frame()
        return handled

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread_claim is None and self._transport is not None and self.phase is not Phase.CLOSED:
            self._unread_claim = self._owner.memory.of_unread(self._unread_bytes(), self.fail, self._unread_bytes)

    def resume_writing(self) -> None:
        claim, self._unread_claim = self._unread_claim, None
        if claim is not None:
            claim.end()
        super().resume_writing()

    def _check_unread(self, held_back_bytes: int) -> None:
        claim = self._unread_claim
        if claim is not None:
            claim.resize(self._unread_bytes() + held_back_bytes)
            self._owner.memory.unread_grew()
        super()._check_unread(held_back_bytes)

    def _unread_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _frame_progress(self) -> int | None:
        """How much of a large frame has come; None while it is not the client that keeps the rest from coming."""
        return None if self._pauses & _NOT_BY_CLIENT else self._receiver.pending_bytes

    def _claim_frame(self) -> None:
        """Asks for room for a large frame that has begun, and gives back that of one that was handled."""
        size, claim = self._receiver.large_bytes, self._frame_claim
        if claim is not None:
            if size:
                return
            self._frame_claim = None
            claim.end()
            return
        if self.is_control or self.phase is not _OPEN:
            return
        start = self._receiver.peek(_API_KEY_END) if self.is_authenticated else b""
        if len(start) == _API_KEY_END and self._owner.handler.is_of_controller(self, _api_key_at(start, SIZE_BYTES)[0]):
            return
        self._frame_claim = claim = self._owner.memory.of_frame(
            size,
            lambda: self._go_on(Pause.MEMORY),
            self.fail,
            self._frame_progress,
            is_of_login=not self.is_authenticated,
        )
        if not claim.is_held:
            self._pause(Pause.MEMORY)

    def _look_for_control(self) -> None:
        """While frames of data connections wait, the next frame may be a controller's first on a listener that it
        shares with clients.
        """
        if not self._may_handle() or not self.is_authenticated:
            return
        start = self._receiver.peek(_API_KEY_END)
        if len(start) < _API_KEY_END:
            self._set_reading(wanted=True)  # it cannot be told yet
        elif self._owner.handler.is_of_controller(self, _api_key_at(start, SIZE_BYTES)[0]):
            self.is_control = True
            self.deliver()

    def _take(self, buffer: bytearray | memoryview, start: int, end: int) -> bool:
        self._owner.requests_received += 1
        tick = self._tick
        tick.spent += BYTES_PER_REQUEST
        response = self._handle(self, buffer, start, end)
        if response is not None:
            tick.spent += len(response[0]) * ENCODED_BYTE_COST
        if self.is_sending_much if response is None else self._respond(response):
            return False
        if self._pauses or self.phase is not _OPEN:
            return False
        return self.is_control or not (tick.held or tick.spent >= self._spent_max)

    def _respond(self, response: list[Buffer]) -> bool:
        """Sends a response behind those of earlier requests; True if that is enough for this tick."""
        slots = self._slots
        if slots:
            slots[-1].put_behind(response)
            self._hold_back(slots[-1], response)
            return False
        # Counted before it is given away: the list is the connection's then, and grows.
        much = (len(response) > 1 or len(response[0]) > JOINED_BYTES_MAX) and self._note_output(response)
        if self._output is not None:
            self._output += response
        elif self.phase is _OPEN:  # as `send` has it
            self._output = response
            self._tick.will_send(self)
        return much

    @property
    def _busy(self) -> bool:
        return bool(self._slots) or self.collected > 0

    def _has_room(self) -> bool:
        limits = self._context.limits
        return (
            self.unanswered <= limits.unanswered_requests_max // 2
            and self._held_back_bytes <= limits.output_bytes_high // 2
        )

    def _hold_back(self, slot: Slot, response: list[Buffer] | None) -> None:
        """Counts what waits for the order of responses; beyond the bound the connection is not read."""
        if not response:
            return
        size = sum(len(buffer) + _OBJECT_BYTES for buffer in response)
        slot.held_back_bytes += size
        self._held_back_bytes += size
        if self._held_back_bytes > self._context.limits.output_bytes_high:
            self._pause(Pause.UNANSWERED)
            self._check_unread(self._held_back_bytes)

    def _close_if_drained(self) -> None:
        if not self._slots and not self.collected:
            self.close()


def _refuse(*_: object) -> NoReturn:
    """Handles nothing: what asks for the login has to be put in its place first."""
    raise ProtocolError("a request before the login, on a listener where nobody asks for one")


def _end_work(claim: Claim) -> None:
    claim.end()
    claim.work_ended()
