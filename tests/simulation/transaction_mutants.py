"""Faults put into transactions, one at a time: the plan `transactions` has to find each. The last one there was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from barnabas.coordinators.group.offsets import GroupOffsets
from barnabas.coordinators.shard_runtime import ShardRuntime
from barnabas.coordinators.transaction.coordinator import TransactionCoordinator
from barnabas.coordinators.transaction.transactions import Decision, Transactions
from barnabas.log.partition.log_state import LogState
from barnabas.testing.user_plans import TRANSACTIONS
from barnabas.wire.errors import ErrorCode
from tests.simulation.mutants import Mutant


def tell_the_outcome_before_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    """Markers are sent as soon as the coordinator's own log has the outcome."""
    append = TransactionCoordinator._append

    def append_and_send(self: TransactionCoordinator, shard: Any, name: str, decision: Decision, reply: Any) -> bool:
        is_taken = append(self, shard, name, decision, reply)
        if is_taken:
            shard.content.committed(name)
            self._send_markers_if_due(shard, name)
        return is_taken

    patch.setattr(TransactionCoordinator, "_append", append_and_send)


def read_past_open_transactions(patch: pytest.MonkeyPatch) -> None:
    """The last stable offset is the high watermark."""

    def committed_more(self: LogState) -> None:
        self.producers.high_watermark_moved(self.high_watermark)
        self.last_stable_offset = max(self.high_watermark, self.log_start_offset)

    patch.setattr(LogState, "committed_more", committed_more)


def fence_nobody(patch: pytest.MonkeyPatch) -> None:
    """A transaction that is aborted for another instance, or because its time is up, leaves the epoch as it is."""
    fence = Transactions.fence

    def abort(self: Transactions, transactional_id: str, now_ms: int) -> Decision:
        decision = fence(self, transactional_id, now_ms)
        epoch = decision.transaction.producer_epoch - 1
        return decision._replace(transaction=replace(decision.transaction, producer_epoch=epoch))

    patch.setattr(Transactions, "fence", abort)


def answer_before_replication(patch: pytest.MonkeyPatch) -> None:
    """The coordinator answers as soon as its own log has the record."""
    append = TransactionCoordinator._append

    def append_and_answer(self: TransactionCoordinator, shard: Any, name: str, decision: Decision, reply: Any) -> bool:
        is_answered = False

        def reply_once(code: ErrorCode) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                reply(code)

        is_taken = append(self, shard, name, decision, reply_once)
        if is_taken:
            reply_once(ErrorCode.NONE)
        return is_taken

    patch.setattr(TransactionCoordinator, "_append", append_and_answer)


def show_offsets_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """A group's offsets are seen when a transaction has written them."""
    replay = GroupOffsets.replay_transactional

    def replay_and_show(self: GroupOffsets, producer_id: int, partition: Any, base_offset: int, committed: Any) -> None:
        replay(self, producer_id, partition, base_offset, committed)
        if committed is not None:
            self._show(partition, base_offset, committed)

    patch.setattr(GroupOffsets, "replay_transactional", replay_and_show)


def tell_what_was_loaded(patch: pytest.MonkeyPatch) -> None:
    """A new coordinator begins with what it finds in its log, committed or not."""

    async def do_not_wait(_self: ShardRuntime[Any, Any], _shard: Any, _offset: int) -> None:
        pass

    patch.setattr(ShardRuntime, "_until_committed", do_not_wait)


TRANSACTION_MUTANTS = (
    Mutant("marker before its record is committed", TRANSACTIONS, tell_the_outcome_before_it_is_committed),
    Mutant("last stable offset past an open transaction", TRANSACTIONS, read_past_open_transactions),
    Mutant("epoch not bumped at fencing", TRANSACTIONS, fence_nobody),
    Mutant("coordinator answers before its log is replicated", TRANSACTIONS, answer_before_replication),
    Mutant("offsets seen before the commit", TRANSACTIONS, show_offsets_before_the_commit),
    Mutant("loaded outcome told before it is committed", TRANSACTIONS, tell_what_was_loaded),
)
