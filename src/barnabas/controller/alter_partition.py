"""AlterPartition: a leader proposes an ISR, the controller decides and writes (KIP-497).

The order of the checks is part of the contract: it tells a leader whether to look for another controller, to wait for
newer leadership, or to take its proposal back.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from barnabas.controller.context import ControllerContext
from barnabas.controller.effects import CHANGES_PER_PIECE, ITEMS_PER_PIECE, Steps, give_way
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.partition_znodes import read_leadership, write_leadership
from barnabas.controller.settings import PARTITIONS_PER_BATCH
from barnabas.kernel.ids import Uuid
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import AlterPartitionRequest, AlterPartitionResponse
from barnabas.wire.sentinels import NO_EPOCH
from barnabas.wire.topics import LeaderRecoveryState, TopicPartition

TOPIC_IDS_VERSION = 2
"""From this version on topics are named by their ids, and an ineligible replica gets its own error (KIP-841)."""
BROKER_EPOCHS_VERSION = 3
"""From this version on members of an ISR carry their broker epochs (KIP-903)."""

Answer = LeaderAndIsr | ErrorCode


@dataclass(frozen=True, slots=True)
class Proposal:
    """A leader's request for one partition; `isr` has the broker epoch of each member, -1 where none was given."""

    leader: int
    leader_epoch: int
    isr: Mapping[int, int]
    leader_recovery_state: int
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class AlteredPartitions:
    """The response, and the partitions whose leadership in the context has changed, which all brokers must learn.

    `outdated` are those whose leaders do not know what is in the znode, since somebody else has written it: they would
    be refused for ever.
    """

    response: AlterPartitionResponse
    changed: tuple[TopicPartition, ...]
    outdated: tuple[TopicPartition, ...]


class AlterPartitionProcessor:
    """Every method is a part of an event, and may raise `ControllerMovedError`."""

    def __init__(self, context: ControllerContext, logger: logging.Logger) -> None:
        self._context = context
        self._logger = logger

    def alter(self, request: AlterPartitionRequest, version: int) -> Steps[AlteredPartitions]:
        """Decides on each partition, and writes the ISRs that are accepted.

        Raises `KafkaError` (STALE_BROKER_EPOCH) for a broker that is not registered, or not in this epoch.
        """
        broker = self._context.live_or_shutting_down_brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            present = "is not registered" if broker is None else f"has epoch {broker.epoch}"
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker {request.broker_id} asks in epoch {request.broker_epoch}; it {present}",
            )
        answers: dict[TopicPartition, Answer] = {}
        accepted: dict[TopicPartition, LeaderAndIsr] = {}
        outdated: list[TopicPartition] = []
        counted = itertools.count(1)
        for topic in request.topics:
            name = topic.topic_name if version < TOPIC_IDS_VERSION else self._context.topic_name(Uuid(topic.topic_id))
            if name is None:
                continue
            for data in topic.partitions:
                if not next(counted) % CHANGES_PER_PIECE:
                    yield from give_way()
                partition = TopicPartition(name, data.partition_index)
                decision = self._decide(partition, _proposal(request.broker_id, data, version), version)
                if isinstance(decision, _Accepted):
                    accepted[partition] = decision.leader_and_isr
                else:
                    answers[partition] = decision
                    if decision is ErrorCode.INVALID_UPDATE_VERSION and self._is_led_by(partition, request.broker_id):
                        outdated.append(partition)
        changed: list[TopicPartition] = []
        remaining = iter(accepted.items())
        while batch := dict(islice(remaining, PARTITIONS_PER_BATCH)):
            known, foreign = yield from self._write(batch, answers)
            changed += known
            outdated += foreign
        response = yield from self._response(request, version, answers)
        return AlteredPartitions(response, tuple(changed), tuple(outdated))

    def _is_led_by(self, partition: TopicPartition, broker_id: int) -> bool:
        known = self._context.leadership(partition)
        return known is not None and known.leader == broker_id

    def _decide(self, partition: TopicPartition, proposal: Proposal, version: int) -> Answer | _Accepted:
        known = self._context.leadership(partition)
        if known is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if proposal.partition_epoch > known.partition_epoch or proposal.leader_epoch > known.leader_epoch:
            # The leader knows of changes that this broker has not made, so another one is the controller.
            return ErrorCode.NOT_CONTROLLER
        if proposal.leader_epoch < known.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if (
            proposal.leader == known.leader
            and proposal.isr.keys() == set(known.isr)
            and proposal.leader_recovery_state == known.leader_recovery_state
        ):
            # Before the partition epoch is compared: the answer to a request that was carried out may have been lost.
            return known
        if proposal.partition_epoch < known.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        complaint = self._complaint(partition, known, proposal)
        if complaint is not None:
            self._logger.info(
                "Rejecting the ISR %s of %s-%d from broker %d: %s",
                list(proposal.isr),
                *partition,
                proposal.leader,
                complaint,
            )
            return ErrorCode.INVALID_REQUEST
        ineligible = [member for member in proposal.isr if not self._is_eligible(member, proposal.isr[member])]
        if ineligible:
            self._logger.info(
                "Rejecting the ISR %s of %s-%d from broker %d: %s may not join it",
                list(proposal.isr),
                *partition,
                proposal.leader,
                ineligible,
            )
            own_error = version >= TOPIC_IDS_VERSION
            return ErrorCode.INELIGIBLE_REPLICA if own_error else ErrorCode.OPERATION_NOT_ATTEMPTED
        return _Accepted(
            dataclasses.replace(
                known,
                isr=tuple(proposal.isr),
                leader_recovery_state=LeaderRecoveryState(proposal.leader_recovery_state),
                controller_epoch=self._context.epoch,
            )
        )

    def _complaint(self, partition: TopicPartition, known: LeaderAndIsr, proposal: Proposal) -> str | None:
        """Why a proposal cannot come from a leader that works; None if it can."""
        recovering = proposal.leader_recovery_state == LeaderRecoveryState.RECOVERING
        if proposal.leader_recovery_state not in set(LeaderRecoveryState):
            return f"{proposal.leader_recovery_state} is not a leader recovery state"
        if recovering and len(proposal.isr) > 1:
            return "the leader is recovering, so no other replica can be in sync"
        if recovering and known.leader_recovery_state is LeaderRecoveryState.RECOVERED:
            return "the leader has already recovered"
        if proposal.leader != known.leader:
            return f"broker {known.leader} leads in leader epoch {known.leader_epoch}"
        if proposal.leader not in proposal.isr:
            return "the leader is not in it"
        strangers = proposal.isr.keys() - set(self._context.assignment(partition).replicas)
        if strangers:
            return f"{sorted(strangers)} are not its replicas"
        return None

    def _is_eligible(self, member: int, broker_epoch: int) -> bool:
        """Whether a broker may be in an ISR: it is live, is not shutting down, and has this broker epoch."""
        if member not in self._context.live_brokers:
            return False
        present = self._context.live_or_shutting_down_brokers[member].epoch
        return broker_epoch in {NO_EPOCH, present}

    def _write(
        self, accepted: Mapping[TopicPartition, LeaderAndIsr], answers: dict[TopicPartition, Answer]
    ) -> Steps[tuple[tuple[TopicPartition, ...], tuple[TopicPartition, ...]]]:
        """Writes the accepted ISRs; returns the partitions whose leadership in the context changed, and those of them
        that somebody else has written.
        """
        context = self._context
        written = yield from write_leadership(context, accepted)
        leadership = dict(written.leadership)
        answers.update(leadership)
        for partition, error in written.failed.items():
            self._logger.error("The ISR of %s-%d could not be written: %s", *partition, error)
            answers[partition] = ErrorCode.UNKNOWN_SERVER_ERROR
        # The znode differs from the context. It may have been this very change, whose answer was lost.
        found = yield from read_leadership(context, written.conflicts, own=accepted)
        foreign: list[TopicPartition] = []
        for partition, present in found.items():
            answers[partition] = ErrorCode.INVALID_UPDATE_VERSION
            if not isinstance(present, LeaderAndIsr):
                # After INVALID_UPDATE_VERSION a leader waits to be told, which nobody does of a state that is only
                # mended, or gone: it is to ask again, and then begins a new epoch.
                answers[partition] = ErrorCode.UNKNOWN_SERVER_ERROR
                continue
            leadership[partition] = present
            if present == accepted[partition].at_version(present.partition_epoch):
                answers[partition] = present
            else:
                foreign.append(partition)
        for partition, known in leadership.items():
            context.set_leadership(partition, known)
        return tuple(leadership), tuple(foreign)

    def _response(
        self, request: AlterPartitionRequest, version: int, answers: Mapping[TopicPartition, Answer]
    ) -> Steps[AlterPartitionResponse]:
        response = AlterPartitionResponse()
        counted = itertools.count(1)
        for topic in request.topics:
            data = AlterPartitionResponse.TopicData(topic_name=topic.topic_name, topic_id=topic.topic_id)
            name = topic.topic_name if version < TOPIC_IDS_VERSION else self._context.topic_name(Uuid(topic.topic_id))
            for asked in topic.partitions:
                if not next(counted) % ITEMS_PER_PIECE:
                    yield from give_way()
                answer: Answer = ErrorCode.UNKNOWN_TOPIC_ID
                if name is not None:
                    answer = answers[TopicPartition(name, asked.partition_index)]
                data.partitions.append(_partition_data(asked.partition_index, answer))
            response.topics.append(data)
        return response


@dataclass(frozen=True, slots=True)
class _Accepted:
    """The leadership that is to be written."""

    leader_and_isr: LeaderAndIsr


def _proposal(broker_id: int, data: AlterPartitionRequest.PartitionData, version: int) -> Proposal:
    if version >= BROKER_EPOCHS_VERSION:
        isr = {member.broker_id: member.broker_epoch for member in data.new_isr_with_epochs}
    else:
        isr = dict.fromkeys(data.new_isr, NO_EPOCH)
    return Proposal(broker_id, data.leader_epoch, isr, data.leader_recovery_state, data.partition_epoch)


def _partition_data(partition: int, answer: Answer) -> AlterPartitionResponse.PartitionData:
    if isinstance(answer, ErrorCode):
        return AlterPartitionResponse.PartitionData(partition_index=partition, error_code=answer)
    return AlterPartitionResponse.PartitionData(
        partition_index=partition,
        leader_id=answer.leader,
        leader_epoch=answer.leader_epoch,
        isr=list(answer.isr),
        leader_recovery_state=answer.leader_recovery_state,
        partition_epoch=answer.partition_epoch,
    )
