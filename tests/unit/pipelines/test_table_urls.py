"""What a URL of a table may be, and what is told without a login that somebody has written into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.pipelines.table_urls import (
    UrlError,
    as_url,
    file_path,
    modules_for,
    name_of,
    overlap,
    parent_of,
    scheme_of,
    table_url,
    what_to_do,
)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3a://bucket/lake/delays", "s3a://bucket/lake/delays"),
        (" S3A://bucket/delays// ", "s3a://bucket/delays"),
        ("hdfs://name-node:8020/a=b/t", "hdfs://name-node:8020/a=b/t"),
        ("hdfs:///lake/t", "hdfs:///lake/t"),
        ("abfss://box@account.dfs.core.windows.net/t~1", "abfss://box@account.dfs.core.windows.net/t~1"),
        ("gs://bucket/flüge", "gs://bucket/flüge"),
    ],
)
def test_a_url_is_known_by_one_form(text: str, url: str) -> None:
    assert table_url(text) == url
    assert f"{parent_of(url)}/{name_of(url)}" == url


@pytest.mark.parametrize(
    "text",
    [
        "s3a://bucket",
        "s3a://bucket/",
        "s3a:bucket/t",
        "s3a:/bucket/t",
        "s3a://bucket//t",
        "s3a://bucket/../t",
        "s3a://bucket/./t",
        "s3a://bucket/a b",
        "s3a://bucket/a%20b",
        "s3a://bucket/*",
        "s3a://bucket/a`; DROP",
        "s3a://bucket/" + "x" * 1_100,
        "jdbc:postgresql://host/base",
        "C:\\table",
        "://bucket/t",
    ],
)
def test_what_is_no_url_of_a_table_is_told(text: str) -> None:
    with pytest.raises(UrlError, match=r"is neither a directory nor a URL of a table: write SCHEME://PLACE/path"):
        table_url(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3a://AK:hush@bucket/t",
        "s3a://AK:hu/sh@bucket/t",
        "s3a://hush@bucket/t",
        "abfss://box:hush@account/t",
        "abfss://box:hu/sh@account/t",
        "abfss://box@account/t?sig=hush",
        "s3a://bucket/t?X-Amz-Signature=hush",
        "s3a://bucket/t#hush",
        "s3a://${env:HUSH}/t",
    ],
)
def test_a_login_in_a_url_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(UrlError) as refused:
        table_url(text)
    assert "hush" not in str(refused.value)
    assert "hu/sh" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["http", "https", "ftp", "har"])
def test_what_is_only_read_is_refused(scheme: str) -> None:
    with pytest.raises(UrlError, match="cannot be written"):
        table_url(f"{scheme}://host/t")


def test_a_table_is_not_at_the_root_of_a_file_system_without_a_name() -> None:
    with pytest.raises(UrlError, match='"hdfs:///t" is at the root of its file system'):
        table_url("hdfs:///t")


def test_file_urls_are_paths() -> None:
    assert file_path("out/table") is None
    assert file_path("s3a://bucket/t") is None
    assert file_path("file:///data/a table") == Path("/data/a table")
    for wrong in ("file:/data/t", "file://host/t", "file:///a%20b", "file:t"):
        with pytest.raises(UrlError, match="write file:///path"):
            file_path(wrong)


def test_tables_overlap_by_whole_names() -> None:
    assert overlap("s3a://b/t", "s3a://b/t")
    assert overlap("s3a://b/t/inner", "s3a://b/t")
    assert overlap("s3a://b/t", "s3a://b/t/inner")
    assert not overlap("s3a://b/t", "s3a://b/t2")
    assert not overlap("s3a://b/t2", "s3a://b/t")
    assert not overlap("s3a://b/t", "s3a://c/t")


def test_a_url_is_known_after_the_shell_has_made_a_path_of_it() -> None:
    assert as_url(Path("s3a://bucket/t")) == "s3a://bucket/t"
    assert as_url(Path("out/t")) is None
    assert as_url(Path("/data/a:b/t")) is None


def test_what_spark_lacks_for_a_scheme_is_named_at_the_version_of_its_hadoop() -> None:
    (module,) = modules_for("s3a")
    assert module.startswith("org.apache.hadoop:hadoop-aws:3.")
    assert modules_for("hdfs") == ()
    assert what_to_do("abfss", "3.4.1").startswith("add `jars: [org.apache.hadoop:hadoop-azure:3.4.1]`")
    assert what_to_do("s3", "3.4.1") == "write s3a://"
    assert scheme_of("a/b:c") is None
