"""What a state keeps of the pipeline that it is of: nothing that the pipeline does not use."""

from __future__ import annotations

from pathlib import Path

from barnabas.pipelines.definition_changes import Changes
from barnabas.pipelines.state_definition import changes_since, definition_of
from tests.unit.pipelines.pipeline_files import read_flights

PARQUET = "  - parquet: out/delays\n    from: by_hour\n    key: [name, hour]\n"


def test_what_is_new_in_a_pipeline_is_in_its_state_only_where_it_is_used(tmp_path: Path) -> None:
    """States of before it go on; a pipeline that begins, or ceases, to use it is another."""
    before = read_flights(tmp_path)
    assert definition_of(before)["sources"]["flights"].keys() == {"topic", "read", "format", "schema"}
    assert definition_of(before)["sinks"]["topic delays"].keys() == {"from", "key"}
    several = read_flights(tmp_path, ("  - topic: delays\n", "  - topic: delays\n    senders: 4\n"))
    assert definition_of(several) == definition_of(before), "how many send is no part of what they send"
    topic = "    topic: flights\n"
    keeping = read_flights(tmp_path, (topic, f"{topic}    tombstones: keep\n"))
    assert changes_since(before, definition_of(before)) == Changes()
    assert changes_since(keeping, definition_of(before)).refused == ("source flights was changed (tombstones)", 3)
    assert changes_since(before, definition_of(keeping)).refused == ("source flights was changed (tombstones)", 3)
    delta = (PARQUET, "  - {delta: t, from: by_hour, key: name}\n")
    deleting = (PARQUET, "  - {delta: t, from: by_hour, key: name, delete: delay}\n")
    told = changes_since(read_flights(tmp_path, deleting), definition_of(read_flights(tmp_path, delta)))
    assert told.refused == (f"sink delta {tmp_path}/t was changed (delete)", 26)
