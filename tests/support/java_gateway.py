"""A JVM that is driven from Python by py4j, which Spark brings."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway

from barnabas.pipelines.spark_extra import pyspark_directory
from tests.support.java import java

_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class JavaProcess:
    """One JVM with these classes; it ends with this process, too."""

    def __init__(self, class_path: str, *options: str, log: Path | None = None) -> None:
        """`log` takes what it writes to standard error."""
        (jar,) = pyspark_directory().glob("jars/py4j-*.jar")
        command = [str(java().executable), *_OPTIONS, *options, "-cp", f"{jar}:{class_path}", "py4j.GatewayServer"]
        with (log or Path("/dev/null")).open("ab") as errors:
            self._process = subprocess.Popen(
                [*command, "--die-on-broken-pipe", "0"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.strip():
            self.kill()
            raise RuntimeError(f"Java did not start: {' '.join(command)}")
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=int(line)))

    @property
    def jvm(self) -> Any:
        """Its classes."""
        return self._gateway.jvm

    def properties(self, values: dict[str, str]) -> Any:
        """A java.util.Properties."""
        made = self.jvm.java.util.Properties()
        for name, value in values.items():
            made.setProperty(name, value)
        return made

    def kill(self) -> None:
        """SIGKILL; a process that has ended does no harm."""
        self._process.kill()
        self._process.communicate()
        if hasattr(self, "_gateway"):
            self._gateway.close()
