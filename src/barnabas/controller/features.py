"""`/feature`, the finalized features of the cluster (KIP-584), as steps of the failover."""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from barnabas.controller.effects import Steps, WaitForFeatures, in_pieces, operate, write_as_controller
from barnabas.controller.protocol import ControllerProtocol
from barnabas.coordination.errors import CoordinationError, NoNodeError
from barnabas.coordination.layout.cluster import FEATURE_PATH, FeatureStatus, FinalizedFeatures
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import Create, GetData, SetData
from barnabas.kernel.steps import each
from barnabas.wire.errors import ErrorCode, KafkaError


class UpgradeType(enum.IntEnum):
    """What an update of a feature may do (KIP-584). UNKNOWN stands for every number that is none of the others."""

    UNKNOWN = 0
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """The wanted level of a feature; a level below 1 deletes it."""

    feature: str
    level: int
    upgrade_type: UpgradeType


UpdateOutcomes = Mapping[str, KafkaError | None]
"""Why a feature was not updated, by name; None where it was."""


def set_up_features(
    epoch_version: int, protocol: ControllerProtocol, logger: logging.Logger
) -> Steps[Mapping[str, int]]:
    """Creates `/feature`, or updates it to what `inter.broker.protocol.version` has: enabled from 2.7 on, of version 2
    from 3.3 on. Finalized levels stay where it was enabled and is. Waits for the broker's own cache after a write,
    where it is enabled.

    Returns the finalized levels. Brokers of the ZooKeeper era finalize none by default.
    """
    status = FeatureStatus.ENABLED if protocol.has_features else FeatureStatus.DISABLED
    (found,) = yield from operate([GetData(FEATURE_PATH)])
    write: Create | SetData
    if isinstance(found, NoNodeError):
        wanted = FinalizedFeatures(status, {}, protocol.feature_znode_version)
        write = Create(FEATURE_PATH, wanted.encode())
        logger.info("Creating %s: %s, without features", FEATURE_PATH, status.name.lower())
    elif isinstance(found, Exception):
        raise found
    else:
        known = FinalizedFeatures.decode(found.data)
        if known.status is FeatureStatus.DISABLED and known.features:
            logger.warning("%s is disabled and has features nevertheless: %s", FEATURE_PATH, dict(known.features))
        levels = known.features if known.status is status is FeatureStatus.ENABLED else {}
        wanted = FinalizedFeatures(status, levels, protocol.feature_znode_version, known.extra)
        if wanted == known:
            return wanted.features
        write = SetData(FEATURE_PATH, wanted.encode(), found.stat.version)
        logger.info("Updating %s from %s to %s", FEATURE_PATH, known, wanted)
    (outcome,) = yield from write_as_controller([write], epoch_version)
    if isinstance(outcome, CoordinationError):
        # Written by an earlier attempt of ours, whose answer was lost, or by others: what is there now counts.
        (found,) = yield from operate([GetData(FEATURE_PATH)])
        if isinstance(found, Exception):
            raise found
        if FinalizedFeatures.decode(found.data) != wanted:
            raise outcome
        version = found.stat.version
    else:
        version = outcome.version if isinstance(write, SetData) else 0
    if status is FeatureStatus.ENABLED:  # a cache keeps no version of what is disabled
        yield (WaitForFeatures(version),)
    return wanted.features


def update_features(
    updates: Iterable[FeatureUpdate], epoch_version: int, *, validate_only: bool
) -> Steps[UpdateOutcomes]:
    """Deletes finalized features. No level can be finalized: brokers of the ZooKeeper era support no feature. Answers
    when this broker has read what was written.

    The refusals are INVALID_REQUEST, and FEATURE_UPDATE_FAILED where `/feature` cannot be read or written.
    """
    known: FinalizedFeatures | None = None
    fault: Exception | None = None
    version = 0
    (found,) = yield from operate([GetData(FEATURE_PATH)])
    if isinstance(found, Exception):
        fault = None if isinstance(found, NoNodeError) else found
    else:
        version = found.stat.version
        try:
            known = FinalizedFeatures.decode(found.data)
        except LayoutError as error:
            fault = error
    levels = {} if known is None or known.status is FeatureStatus.DISABLED else dict(known.features)
    outcomes: dict[str, KafkaError | None] = {}
    deleted: list[str] = []

    def look(update: FeatureUpdate) -> None:
        refusal = _refusal(update, levels, fault)
        outcomes[update.feature] = refusal
        if refusal is None:
            deleted.append(update.feature)

    yield from in_pieces(each(look, updates))
    if known is None or not deleted or validate_only:
        return outcomes
    for feature in deleted:
        del levels[feature]
    write = SetData(FEATURE_PATH, replace(known, features=levels).encode(), version)
    (outcome,) = yield from write_as_controller([write], epoch_version)
    if isinstance(outcome, CoordinationError):
        return outcomes | dict.fromkeys(deleted, _failed(outcome))
    yield (WaitForFeatures(outcome.version),)
    return outcomes


def _refusal(update: FeatureUpdate, levels: Mapping[str, int], fault: Exception | None) -> KafkaError | None:
    """Kafka's checks, in its order; None for a deletion that is to be done."""
    message: str | None
    if not update.feature:
        message = "a feature has a name"
    elif update.upgrade_type is UpgradeType.UNKNOWN:
        message = "the upgrade type is 1 (upgrade), 2 (safe downgrade) or 3 (unsafe downgrade)"
    elif update.level >= 1:
        message = f"no broker of this version supports the feature {update.feature!r}, or any other"
    elif update.upgrade_type is UpgradeType.UPGRADE:
        message = f"level {update.level} deletes the feature: that needs a downgrade to be allowed"
    elif fault is not None:
        return _failed(fault)
    elif update.feature not in levels:
        message = f"the feature {update.feature!r} is not finalized, so it cannot be deleted"
    else:
        return None
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _failed(error: Exception) -> KafkaError:
    return KafkaError(ErrorCode.FEATURE_UPDATE_FAILED, f"{FEATURE_PATH} cannot be read or written: {error}")
