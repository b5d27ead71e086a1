"""Whether anybody is at the address of a store that a pipeline's file names, before Spark is started for it: S3's
client tries for minutes before it says so, and longer where packets are lost.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from barnabas.pipelines.definition import LakeSink, Pipeline, PipelineUnreachableError
from barnabas.pipelines.file_secrets import spark_settings_of_file, without_secrets
from barnabas.pipelines.table_urls import scheme_of

ANSWER_SECONDS_MAX: Final = 15.0
_CONNECT_SECONDS_MAX: Final = 5.0
_PAUSE_SECONDS: Final = 0.5
_S3A: Final = "spark.hadoop.fs.s3a."
_PORTS: Final = {"https": 443, "http": 80}


def refuse_silent_stores(pipeline: Pipeline, seconds: float = ANSWER_SECONDS_MAX) -> None:
    """Raises PipelineUnreachableError at the line of a sink whose endpoint of S3 takes no connection in that time.

    Only those that the file has are tried, and none behind a proxy. The store is asked for nothing.
    """
    sinks = [sink for sink in pipeline.sinks if isinstance(sink, LakeSink) and scheme_of(sink.url) == "s3a"]
    settings = dict(spark_settings_of_file(pipeline)) if sinks else {}
    tried: set[tuple[str, int]] = set()
    for sink in sinks:
        prefixes = (f"{_S3A}bucket.{urlsplit(sink.url).netloc}.", _S3A)  # what is said of a bucket comes first
        name = next((f"{each}endpoint" for each in prefixes if settings.get(f"{each}endpoint", "").strip()), None)
        if name is None or any(settings.get(f"{each}proxy.host") for each in prefixes):
            continue
        place = _place_of(settings[name].strip(), _is_ssl(settings, prefixes))
        if place is None or place in tried:
            continue
        tried.add(place)
        why = _why_silent(place, seconds)
        if why is not None:
            message = f"nobody answers at {place[0]}:{place[1]}, the store that {name} names: {why}"
            raise PipelineUnreachableError(
                f"{without_secrets(message, pipeline)}; correct it, or run it again when the store is back",
                path=pipeline.path,
                line=sink.line,
            )


def _is_ssl(settings: Mapping[str, str], prefixes: tuple[str, ...]) -> bool:
    said = (settings.get(f"{each}connection.ssl.enabled") for each in prefixes)
    return next((value for value in said if value is not None), "true").strip().lower() != "false"


def _place_of(endpoint: str, is_ssl: bool) -> tuple[str, int] | None:
    """Host and port; None of what only Hadoop may understand."""
    whole = endpoint if "://" in endpoint else f"{'https' if is_ssl else 'http'}://{endpoint}"
    try:
        parts = urlsplit(whole)
        port = parts.port or _PORTS.get(parts.scheme.lower())
    except ValueError:
        return None
    return None if parts.hostname is None or port is None else (parts.hostname, port)


def _why_silent(place: tuple[str, int], seconds: float) -> str | None:
    """Why no connection could be made; None where one could."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            left = max(0.1, deadline - time.monotonic())
            socket.create_connection(place, timeout=min(_CONNECT_SECONDS_MAX, left)).close()
        except (OSError, UnicodeError) as error:
            if time.monotonic() + _PAUSE_SECONDS >= deadline:
                return str(getattr(error, "strerror", None) or error)
            time.sleep(_PAUSE_SECONDS)
        else:
            return None
