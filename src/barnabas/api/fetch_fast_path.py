"""The fast path of Fetch requests: from the frame to what is to be read, and from what was read to the frame of the
response.

It is for a follower's requests of an incremental session, and for a client's with such a session or without any. What a
request does is done by the same sessions, reads and parked fetches as on the general path. What is spared is to
make objects of its frame, and the frame of the response of objects; whatever has no place in such frames is answered by
the general path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Protocol

from barnabas.api.fetch_access import fetch_access
from barnabas.api.fetch_frames import Form, IdForm, UsualRequest
from barnabas.api.follower_fetch import FollowerFetch
from barnabas.network.request_costs import BYTES_PER_REQUEST
from barnabas.serving.fetch_sessions import FEW_PARTITIONS, SessionRequest
from barnabas.wire.compiler_frames import COUNT_MAX
from barnabas.wire.fetch_session import FINAL_EPOCH
from barnabas.wire.messages import FetchResponse
from barnabas.wire.sentinels import CONSUMER_ID, NO_EPOCH

if TYPE_CHECKING:
    from barnabas.api.context import RequestContext, Responder
    from barnabas.log.segments.segment import ReadPlan
    from barnabas.network.connection import ServerConnection, Slot
    from barnabas.serving.fetch import DelayedFetches
    from barnabas.serving.fetch_partition import FetchPartition, NamedPartition, PartitionRead, SessionKey
    from barnabas.serving.fetch_reads import FetchAccess, FetchParameters, FetchQuota, Reads
    from barnabas.serving.fetch_sessions import FetchScope, FetchSessionCache
    from barnabas.wire.errors import ErrorCode
    from barnabas.wire.primitives import Buffer

_FAILED: Final = "handling a fetch request failed"


class Chosen(NamedTuple):
    """A partition of the response."""

    item: FetchPartition
    read: PartitionRead
    code: ErrorCode
    """Of the read, or why its records cannot be given to this client."""


class Collected(NamedTuple):
    """What goes into a response."""

    chosen: list[Chosen]
    records: list[Buffer | None]
    """Of each; None where they are not in the page cache."""
    is_complete: bool
    """All of them are here."""
    throttle_ms: int = 0
    """For how long the client is held back, which gets nothing then."""


class Asked(NamedTuple):
    """What a request asks for, besides partitions."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int


class FetchResponder(Protocol):
    """The handler of Fetch requests."""

    def parameters(
        self,
        api_version: int,
        follower_id: int,
        asked: Asked,
        follower_epoch: int = ...,
        *,
        rack_id: str = ...,
        listener_name: str = ...,
        quota: FetchQuota | None = ...,
        access: FetchAccess | None = ...,
    ) -> FetchParameters: ...
    def asked(self, named: Sequence[NamedPartition]) -> list[FetchPartition]: ...


class Answers(Protocol):
    """The answers of the general path."""

    def collect(self, api_version: int, parameters: FetchParameters, scope: FetchScope, reads: Reads) -> Collected: ...
    def respond(
        self, context: RequestContext, parameters: FetchParameters, scope: FetchScope, collected: Collected
    ) -> FetchResponse | Awaitable[FetchResponse]: ...
    def answer_later(
        self, responder: Responder, parameters: FetchParameters, scope: FetchScope, collected: Collected
    ) -> None: ...
    def fail_later(self, responder: Responder, error: Exception) -> None: ...
    def count_given(self, item: FetchPartition, size_bytes: int, *, is_from_follower: bool) -> None: ...


class FetchQuotas(Protocol):
    """What clients may fetch."""

    @property
    def epoch(self) -> int:
        """Another number whenever what follows may have changed: what was said is kept until then."""
        ...

    def of(self, principal: str, client_id: str | None) -> FetchQuota | None:
        """None for whoever may fetch without limit."""
        ...


class NoFetchQuotas:
    """Everybody may fetch as fast as he can."""

    epoch: int = 0

    def of(self, principal: str, client_id: str | None) -> FetchQuota | None:  # noqa: ARG002 - as for all
        return None


class SharedFetches(NamedTuple):
    """What the fast paths of all connections share."""

    general: FetchResponder
    answers: Answers
    sessions: FetchSessionCache
    fetches: DelayedFetches
    now: Callable[[], float]
    read_cached: Callable[[ReadPlan], memoryview | None]
    """As `LogReader.read_cached`."""
    quotas: FetchQuotas


class FetchFastPath:
    """For the requests that come by one connection and are like the one from which it was learnt.

    Invariant: it takes a request only while no other one of the connection waits for its answer; so neither their order
    nor their number is its concern. Nor does it take one while much waits to be sent: the general path stops then.
    """

    cost_bytes: ClassVar = BYTES_PER_REQUEST

    __slots__ = (
        "_access",
        "_asked",
        "_context",
        "_follower_epoch",
        "_follower_id",
        "_form",
        "_metrics",
        "_named_before",
        "_parameters",
        "_quota_epoch",
        "_rack_id",
        "_repeated",
        "_requests",
        "_shared",
    )

    def __init__(
        self,
        shared: SharedFetches,
        context: RequestContext,
        form: Form,
        follower: tuple[int, int] | None,
        rack_id: str = "",
    ) -> None:
        """`context` is that of the general request from which the path is learnt; `follower` the id and the epoch of a
        broker, None for a client; `rack_id` where that is, as its requests of the form say."""
        self._rack_id = rack_id
        self._shared = shared
        self._context = context.of_later_request(context.correlation_id, context.received)
        self._follower_id, self._follower_epoch = follower or (CONSUMER_ID, NO_EPOCH)
        self._access = fetch_access(context, is_follower=follower is not None)
        self._form = form
        self._metrics = context.metrics
        self._requests = self._metrics[0].meter(context.api_version)
        # What was asked for last, besides partitions, and what follows from it; it rarely changes.
        self._asked: Asked | None = None
        self._parameters: FetchParameters | None = None
        self._quota_epoch = 0
        # The one partition that the last request named, and the requests that are like it.
        self._named_before: SessionKey | None = None
        self._repeated: FollowerFetch | None = None

    def take(self, connection: ServerConnection, buffer: bytearray | memoryview, start: int, end: int) -> bool:
        if connection.unanswered or connection.is_sending_much or not connection.is_open:
            return False
        repeated = self._repeated
        if repeated is not None and end - start == repeated.size_bytes:
            try:
                if repeated.take(connection, buffer, start):
                    return True
            except Exception:
                connection.fail(_FAILED)
                raise
        request = self._form.read(buffer, start, end)
        if request is None:
            return False
        session = self._shared.sessions.sessions.get(request.session_id)
        if len(request.named) + (0 if session is None else session.candidate_count) > FEW_PARTITIONS:
            return False
        scope = self._scope_of(request)
        if scope is None:
            return False
        connection.collected += 1
        parameters = self._parameters_of(request)
        quota = parameters.quota
        if quota is not None:
            quota.begin()
        try:
            response = self.answer_or_park(connection, request.correlation_id, parameters, scope)
            connection.answer_collected(response)
        except Exception:
            connection.fail(_FAILED)
            raise
        finally:
            if quota is not None:
                quota.end()
        if self._follower_id >= 0:
            self._learn(request, scope, buffer, start, end)
        return True

    def is_of_former_life(self, follower: tuple[int, int] | None) -> bool:
        """Whether it was learnt in an earlier epoch of the same follower: it takes nothing more."""
        return follower is not None and follower[0] == self._follower_id and follower[1] > self._follower_epoch

    def take_alone(self, connection: ServerConnection, buffer: bytearray | memoryview, start: int, end: int) -> bool:
        return self.take(connection, buffer, start, end)

    def finish(self) -> None:
        """Nothing is collected."""

    def _scope_of(self, request: UsualRequest) -> FetchScope | None:
        """What the request fetches; None where only the general path can tell, and then nothing has changed."""
        shared, uses_topic_ids = self._shared, self._form.uses_topic_ids
        shared.sessions.rights_are(request.session_id, self._access)
        session_id, epoch, named = request.session_id, request.session_epoch, request.named
        if epoch == FINAL_EPOCH and self._follower_id < 0:
            asked = shared.general.asked(named)
            return shared.sessions.scope(SessionRequest(session_id, epoch, self._follower_id, uses_topic_ids, asked))
        known = SessionRequest(session_id, epoch, self._follower_id, uses_topic_ids, (), (), self._follower_epoch)
        return shared.sessions.scope_of_known(known, named)

    def _learn(
        self, request: UsualRequest, scope: FetchScope, buffer: bytearray | memoryview, start: int, end: int
    ) -> None:
        """A follower's request was handled: those that are like it are expected where it is the second of its kind."""
        session, form, parameters = scope.session, self._form, self._parameters
        named, before = request.named, self._named_before
        self._named_before = key = named[0].key if len(named) == 1 else None
        if key is None or key != before or session is None or parameters is None or not isinstance(form, IdForm):
            return
        item = session.item(key)
        if item is None or parameters.min_bytes != 1 or parameters.max_wait_ms <= 0:
            return
        try:
            reader = form.repeated(bytes(buffer[start:end]))
        except ValueError:
            return  # it names topics besides of which it asks for nothing
        if self._repeated is not None:
            self._repeated.close()
        shared = self._shared
        self._repeated = FollowerFetch(
            *(self, shared.fetches, shared.sessions, shared.now, shared.read_cached),
            *(reader, parameters, session, item),
        )

    def answer_or_park(
        self,
        connection: ServerConnection,
        correlation_id: int,
        parameters: FetchParameters,
        scope: FetchScope,
        *,
        updates_followers: bool = True,
    ) -> list[Buffer] | None:
        """The response to a request, if there is one now; None where it is parked."""
        self._requests.count += 1
        fetches, now = self._shared.fetches, self._shared.now
        reads = fetches.fetch(parameters, scope, updates_followers=updates_followers)
        if reads is not None:
            return self._answer_now(correlation_id, parameters, scope, reads)
        slot = connection.park()
        waiting = _Waiting(self, correlation_id, parameters, scope, now(), slot)
        slot.when_lost = fetches.park(parameters, scope, waiting.answer, waiting.fail).give_up
        return None

    def _parameters_of(self, request: UsualRequest) -> FetchParameters:
        _, max_wait_ms, min_bytes, max_bytes, isolation_level, _, _, _ = request
        asked = Asked(max_wait_ms, min_bytes, max_bytes, isolation_level)
        parameters, quotas = self._parameters, self._shared.quotas
        if parameters is None or asked != self._asked or quotas.epoch != self._quota_epoch:
            context = self._context
            parameters = self._shared.general.parameters(
                context.api_version,
                self._follower_id,
                asked,
                self._follower_epoch,
                rack_id=self._rack_id,
                listener_name=context.listener_name,
                quota=quotas.of(context.principal, context.client_id) if self._follower_id < 0 else None,
                access=self._access,
            )
            self._asked, self._parameters, self._quota_epoch = asked, parameters, quotas.epoch
        return parameters

    def _answer_now(
        self, correlation_id: int, parameters: FetchParameters, scope: FetchScope, reads: Reads
    ) -> list[Buffer] | None:
        collected = self.collect(parameters, scope, reads)
        frame = self.frame(correlation_id, scope, collected)
        if frame is not None:
            self.count_answered_at_once()
            return frame
        context = self.context(correlation_id, self._shared.now())
        response = self._shared.answers.respond(context, parameters, scope, collected)
        if isinstance(response, FetchResponse):
            return context.encode(response)
        context.park(is_queued=True).finish(response)
        return None

    # For the follower's requests that are like the ones before.

    def count_request(self) -> None:
        """Counts a request that was handled elsewhere."""
        self._requests.count += 1

    def count_answered_at_once(self) -> None:
        """Counts a request that was answered in the turn that brought it."""
        for metrics in self._metrics:
            metrics.answered_at_once += 1

    def answer_waiting(
        self, correlation_id: int, parameters: FetchParameters, scope: FetchScope, received: float, slot: Slot
    ) -> None:
        """Answers a request that has waited, with what there is."""
        waiting = _Waiting(self, correlation_id, parameters, scope, received, slot)
        try:
            reads = self._shared.fetches.reader.read(parameters, scope, updates_followers=False)
        except Exception as error:  # noqa: BLE001 - logged there
            waiting.fail(error)
            return
        waiting.answer(reads)

    def fail_waiting(self, correlation_id: int, received: float, slot: Slot, error: Exception) -> None:
        """Answers a request that has waited with what went wrong."""
        self._shared.answers.fail_later(self.context(correlation_id, received).parked_in(slot), error)

    def count_given(self, item: FetchPartition, size_bytes: int) -> None:
        """Counts what a follower is given of a partition."""
        self._shared.answers.count_given(item, size_bytes, is_from_follower=True)

    # For requests that have waited.

    @property
    def answers(self) -> Answers:
        return self._shared.answers

    def context(self, correlation_id: int, received: float) -> RequestContext:
        """That of a request, for the general path."""
        return self._context.of_later_request(correlation_id, received)

    def collect(self, parameters: FetchParameters, scope: FetchScope, reads: Reads) -> Collected:
        """What goes into the response."""
        return self._shared.answers.collect(self._context.api_version, parameters, scope, reads)

    def frame(self, correlation_id: int, scope: FetchScope, collected: Collected) -> list[Buffer] | None:
        """The response, counted but for its duration; None for one that only the general path can give."""
        chosen, found, is_complete, throttle_ms = collected
        if scope.error or not is_complete or throttle_ms or len(chosen) > COUNT_MAX:
            return None
        records: list[Buffer] = []
        for (_, read, code), data in zip(chosen, found, strict=True):
            if code or read.diverging is not None or read.aborted or data is None or read.preferred_replica >= 0:
                return None
            records.append(data)
        count_given, is_from_follower = self._shared.answers.count_given, self._follower_id >= 0
        for (item, _, _), data in zip(chosen, records, strict=True):
            if data:
                count_given(item, len(data), is_from_follower=is_from_follower)
        return self._form.response(correlation_id, scope.session_id, chosen, records)

    def count_waited(self, received: float) -> None:
        """Counts a request that is answered now and came at that time."""
        duration_ms = int((self._shared.now() - received) * 1000)
        for metrics in self._metrics:
            metrics.answered_later(duration_ms, is_queued=False, by=self._context)


class _Waiting:
    """A request that waits for bytes."""

    __slots__ = ("_correlation_id", "_parameters", "_path", "_received", "_scope", "_slot")

    def __init__(
        self,
        path: FetchFastPath,
        correlation_id: int,
        parameters: FetchParameters,
        scope: FetchScope,
        received: float,
        slot: Slot,
    ) -> None:
        self._path = path
        self._correlation_id = correlation_id
        self._parameters = parameters
        self._scope = scope
        self._received = received
        self._slot = slot

    def answer(self, reads: Reads) -> None:
        """Answers with what there is."""
        quota = self._parameters.quota
        if quota is None:
            self._answer(reads)
            return
        quota.begin()
        try:
            self._answer(reads)
        finally:
            quota.end()

    def _answer(self, reads: Reads) -> None:
        path, scope = self._path, self._scope
        try:
            collected = path.collect(self._parameters, scope, reads)
            frame = path.frame(self._correlation_id, scope, collected)
        except Exception as error:  # noqa: BLE001 - logged there
            self.fail(error)
            return
        if frame is None:
            path.answers.answer_later(self._responder(), self._parameters, scope, collected)
            return
        path.count_waited(self._received)
        self._slot.complete(frame)

    def fail(self, error: Exception) -> None:
        """Answers with what went wrong."""
        self._path.answers.fail_later(self._responder(), error)

    def _responder(self) -> Responder:
        return self._path.context(self._correlation_id, self._received).parked_in(self._slot)
