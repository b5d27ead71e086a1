"""Broker configs of the logs that Apache Kafka does not have."""

from __future__ import annotations

from typing import Final

from barnabas.config.keys import Between, ConfigKey, ConfigType, Importance, OneOf

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
DIRECTORY_WRITES: Final[ConfigKey[str]] = ConfigKey(
    name="barnabas.log.dir.writes",
    type=ConfigType.STRING,
    default="auto",
    documentation=(
        "Where the files of partitions are written. loop: at once, where requests are served; a disk that does not"
        " return then holds all of the broker until it is found out. offload: in order, by a thread of each log"
        " directory, which takes some 0.1 ms more for each request that comes alone, and lets nothing wait for the disk"
        " but what is in its own directory. auto: offload on a broker that has several log directories, loop on others."
    ),
    importance=Importance.LOW,
    validator=OneOf(("auto", "loop", "offload")),
)
