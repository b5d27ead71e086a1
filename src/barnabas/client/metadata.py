"""Keeps a client's image of the cluster fresh."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final, cast

from barnabas.client.cluster import Cluster, let_go
from barnabas.client.connections import METADATA_LANE
from barnabas.client.elsewhere import SILENT_SECONDS, first_answer
from barnabas.client.errors import ClientClosedError, NoBrokerError
from barnabas.client.retrying import Backoff
from barnabas.client.settings import split_address
from barnabas.client.versions import VERSIONS
from barnabas.kernel.turns import in_turns
from barnabas.link.errors import AuthenticationFailedError
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import MetadataRequest

if TYPE_CHECKING:
    import logging

    from barnabas.client.cluster import TopicInfo
    from barnabas.client.connections import Connections
    from barnabas.client.retrying import Retry
    from barnabas.client.settings import ClientSettings
    from barnabas.kernel.host import Host
    from barnabas.kernel.timers import Timers
    from barnabas.link.outgoing import Outgoing
    from barnabas.wire.messages import MetadataResponse
    from barnabas.wire.topics import TopicPartition

_ATTEMPTS_PER_REFRESH_MAX: Final = 10
"""Known brokers, and as many bootstrap servers, that one refresh tries."""
_TOPICS_AT_ONCE_MAX: Final = 100
"""While no more topics are used, a new one is asked for at once; a request has all of them, and many take a while."""


class Metadata:
    """Refreshes `cluster` when it is old or somebody has found it wrong; one request at a time, with pauses between.

    What the last request did not ask for, a topic that is used for the first time, is asked for without a pause, as
    Kafka's clients do, while topics are few.
    """

    def __init__(
        self, host: Host, timers: Timers, connections: Connections, settings: ClientSettings, logger: logging.Logger
    ) -> None:
        self.cluster = Cluster()
        """The image; replaced by each refresh."""
        self.last_error: Exception | None = None
        """Why the last refresh failed; None after one that worked."""
        self._host = host
        self._timers = timers
        self._connections = connections
        self._settings = settings
        self._logger = logger
        self._topics: dict[str, float] = {}
        self._everything_wanted = 0
        self._wanted = asyncio.Event()
        self._asked_for_more = asyncio.Event()
        """Somebody wants a topic that the last request had not."""
        self._waiting: list[asyncio.Future[None]] = []
        """For the next refresh."""
        self._being_answered: list[asyncio.Future[None]] = []
        """For the refresh that is on its way."""
        self._silent: dict[str, float] = {}
        """Who has owed an answer for too long, by `host:port`, and until when others are asked first."""
        self._listeners: list[Callable[[], object]] = []
        self._learned: dict[TopicPartition, tuple[int, int]] | None = None
        """Leaders and their epochs that brokers tell of while an answer to Metadata is taken in; None otherwise."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to refresh, at once."""
        if self._task is None:
            self._wanted.set()
            self._task = self._host.loop.create_task(self._run(), name="metadata")

    async def close(self) -> None:
        """Ends the refreshing; who waits for it gets ClientClosedError."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._tell_waiting(ClientClosedError("the client is closed"))

    def add_listener(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Calls `listener()` after each refresh; returns what ends that, once or more often."""

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        self._listeners.append(listener)
        return stop

    def use(self, *topics: str) -> None:
        """These topics are to be known for a while; asks for what is not."""
        now = self._host.loop.time()
        for topic in topics:
            if topic not in self._topics and not self._everything_wanted:
                self._want_more()
            self._topics[topic] = now

    def use_all(self) -> Callable[[], None]:
        """All topics are to be known, until what this returns is called."""
        self._everything_wanted += 1
        self._want_more()
        return self._stop_using_all

    def request_update(self) -> None:
        """What is known was found wrong: refreshes soon."""
        self._wanted.set()

    async def update(self) -> None:
        """Returns after a refresh that began after this call. Bound it with a time limit: a cluster that is not there
        is asked for ever.
        """
        if self._task is None or self._task.done():
            raise ClientClosedError("the client is not started, or closed")
        future = self._host.loop.create_future()
        self._waiting.append(future)
        self._wanted.set()
        await future

    async def topic(self, name: str, retry: Retry) -> TopicInfo:
        """What is known of a topic, once that is something. Raises KafkaError for a topic that cannot be had, and
        ClientTimeoutError.
        """
        while True:
            self.use(name)
            info = self.cluster.topics.get(name)
            if info is not None and info.partitions:
                return info
            if info is not None and not info.error.retriable and info.error is not ErrorCode.NONE:
                raise KafkaError(info.error, f"topic {name}")
            error = info.error if info is not None and info.error is not ErrorCode.NONE else None
            await self.refreshed(retry, KafkaError(error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}"))

    async def asked_for(self, topics: Collection[str], retry: Retry) -> None:
        """Uses these topics, and returns once a broker has been asked for each of them, whatever it says. Raises
        ClientTimeoutError.
        """
        self.use(*topics)
        new = [topic for topic in topics if topic not in self.cluster.topics]
        if new:
            await self.refreshed(retry, KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {new[0]} is not known now"))

    async def refreshed(self, retry: Retry, reason: Exception) -> None:
        """Waits for a refresh within what is left of `retry`; `reason` is what a time-out tells."""
        try:
            async with asyncio.timeout(retry.left_ms / 1_000):
                await self.update()
        except TimeoutError:
            await retry.again(self.last_error or reason)
        if retry.left_ms <= 0:
            await retry.again(reason)

    def learn_leader(self, partition: TopicPartition, leader_id: int, leader_epoch: int) -> None:
        """A broker told in its answer who leads a partition now."""
        changed = self.cluster.with_leader(partition, leader_id, leader_epoch)
        if changed is not self.cluster:
            if self._learned is not None:
                self._learned[partition] = leader_id, leader_epoch
            self._replace(changed)

    # The loop.

    async def _run(self) -> None:
        backoff = Backoff(self._host.random, self._settings.retry_backoff_ms, self._settings.retry_backoff_ms_max)
        while True:
            await self._due()
            self._wanted.clear()
            self._asked_for_more.clear()
            self._being_answered, self._waiting = self._waiting, []
            try:
                await self._refresh()
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one broker's answer, the next may do better
                if self.last_error is None or str(self.last_error) != str(error):
                    self._logger.warning("The cluster's metadata cannot be fetched: %s", error)
                self.last_error = error
                if isinstance(error, AuthenticationFailedError):
                    self._tell_waiting(error)
                else:
                    self._waiting = self._being_answered + self._waiting
                    self._being_answered = []
                    self._wanted.set()
                await self._timers.sleep(backoff.next_ms())
                continue
            self.last_error = None
            backoff.reset()
            answered, self._being_answered = self._being_answered, []
            for future in answered:
                if not future.done():
                    future.set_result(None)
            await self._within(self._settings.retry_backoff_ms, self._asked_for_more)

    async def _due(self) -> None:
        """Returns when somebody wants a refresh, or what is known has become old."""
        await self._within(self._settings.metadata_max_age_ms, self._wanted)

    async def _within(self, limit_ms: float, event: asyncio.Event) -> None:
        """Sets the event after so long, unless somebody else has; returns then."""
        timer = self._timers.call_after(limit_ms, event.set)
        try:
            await event.wait()
        finally:
            timer.cancel()

    async def _refresh(self) -> None:
        self._forget_idle_topics()
        candidates = self._candidates()
        errors: list[Exception] = []

        async def ask(outgoing: Outgoing) -> MetadataResponse:
            try:
                return await self._ask(outgoing)
            except Exception as error:
                errors.append(error)
                raise ConnectionError from error  # whatever is wrong with one broker, the next may do better

        def note_silence(place: int) -> None:
            self._silent[candidates[place].peer] = self._host.loop.time() + SILENT_SECONDS

        try:
            response = await first_answer([functools.partial(ask, outgoing) for outgoing in candidates], note_silence)
        except ConnectionError:
            refused = next((error for error in errors if isinstance(error, AuthenticationFailedError)), None)
            if refused is not None:
                raise refused from None
            raise NoBrokerError(f"no broker answers: {'; '.join(dict.fromkeys(map(str, errors)))}") from None
        await self._take(response)

    def _candidates(self) -> list[Outgoing]:
        """Whom to ask, the best first: connected, then those that nothing speaks against, those that were silent, and
        at last the bootstrap.
        """
        now = self._host.loop.time()
        known = [self._connections.to_node(METADATA_LANE, node) for node in self.cluster.brokers.values()]
        self._host.random.shuffle(known)
        known.sort(
            key=lambda outgoing: (
                self._silent.get(outgoing.peer, 0.0) > now,
                not outgoing.is_connected,
                outgoing.backs_off_ms > 0,
            )
        )
        bootstrap = [
            self._connections.to_address(METADATA_LANE, *split_address(server))
            for server in self._settings.bootstrap_servers
        ]
        self._host.random.shuffle(bootstrap)
        return list(dict.fromkeys(known[:_ATTEMPTS_PER_REFRESH_MAX] + bootstrap[:_ATTEMPTS_PER_REFRESH_MAX]))

    async def _ask(self, outgoing: Outgoing) -> MetadataResponse:
        timeout_ms = self._settings.request_timeout_ms
        await outgoing.ready(timeout_ms)
        version = outgoing.version_of(ApiKey.METADATA, *VERSIONS[ApiKey.METADATA])
        topics: list[Any] | None = None
        if not self._everything_wanted:
            topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in self._topics]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=self._settings.creates_topics)
        response = await outgoing.send(request, version, timeout_ms)
        if not response.brokers:
            raise NoBrokerError(f"{outgoing.peer} does not know any broker yet")
        return cast("MetadataResponse", response)

    async def _take(self, response: MetadataResponse) -> None:
        if any(topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE for topic in response.topics):
            self._wanted.set()
        learned = self._learned = {}
        try:
            image = await in_turns(self.cluster.updated(response))
        finally:
            self._learned = None
        for partition, (leader_id, leader_epoch) in learned.items():
            # Epochs of a topic that was created anew meanwhile have begun again.
            topic, known = image.topics.get(partition.topic), self.cluster.topics.get(partition.topic)
            if topic is not None and known is not None and topic.topic_id == known.topic_id:
                image = image.with_leader(partition, leader_id, leader_epoch)
        self._replace(image)
        await in_turns(let_go(response))

    def _replace(self, cluster: Cluster) -> None:
        self.cluster = cluster
        for listener in list(self._listeners):
            listener()

    def _forget_idle_topics(self) -> None:
        oldest = self._host.loop.time() - self._settings.metadata_idle_ms_max / 1_000
        self._topics = {topic: used_at for topic, used_at in self._topics.items() if used_at >= oldest}

    def _want_more(self) -> None:
        self._wanted.set()
        if len(self._topics) < _TOPICS_AT_ONCE_MAX:
            self._asked_for_more.set()

    def _stop_using_all(self) -> None:
        self._everything_wanted -= 1

    def _tell_waiting(self, error: Exception) -> None:
        waiting = self._being_answered + self._waiting
        self._being_answered, self._waiting = [], []
        for future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # the waiting task may be gone
