"""The one way of a produced record: may it be written, where to, appended, and when it counts.

Requests come here as groups of batches for one partition: those of the usual shape that came in one tick (the fast
path), or one part of a request that the codec has decoded. Whoever brings a group is told of each of its batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.cluster.metadata_responses import is_internal
from barnabas.log.partition.appending import AppendedBatch
from barnabas.serving.produce import VALID_ACKS, InSteps, ProduceOutcome, RecordAppends
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.sentinels import ACKS_ALL

if TYPE_CHECKING:
    from barnabas.cluster.image import MetadataImage
    from barnabas.serving.acknowledgements import Acknowledgements, Answer
    from barnabas.serving.ports import MetadataSource
    from barnabas.serving.produce import Appended, AppendTarget
    from barnabas.wire.topics import TopicPartition

ADMIN_CLIENT_ID: Final = "__admin_client"
"""Whoever calls itself so may write to internal topics, as in Kafka."""


_NONE: Final = ErrorCode.NONE


class ProduceQuota(Protocol):
    """What a principal, or a client id, may produce in a second."""

    def throttle_ms(self, size_bytes: int) -> int:
        """Counts so many bytes of records, and says for how long that holds the response back."""
        ...

    def begin(self) -> None:
        """The loop begins to work at requests, whose time may be limited."""
        ...

    def end(self) -> None:
        """It has done so."""
        ...


class ProduceAccess(Protocol):
    """Who may write what, and at which rate."""

    @property
    def epoch(self) -> int:
        """Another number whenever what follows may have changed: what was said is kept until then."""
        ...

    def place_of(self, address: str) -> str:
        """What of a client's address counts: all clients of the same place may do the same."""
        ...

    def may_write(self, principal: str, place: str, topic: str) -> bool: ...

    def quota(self, principal: str, client_id: str | None) -> ProduceQuota | None:
        """None for whoever may produce without limit."""
        ...


class OpenAccess:
    """Everybody may write everything, as fast as he can."""

    epoch: int = 0

    def place_of(self, address: str) -> str:  # noqa: ARG002 - all are alike
        return ""

    def may_write(self, principal: str, place: str, topic: str) -> bool:  # noqa: ARG002 - all may
        return True

    def quota(self, principal: str, client_id: str | None) -> ProduceQuota | None:  # noqa: ARG002 - as above
        return None


class ProduceKind:
    """What the requests of a group have in common, whichever way they were decoded."""

    __slots__ = (
        "acks",
        "api_version",
        "client_id",
        "let_in_at",
        "place",
        "principal",
        "quota",
        "target",
        "timeout_ms",
        "topic_partition",
    )

    def __init__(
        self,
        principal: str,
        place: str,
        client_id: str | None,
        api_version: int,
        acks: int,
        timeout_ms: int,
        topic_partition: TopicPartition,
    ) -> None:
        self.principal = principal
        self.place = place
        self.client_id = client_id
        self.api_version = api_version
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.topic_partition = topic_partition
        # Written by the pipeline, when it lets such a request in. It need not look again as long as its own number is
        # that one. Not by which metadata it did: that would keep them, for as long as nobody sends such a request.
        self.let_in_at = 0
        self.quota: ProduceQuota | None = None
        self.target: AppendTarget


class ProduceGroup(Protocol):
    """Batches for one partition, and the requests that brought them. Of each batch it is told once: by `refuse`, by
    `give`, or by completing what `park` has given; of those in `give` for which it is not final, by `complete` too, and
    that before this tick sends.
    """

    @property
    def batches(self) -> Sequence[bytearray | memoryview]: ...

    def refuse(self, number: int, outcome: ProduceOutcome) -> None:
        """The batch of that number is not in the log."""
        ...

    def give(self, first: int, results: Sequence[AppendedBatch], code: ErrorCode, is_final: bool) -> None:
        """The batches from `first` on are in the log, and count if `code` is NONE; where that is not final, once
        `complete` says so.
        """
        ...

    def park(self, number: int, result: AppendedBatch, code: ErrorCode, *, is_queued: bool) -> Answer:
        """The batch is in the log, and counts if `code` is NONE, once what this returns is told so. `is_queued`: it
        waits for a sync, and as far as can be told not for replicas.
        """
        ...

    def complete(self, code: ErrorCode, *, is_written: bool) -> None:
        """As `acknowledgements.Answer`, for all that were in `give` and not final."""
        ...


class ProducePipeline:
    """Takes groups from the question whether they are let in to the answer whether they count."""

    def __init__(
        self,
        appends: RecordAppends,
        acknowledgements: Acknowledgements,
        metadata: MetadataSource,
        access: ProduceAccess,
    ) -> None:
        self.access = access
        self._appends = appends
        self._acknowledgements = acknowledgements
        self._metadata = metadata
        # By these it lets requests in; the number is another one whenever they are.
        self._image: MetadataImage | None = None
        self._access_epoch = 0
        self._number = 0

    def refusal(self, kind: ProduceKind) -> ProduceOutcome | None:
        """Why nothing of the kind may be written; None where it may. The controller tells of a topic's deletion before
        its replicas go.
        """
        topic_partition = kind.topic_partition
        if not self.access.may_write(kind.principal, kind.place, topic_partition.topic):
            return ProduceOutcome(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if self._metadata.image.partition(topic_partition) is None:
            return ProduceOutcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return None

    def append(
        self, kind: ProduceKind, group: ProduceGroup, writes_at_once: bool = False, only_at_once: bool = False
    ) -> None:
        """Appends a group; its batches are not needed any more when this returns. `writes_at_once` and `only_at_once`
        as in `RecordAppends.append`, which raises TakesLongError, and nobody was told anything then.
        """
        if self._image is not self._metadata.image or self._access_epoch != self.access.epoch:
            self._image, self._access_epoch = self._metadata.image, self.access.epoch
            self._number += 1
        outcome = self._let_in(kind) if kind.let_in_at != self._number else None
        if outcome is None:
            appended = self._appends.append(
                kind.target, group.batches, kind.acks, kind.api_version, writes_at_once, only_at_once
            )
            if type(appended) is not ProduceOutcome:
                self._acknowledge(kind, group, appended)
                return
            outcome = appended
        for number in range(len(group.batches)):
            group.refuse(number, outcome)

    async def append_in_steps(
        self, kind: ProduceKind, group: ProduceGroup, records: bytearray, in_steps: InSteps
    ) -> None:
        """`append` for a group of one batch that takes long, as in `RecordAppends.append_in_steps`."""
        outcome = self._let_in(kind)
        if outcome is None:
            appended = await self._appends.append_in_steps(
                kind.topic_partition, records, kind.acks, kind.api_version, in_steps
            )
            if not isinstance(appended, ProduceOutcome):
                self._acknowledge(kind, group, appended)
                return
            outcome = appended
        group.refuse(0, outcome)

    def _let_in(self, kind: ProduceKind) -> ProduceOutcome | None:
        """Why nothing of the kind is appended; None where it is, until metadata or access change."""
        kind.quota = self.access.quota(kind.principal, kind.client_id)
        outcome = self.refusal(kind)
        if outcome is not None:
            return outcome
        if kind.acks not in VALID_ACKS:
            return ProduceOutcome(ErrorCode.INVALID_REQUIRED_ACKS)
        topic_partition = kind.topic_partition
        if is_internal(topic_partition.topic) and kind.client_id != ADMIN_CLIENT_ID:
            error = KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"clients may not write to {topic_partition.topic}")
            return self._appends.refused(topic_partition, error)
        try:
            kind.target = self._appends.target(topic_partition)
        except KafkaError as error:
            return self._appends.refused(topic_partition, error)
        kind.let_in_at = self._number
        return None

    def _acknowledge(self, kind: ProduceKind, group: ProduceGroup, appended: Appended) -> None:
        """Tells the group of its batches, in their order, or has them wait for what they wait for.

        Invariant: none is told to count before its log is written, and synced where `flush.messages` asks for that; and
        with acks -1 none before the high watermark has passed it. What is given before has its place only, and is taken
        back if the write of the tick fails; a sync that later appends of the tick ask for changes nothing about it.
        """
        partition, log, results, has_refused = appended
        acks, acknowledgements = kind.acks, self._acknowledgements
        written = log.written
        is_final = not (written.is_queued or written.is_syncing)
        awaits_sync = not is_final and (written.is_syncing or log.must_sync)  # which is not within this tick
        code_of_all: ErrorCode | None = _NONE
        if acks == ACKS_ALL:
            last_offsets = [result[1] for result in results if type(result) is not ProduceOutcome]
            end_offset = max(last_offsets, default=-1)
            # After a sync it is asked then: this broker may not lead any more.
            code_of_all = None if awaits_sync else partition.is_replicated(end_offset + 1)
        elif not (has_refused or awaits_sync):
            group.give(0, results, _NONE, is_final)
            if not is_final:
                acknowledgements.when_in_file(log, group)
            return
        has_given = False
        waiting: list[tuple[int, Answer]] = []
        runs: Iterable[tuple[int, Sequence[AppendedBatch] | ProduceOutcome]]
        runs = _runs(results) if has_refused else ((0, results),)
        for first, run in runs:
            if isinstance(run, ProduceOutcome):
                group.refuse(first, run)
                continue
            if code_of_all is not None and not awaits_sync:
                group.give(first, run, code_of_all, is_final)
                has_given = True
                continue
            for number, result in enumerate(run, first):
                code = code_of_all
                if code is None and not awaits_sync:
                    code = partition.is_replicated(result[1] + 1)
                if code is None:
                    required_offset = result[1] + 1
                    awaits_disk_only = awaits_sync and partition.awaits_disk_only(required_offset)
                    waiting.append((required_offset, group.park(number, result, _NONE, is_queued=awaits_disk_only)))
                elif awaits_sync:
                    acknowledgements.when_written(partition, log, group.park(number, result, code, is_queued=True))
                else:
                    group.give(number, (result,), code, is_final)
                    has_given = True
        if has_given and not is_final:
            acknowledgements.when_in_file(log, group)
        if waiting:
            acknowledgements.when_all_replicated(partition, log, waiting, kind.timeout_ms)


def _runs(
    results: Sequence[AppendedBatch | ProduceOutcome],
) -> Iterator[tuple[int, Sequence[AppendedBatch] | ProduceOutcome]]:
    """The results, those that follow one another in the log together; each with the number of its first."""
    run: list[AppendedBatch] = []
    for number, result in enumerate(results):
        if not isinstance(result, ProduceOutcome):
            run.append(result)
            continue
        if run:
            yield number - len(run), run
            run = []
        yield number, result
    if run:
        yield len(results) - len(run), run
