"""Kinds of state: rows let through once, sessions, two streams joined; by tests of pipelines, in one Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.testing import PipelineTester

pytestmark = pytest.mark.timeout(900)

PIPELINE = """\
name: kinds
sources:
  flights: {topic: flights, schema: "id INT, carrier STRING, time TIMESTAMP"}
  landings: {topic: landings, schema: "id INT, at TIMESTAMP"}
steps:
  - name: once
    sql: SELECT id, carrier, time FROM flights
    watermark: {column: time, delay: 1 hour}
    deduplicate: id
  - {name: timed, sql: "SELECT id, carrier, time FROM flights", watermark: {column: time, delay: 1 hour}}
  - name: visits
    sql: |
      SELECT carrier, session_window.start AS began, session_window.end AS ended, COUNT(*) AS flights
      FROM timed GROUP BY carrier, session_window(time, '30 minutes')
  - {name: landed, sql: "SELECT id, at FROM landings", watermark: {column: at, delay: 1 hour}}
  - name: both
    sql: |
      SELECT timed.id, timed.carrier, landed.at FROM timed
      JOIN landed ON timed.id = landed.id AND landed.at BETWEEN timed.time AND timed.time + INTERVAL 2 HOURS
  - {name: states, sql: "SELECT id, time, carrier = 'AA' AND id = 2 AS gone FROM flights"}
sinks:
  - {topic: once, from: once}
  - {topic: states, from: states, key: id, delete: gone}
  - {topic: visits, from: visits, key: [carrier, began]}
  - {topic: both, from: both}
"""
TESTS = """\
tests:
  - name: rows are known by their id for as long as the watermark says
    given:
      landings: [{id: 2, at: 2013-01-01T05:00:00Z}]
      flights:
        - {id: 1, carrier: AA, time: 2013-01-01T05:00:00Z}
        - {id: 2, carrier: AA, time: 2013-01-01T05:20:00Z}
    then:
      - landings: [{id: 1, at: 2013-01-01T05:50:00Z}, {id: 2, at: 2013-01-01T09:00:00Z}]
        flights: [{id: 1, carrier: AA, time: 2013-01-01T05:40:00Z}]
      - landings: []
        flights: [{id: 3, carrier: UA, time: 2013-01-01T10:00:00Z}]
      - {flights: [], landings: []}
    expect:
      once:
        - {id: 1, time: 2013-01-01T05:00:00Z}
        - {id: 2, time: 2013-01-01T05:20:00Z}
        - {id: 3, time: 2013-01-01T10:00:00Z}
      states: [{id: 1, time: 2013-01-01T05:40:00Z}, {id: 3, _value: '{"id":3,"time":"2013-01-01T10:00:00.000000Z"}'}]
      visits: [{carrier: AA, began: 2013-01-01T05:00:00Z, ended: 2013-01-01T06:10:00Z, flights: 3}]
      both: [{id: 1, at: 2013-01-01T05:50:00Z}, {id: 1, at: 2013-01-01T05:50:00Z}]
"""


def test_rows_are_let_through_once_sessions_end_and_streams_meet(tester: PipelineTester, tmp_path: Path) -> None:
    """A session is a row once the watermark has passed its end: the last one is none yet."""
    path = tmp_path / "kinds.yaml"
    path.write_text(PIPELINE)
    (tmp_path / "kinds.test.yaml").write_text(TESTS)
    tester.check(path)
