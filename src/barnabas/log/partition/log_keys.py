"""Broker configs of the logs that Apache Kafka does not have."""

from __future__ import annotations

from typing import Final

from barnabas.config.keys import Between, ConfigKey, ConfigType, Importance

DIRECTORY_PATIENCE: Final[ConfigKey[int]] = ConfigKey(
    name="barnabas.log.dir.patience.ms",
    type=ConfigType.INT,
    default=1000,
    documentation=(
        "How long a log directory may take to answer before nothing more is written to it, until it answers: its"
        " partitions refuse records with NOT_ENOUGH_REPLICAS, and all else goes on. One that was slow lately may take"
        " four times as long as it took then, up to ten times this. 0 watches no directory."
    ),
    importance=Importance.LOW,
    validator=Between(0, 3_600_000),
)
