"""Updates of finalized features (KIP-584): what is refused, and the deletion of what somebody finalized."""

from __future__ import annotations

import json

import pytest

from barnabas.controller.features import FeatureUpdate, UpgradeType
from barnabas.coordination.errors import KeeperError, NoNodeError
from barnabas.coordination.layout.cluster import FEATURE_PATH, FeatureStatus, FinalizedFeatures
from barnabas.wire.errors import ErrorCode
from tests.unit.controller.term_harness import Terms

UPGRADE, SAFE, UNSAFE = UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE


def elected(**features: int) -> Terms:
    """A term whose brokers lack the features."""
    terms = Terms(1, 2)
    if features:
        terms.store.put_data(FEATURE_PATH, FinalizedFeatures(FeatureStatus.ENABLED, features).encode())
    terms.elect()
    return terms


def update(terms: Terms, *updates: FeatureUpdate, validate_only: bool = False) -> dict[str, ErrorCode]:
    outcomes = terms.run(terms.term.update_features(updates, validate_only=validate_only))
    return {feature: ErrorCode.NONE if error is None else error.code for feature, error in outcomes.items()}


def finalized(terms: Terms) -> FinalizedFeatures:
    return FinalizedFeatures.decode(terms.store.znodes[FEATURE_PATH][0])


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (FeatureUpdate("x", 1, UPGRADE), "no broker of this version supports"),
        (FeatureUpdate("fin", 3, SAFE), "no broker of this version supports"),
        (FeatureUpdate("x", 0, UPGRADE), "needs a downgrade"),
        (FeatureUpdate("fin", -5, UPGRADE), "needs a downgrade"),
        (FeatureUpdate("x", 0, SAFE), "not finalized"),
        (FeatureUpdate("x", -3, UNSAFE), "not finalized"),
        (FeatureUpdate("fin", 0, UpgradeType.UNKNOWN), "the upgrade type is"),
        (FeatureUpdate("", 0, SAFE), "has a name"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(wanted: FeatureUpdate, reason: str) -> None:
    terms = elected(fin=3)
    before = terms.store.znodes[FEATURE_PATH]
    outcomes = terms.run(terms.term.update_features([wanted], validate_only=False))
    (error,) = outcomes.values()
    assert error is not None
    assert error.code is ErrorCode.INVALID_REQUEST
    assert reason in error.message
    assert terms.store.znodes[FEATURE_PATH] == before


@pytest.mark.parametrize("upgrade_type", [SAFE, UNSAFE])
def test_a_feature_that_is_deleted_keeps_no_broker_out_any_more(upgrade_type: UpgradeType) -> None:
    terms = elected(fin=3, other=1)
    assert not terms.term.context.live_brokers
    assert update(terms, FeatureUpdate("fin", 0, upgrade_type)) == {"fin": ErrorCode.NONE}
    assert (dict(finalized(terms).features), len(terms.term.context.live_brokers)) == ({"other": 1}, 0)
    assert update(terms, FeatureUpdate("other", 0, upgrade_type)) == {"other": ErrorCode.NONE}
    assert finalized(terms).features == {}
    assert set(terms.term.context.live_brokers) == {1, 2}


def test_what_is_allowed_is_done_beside_what_is_refused() -> None:
    terms = elected(fin=3, other=1)
    wanted = [FeatureUpdate("fin", 0, SAFE), FeatureUpdate("new", 2, UPGRADE), FeatureUpdate("other", 0, UPGRADE)]
    refused = ErrorCode.INVALID_REQUEST
    assert update(terms, *wanted) == {"fin": ErrorCode.NONE, "new": refused, "other": refused}
    assert finalized(terms).features == {"other": 1}


def test_a_check_alone_changes_nothing() -> None:
    terms = elected(fin=3)
    before = terms.store.znodes[FEATURE_PATH]
    assert update(terms, FeatureUpdate("fin", 0, SAFE), validate_only=True) == {"fin": ErrorCode.NONE}
    assert terms.store.znodes[FEATURE_PATH] == before
    assert not terms.term.context.live_brokers


@pytest.mark.parametrize("spoiled", [b"garbage", json.dumps({"version": 7}).encode()])
def test_a_znode_that_cannot_be_read_is_not_written(spoiled: bytes) -> None:
    terms = elected()
    terms.store.put_data(FEATURE_PATH, spoiled)
    wanted = [FeatureUpdate("fin", 0, SAFE), FeatureUpdate("new", 2, UPGRADE)]
    assert update(terms, *wanted) == {
        "fin": ErrorCode.FEATURE_UPDATE_FAILED,
        "new": ErrorCode.INVALID_REQUEST,
    }
    assert terms.store.znodes[FEATURE_PATH][0] == spoiled


def test_a_znode_that_somebody_wrote_in_between_is_not_overwritten() -> None:
    terms = elected(fin=3)
    steps = terms.term.update_features([FeatureUpdate("fin", 0, SAFE)], validate_only=False)
    batches = 0

    def written_by_another() -> None:
        nonlocal batches
        batches += 1
        if batches == 2:  # the first one read it
            terms.store.put_data(FEATURE_PATH, FinalizedFeatures(FeatureStatus.ENABLED, {"fin": 4}).encode())

    terms.store.before_batch = written_by_another
    (error,) = terms.run(steps).values()
    assert error is not None
    assert error.code is ErrorCode.FEATURE_UPDATE_FAILED
    assert finalized(terms).features == {"fin": 4}


@pytest.mark.parametrize("fault", [NoNodeError(FEATURE_PATH), None])
def test_where_there_are_no_features_none_is_deleted(fault: KeeperError | None) -> None:
    terms = elected()
    if fault is None:
        data = FinalizedFeatures(FeatureStatus.DISABLED, {"fin": 3}).encode()
        terms.store.put_data(FEATURE_PATH, data)
    else:
        terms.store.faults[FEATURE_PATH] = fault
    assert update(terms, FeatureUpdate("fin", 0, SAFE)) == {"fin": ErrorCode.INVALID_REQUEST}
