"""The cluster of a pipeline's file: who its brokers are, and how one comes in, for our own client and for Spark.

Spark's connector takes the keys of Kafka's clients, each with `kafka.` before it. Secrets are not among its options:
those name a place in a file of properties that has them, which Kafka's clients read by themselves (KIP-421). So
neither a plan, nor a log, nor Spark's pages can show one. The file has no name, and is gone with the processes that
have it open (memfd); where there is none of that kind it is in a directory of ours alone for the time of the run.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.client.access import Access, access_of
from barnabas.client.settings import ClientSettings
from barnabas.pipelines.definition import Cluster, Pipeline
from barnabas.pipelines.file_secrets import has_reference, resolved
from barnabas.sasl.jaas import PLAIN_MODULE, SCRAM_MODULE

if TYPE_CHECKING:
    from barnabas.pipelines.yaml_positions import Section

SECRET_KEYS: Final = (
    "sasl.password",
    "sasl.jaas.config",
    "ssl.truststore.password",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.key.password",
)
"""What the file may only name."""
CLUSTER_KEYS: Final = (
    "bootstrap_servers",
    "security.protocol",
    "sasl.mechanism",
    "sasl.username",
    *SECRET_KEYS,
    "ssl.truststore.location",
    "ssl.truststore.type",
    "ssl.truststore.certificates",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.keystore.certificate.chain",
    "ssl.endpoint.identification.algorithm",
    "ssl.enabled.protocols",
    "ssl.cipher.suites",
)
_LOCATIONS: Final = ("ssl.truststore.location", "ssl.keystore.location")
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", " ": "\\ "})
_PROVIDER: Final = "org.apache.kafka.common.config.provider.FileConfigProvider"


def cluster_of(document: Section) -> Cluster:
    """The block `cluster`. Raises PipelineError for what cannot be right, and for secrets that stand there."""
    section = document.section("cluster", CLUSTER_KEYS)
    found: dict[str, str] = {}
    lines: dict[str, int] = {}
    for key, line in section.keys.items():
        text = section.text(key, also=("int", "float"))
        if key in SECRET_KEYS and not has_reference(text.value):
            message = f"{key} is a secret, and this file is read by many: write ${{env:NAME}} or ${{file:PATH}}"
            raise section.error(message, line)
        found[key], lines[key] = text.value.strip(), line
    servers = found.pop("bootstrap_servers", "")
    if "sasl.jaas.config" in found and ("sasl.username" in found or "sasl.password" in found):
        message = "sasl.jaas.config says who logs in, and so do sasl.username and sasl.password: remove one of both"
        raise section.error(message, lines["sasl.jaas.config"])
    if ("sasl.username" in found) != ("sasl.password" in found):
        raise section.error("sasl.username and sasl.password belong together", section.line)
    return Cluster(servers, tuple(found.items()), section.line)


def properties_of(pipeline: Pipeline) -> dict[str, str]:
    """The keys of Kafka's clients, with their secrets. Raises PipelineError, which shows none."""
    cluster, found = pipeline.cluster, {}
    for key, value in cluster.properties:
        found[key] = resolved(value, pipeline.path, cluster.line)
        if key in _LOCATIONS:
            found[key] = str(pipeline.path.resolve().parent / found[key])
    if "sasl.username" in found:
        username, password = found.pop("sasl.username"), found.pop("sasl.password")
        module = PLAIN_MODULE if found.get("sasl.mechanism", "") == "PLAIN" else SCRAM_MODULE
        found["sasl.jaas.config"] = f"{module} required username={_quoted(username)} password={_quoted(password)};"
    return found


def access_of_pipeline(pipeline: Pipeline) -> Access:
    """How our own client comes in. Raises PipelineError, which shows no secret."""
    try:
        return access_of(properties_of(pipeline), "cluster", lambda file: Path(file).read_bytes())
    except ValueError as error:
        raise pipeline.error(str(error), pipeline.cluster.line) from None


def client_settings(pipeline: Pipeline, bootstrap_servers: str, **more: Any) -> ClientSettings:
    """Of our own client. Raises as `access_of_pipeline` does."""
    access = access_of_pipeline(pipeline)
    return ClientSettings(
        bootstrap_servers=tuple(server.strip() for server in bootstrap_servers.split(",") if server.strip()),
        client_id=pipeline.group_id,
        login=access.login,
        tls=access.tls,
        **more,
    )


@dataclass(frozen=True, slots=True)
class SparkAccess:
    """How Spark comes in: options of its connector, and descriptors that its process has to have for them."""

    options: tuple[tuple[str, str], ...] = ()
    descriptors: tuple[int, ...] = ()


@contextlib.contextmanager
def spark_access(pipeline: Pipeline) -> Iterator[SparkAccess]:
    """For a Spark on this machine, for as long as the block lasts. Raises as `properties_of` does."""
    values = properties_of(pipeline)
    plain = {f"kafka.{key}": value for key, value in values.items() if key not in SECRET_KEYS}
    hidden = {key: value for key, value in values.items() if key in SECRET_KEYS}
    if not hidden:
        yield SparkAccess(tuple(plain.items()))
        return
    content = "".join(f"{key}={value.translate(_ESCAPES)}\n" for key, value in hidden.items()).encode()
    with _unnamed(content) as (path, descriptors):
        named = {f"kafka.{key}": f"${{barnabas:{path}:{key}}}" for key in hidden}
        provider = {"kafka.config.providers": "barnabas", "kafka.config.providers.barnabas.class": _PROVIDER}
        yield SparkAccess(tuple({**plain, **provider, **named}.items()), descriptors)


def open_options(pipeline: Pipeline) -> tuple[tuple[str, str], ...]:
    """The same with the secrets among them, for a Spark that is elsewhere, or was started by somebody else: it hides
    their values by their names (`HIDDEN_NAMES` of `session`). Raises as `properties_of` does.
    """
    return tuple((f"kafka.{key}", value) for key, value in properties_of(pipeline).items())


@contextlib.contextmanager
def _unnamed(content: bytes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A file with this content: its path for a process that inherits the descriptors."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").exists():
        descriptor = os.memfd_create("barnabas")
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}", (descriptor,)
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory(prefix="barnabas-", ignore_cleanup_errors=True) as directory:
        path = Path(directory) / "access"
        path.write_bytes(content)
        yield str(path), ()


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
