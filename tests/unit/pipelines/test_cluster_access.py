"""`cluster:` of a pipeline's file: one block for our own client and for Spark, whose secrets are named there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from barnabas.config.properties import parse
from barnabas.pipelines import cluster_access
from barnabas.pipelines.cluster_access import access_of_pipeline, client_settings, open_options, spark_access
from barnabas.pipelines.definition import JdbcSink, PipelineError
from barnabas.pipelines.file_secrets import spark_settings_of_file, without_login
from barnabas.pipelines.jdbc_sink import JdbcWriter
from barnabas.pipelines.sources import KafkaOptions
from barnabas.sasl.jaas import OAUTHBEARER_MODULE, parse_login_module
from barnabas.sasl.mechanisms import Login
from barnabas.sasl.oauthbearer_login import LOGIN_HANDLERS, OAuthBearerLogin
from tests.support.certificates import shared_authority
from tests.unit.pipelines.pipeline_files import read_flights

SECRET = 'hush" \\hush: =x'
CLUSTER = """\
cluster:
  bootstrap_servers: broker:9093
  security.protocol: SASL_SSL
  sasl.mechanism: SCRAM-SHA-512
  sasl.username: alice
  sasl.password: ${file:password}
  ssl.truststore.type: PEM
  ssl.truststore.location: ./ca.pem
"""


def written(directory: Path, cluster: str = CLUSTER):  # type: ignore[no-untyped-def]
    (directory / "password").write_text(SECRET + "\n")
    (directory / "ca.pem").write_bytes(Path(shared_authority().certificate).read_bytes())
    return read_flights(directory, ("name: delays\n", f"name: delays\n{cluster}"))


def test_our_client_comes_in_as_the_file_says(tmp_path: Path) -> None:
    pipeline = written(tmp_path)
    settings = client_settings(pipeline, "broker:9093, other:9093")
    assert settings.bootstrap_servers == ("broker:9093", "other:9093")
    assert settings.login == Login("SCRAM-SHA-512", "alice", SECRET)
    assert settings.tls is not None
    assert SECRET not in repr(pipeline)
    nobody = access_of_pipeline(read_flights(tmp_path))
    assert (nobody.login, nobody.tls) == (None, None)


def test_spark_is_told_where_secrets_are_and_not_what_they_are(tmp_path: Path) -> None:
    pipeline = written(tmp_path)
    with spark_access(pipeline) as access:
        options = dict(access.options)
        assert options["kafka.security.protocol"] == "SASL_SSL"
        assert options["kafka.ssl.truststore.location"] == str(tmp_path / "ca.pem")
        assert "hush" not in repr(access)
        reference = options["kafka.sasl.jaas.config"].removeprefix("${barnabas:").removesuffix("}")
        path, _, key = reference.rpartition(":")
        (entry,) = parse(Path(path).read_bytes(), path)
        assert entry.key == key == "sasl.jaas.config"
        assert Login.of_jaas("SCRAM-SHA-512", entry.value) == Login("SCRAM-SHA-512", "alice", SECRET)
        # Spark's process has it, and nobody else who looks for a file.
        assert all(os.path.exists(f"/proc/self/fd/{number}") for number in access.descriptors)
    assert not os.path.exists(path)
    assert Login.of_jaas("SCRAM-SHA-512", dict(open_options(pipeline))["kafka.sasl.jaas.config"]).password == SECRET
    with spark_access(read_flights(tmp_path)) as access:
        assert (access.options, access.descriptors) == ((), ())


def test_settings_of_spark_may_name_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_KEY", "hush")
    setting = "spark: {spark.sql.catalog.lake.s3.secret-access-key: '${env:LAKE_KEY}'}\n"
    pipeline = written(tmp_path, setting)
    assert spark_settings_of_file(pipeline) == (("spark.sql.catalog.lake.s3.secret-access-key", "hush"),)
    assert "hush" not in repr(pipeline)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("${file:password}", "${file:nowhere}", r"yaml:3: \$\{file:nowhere\} cannot be read: No such file"),
        ("${file:password}", "${env:NOT_SET_HERE}", r"yaml:3: .* the variable NOT_SET_HERE is not set"),
        ("SCRAM-SHA-512", "NTLM", "yaml:3: cluster: the SASL mechanism must be one of"),
        ("SASL_SSL", "SASL_PLAINTEXT", "yaml:3: cluster has ssl.keystore or ssl.truststore and no"),
        ("./ca.pem", "./none.pem", "none.pem cannot be read"),
    ],
)
def test_what_cannot_be_is_told_where_it_is_used(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in CLUSTER
    pipeline = written(tmp_path, CLUSTER.replace(old, new))
    with pytest.raises(PipelineError, match=message) as error:
        access_of_pipeline(pipeline)
    assert "hush" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("${file:password}", "hush", r"yaml:7: cluster: sasl\.password is a secret, and this file is read by many"),
        ("  sasl.username: alice\n", "", "sasl.username and sasl.password belong together"),
        ("sasl.username", "sasl.user", r'yaml:6: cluster: unknown key "sasl\.user"; did you mean'),
        ("sasl.mechanism: SCRAM-SHA-512", "sasl.jaas.config: '${env:X}'", "says who logs in, and so do"),
        (
            "SCRAM-SHA-512",
            "GSSAPI",
            r"yaml:5: cluster: GSSAPI \(Kerberos\) is what Spark's connector knows, and not our own",
        ),
        (
            "sasl.mechanism: SCRAM-SHA-512",
            "sasl.oauthbearer.token.endpoint.url: https://me:hush@idp/token",
            "endpoint.url has a secret in its address",
        ),
    ],
)
def test_what_cannot_be_is_told_when_it_is_read(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        written(tmp_path, CLUSTER.replace(old, new))


OAUTH = """\
cluster:
  security.protocol: SASL_PLAINTEXT
  sasl.mechanism: OAUTHBEARER
  sasl.oauthbearer.token.endpoint.url: https://idp.example.com/token
  sasl.login.retry.backoff.ms: 50
  sasl.username: alice
  sasl.password: ${file:password}
"""


def test_tokens_are_asked_for_by_our_client_and_by_sparks_alike(tmp_path: Path) -> None:
    pipeline = written(tmp_path, OAUTH)
    login = access_of_pipeline(pipeline).login
    assert isinstance(login, OAuthBearerLogin)
    assert login.endpoint is not None
    assert (login.endpoint.client_id, login.endpoint.client_secret) == ("alice", SECRET)
    assert login.endpoint.retry_backoff_ms == 50
    with spark_access(pipeline) as access:
        options = dict(access.options)
        assert options["kafka.sasl.login.callback.handler.class"] == LOGIN_HANDLERS[0]
        assert options["kafka.sasl.oauthbearer.token.endpoint.url"] == "https://idp.example.com/token"
        assert options["kafka.sasl.jaas.config"].startswith("${barnabas:")
        assert "hush" not in repr((access, pipeline))
    of_file = written(tmp_path, OAUTH[: OAUTH.index("  sasl.username")].replace("https://idp.example.com", "file://"))
    login = access_of_pipeline(of_file).login
    assert isinstance(login, OAuthBearerLogin)
    assert login.endpoint is not None
    assert login.endpoint.path == "/token"
    jaas = parse_login_module(dict(open_options(pipeline))["kafka.sasl.jaas.config"])
    assert (jaas.name, dict(jaas.options)) == (OAUTHBEARER_MODULE, {"clientId": "alice", "clientSecret": SECRET})


KERBEROS = """\
  connector:
    bootstrap_servers: broker:9094
    security.protocol: SASL_SSL
    sasl.mechanism: GSSAPI
    sasl.kerberos.service.name: kafka
    sasl.kerberos.keytab: a.keytab
    sasl.kerberos.principal: alice@EXAMPLE
    ssl.truststore.type: PEM
    ssl.truststore.location: ca.pem
"""


def test_spark_may_come_in_by_kerberos_while_our_client_does_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = written(tmp_path, CLUSTER + KERBEROS)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Djava.security.krb5.conf=/somewhere")
    with pytest.raises(PipelineError, match=r"yaml:3: the keytab \S+/a\.keytab is not there, or may not be read"):
        open_options(pipeline)
    (tmp_path / "a.keytab").write_bytes(b"")
    with spark_access(pipeline) as access:
        options = dict(access.options)
        assert options["kafka.bootstrap.servers"] == "broker:9094"
        assert options["kafka.sasl.kerberos.service.name"] == "kafka"
        assert options["kafka.sasl.jaas.config"].startswith("${barnabas:")
        assert not any("keytab" in name or "username" in name for name in options)
    module = parse_login_module(dict(open_options(pipeline))["kafka.sasl.jaas.config"])
    assert module.name == "com.sun.security.auth.module.Krb5LoginModule"
    assert (module.options["keyTab"], module.options["principal"]) == (str(tmp_path / "a.keytab"), "alice@EXAMPLE")
    assert KafkaOptions("ours:1", access.options).connection["kafka.bootstrap.servers"] == "broker:9094"
    assert access_of_pipeline(pipeline).login == Login("SCRAM-SHA-512", "alice", SECRET)
    monkeypatch.delenv("JAVA_TOOL_OPTIONS")
    monkeypatch.delenv("JDK_JAVA_OPTIONS", raising=False)
    monkeypatch.setattr(cluster_access, "_KERBEROS_FILE", tmp_path / "none.conf")
    with pytest.raises(PipelineError, match=r"Java needs \S+none\.conf for Kerberos, or JAVA_TOOL_OPTIONS=-Djava"):
        open_options(pipeline)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    sasl.kerberos.service.name: kafka\n", "", "needs sasl.kerberos.service.name"),
        ("    sasl.kerberos.principal: alice@EXAMPLE\n", "", "needs sasl.kerberos.principal; or a sasl.jaas.config"),
        (
            "GSSAPI",
            "PLAIN",
            r"yaml:14: cluster\.connector: sasl\.kerberos\.service\.name is for `sasl.mechanism: GSSAPI`",
        ),
        (
            "    sasl.mechanism: GSSAPI\n",
            "    sasl.mechanism: GSSAPI\n    sasl.password: hush\n",
            "password is a secret",
        ),
    ],
)
def test_half_of_a_kerberos_login_is_told_when_it_is_read(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in KERBEROS
    with pytest.raises(PipelineError, match=message):
        written(tmp_path, CLUSTER + KERBEROS.replace(old, new))


@pytest.mark.parametrize(
    ("setting", "is_refused"),
    [
        ("spark.hadoop.fs.s3a.secret.key: hush", True),
        ("spark.sql.catalog.lake.s3.secret-access-key: hush", True),
        ("spark.sql.catalog.lake.s3.session-token: hush", True),
        ("spark.sql.catalog.lake.jdbc.password: 12345", True),
        ("spark.sql.catalog.lake.credential: 'alice:hush'", True),
        ("spark.hadoop.fs.azure.account.key.x.dfs.core.windows.net: hush", True),
        ("spark.hadoop.fs.azure.sas.fixed.token.x: hush", True),
        ("spark.hadoop.fs.azure.account.oauth2.client.secret.x.dfs.core.windows.net: hush", True),
        ("spark.hadoop.fs.s3a.encryption.key: hush", True),
        ("spark.sql.catalog.lake.uri: 'jdbc:postgresql://host/base?user=a&password=hush'", True),
        ("spark.sql.catalog.lake.uri: 'https://alice:hush@host/'", True),
        ("spark.sql.catalog.lake.uri: 'jdbc:postgresql://host/base?user=a&password=${env:HUSH}'", False),
        ("spark.hadoop.fs.s3a.secret.key: '${env:HUSH}'", False),
        ("spark.hadoop.fs.s3a.aws.credentials.provider: org.x.Provider", False),
        ("spark.sql.catalog.lake.token-refresh-enabled: true", False),
        ("spark.sql.catalog.lake.uri: https://host:8181/catalog", False),
    ],
)
def test_a_secret_among_the_settings_of_spark_is_named_and_not_written(
    tmp_path: Path, setting: str, *, is_refused: bool
) -> None:
    if not is_refused:
        written(tmp_path, f"spark: {{{setting}}}\n")
        return
    with pytest.raises(PipelineError, match=r"is a secret, and this file is read by many: write \$\{env:NAME\}") as it:
        written(tmp_path, f"spark: {{{setting}}}\n")
    assert "hush" not in str(it.value)


def test_what_a_driver_of_a_database_says_is_told_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It likes to say the address, with what the references in it stand for."""
    monkeypatch.setenv("HUSH", "hu.sh")
    url = "jdbc:postgresql://host/base?password=${env:HUSH}"
    sink = JdbcSink(url, "delays", "by_hour", line=1, from_line=1, password="${env:HUSH}")
    writer = JdbcWriter(read_flights(tmp_path), sink)
    said = "No suitable driver found for jdbc:postgresql://host/base?password=hu.sh (hu.sh)"
    assert writer._hidden(said) == "No suitable driver found for jdbc:postgresql://host/base (***)"
    for address, shown in (
        ("jdbc:mysql://scott:${env:HUSH}@host/base", "jdbc:mysql://host/base"),
        ("jdbc:oracle:thin:scott/${env:HUSH}@host:1521/base", "jdbc:oracle:thin:host:1521/base"),
        ("jdbc:sqlserver://host;password=${env:HUSH}", "jdbc:sqlserver://host"),
    ):
        assert without_login(address) == shown
