"""Tables of a database that has words of its own for types: the SQL that makes them."""

from __future__ import annotations

import pytest

from barnabas.pipelines.jdbc_types import create_statement, has_types_of_its_own, whole_number_type


def test_oracle_gets_types_that_hold_what_the_rows_have() -> None:
    kinds = "bigint int double float string boolean binary date timestamp timestamp_ntz decimal(38,10) smallint tinyint"
    columns = [(f"c{number}", kind) for number, kind in enumerate(kinds.split())]
    assert create_statement("sales.t", [("Key", "string"), *columns], '"', ["key"]) == (
        'CREATE TABLE sales.t ("Key" VARCHAR2(1000), "c0" NUMBER(19), "c1" NUMBER(10), "c2" BINARY_DOUBLE, '
        '"c3" BINARY_FLOAT, "c4" VARCHAR2(4000), "c5" NUMBER(1), "c6" BLOB, "c7" DATE, "c8" TIMESTAMP(6), '
        '"c9" TIMESTAMP(6), "c10" NUMBER(38, 10), "c11" NUMBER(5), "c12" NUMBER(3))'
    )
    with pytest.raises(ValueError, match="Oracle has no type for INTERVAL"):
        create_statement("t", [("a", "interval day to second")], '"')


def test_only_oracle_has_no_bigint() -> None:
    for url, kind in (
        ("jdbc:oracle:thin:@//host:1521/base", "NUMBER(19)"),
        ("JDBC:ORACLE:thin:@host", "NUMBER(19)"),
        ("jdbc:postgresql://host/base", "BIGINT"),
        ("jdbc:h2:mem:x", "BIGINT"),
        ("jdbc:sqlserver://host;databaseName=oracle", "BIGINT"),
    ):
        assert whole_number_type(url) == kind
        assert has_types_of_its_own(url) is (kind != "BIGINT")
