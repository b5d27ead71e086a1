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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.client.access import Access, access_of
from barnabas.client.settings import ClientSettings
from barnabas.pipelines.definition import Cluster, Pipeline
from barnabas.pipelines.file_secrets import has_reference, resolved, stands_open
from barnabas.sasl.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE
from barnabas.sasl.oauthbearer_login import LOGIN_HANDLER, LOGIN_HANDLERS, TOKEN_ENDPOINT
from barnabas.sasl.oauthbearer_messages import OAUTHBEARER

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
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.header.urlencode",
    "sasl.login.callback.handler.class",
    "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms",
    "sasl.login.retry.backoff.ms",
    "sasl.login.retry.backoff.max.ms",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
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
CONNECTOR_KEYS: Final = (
    *CLUSTER_KEYS,
    "sasl.kerberos.service.name",
    "sasl.kerberos.keytab",
    "sasl.kerberos.principal",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor",
)
"""Of the block `connector`, which is for Spark alone: Java knows Kerberos, and our own client does not."""
GSSAPI: Final = "GSSAPI"
_KERBEROS_MODULE: Final = "com.sun.security.auth.module.Krb5LoginModule"
_KERBEROS_FILE: Final = Path("/etc/krb5.conf")
_JAVA_OPTIONS: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
_LOCATIONS: Final = ("ssl.truststore.location", "ssl.keystore.location", "sasl.kerberos.keytab")
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", " ": "\\ "})
_PROVIDER: Final = "org.apache.kafka.common.config.provider.FileConfigProvider"


def cluster_of(document: Section) -> Cluster:
    """The block `cluster`. Raises PipelineError for what cannot be right, and for secrets that stand there."""
    section = document.section("cluster", (*CLUSTER_KEYS, "connector"))
    found = _keys_of(section)
    if found.get("sasl.mechanism") == GSSAPI:
        message = f"{GSSAPI} (Kerberos) is what Spark's connector knows, and not our own client, which commits offsets"
        raise section.error(
            f"{message} and writes topics: write it under `connector`, and another login, of another listener, here",
            section.keys["sasl.mechanism"],
        )
    servers = found.pop("bootstrap_servers", "")
    if "connector" not in section:
        return Cluster(servers, tuple(found.items()), section.line)
    inner = section.section("connector", CONNECTOR_KEYS)
    of_connector = _keys_of(inner)
    _refuse_half_kerberos(inner, of_connector)
    return Cluster(servers, tuple(found.items()), section.line, tuple(of_connector.items()))


def _keys_of(section: Section) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, line in section.keys.items():
        if key == "connector":
            continue
        text = section.text(key, also=("int", "float", "bool"))
        if key in SECRET_KEYS and not has_reference(text.value):
            message = f"{key} is a secret, and this file is read by many: write ${{env:NAME}} or ${{file:PATH}}"
            raise section.error(message, line)
        if stands_open("", text.value):
            raise section.error(f"{key} has a secret in its address: write ${{env:NAME}} or ${{file:PATH}} there", line)
        found[key] = text.value.strip()
    if "sasl.jaas.config" in found and ("sasl.username" in found or "sasl.password" in found):
        message = "sasl.jaas.config says who logs in, and so do sasl.username and sasl.password: remove one of both"
        raise section.error(message, section.keys["sasl.jaas.config"])
    if ("sasl.username" in found) != ("sasl.password" in found):
        raise section.error("sasl.username and sasl.password belong together", section.line)
    return found


def _refuse_half_kerberos(section: Section, found: Mapping[str, str]) -> None:
    of_kerberos = [key for key in found if key.startswith("sasl.kerberos.")]
    if found.get("sasl.mechanism") != GSSAPI:
        if of_kerberos:
            raise section.error(f"{of_kerberos[0]} is for `sasl.mechanism: {GSSAPI}`", section.keys[of_kerberos[0]])
        return
    if "sasl.jaas.config" not in found:
        needed = ("sasl.kerberos.service.name", "sasl.kerberos.keytab", "sasl.kerberos.principal")
        missing = [key for key in needed if key not in found]
        if missing:
            message = f"a login by {GSSAPI} needs {missing[0]}"
            raise section.error(f"{message}; or a sasl.jaas.config in place of keytab and principal", section.line)


def properties_of(pipeline: Pipeline) -> dict[str, str]:
    """The keys of Kafka's clients for our own one, with their secrets. Raises PipelineError, which shows none."""
    return _resolved(pipeline, pipeline.cluster.properties)


def _connector_properties(pipeline: Pipeline) -> dict[str, str]:
    """The same for Spark's connector. Raises PipelineError, also where Java would only say that it cannot log in."""
    cluster = pipeline.cluster
    if not cluster.connector:
        found = properties_of(pipeline)
    else:
        found = _resolved(pipeline, cluster.connector)
    if found.get("sasl.mechanism") == GSSAPI:
        _refuse_missing_kerberos(pipeline, found.pop("sasl.kerberos.keytab", None))
    else:
        _access(pipeline, found, "cluster.connector" if cluster.connector else "cluster")
    servers = found.pop("bootstrap_servers", "")
    return {**found, **({"bootstrap.servers": servers} if servers else {})}


def _resolved(pipeline: Pipeline, properties: Sequence[tuple[str, str]]) -> dict[str, str]:
    cluster, found = pipeline.cluster, dict[str, str]()
    for key, value in properties:
        found[key] = resolved(value, pipeline.path, cluster.line)
        if key in _LOCATIONS:
            found[key] = str(pipeline.path.resolve().parent / found[key])
    mechanism = found.get("sasl.mechanism", "")
    if "sasl.username" in found:
        username, password = (_quoted(found.pop(key)) for key in ("sasl.username", "sasl.password"))
        given = f"username={username} password={password}"
        module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
        if mechanism == OAUTHBEARER:
            module, given = OAUTHBEARER_MODULE, f"clientId={username} clientSecret={password}"
        found["sasl.jaas.config"] = f"{module} required {given};"
    if mechanism == OAUTHBEARER and TOKEN_ENDPOINT in found:
        # Kafka's default would make tokens of its own, which no one has signed.
        found.setdefault(LOGIN_HANDLER, LOGIN_HANDLERS[0])
        found.setdefault("sasl.jaas.config", f"{OAUTHBEARER_MODULE} required;")  # of a file, which has the token
    if mechanism == GSSAPI and "sasl.jaas.config" not in found:
        principal, keytab = (_quoted(found[f"sasl.kerberos.{key}"]) for key in ("principal", "keytab"))
        options = f"useKeyTab=true storeKey=true keyTab={keytab} principal={principal}"
        found["sasl.jaas.config"] = f"{_KERBEROS_MODULE} required {options};"
    found.pop("sasl.kerberos.principal", None)
    return found


def _refuse_missing_kerberos(pipeline: Pipeline, keytab: str | None) -> None:
    """Java says of both that no principal could be found, somewhere in a stack trace."""
    line = pipeline.cluster.line
    if keytab is not None and not os.access(keytab, os.R_OK):
        raise pipeline.error(f"the keytab {keytab} is not there, or may not be read", line)
    options = " ".join(os.environ.get(name, "") for name in _JAVA_OPTIONS)
    if "java.security.krb5." not in options and not _KERBEROS_FILE.exists():
        message = f"Java needs {_KERBEROS_FILE} for Kerberos, or JAVA_TOOL_OPTIONS=-Djava.security.krb5.conf=FILE"
        raise pipeline.error(f"{message}: neither is there", line)


def access_of_pipeline(pipeline: Pipeline) -> Access:
    """How our own client comes in. Raises PipelineError, which shows no secret."""
    return _access(pipeline, properties_of(pipeline), "cluster")


def _access(pipeline: Pipeline, properties: Mapping[str, str], place: str) -> Access:
    try:
        return access_of(properties, place, lambda file: Path(file).read_bytes())
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
    """For a Spark on this machine, for as long as the block lasts. Raises PipelineError, which shows no secret."""
    values = _connector_properties(pipeline)
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
    their values by their names (`HIDDEN_NAMES` of `session`). Raises as `spark_access` does.
    """
    return tuple((f"kafka.{key}", value) for key, value in _connector_properties(pipeline).items())


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
