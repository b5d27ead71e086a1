"""`/controller` and `/controller_epoch`: who controls, and how often that has changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from barnabas.coordination.layout.payload import (
    EPOCH_MAX,
    NO_EXTRA,
    Fields,
    LayoutError,
    decode_number,
    encode_json,
)
from barnabas.wire.sentinels import NO_EPOCH

CONTROLLER_PATH = "/controller"
CONTROLLER_EPOCH_PATH = "/controller_epoch"
VERSION = 2


@dataclass(frozen=True, slots=True)
class ControllerRegistration:
    """Payload of the ephemeral `/controller`, version 2. `kraft_controller_epoch` is NO_EPOCH as long
    as no KRaft controller has taken over, and None in payloads of older brokers.
    """

    broker_id: int
    timestamp_ms: int
    kraft_controller_epoch: int | None = NO_EPOCH
    version: int = VERSION
    extra: Mapping[str, Any] = NO_EXTRA

    def encode(self) -> bytes:
        fields: dict[str, Any] = {
            "version": self.version,
            "brokerid": self.broker_id,
            "timestamp": str(self.timestamp_ms),
        }
        if self.kraft_controller_epoch is not None:
            fields["kraftControllerEpoch"] = self.kraft_controller_epoch
        return encode_json(fields, self.extra)

    @classmethod
    def decode(cls, data: bytes | None, path: str = CONTROLLER_PATH) -> ControllerRegistration:
        fields = Fields.decode(data, path)
        return cls(
            broker_id=fields.integer("brokerid"),
            timestamp_ms=fields.decimal("timestamp", -1),
            kraft_controller_epoch=fields.optional_integer("kraftControllerEpoch"),
            version=fields.integer("version", 1),
            extra=fields.rest(),
        )


def encode_controller_epoch(epoch: int) -> bytes:
    """Payload of `/controller_epoch`."""
    return str(epoch).encode()


def decode_controller_epoch(data: bytes | None, path: str = CONTROLLER_EPOCH_PATH) -> int:
    epoch = decode_number(data, path)
    if not 0 <= epoch <= EPOCH_MAX:
        raise LayoutError(path, f"an epoch from 0 to {EPOCH_MAX} was expected, but it is {epoch}")
    return epoch
