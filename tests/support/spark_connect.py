"""A Spark Connect server of the installed pyspark, a process on loopback with Spark's connector to Kafka."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from barnabas.pipelines.java import find_java
from barnabas.pipelines.jvm import MODULE_OPTIONS
from barnabas.pipelines.spark_extra import pyspark_directory
from tests.support.ports import free_port
from tests.support.waiting import wait_until

START_SECONDS_MAX = 240.0
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer:
    """Runs as long as the block; killed, it may be started again at the same address."""

    def __init__(self, directory: Path, jars: Sequence[Path], *options: str) -> None:
        """`options` are settings of Spark, as `name=value`."""
        self.port = free_port()
        self.master = f"sc://127.0.0.1:{self.port}"
        self.directory = directory
        self.log = directory / "server.log"
        self._jars, self._options = jars, options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it takes connections."""
        settings = {
            "spark.master": "local[2]",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.local.dir": str(self.directory / "local"),
            "spark.sql.warehouse.dir": str(self.directory / "warehouse"),
            **dict(option.split("=", 1) for option in self._options),
        }
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        environment |= {
            "SPARK_HOME": str(pyspark_directory()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        class_path = os.pathsep.join([str(pyspark_directory() / "jars" / "*"), *map(str, self._jars)])
        command = [str(find_java().executable), *MODULE_OPTIONS, "-Xmx1g", "-Duser.timezone=UTC"]
        command += [f"-D{name}={value}" for name, value in settings.items()]
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            before = self.log.read_text().count("Spark Connect server started")
            self._process = subprocess.Popen(
                [*command, "-cp", class_path, _SERVER],
                cwd=self.directory,
                env=environment,
                stdout=output,
                stderr=output,
            )
        wait_until(
            lambda: self.log.read_text().count("Spark Connect server started") > before or not self.is_running,
            "a Spark Connect server",
            START_SECONDS_MAX,
        )
        assert self.is_running, self.log.read_text()[-4_000:]

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self.kill()
