"""What is said of a database: never what a reference in its address stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.pipelines.definition import JdbcSink
from barnabas.pipelines.jdbc_sink import JdbcWriter
from barnabas.pipelines.reading import read_pipeline

FILE = """\
name: x
sources: {{s: {{topic: t, schema: "id INT"}}}}
sinks: [{{jdbc: '{url}', table: t, from: s, password: "${{env:OTHER}}"}}]
"""


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("jdbc:mysql://bob:${env:HUSH}@host/base?a=1", "no host bob:hush@host"),
        ("jdbc:x://host/b?user=bob&password=${env:HUSH}", "no jdbc:x://host/b?user=bob&password=hush"),
        ("jdbc:h2:file:/a;PASSWORD=${env:HUSH}", "PASSWORD 'hush' of other"),
        ("jdbc:oracle:thin:scott/${env:HUSH}@host:1:x", "scott/hush"),
    ],
)
def test_a_driver_that_repeats_parts_of_the_address_tells_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    monkeypatch.setenv("HUSH", "hush")
    monkeypatch.setenv("OTHER", "other")
    path = tmp_path / "x.yaml"
    path.write_text(FILE.format(url=url))
    pipeline = read_pipeline(path)
    (sink,) = pipeline.sinks
    assert isinstance(sink, JdbcSink)
    told = JdbcWriter(pipeline, sink)._hidden(said)
    assert told != said
    assert "hush" not in told
    assert "other" not in told
