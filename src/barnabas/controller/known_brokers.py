"""The brokers as the controller's context holds them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from barnabas.controller.live_broker import LiveBroker
from barnabas.controller.protocol import FIRST_VERSION_WITH_ALTER_PARTITION
from barnabas.wire.topics import TopicPartition


class ContextError(RuntimeError):
    """A change that contradicts what the context holds; nothing was changed."""


class KnownBrokers:
    """Which brokers are registered, which of these shut down or are held back, and where log directories failed."""

    def __init__(self) -> None:
        self._brokers: dict[int, LiveBroker] = {}
        self._shutting_down: dict[int, None] = {}
        self._held_back: dict[int, None] = {}
        self._isr_writers: dict[int, None] = {}
        self._offline_log_dir_partitions: dict[int, dict[TopicPartition, None]] = {}

    def add_live_broker(self, broker: LiveBroker) -> None:
        """Registers a broker, or replaces its registration. That it is shutting down is kept separately."""
        self._brokers[broker.broker_id] = broker
        if broker.registration.version < FIRST_VERSION_WITH_ALTER_PARTITION:
            self._isr_writers[broker.broker_id] = None
        else:
            self._isr_writers.pop(broker.broker_id, None)
        self._held_back.pop(broker.broker_id, None)

    def hold_back(self, broker_ids: Iterable[int]) -> None:
        """From now on these brokers, and no others, are registered and yet not live: the controller has still to deal
        with their last end, or cannot use them.
        """
        self._held_back = dict.fromkeys(broker_ids)
        for broker_id in self._held_back:
            self.remove_live_broker(broker_id)

    @property
    def held_back_brokers(self) -> tuple[int, ...]:
        return tuple(self._held_back)

    def remove_live_broker(self, broker_id: int) -> None:
        """Forgets a broker that is gone, with its offline log directories and its shutdown."""
        self._brokers.pop(broker_id, None)
        self._shutting_down.pop(broker_id, None)
        self._offline_log_dir_partitions.pop(broker_id, None)

    def begin_shutdown(self, broker_id: int) -> None:
        """Marks a broker as shutting down: it still gets requests, but leads nothing new. Raises `ContextError` for one
        that is not there.
        """
        if broker_id not in self._brokers:
            raise ContextError(f"broker {broker_id} cannot shut down: it is not registered")
        self._shutting_down[broker_id] = None

    def log_dirs_failed(self, broker_id: int, partitions: Iterable[TopicPartition]) -> None:
        """The replicas of these partitions, too, are in log directories of the broker that failed."""
        self._offline_log_dir_partitions.setdefault(broker_id, {}).update(dict.fromkeys(partitions))

    def log_dirs_work(self, broker_id: int, partitions: Iterable[TopicPartition]) -> None:
        """The replicas of these partitions are in log directories that work."""
        for partition in partitions:
            self._offline_log_dir_partitions[broker_id].pop(partition, None)

    def offline_log_dir_partitions(self, broker_id: int) -> Collection[TopicPartition]:
        """The partitions whose replicas on the broker are in log directories that failed, as they are now."""
        return self._offline_log_dir_partitions.get(broker_id, {}).keys()

    @property
    def live_brokers(self) -> tuple[int, ...]:
        """The registered brokers that are not shutting down."""
        return tuple(broker for broker in self._brokers if broker not in self._shutting_down)

    @property
    def live_or_shutting_down_brokers(self) -> Mapping[int, LiveBroker]:
        return self._brokers

    @property
    def shutting_down_brokers(self) -> tuple[int, ...]:
        return tuple(self._shutting_down)

    def is_replica_online(
        self, broker_id: int, partition: TopicPartition, *, include_shutting_down: bool = False
    ) -> bool:
        """Whether the broker is there and has the partition's replica in a log directory that works."""
        return (
            broker_id in self._brokers
            and (include_shutting_down or broker_id not in self._shutting_down)
            and partition not in self._offline_log_dir_partitions.get(broker_id, ())
        )

    def registered_members(self, partition: TopicPartition, isr: Iterable[int]) -> tuple[int, ...]:
        """The members of an ISR whose broker is registered, whether it is live, held back or shutting down, with the
        replica in a log directory that is not known to have failed. Each has every committed record.
        """
        return tuple(
            member
            for member in isr
            if member in self._held_back or self.is_replica_online(member, partition, include_shutting_down=True)
        )

    def writes_isrs_itself(self, broker_id: int) -> bool:
        """Whether the broker, as a leader, writes ISRs into states itself (inter.broker.protocol.version below 2.7), or
        did so before its last restart.
        """
        return broker_id in self._isr_writers
