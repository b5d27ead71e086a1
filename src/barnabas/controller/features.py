"""`/feature`, the finalized features of the cluster (KIP-584), as steps of the failover."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from barnabas.controller.effects import Steps, WaitForFeatures, operate, write_as_controller
from barnabas.coordination.errors import CoordinationError, NoNodeError
from barnabas.coordination.layout.cluster import FEATURE_PATH, FeatureStatus, FinalizedFeatures
from barnabas.coordination.operations import Create, GetData, SetData


def set_up_features(epoch_version: int, logger: logging.Logger) -> Steps[Mapping[str, int]]:
    """Creates `/feature`, or updates it to what inter.broker.protocol.version 3.4 and above have: enabled, version 2.
    Finalized levels stay, except where it is disabled. Waits for the broker's own cache after a write.

    Returns the finalized levels. Brokers of the ZooKeeper era finalize none by default.
    """
    (found,) = yield from operate([GetData(FEATURE_PATH)])
    write: Create | SetData
    if isinstance(found, NoNodeError):
        wanted = FinalizedFeatures(FeatureStatus.ENABLED, {})
        write = Create(FEATURE_PATH, wanted.encode())
        logger.info("Creating %s: enabled, without features", FEATURE_PATH)
    elif isinstance(found, Exception):
        raise found
    else:
        known = FinalizedFeatures.decode(found.data)
        if known.status is FeatureStatus.DISABLED and known.features:
            logger.warning("%s is disabled and has features nevertheless: %s", FEATURE_PATH, dict(known.features))
        levels = known.features if known.status is FeatureStatus.ENABLED else {}
        wanted = FinalizedFeatures(FeatureStatus.ENABLED, levels, extra=known.extra)
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
    yield (WaitForFeatures(version),)
    return wanted.features
