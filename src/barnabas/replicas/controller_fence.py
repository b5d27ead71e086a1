"""What keeps a deposed controller from being obeyed: the greatest controller epoch that this broker has heard of."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.wire.messages import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest

    ControllerRequest = LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest


class ControllerFence:
    """Judges every request of a controller by its epoch.

    Invariant: the epoch never goes back, and what a controller of a lesser one asks changes nothing.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self.epoch = 0
        """Of the newest controller that was heard of."""
        self._logger = logger

    def refuses(self, request: ControllerRequest) -> bool:
        """Whether a newer controller was heard of."""
        if request.controller_epoch >= self.epoch:
            return False
        self._logger.warning(
            "Ignoring %s of controller %d since its epoch %d is old. Latest known controller epoch is %d",
            *(type(request).__name__, request.controller_id, request.controller_epoch, self.epoch),
        )
        return True

    def admits(self, request: ControllerRequest) -> bool:
        """False where `refuses`; else the request's controller is the newest that was heard of, from now on."""
        if self.refuses(request):
            return False
        self.epoch = request.controller_epoch
        return True
