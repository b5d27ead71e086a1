"""What the whole cluster has once: its id, its finalized features, blocks of producer ids, and the marks of a
migration to KRaft.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from barnabas.coordination.layout.payload import NO_EXTRA, Fields, LayoutError, decode_number, encode_json

CLUSTER_PATH = "/cluster"
CLUSTER_ID_PATH = "/cluster/id"
FEATURE_PATH = "/feature"
PRODUCER_ID_BLOCK_PATH = "/latest_producer_id_block"
MIGRATION_PATH = "/migration"
CONSUMERS_PATH = "/consumers"


@dataclass(frozen=True, slots=True)
class ClusterId:
    """Payload of `/cluster/id`; the version is written as text."""

    id: str
    extra: Mapping[str, Any] = NO_EXTRA

    def encode(self) -> bytes:
        return encode_json({"version": "1", "id": self.id}, self.extra)

    @classmethod
    def decode(cls, data: bytes | None, path: str = CLUSTER_ID_PATH) -> ClusterId:
        fields = Fields.decode(data, path)
        fields.optional_text("version")
        return cls(fields.text("id"), fields.rest())


class FeatureStatus(enum.IntEnum):
    """Whether finalized features count (KIP-584): below inter.broker.protocol.version 2.7 they do not."""

    DISABLED = 0
    ENABLED = 1


@dataclass(frozen=True, slots=True)
class FinalizedFeatures:
    """Payload of `/feature`: the finalized maximal level of each feature. Version 1 (before 3.3) writes a minimal
    level too, which is the same.
    """

    status: FeatureStatus
    features: Mapping[str, int]
    version: int = 2
    extra: Mapping[str, Any] = NO_EXTRA

    def encode(self) -> bytes:
        features = {
            name: {"max_version_level": level} | ({"min_version_level": level} if self.version == 1 else {})
            for name, level in self.features.items()
        }
        return encode_json({"features": features, "version": self.version, "status": self.status}, self.extra)

    @classmethod
    def decode(cls, data: bytes | None, path: str = FEATURE_PATH) -> FinalizedFeatures:
        fields = Fields.decode(data, path)
        version = fields.integer("version")
        if version not in {1, 2}:
            raise fields.wrong("version", "1 or 2", version)
        status = fields.integer("status")
        if status not in {0, 1}:
            raise fields.wrong("status", "0 or 1", status)
        if not fields.has("features"):
            raise LayoutError(path, "features is missing")
        features = {name: _level(name, levels, version, path) for name, levels in fields.mapping("features").items()}
        return cls(FeatureStatus(status), features, version, fields.rest())


def _level(name: str, value: Any, version: int, path: str) -> int:
    if not isinstance(value, dict):
        raise LayoutError(path, f"features.{name} should be an object")
    levels = Fields(value, path, f"features.{name}")
    highest = levels.integer("max_version_level")
    lowest = levels.integer("min_version_level") if version == 1 else 1
    if not 1 <= lowest <= highest < 2**15:
        raise LayoutError(path, f"features.{name} has levels from {lowest} to {highest}")
    return highest


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """Payload of `/latest_producer_id_block`: the ids from `first` to `last`, both included, which were given to
    the broker for its producers.
    """

    broker_id: int
    first: int
    last: int
    extra: Mapping[str, Any] = NO_EXTRA

    def encode(self) -> bytes:
        fields = {"version": 1, "broker": self.broker_id, "block_start": str(self.first), "block_end": str(self.last)}
        return encode_json(fields, self.extra)

    @classmethod
    def decode(cls, data: bytes | None, path: str = PRODUCER_ID_BLOCK_PATH) -> ProducerIdBlock:
        fields = Fields.decode(data, path)
        fields.integer("version", 1)
        block = cls(fields.integer("broker"), fields.decimal("block_start"), fields.decimal("block_end"), fields.rest())
        if not 0 <= block.first <= block.last:
            raise LayoutError(path, f"a block from {block.first} to {block.last} is impossible")
        return block


@dataclass(frozen=True, slots=True)
class MigrationState:
    """Payload of `/migration`: how far a migration to KRaft has come (KIP-866). A cluster that has begun one must
    not be served from ZooKeeper by us.
    """

    kraft_controller_id: int
    kraft_controller_epoch: int
    kraft_metadata_offset: int
    kraft_metadata_epoch: int
    extra: Mapping[str, Any] = NO_EXTRA

    @property
    def has_begun(self) -> bool:
        return self.kraft_controller_id >= 0

    def encode(self) -> bytes:
        fields = {
            "version": 0,
            "kraft_controller_id": self.kraft_controller_id,
            "kraft_controller_epoch": self.kraft_controller_epoch,
            "kraft_metadata_offset": self.kraft_metadata_offset,
            "kraft_metadata_epoch": self.kraft_metadata_epoch,
        }
        return encode_json(fields, self.extra)

    @classmethod
    def decode(cls, data: bytes | None, path: str = MIGRATION_PATH) -> MigrationState:
        fields = Fields.decode(data, path)
        version = fields.integer("version")
        if version != 0:
            raise fields.wrong("version", "0", version)
        return cls(
            fields.integer("kraft_controller_id"),
            fields.integer("kraft_controller_epoch"),
            fields.long("kraft_metadata_offset"),
            fields.integer("kraft_metadata_epoch"),
            fields.rest(),
        )


def consumer_offset_path(group: str, topic: str, partition: int) -> str:
    """Where consumers before Kafka 0.9 kept their offsets."""
    return f"{CONSUMERS_PATH}/{group}/offsets/{topic}/{partition}"


def encode_consumer_offset(offset: int) -> bytes:
    return str(offset).encode()


def decode_consumer_offset(data: bytes | None, path: str) -> int:
    return decode_number(data, path)
