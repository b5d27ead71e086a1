"""A schema registry with the API of Confluent's: the schemas that records were written with, by the id before each.

GET /subjects/SUBJECT/versions, /subjects/SUBJECT/versions/N and /schemas/ids/ID, which never changes what it says; so
each id is asked for once in a run.
"""

from __future__ import annotations

import base64
import http
import http.client
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any, Final

from barnabas.pipelines.avro_schema import SCHEMA_BYTES_MAX, AvroSchemaError, read_avro_schema
from barnabas.pipelines.definition import Pipeline, PipelineUnreachableError, Registry, TopicSink
from barnabas.pipelines.file_secrets import has_reference, resolved
from barnabas.pipelines.writer_schemas import UNKNOWN_SCHEMA

if TYPE_CHECKING:
    from barnabas.pipelines.yaml_positions import Section

REGISTRY_KEYS: Final = ("url", "username", "password")
SCHEMAS_MAX: Final = 1_000
"""How many schemas a source may have, of all its versions."""
ANSWER_SECONDS_MAX: Final = 10.0
_ATTEMPTS_MAX: Final = 3
_REASON_BYTES_MAX: Final = 64 * 1024
_PAUSE_SECONDS: Final = 0.5
_PART_BYTES: Final = 64 * 1024
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_UNKNOWN: Final = re.compile(re.escape(UNKNOWN_SCHEMA) + r"([A-Za-z0-9_]+):(\d+)")
_SENT: Final = "application/vnd.schemaregistry.v1+json"
_ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"


def registry_of(document: Section) -> Registry:
    """The block `registry`. Raises PipelineError."""
    section = document.section("registry", REGISTRY_KEYS)
    url = section.text("url")
    if not re.fullmatch(r"https?://[^/?#@]+(/[^?#]*)?", url.value):
        raise section.error(f'url "{url.value}" must be http:// or https://, host and port, without a login', url.line)
    password = section.text("password") if "password" in section else None
    if password is not None and not has_reference(password.value):
        message = "password is a secret, and this file is read by many: write ${env:NAME} or ${file:PATH}"
        raise section.error(message, password.line)
    username = section.text("username").value if "username" in section else ""
    if bool(username) != (password is not None):
        raise section.error("username and password belong together", section.line)
    return Registry(url.value.rstrip("/"), username, "" if password is None else password.value, section.line)


def ask_registry(pipeline: Pipeline) -> None:
    """Learns all schemas of the subjects of the pipeline's sources, which are those of their topics.

    Raises PipelineUnreachableError, and PipelineError where the registry refuses.
    """
    for source in pipeline.sources:
        if source.writers is None:
            continue
        subject = urllib.parse.quote(source.subject, safe="")
        versions = _get(pipeline, f"/subjects/{subject}/versions") or []
        if not isinstance(versions, list) or not all(map(_is_number, versions)) or len(versions) > SCHEMAS_MAX:
            raise _refused(
                pipeline,
                f"has more than {SCHEMAS_MAX} versions of {source.subject}, or none that are a list of numbers",
            )
        for version in versions:
            content = _get(pipeline, f"/subjects/{subject}/versions/{version}")
            if content is None:
                continue
            if not isinstance(content, dict) or not _is_number(content.get("id")):
                raise _refused(pipeline, f"gives version {version} of {source.subject} no id")
            source.writers.by_id[content["id"]] = _schema_in(content)
        source.writers.was_asked = True


def register_schemas(pipeline: Pipeline) -> None:
    """Registers the schemas of topics that are written, each under its subject; one that is there keeps its id.

    Raises as `ask_registry` does.
    """
    for sink in pipeline.sinks:
        if isinstance(sink, TopicSink) and sink.registered is not None and sink.registered.schema_id < 0:
            subject = urllib.parse.quote(sink.subject, safe="")
            answer = _get(pipeline, f"/subjects/{subject}/versions", {"schema": sink.avro_schema})
            if not isinstance(answer, dict) or not _is_number(answer.get("id")):
                raise _refused(pipeline, f"gives the schema of {sink.subject} no id")
            sink.registered.schema_id = answer["id"]


def learn_unknown(pipeline: Pipeline, failure: str) -> bool:
    """Where a query has failed by a schema that it did not know: asks for that, and says that it did.

    Raises as `ask_registry` does.
    """
    found = _UNKNOWN.search(failure)
    source = None if found is None else pipeline.source(found[1])
    if found is None or source is None or source.writers is None:
        return False
    schema_id = int(found[2])
    if schema_id not in source.writers.by_id:
        if len(source.writers.by_id) >= SCHEMAS_MAX:
            raise _refused(pipeline, f"was asked for more than {SCHEMAS_MAX} schemas of {source.subject}")
        content = _get(pipeline, f"/schemas/ids/{schema_id}")
        source.writers.by_id[schema_id] = _schema_in(content) if isinstance(content, dict) else None
    return True


def _schema_in(content: dict[str, Any]) -> str | None:
    """The schema of an answer, if it is one of a record in Avro that stands on its own."""
    if content.get("schemaType", "AVRO") != "AVRO" or content.get("references"):
        return None
    try:
        return read_avro_schema(str(content.get("schema", "")))[0]
    except AvroSchemaError:
        return None


def _get(pipeline: Pipeline, path: str, given: dict[str, str] | None = None) -> Any:
    """What the registry says, to what it is given; None for what it does not have."""
    registry = pipeline.registry
    data = None if given is None else json.dumps(given).encode()
    headers = {"Accept": _ACCEPT, **({} if data is None else {"Content-Type": _SENT})}
    request = urllib.request.Request(registry.url + path, data, headers)  # noqa: S310  # http(s), as read
    if registry.username:
        password = resolved(registry.password, pipeline.path, registry.line)
        login = base64.b64encode(f"{registry.username}:{password}".encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
    opener = urllib.request.build_opener(_SameHost)
    reason = ""
    for attempt in range(_ATTEMPTS_MAX):
        if attempt:
            time.sleep(_PAUSE_SECONDS * attempt)
        try:
            content = _read(opener, request)
            if len(content) > 2 * SCHEMA_BYTES_MAX:
                raise _refused(pipeline, f"answers with more than {2 * SCHEMA_BYTES_MAX} bytes to {path}")
            return json.loads(content)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == http.HTTPStatus.NOT_FOUND:
                    return None
                reason = f"{error.code} {error.reason}{_said(error)}"
            if error.code in _REDIRECTS:
                raise _refused(pipeline, f"sends {path} to another place: {_place_of(error)}; name that") from None
            if error.code < http.HTTPStatus.INTERNAL_SERVER_ERROR and error.code != http.HTTPStatus.TOO_MANY_REQUESTS:
                raise _refused(pipeline, f"refuses {path}: {reason}") from None
        except (ValueError, RecursionError) as error:
            raise _refused(pipeline, f"does not answer with JSON to {path} ({error})") from None
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
    message = f"the schema registry {registry.url} does not answer ({reason}); run it again when it does"
    raise PipelineUnreachableError(message, path=pipeline.path, line=registry.line)


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows to other paths of the same host alone: urllib would give the login to whomever it is sent to."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """None, so that the answer itself is told, for any other host, and for what was to be stored."""
        old, new = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if (old.scheme, old.netloc) != (new.scheme, new.netloc) or req.data is not None:
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _read(opener: urllib.request.OpenerDirector, request: urllib.request.Request) -> bytes:
    """The answer, or as much of it as tells that it is too long. Raises TimeoutError also where it comes in drops."""
    end, content = time.monotonic() + ANSWER_SECONDS_MAX, bytearray()
    with opener.open(request, timeout=ANSWER_SECONDS_MAX) as answer:
        while len(content) <= 2 * SCHEMA_BYTES_MAX and (part := answer.read1(_PART_BYTES)):
            content += part
            if time.monotonic() > end:
                raise TimeoutError("timed out")
    return bytes(content)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _place_of(error: urllib.error.HTTPError) -> str:
    """Where an answer sends to, without what may be a secret."""
    place = urllib.parse.urlsplit(str(error.headers.get("Location", "")))
    return f"{place.scheme}://{place.hostname}{'' if place.port is None else f':{place.port}'}{place.path}"[:200]


def _said(error: urllib.error.HTTPError) -> str:
    """What the registry says besides, such as how a schema is not compatible with those before."""
    try:
        content = json.loads(error.read(_REASON_BYTES_MAX))
        return f" ({str(content['message'])[:300]})" if isinstance(content, dict) and content.get("message") else ""
    except (ValueError, OSError):
        return ""


def _refused(pipeline: Pipeline, what: str) -> Exception:
    return pipeline.error(f"the schema registry {pipeline.registry.url} {what}", pipeline.registry.line)
