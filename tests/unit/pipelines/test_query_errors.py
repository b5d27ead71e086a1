"""What Spark says of a failed query, as one line. The texts follow Spark's catalogue of errors, shortened."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from barnabas.pipelines.definition import Pipeline, SourceFormat
from barnabas.pipelines.query_errors import failure_of
from barnabas.pipelines.reading import read_pipeline
from tests.unit.pipelines.made_pipelines import made_pipeline

LOG = Path("/state/logs/spark.log")


@pytest.fixture
def pipeline() -> Pipeline:
    return made_pipeline(Path("/somewhere"))


def test_a_bad_record_is_named_with_the_line_of_its_schema(pipeline: Pipeline) -> None:
    text = (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 7.0 failed 3 times\n"
        "Caused by: org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] barnabas-bad-record:"
        '{"fault":"not of the schema","topic":"flights","partition":2,"offset":17,"value":"{\\"delay\\": \\"x\\"}"} '
        "SQLSTATE: P0001"
    )
    failure = failure_of(pipeline, "by_day", text, LOG)
    assert "topic flights, partition 2, offset 17" in failure.message
    assert failure.line == pipeline.sources[0].schema_line
    assert not failure.is_passing


@pytest.mark.parametrize("form", SourceFormat)
def test_a_bad_record_of_each_format_is_named(pipeline: Pipeline, form: SourceFormat) -> None:
    sources = (dataclasses.replace(pipeline.sources[0], format=form), *pipeline.sources[1:])
    text = 'barnabas-bad-record:{"fault":"not","topic":"flights","partition":0,"offset":1,"value":"x"}'
    failure = failure_of(dataclasses.replace(pipeline, sources=sources), "by_day", text, LOG)
    assert "topic flights, partition 0, offset 1" in failure.message


def test_a_record_without_a_key_is_named_with_the_line_of_its_source(pipeline: Pipeline) -> None:
    text = 'barnabas-bad-record:{"fault":"no key","topic":"airlines","partition":0,"offset":3,"value":"{}"} SQLSTATE'
    failure = failure_of(pipeline, "airlines", text, LOG)
    assert "without a key" in failure.message
    assert "topic airlines, partition 0, offset 3" in failure.message
    assert failure.line == pipeline.sources[1].line


@pytest.mark.parametrize(
    ("text", "told", "is_passing"),
    [
        ("SparkException: Timed out while waiting for the Python worker to connect back", "did not start within", True),
        (
            "java.lang.IllegalStateException: [KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED] Some data may have been lost",
            "allow_data_loss: true",
            True,
        ),
        ("[KAFKA_DATA_LOSS.PARTITIONS_DELETED] Partitions flights-0 have been deleted.", "create it again", True),
        ("org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server", "create it again", True),
        ("org.apache.kafka.common.errors.TimeoutException: Call(callName=listOffsets) timed out", "in time", True),
        ("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state.", "/state", False),
        ("java.lang.IllegalStateException: Incomplete log file", "remove", False),
        ("[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema", "fits its columns", False),
        ("java.lang.OutOfMemoryError: Java heap space", "max_records_per_batch", False),
        ("org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized", "refuse", False),
        ("org.apache.kafka.common.errors.RecordTooLargeException: The message is 2 MB", "max.message.bytes", False),
        ("RecordTooLargeException: 40000000 is the value of the max.request.size configuration", "32 MiB", False),
        ("org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero.", "Division by zero", False),
    ],
)
def test_each_kind_has_its_remedy(pipeline: Pipeline, text: str, told: str, is_passing: bool) -> None:
    failure = failure_of(pipeline, "by_day", f"Query by_day terminated with exception\nCaused by: {text}", LOG)
    assert told in failure.message
    assert str(LOG) in failure.message
    assert failure.is_passing is is_passing


def test_the_innermost_cause_is_told(pipeline: Pipeline) -> None:
    text = (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0\n\tat org.apache.spark.X\n"
        "Caused by: java.lang.RuntimeException: outer\n\tat a.b.C\n"
        "Caused by: org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'x' is no INT. "
        "SQLSTATE: 22018\n\tat d.e.F"
    )
    message = failure_of(pipeline, "by_day", text, LOG).message
    assert message == f"by_day failed: [CAST_INVALID_INPUT] The value 'x' is no INT; {LOG} says more"


def test_a_function_of_python_that_fails_at_a_row_is_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("def late(flights):\n    return flights\n")
    path = tmp_path / "late.yaml"
    source = '{flights: {topic: flights, schema: "id INT"}}'
    step = '{name: late, python: "steps.py:late"}'
    path.write_text(f"name: late\nsources: {source}\nsteps: [{step}]\nsinks: [{{topic: out, from: late}}]\n")
    text = (
        "Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "/spark/worker.py", line 100, in main\n    process()\n'
        f'  File "{tmp_path}/steps.py", line 2, in late\n    return 1 / 0\n           ~~^~~\n'
        "ZeroDivisionError: division by zero\n\n\tat org.apache.spark.api.python.BasePythonRunner\n"
    )
    found = failure_of(read_pipeline(path), "late", text, LOG)
    told = f"late failed at a row, {tmp_path}/steps.py:2: ZeroDivisionError: division by zero; {LOG} says more"
    assert (found.message, found.is_passing) == (told, False)
    assert "steps.py" not in failure_of(made_pipeline(tmp_path), "late", text, LOG).message


def test_what_a_store_says_of_a_login_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be refused in the middle of a run, when keys are changed."""
    spark = (("spark.hadoop.fs.s3a.access.key", "${env:STORE_KEY}"), ("spark.x", "${env:SHORT}"))
    pipeline = dataclasses.replace(made_pipeline(tmp_path), spark=spark)
    monkeypatch.setenv("STORE_KEY", "AKIA-hunter2")
    monkeypatch.setenv("SHORT", "403")
    text = "Caused by: java.nio.file.AccessDeniedException: the key AKIA-hunter2 is unknown: 403 Forbidden"
    assert "the key *** is unknown: 403 Forbidden" in failure_of(pipeline, "by_day", text, LOG).message
    monkeypatch.delenv("SHORT")
    assert "the key *** is unknown: 403 Forbidden" in failure_of(pipeline, "by_day", text, LOG).message
