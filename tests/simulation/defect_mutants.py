"""Defects that there were, or nearly were, put back into the brokers one at a time: each has a plan that finds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.client.batches import PartitionQueue, ProducerBatch
from barnabas.cluster import metadata_cache
from barnabas.cluster.broker_configs import BrokerConfigs
from barnabas.cluster.metadata_cache import MetadataChange
from barnabas.controller.context import ControllerContext
from barnabas.controller.effects import Steps
from barnabas.controller.elections import Election, ElectionStrategy, elect_offline
from barnabas.controller.partition_state_machine import PartitionStateMachine
from barnabas.controller.term import ControllerTerm
from barnabas.coordinators.group.offsets import GroupOffsets
from barnabas.coordinators.shard_runtime import ShardRuntime
from barnabas.follower.repeated_fetch_request import RepeatedFetchRequest
from barnabas.kernel.ids import Uuid
from barnabas.log.manager import log_tasks, retention
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.log.producers import producer_state
from barnabas.log.producers.producer_state import ProducerState
from barnabas.log.segments.segment import Segment
from barnabas.server.dynamic_configs import DynamicConfigs
from barnabas.serving.acknowledgements import Acknowledgements, _Appended
from barnabas.testing.cluster_plans import (
    CONFIGS,
    DIRECTORIES,
    DOUBT,
    EXPIRY,
    FLUSHED,
    GROUPS,
    KEEPING,
    POWER,
    RENEWED,
    RETENTION,
    SPOILED,
    UNCLEAN,
)
from tests.simulation.mutants import Mutant


def elect_uncleanly_beside_members(patch: pytest.MonkeyPatch) -> None:
    """Where unclean elections are allowed nobody waits for members of the ISR, nor minds those that are registered."""

    def elect(
        self: PartitionStateMachine, partition: Any, current: Any, live: Any, _strategy: Any, *, unclean_allowed: bool
    ) -> Election:
        replicas = self._context.assignment(partition).replicas
        return elect_offline(current, replicas, live, unclean_allowed=unclean_allowed)

    patch.setattr(PartitionStateMachine, "_elect_offline", elect)


def elect_uncleanly_unasked(patch: pytest.MonkeyPatch) -> None:
    """Unclean elections happen where no config allows them."""
    elect = PartitionStateMachine._elect_offline

    def elect_anybody(self: Any, partition: Any, current: Any, live: Any, _strategy: Any, **_allowed: bool) -> Election:
        return elect(self, partition, current, live, ElectionStrategy.OFFLINE_UNCLEAN, unclean_allowed=True)

    patch.setattr(PartitionStateMachine, "_elect_offline", elect_anybody)


def make_rooms_of_static_configs(patch: pytest.MonkeyPatch) -> None:
    """Whoever follows a config hears of changes only, and not of what was set before the broker started, and the rooms
    are made of what the file says.
    """
    patch.setattr(BrokerConfigs, "follow", BrokerConfigs.add_listener)
    patch.setattr(BrokerConfigs, "for_rooms", lambda self: self._read(self._layers_of_file))
    make = BrokerConfigs.__init__

    def make_and_keep(self: Any, *arguments: Any, **keywords: Any) -> None:
        make(self, *arguments, **keywords)
        self._layers_of_file = self._layers

    patch.setattr(BrokerConfigs, "__init__", make_and_keep)


def hear_no_failures_of_directories(patch: pytest.MonkeyPatch) -> None:
    """The controller does not mind `/log_dir_event_notification`."""

    def ignore(_self: ControllerTerm) -> Steps[None]:
        yield from ()

    patch.setattr(ControllerTerm, "log_dir_failures_announced", ignore)


def lose_the_watch_with_the_session(patch: pytest.MonkeyPatch) -> None:
    """The watch on config changes goes with its session, and none is set in the next."""

    async def nothing(_self: DynamicConfigs) -> None:
        pass

    patch.setattr(DynamicConfigs, "after_new_session", nothing)


def take_a_part_for_all(patch: pytest.MonkeyPatch) -> None:
    """A FULL UpdateMetadata is sent where not everything could be read, and what it does not name is deleted."""
    patch.setattr(ControllerContext, "is_complete", property(lambda _self: True))

    def change(previous: Any, image: Any, changed: Any, deleted: Any, forgotten: Any = ()) -> MetadataChange:
        return MetadataChange(previous, image, changed, (*deleted, *forgotten))

    patch.setattr(metadata_cache, "MetadataChange", change)


def remember_epochs_of_deleted_topics(patch: pytest.MonkeyPatch) -> None:
    """A coordinator keeps the leader epochs of a deleted topic, and takes those of the next one for older."""
    patch.setattr(ShardRuntime, "forget", lambda self, index: self.resign(index, None))
    patch.setattr(ShardRuntime, "_notice", lambda _self, _index, _topic_id: None)


def retain_too_little(patch: pytest.MonkeyPatch) -> None:
    """Retention by size takes the segment that goes beyond the limit too."""
    _retain_one_less(
        patch, lambda log, deleted: f"log retention size {log.config.retention_bytes} breach" if deleted else None
    )


def retain_nothing_old(patch: pytest.MonkeyPatch) -> None:
    """Retention by time takes every segment that is not the active one, however young."""
    _retain_one_less(patch, lambda log, _deleted: f"log retention time {log.config.retention_ms}ms breach")


def _retain_one_less(patch: pytest.MonkeyPatch, reason: Callable[[PartitionLog, int], str | None]) -> None:
    """One more segment goes where there is a reason, given how many have gone."""
    delete = retention.delete_old_segments

    def delete_more(log: PartitionLog, now_ms: int, modified_ms: Callable[[Segment], int], checkpointed: int) -> int:
        deleted = delete(log, now_ms, modified_ms, checkpointed)
        following = log.segments.after(log.segments.first)
        why = reason(log, deleted)
        if why is not None and following is not None and following.base_offset <= log.high_watermark:
            deleted += log.delete_first_segments(1, why)
        return deleted

    patch.setattr(log_tasks, "delete_old_segments", delete_more)


def delete_one_record_more(patch: pytest.MonkeyPatch) -> None:
    """DeleteRecords takes the record at its offset too."""
    delete = PartitionLog.delete_records_to

    def delete_more(self: PartitionLog, offset: int) -> int:
        return delete(self, min(offset + 1, self.high_watermark) if offset >= 0 else offset)

    patch.setattr(PartitionLog, "delete_records_to", delete_more)


def give_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    """Consumers read to the end of the log."""
    read = PartitionLog.read

    def read_all(self: PartitionLog, offset: int, bytes_max: int, _isolation: Any, *, has_minimum: bool) -> Any:
        return read(self, offset, bytes_max, ReadIsolation.LOG_END, has_minimum=has_minimum)

    patch.setattr(PartitionLog, "read", read_all)


def take_batches_twice(patch: pytest.MonkeyPatch) -> None:
    """A leader takes whatever sequence comes, also one that it has."""

    def check(self: ProducerState, header: Any, base_offset: int, timestamp_ms: int) -> Any:
        return self.prepare_client(header, base_offset, timestamp_ms)

    patch.setattr(ProducerState, "check_client", check)
    patch.setattr(ProducerState, "find_duplicate", lambda _self, _header: None)
    patch.setattr(producer_state, "_check_sequence", lambda _entry, _header, _offset: None)


def begin_a_new_epoch_with_what_was_sent(patch: pytest.MonkeyPatch) -> None:
    """The producer takes an uncertain batch that is refused for one that was never written."""

    def refused(self: PartitionQueue, batch: ProducerBatch, retry_at: float, *, is_fenced: bool = False) -> None:
        is_first = all(batch.order <= other.order for other in (*self._in_flight, *self._queue))
        batch.is_uncertain = False
        self.send_again(batch, retry_at, is_uncertain=False)
        self._is_broken = self._is_broken or is_first or is_fenced
        if is_fenced:
            self.identity = None
            self._is_established = False

    patch.setattr(PartitionQueue, "out_of_sequence", refused)


class _AnyId(Uuid):
    """Is equal to every topic id: of two that are compared, the subclass is asked first."""

    def __eq__(self, _other: object) -> bool:
        return True

    def __ne__(self, _other: object) -> bool:
        return False

    __hash__ = Uuid.__hash__


def ask_for_the_former_topic(patch: pytest.MonkeyPatch) -> None:
    """A follower sends the frame of its last request again for a topic of the same name and leader epoch."""
    make = RepeatedFetchRequest.__init__

    def make_for_any(self: RepeatedFetchRequest, *arguments: Any) -> None:
        make(self, *arguments)
        self.topic_id = _AnyId(self.topic_id)

    patch.setattr(RepeatedFetchRequest, "__init__", make_for_any)


def acknowledge_by_the_sync_that_goes_on(patch: pytest.MonkeyPatch) -> None:
    """What is appended while a sync goes on is acknowledged by its end, which does not cover it."""

    def appended_to(self: Acknowledgements, partition: Any, log: PartitionLog) -> _Appended:
        found = self._appended.get(log)
        if found is None:
            found = self._appended[log] = _Appended(partition, log.written.syncs_begun)
        return found

    patch.setattr(Acknowledgements, "_appended_to", appended_to)


def show_what_is_in_doubt(patch: pytest.MonkeyPatch) -> None:
    """An offset that was not committed in time is seen from then on."""
    patch.setattr(GroupOffsets, "doubt", GroupOffsets.settle)


DEFECT_MUTANTS = (
    Mutant("unclean election beside members of the ISR", UNCLEAN, elect_uncleanly_beside_members),
    Mutant("unclean election unasked", POWER, elect_uncleanly_unasked),
    Mutant("dynamic configs forgotten at restart", CONFIGS, make_rooms_of_static_configs),
    Mutant("failed log directories unheard", DIRECTORIES, hear_no_failures_of_directories),
    Mutant("watch lost with the session", EXPIRY, lose_the_watch_with_the_session),
    Mutant("full metadata from a part", SPOILED, take_a_part_for_all),
    Mutant("groups hang after a deletion", GROUPS, remember_epochs_of_deleted_topics),
    Mutant("retention by size takes one more", RETENTION, retain_too_little),
    Mutant("retention by time takes what is young", RETENTION, retain_nothing_old),
    Mutant("DeleteRecords takes one more", RETENTION, delete_one_record_more),
    Mutant("uncommitted records given", KEEPING, give_what_is_not_committed),
    Mutant("batches taken twice", KEEPING, take_batches_twice),
    Mutant("sent batch under another epoch", CONFIGS, begin_a_new_epoch_with_what_was_sent),
    Mutant("former topic asked for", RENEWED, ask_for_the_former_topic),
    Mutant("acknowledged by a sync before", FLUSHED, acknowledge_by_the_sync_that_goes_on),
    Mutant("offsets in doubt shown", DOUBT, show_what_is_in_doubt),
)
