"""The channels to the brokers: for each a queue, and a task that sends one request after the other.

A request is sent again until the broker answers or is gone; one that cannot be written is left out. Requests are as
many as the changes that happen while a broker does not answer; its session, whose end closes the channel, bounds that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from barnabas.controller.effects import BrokerRequest
from barnabas.controller.live_broker import LiveBroker
from barnabas.controller.ports import BrokerConnection, BrokerConnections
from barnabas.controller.settings import ControllerSettings
from barnabas.kernel.host import Host
from barnabas.kernel.metrics import MetricName, MetricsRegistry, Timing
from barnabas.kernel.timers import Timers
from barnabas.wire.classes import Message
from barnabas.wire.endpoints import BrokerEndpoint
from barnabas.wire.primitives import EncodeError

OnResponse = Callable[[BrokerRequest, Message], None]
_GROUP, _TYPE = "kafka.controller", "ControllerChannelManager"


class BrokerChannels:
    """The channels of one term. `on_response` is called on the loop with each answer and what it answers."""

    def __init__(
        self,
        host: Host,
        settings: ControllerSettings,
        connections: BrokerConnections,
        *,
        timers: Timers,
        logger: logging.Logger,
        metrics: MetricsRegistry,
        on_response: OnResponse,
    ) -> None:
        self._host = host
        self._settings = settings
        self._connections = connections
        self._timers = timers
        self._logger = logger
        self._metrics = metrics
        self._on_response = on_response
        self._channels: dict[int, _Channel] = {}

    @property
    def queue_size(self) -> int:
        """How many requests wait, to all brokers."""
        return sum(channel.queue_size for channel in self._channels.values())

    @property
    def queue_sizes(self) -> Mapping[int, int]:
        """How many wait, by broker."""
        return {broker_id: self._channels[broker_id].queue_size for broker_id in sorted(self._channels)}

    def open(self, broker: LiveBroker) -> None:
        """Opens the channel to a broker; one that is open goes on, to the address that the broker has now."""
        endpoint = self._endpoint(broker)
        channel = self._channels.get(broker.broker_id)
        if channel is not None:
            channel.move(endpoint)
            return
        channel = _Channel(
            broker.broker_id,
            endpoint,
            host=self._host,
            settings=self._settings,
            connections=self._connections,
            timers=self._timers,
            logger=self._logger,
            on_response=self._on_response,
        )
        self._channels[broker.broker_id] = channel
        self._metrics.gauge(_name("QueueSize", broker.broker_id), lambda: channel.queue_size)
        self._metrics.add(_name("RequestRateAndQueueTimeMs", broker.broker_id), channel.queue_time)

    def _endpoint(self, broker: LiveBroker) -> BrokerEndpoint | None:
        wanted = self._settings.controller_to_broker_listener_name
        for endpoint in broker.registration.endpoints:
            if endpoint.listener_name == wanted:
                return endpoint
        self._logger.error(
            "Broker %d has no listener %s, so it cannot be reached; configure it like the other brokers",
            broker.broker_id,
            wanted,
        )
        return None

    async def close(self, broker_ids: Iterable[int]) -> None:
        """Closes channels, with all that waits in them; brokers without one are skipped."""
        closed = []
        for broker_id in broker_ids:
            channel = self._channels.pop(broker_id, None)
            if channel is not None:
                self._metrics.remove(_name("QueueSize", broker_id))
                self._metrics.remove(_name("RequestRateAndQueueTimeMs", broker_id))
                closed.append(channel)
        # All are told to close first, so that together they take no longer than one.
        for channel in closed:
            channel.cancel()
        for channel in closed:
            await channel.ended()

    async def close_all(self) -> None:
        await self.close(list(self._channels))

    def send(self, request: BrokerRequest) -> None:
        """Puts a request into the queue of its broker."""
        channel = self._channels.get(request.broker_id)
        if channel is None:
            self._logger.warning(
                "Not sending %s to broker %d, since it is offline", request.api_key.name, request.broker_id
            )
        else:
            channel.put(request)


class _Channel:
    """The queue, the connection and the task of one broker."""

    def __init__(
        self,
        broker_id: int,
        endpoint: BrokerEndpoint | None,
        *,
        host: Host,
        settings: ControllerSettings,
        connections: BrokerConnections,
        timers: Timers,
        logger: logging.Logger,
        on_response: OnResponse,
    ) -> None:
        self._broker_id = broker_id
        self._endpoint = endpoint
        self._loop = host.loop
        self._settings = settings
        self._connections = connections
        self._timers = timers
        self._logger = logger
        self._on_response = on_response
        self.queue_time = Timing(host.loop.time)
        self._queue: deque[tuple[BrokerRequest, float]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._connection: BrokerConnection | None = None
        name = f"Controller-{settings.broker_id}-to-broker-{broker_id}-send-thread"
        self._task = host.loop.create_task(self._run(), name=name)

    @property
    def queue_size(self) -> int:
        return len(self._queue)

    def put(self, request: BrokerRequest) -> None:
        self._queue.append((request, self._loop.time()))
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def move(self, endpoint: BrokerEndpoint | None) -> None:
        """The broker is at another address: a request under way is sent there again."""
        if endpoint != self._endpoint:
            self._endpoint = endpoint
            self._disconnect()

    def cancel(self) -> None:
        self._queue.clear()
        self._task.cancel()
        self._disconnect()

    async def ended(self) -> None:
        # Not awaited itself: its cancellation could not be told from that of the task that waits for it.
        await asyncio.wait([self._task])

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def _run(self) -> None:
        while True:
            while not self._queue:
                self._wake = self._loop.create_future()
                await self._wake
                self._wake = None
            # By a call, so that nothing holds the last request, which may be large, while there is no other.
            await self._send_first()

    async def _send_first(self) -> None:
        request, put_at = self._queue.popleft()
        self.queue_time.update(round((self._loop.time() - put_at) * 1000))
        response = await self._exchange(request)
        if response is None:
            return
        try:
            self._on_response(request, response)
        except Exception:
            # The next requests must reach the broker all the same.
            self._logger.exception("Processing the answer of broker %d failed", self._broker_id)

    async def _exchange(self, request: BrokerRequest) -> Message | None:
        """Sends the request until it is answered; None for one that cannot be written, today as little as ever."""
        failures = 0
        while True:
            try:
                if self._connection is None:
                    self._connection = self._connect()
                response = await self._connection.send(
                    request.message, request.api_version, self._settings.request_timeout_ms
                )
            except EncodeError:
                self._logger.exception(
                    "Controller %d leaves out a request of %s to broker %d, since it cannot be written. The broker "
                    "knows nothing of what it tells until that changes: mend the znode that holds this value",
                    self._settings.broker_id,
                    request.api_key.name,
                    self._broker_id,
                )
                return None
            except Exception as error:  # noqa: BLE001
                # Whatever failed, the broker must get this request before any later one. Only the first failure is
                # worth a line above debugging: the rest are as many as a broker that is down needs to be noticed.
                level = logging.DEBUG if failures else logging.WARNING
                self._logger.log(
                    level,
                    "Controller %d fails to send %s to broker %d: %s; trying again until the broker is gone",
                    self._settings.broker_id,
                    request.api_key.name,
                    self._broker_id,
                    error,
                )
                failures += 1
                await self._timers.sleep(self._settings.retry_backoff_ms)
                continue
            if failures:
                self._logger.info(
                    "Controller %d has sent %s to broker %d at attempt %d",
                    self._settings.broker_id,
                    request.api_key.name,
                    self._broker_id,
                    failures + 1,
                )
            return response

    def _connect(self) -> BrokerConnection:
        endpoint = self._endpoint
        if endpoint is None:
            raise ConnectionError(f"it has no listener {self._settings.controller_to_broker_listener_name}")
        return self._connections.connect(
            self._broker_id, endpoint.host, endpoint.port, endpoint.listener_name, endpoint.security_protocol
        )


def _name(name: str, broker_id: int) -> MetricName:
    return MetricName(_GROUP, _TYPE, name, (("broker-id", str(broker_id)),))
