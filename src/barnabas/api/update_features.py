"""UpdateFeatures (key 57, versions 0 and 1): finalizes levels of features, or deletes them (KIP-584).

Answered by the active controller. No feature is supported in ZooKeeper mode, so that only the deletion of a level that
somebody else wrote can succeed. Of a feature that is named twice counts what is said first. As in Kafka 3.9
`timeout_ms` bounds nothing here: the controller waits for its own limit.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.controller.controller import Controller
from barnabas.controller.features import FeatureUpdate, UpdateOutcomes, UpgradeType
from barnabas.kernel.steps import Steps, each
from barnabas.security.acls import AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import UpdateFeaturesRequest, UpdateFeaturesResponse

Result = UpdateFeaturesResponse.UpdatableFeatureResult
_UPGRADE_TYPES_SINCE: Final = 1
_UPGRADE_TYPES: Final = frozenset(UpgradeType)


class UpdateFeaturesHandler:
    """Hands the levels to the controller of this broker, if it is the active one."""

    api_key = ApiKey.UPDATE_FEATURES
    versions = (0, 1)

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def handle(
        self, context: RequestContext, request: UpdateFeaturesRequest
    ) -> Coroutine[Any, Any, UpdateFeaturesResponse]:
        check_cluster(context, AclOperation.ALTER)
        context.park()  # it waits for the controller's queue, which is not this request's work
        return self._update(context, request)

    def error_response(
        self, _context: RequestContext, _request: UpdateFeaturesRequest, error: KafkaError
    ) -> UpdateFeaturesResponse:
        return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)

    async def _update(self, context: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
        updates = await context.in_steps(_updates(request, context.api_version))
        outcomes = await self._controller.update_features(updates, validate_only=request.validate_only)
        return UpdateFeaturesResponse(results=await context.in_steps(_results(outcomes)))


def _updates(request: UpdateFeaturesRequest, version: int) -> Steps[list[FeatureUpdate]]:
    updates: dict[str, FeatureUpdate] = {}

    def add(update: UpdateFeaturesRequest.FeatureUpdateKey) -> None:
        if version < _UPGRADE_TYPES_SINCE:
            upgrade_type = UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
        else:
            known = update.upgrade_type in _UPGRADE_TYPES
            upgrade_type = UpgradeType(update.upgrade_type) if known else UpgradeType.UNKNOWN
        updates.setdefault(update.feature, FeatureUpdate(update.feature, update.max_version_level, upgrade_type))

    yield from each(add, request.feature_updates)
    return list(updates.values())


def _results(outcomes: UpdateOutcomes) -> Steps[list[Result]]:
    def result(outcome: tuple[str, KafkaError | None]) -> Result:
        feature, error = outcome
        if error is None:
            return Result(feature=feature, error_code=ErrorCode.NONE)
        return Result(feature=feature, error_code=error.code, error_message=error.message)

    return each(result, outcomes.items())
