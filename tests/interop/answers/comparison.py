"""Compares what brokers answer to the same steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ApiVersionsRequest, FindCoordinatorRequest, InitProducerIdRequest
from tests.interop.answers.execution import PARKED, SILENT, Answer, Run
from tests.interop.answers.steps import Step
from tests.support.waiting import wait_until
from tests.support.wire_calls import call

ASKED: Final = (
    *(ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH),
    *(ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP),
    *(ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.DELETE_RECORDS),
    *(ApiKey.INIT_PRODUCER_ID, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS),
    *(ApiKey.DESCRIBE_LOG_DIRS, ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_GROUPS, ApiKey.INCREMENTAL_ALTER_CONFIGS),
    *(ApiKey.OFFSET_DELETE, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_PRODUCERS, ApiKey.ELECT_LEADERS),
)
"""Every API for clients that both have but ApiVersions, which says what differs by design."""
MEMBERS_WAIT: Final = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
PATIENCE_SECONDS: Final = 0.15
PATIENCES_OF_LATER_RUNS: Final = (1.0, 5.0)
_DIFFERENCES_SHOWN: Final = 5
_FAILED: Final = f"'error_code': {int(ErrorCode.UNKNOWN_SERVER_ERROR)},"


@dataclass(slots=True)
class Brokers:
    """The ports of a broker of ours, and of two of Apache Kafka."""

    ours: int
    theirs: int
    control: int
    _runs: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        for port in (self.ours, self.theirs, self.control):
            request = FindCoordinatorRequest(key="any", key_type=0)
            wait_until(
                lambda: call(port, ApiKey.FIND_COORDINATOR, 1, request).error_code == 0,  # noqa: B023
                "there are coordinators",
            )
            asked = InitProducerIdRequest(transactional_id=None)
            wait_until(
                lambda: call(port, ApiKey.INIT_PRODUCER_ID, 1, asked).error_code == 0,  # noqa: B023
                "there are producer ids",
            )

    def versions(self) -> dict[ApiKey, tuple[int, int]]:
        """The versions of each API that both kinds have."""
        ranges = []
        for port in (self.ours, self.theirs):
            answer = call(port, ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
            ranges.append({each.api_key: (each.min_version, each.max_version) for each in answer.api_keys})
        ours, theirs = ranges
        return {
            key: (max(ours[key][0], theirs[key][0]), min(ours[key][1], theirs[key][1])) for key in ASKED if key in ours
        }

    def explain(self, steps: Sequence[Step]) -> str:
        """Empty when all answer alike; else the steps whose answers differ.

        What differs is asked again, with more patience for what seems to be parked: a difference that does not come
        again was the machine's.
        """
        found: list[str] = []
        for patience_seconds in (PATIENCE_SECONDS, *PATIENCES_OF_LATER_RUNS):
            found = self._differences(steps, patience_seconds)
            if not found:
                return ""
        return "\n".join(found[:_DIFFERENCES_SHOWN])

    def _differences(self, steps: Sequence[Step], patience_seconds: float) -> list[str]:
        prefix = f"r{next(self._runs):05}-"
        with ThreadPoolExecutor(3) as pool:
            ours, theirs, control = pool.map(
                lambda port: Run(port, prefix, patience_seconds).transcript(steps),
                (self.ours, self.theirs, self.control),
            )
        found = []
        for step, of_ours, of_theirs, of_control in zip(steps, ours, theirs, control, strict=True):
            if of_theirs == of_control == SILENT and of_ours not in (SILENT, PARKED):
                continue
            if of_theirs != of_control:
                found.append(f"THE CONTROL differs at {step}\n" + "\n".join(_shown(of_theirs, of_control)))
            elif of_theirs == PARKED and step.key in MEMBERS_WAIT and _is_refused(of_ours):
                continue  # who waits is told when it is removed
            elif step.key is ApiKey.FETCH and _failed(of_theirs):
                continue  # it names the id of no topic twice, which makes all of Kafka's Fetch fail
            elif step.key is ApiKey.CREATE_PARTITIONS and _FAILED in repr(of_theirs):
                continue  # one topic without name makes all of it fail
            elif step.tree.get("isolation_level", 0) not in (0, 1) and _is_refused(of_ours):
                continue  # refused whole, whatever is in it; Kafka's UNKNOWN_SERVER_ERROR depends on that
            elif differing := _shown(of_theirs, of_ours):
                found.append(f"{step}\n" + "\n".join(differing))
        return found


def _failed(answer: Answer) -> bool:
    return isinstance(answer, dict) and answer.get("error_code") == ErrorCode.UNKNOWN_SERVER_ERROR


def _is_refused(answer: Answer) -> bool:
    """Whether nothing in it succeeded."""
    if isinstance(answer, dict):
        if "error_code" in answer and "responses" not in answer:
            return bool(answer["error_code"])
        return all(_is_refused(each) for each in answer.values() if isinstance(each, list))
    return not isinstance(answer, list) or all(_is_refused(each) for each in answer)


def _shown(theirs: Answer, ours: Answer, path: str = "") -> list[str]:
    """The places where two answers differ. Where Kafka fails (UNKNOWN_SERVER_ERROR) any error will do, and where it
    gives no reason we may.
    """
    if isinstance(theirs, dict) and isinstance(ours, dict) and theirs.keys() == ours.keys():
        if theirs.get("error_code") == ErrorCode.UNKNOWN_SERVER_ERROR and ours["error_code"]:
            theirs = {**theirs, "error_code": ours["error_code"]}
            if "error_message" in theirs:
                theirs["error_message"] = ours["error_message"]
        return [line for key in theirs for line in _shown(theirs[key], ours[key], f"{path}.{key}")]
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        return [
            line
            for number, (one, other) in enumerate(zip(theirs, ours, strict=True))
            for line in _shown(one, other, f"{path}[{number}]")
        ]
    if theirs == ours or (path.endswith(".error_message") and theirs is None):
        return []
    return [f"  {path}: Kafka {theirs!r}", f"  {path}: ours  {ours!r}"]
