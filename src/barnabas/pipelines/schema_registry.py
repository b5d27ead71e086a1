"""A schema registry with the API of Confluent's: the schemas that records were written with, by the id before each.

GET /subjects/SUBJECT/versions, /subjects/SUBJECT/versions/N and /schemas/ids/ID, which never changes what it says; so
each id is asked for once in a run. A schema of Avro that names types of others is read with those. POST
/subjects/SUBJECT/versions for what is written.
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

from barnabas.pipelines.avro_references import with_references
from barnabas.pipelines.avro_schema import SCHEMA_BYTES_MAX, AvroSchemaError, read_avro_schema, read_avro_type
from barnabas.pipelines.definition import (
    KeyFormat,
    Pipeline,
    PipelineUnreachableError,
    Registry,
    Source,
    SourceFormat,
    TopicSink,
)
from barnabas.pipelines.file_secrets import has_reference, resolved
from barnabas.pipelines.proto_outline import ProtoOutlineError, places_of
from barnabas.pipelines.protobuf_messages import ProtoFile, files_to_register
from barnabas.pipelines.writer_schemas import UNKNOWN_SCHEMA, Referenced, WriterSchemas

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from barnabas.pipelines.yaml_positions import Section

REGISTRY_KEYS: Final = ("url", "username", "password")
ADDRESS: Final = re.compile(r"https?://[^/?#@]+(/[^?#]*)?")
SCHEMAS_MAX: Final = 1_000
"""How many schemas the values, or the keys, of a source may have, of all their versions."""
REFERENCES_MAX: Final = 50
"""How many other schemas one of Avro may name types of, those of the others included."""
_SUBJECT_CHARACTERS_MAX: Final = 1_000
_VERSION_MAX: Final = 2**31 - 1
ANSWER_SECONDS_MAX: Final = 10.0
_ATTEMPTS_MAX: Final = 3
_REASON_BYTES_MAX: Final = 64 * 1024
_PAUSE_SECONDS: Final = 0.5
_PART_BYTES: Final = 64 * 1024
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_UNKNOWN: Final = re.compile(re.escape(UNKNOWN_SCHEMA) + r"([A-Za-z0-9_]+)([.]key)?:(\d+)")
_HALVES: Final = re.compile("[\ud800-\udfff]")
"""JSON can name halves of characters (surrogates), which no address can."""
_SENT: Final = "application/vnd.schemaregistry.v1+json"
_ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"


def registry_of(document: Section) -> Registry:
    """The block `registry`. Raises PipelineError."""
    section = document.section("registry", REGISTRY_KEYS)
    url = section.text("url")
    if not ADDRESS.fullmatch(url.value):
        raise section.error(f'url "{url.value}" must be http:// or https://, host and port, without a login', url.line)
    password = section.text("password") if "password" in section else None
    if password is not None and not has_reference(password.value):
        message = "password is a secret, and this file is read by many: write ${env:NAME} or ${file:PATH}"
        raise section.error(message, password.line)
    username = section.text("username").value if "username" in section else ""
    if bool(username) != (password is not None):
        raise section.error("username and password belong together", section.line)
    return Registry(url.value.rstrip("/"), username, "" if password is None else password.value, section.line)


def ask_registry(pipeline: Pipeline, refuse_to_go_on: Callable[[], None] = lambda: None) -> None:
    """Learns all schemas of the subjects of the pipeline's sources, which are those of their topics. `refuse_to_go_on`
    raises, before a question, when nobody wants that any more: there may be a thousand, and a registry that is slow.

    Raises PipelineUnreachableError, and PipelineError where the registry refuses.
    """
    for source in pipeline.sources:
        for _, part in source.registered_parts:
            assert part.writers is not None
            subject = urllib.parse.quote(part.subject, safe="")
            versions = _get(pipeline, f"/subjects/{subject}/versions") or []
            if not isinstance(versions, list) or not all(map(_is_number, versions)) or len(versions) > SCHEMAS_MAX:
                raise _refused(
                    pipeline,
                    f"has more than {SCHEMAS_MAX} versions of {part.subject}, or none that are a list of numbers",
                )
            for version in versions:
                refuse_to_go_on()
                content = _get(pipeline, f"/subjects/{subject}/versions/{version}")
                if content is None:
                    continue
                if not isinstance(content, dict) or not _is_number(content.get("id")):
                    raise _refused(pipeline, f"gives version {version} of {part.subject} no id")
                _take(part.writers, content["id"], _schema_in(pipeline, content, part, refuse_to_go_on))
            part.writers.was_asked = True


def register_schemas(pipeline: Pipeline) -> None:
    """Registers the schemas of topics that are written, each under its subject; one that is there keeps its id.

    Raises as `ask_registry` does.
    """
    for sink in pipeline.sinks:
        for part in sink.encodings if isinstance(sink, TopicSink) else ():
            if part.registered is None or part.registered.schema_id >= 0:
                continue
            if part.format is SourceFormat.PROTOBUF:
                files = files_to_register(part.descriptors, part.message)
                versions: dict[str, int] = {}
                for file in files[:-1]:
                    versions[file.name] = _registered_file(pipeline, file, versions)
                content = _of_file(files[-1], versions, pipeline)
            else:
                content = {"schema": part.avro_schema}
            part.registered.schema_id = _registered_id(pipeline, part.subject, content)


def newest_schema(path: Path, registry: Registry, subject: str) -> str | None:
    """The newest schema of a subject, in Avro, standing on its own; None where the registry has none. `path` is the
    file that is being written, and names it. Raises as `ask_registry` does.
    """
    pipeline = Pipeline("new", path, path.parent, (), (), (), registry=registry)
    content = _get(pipeline, f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
    if content is None:
        return None
    text = content.get("schema") if isinstance(content, dict) else None
    kind = content.get("schemaType", "AVRO") if isinstance(content, dict) else None
    if not isinstance(text, str) or kind != "AVRO":
        raise _refused(pipeline, f"has {subject} as {kind}: give a descriptor set by --schema-file, and --message")
    if not content.get("references"):
        return text
    try:
        return with_references(text, _referenced(pipeline, WriterSchemas(), content["references"], lambda: None))
    except AvroSchemaError as error:
        raise _refused(pipeline, f"has a schema of {subject} that {error}") from None


def learn_unknown(pipeline: Pipeline, failure: str) -> bool:
    """Where Spark has failed by a schema that it did not know: asks for that one, and says that it did.

    False for one that was known before: then the words came from elsewhere, as from the bytes of a record, which are in
    the message of what is wrong with it. Raises as `ask_registry` does.
    """
    named = unknown_in(pipeline, failure)
    if named is None:
        return False
    _, _, part, schema_id = named
    writers = part.writers
    assert writers is not None
    if schema_id in writers.by_id or (writers.is_careful and writers.is_settled(schema_id)):
        return False
    if not learn_id(pipeline, part, schema_id):
        writers.is_careful = True
    return True


def unknown_in(pipeline: Pipeline, failure: str) -> tuple[Source, str, Source | KeyFormat, int] | None:
    """The schema that a failure names: its source, which part of its records by name, and the id; None where it has
    another reason.
    """
    found = _UNKNOWN.search(failure)
    source = None if found is None else pipeline.source(found[1])
    if found is None or source is None:
        return None
    mark = f"{source.name}{found[2] or ''}"
    part = dict(source.registered_parts).get(mark)
    return None if part is None else (source, mark, part, int(found[3]))


def learn_id(pipeline: Pipeline, part: Source | KeyFormat, schema_id: int) -> bool:
    """Asks for a schema, unless that was done; whether records with its id can be read. Raises as `ask_registry` does,
    and PipelineError for too many schemas.
    """
    writers = part.writers
    assert writers is not None
    if not writers.is_settled(schema_id):
        content = _get(pipeline, f"/schemas/ids/{schema_id}")
        schema = _schema_in(pipeline, content, part, lambda: None) if isinstance(content, dict) else None
        if schema is not None and len(writers.by_id) >= SCHEMAS_MAX:
            raise _refused(pipeline, f"has more than {SCHEMAS_MAX} schemas of the records of {part.subject}")
        _take(writers, schema_id, schema)
    return schema_id in writers.by_id


def _take(writers: WriterSchemas, schema_id: int, schema: str | None) -> None:
    if schema is None:
        writers.refuse(schema_id)
    else:
        writers.by_id[schema_id] = schema


def _schema_in(
    pipeline: Pipeline, content: dict[str, Any], part: Source | KeyFormat, refuse_to_go_on: Callable[[], None]
) -> str | None:
    """The schema of an answer, as WriterSchemas keeps it, if it is one of the format, and all that it names is there.
    Raises as `ask_registry` does.
    """
    text = str(content.get("schema", ""))
    kind = content.get("schemaType", "AVRO")
    try:
        if part.format is SourceFormat.PROTOBUF:
            # What it imports has no part in which of its messages a record is.
            return places_of(text, part.message) if kind == "PROTOBUF" else None
        if kind != "AVRO":
            return None
        if content.get("references"):
            assert part.writers is not None
            others = _referenced(pipeline, part.writers, content["references"], refuse_to_go_on)
            text = with_references(text, others)
            if len(text) > SCHEMA_BYTES_MAX:
                return None
        return read_avro_type(text)[0] if part.is_key else read_avro_schema(text)[0]
    except (AvroSchemaError, ProtoOutlineError):
        return None


def _referenced(
    pipeline: Pipeline, writers: WriterSchemas, references: Any, refuse_to_go_on: Callable[[], None]
) -> list[str]:
    """The texts of the schemas that one refers to, and of those that these do. Raises AvroSchemaError for one that the
    registry does not have, or for too many; and as `ask_registry` does.
    """
    waiting, found = [_places(references)], dict[tuple[str, int], str]()
    while waiting:
        for place in waiting.pop():
            if place in found:
                continue
            if len(found) >= REFERENCES_MAX:
                raise AvroSchemaError(f"has more than {REFERENCES_MAX} references")
            subject, version = place
            answer = writers.referenced_at(place)
            if answer is None:
                refuse_to_go_on()
                path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}"
                answer = _answer_about(_get(pipeline, path))
                writers.keep_referenced(place, answer)
            if answer.text is None or answer.places is None:
                raise AvroSchemaError(
                    f"refers to version {version} of {subject}, which the registry does not have, or not as a schema"
                )
            found[place] = answer.text
            if sum(map(len, found.values())) > SCHEMA_BYTES_MAX:
                raise AvroSchemaError(f"refers to schemas of more than {SCHEMA_BYTES_MAX} characters")
            waiting.append(answer.places)
    return list(found.values())


def _answer_about(content: Any) -> Referenced:
    """As much of an answer as is looked at: it may be long, and of anything."""
    text = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(text, str):
        return Referenced(None, None)
    try:
        return Referenced(text, _places(content.get("references") or []))
    except AvroSchemaError:
        return Referenced(None, None)


def _places(references: Any) -> tuple[tuple[str, int], ...]:
    """Subjects and versions, each once. Raises AvroSchemaError for what has none, or too many."""
    found: dict[tuple[str, int], None] = {}
    for each in references if isinstance(references, list) else [None]:
        subject, version = (each.get("subject"), each.get("version")) if isinstance(each, dict) else (None, None)
        if (
            not isinstance(subject, str)
            or not 0 < len(subject) <= _SUBJECT_CHARACTERS_MAX
            or _HALVES.search(subject)
            or not _is_number(version)
            or not 0 < int(str(version)) <= _VERSION_MAX
        ):
            raise AvroSchemaError("has references without a subject and a version of it")
        found[subject, int(str(version))] = None
        if len(found) > REFERENCES_MAX:
            raise AvroSchemaError(f"has more than {REFERENCES_MAX} references")
    return tuple(found)


def _registered_id(pipeline: Pipeline, subject: str, content: dict[str, Any]) -> int:
    answer = _get(pipeline, f"/subjects/{urllib.parse.quote(subject, safe='')}/versions", content)
    if not isinstance(answer, dict) or not _is_number(answer.get("id")):
        raise _refused(pipeline, f"gives the schema of {subject} no id")
    return int(answer["id"])


def _of_file(file: ProtoFile, versions: Mapping[str, int], pipeline: Pipeline) -> dict[str, Any]:
    """A file of Protocol Buffers as a registry takes it; those that it imports are there, in these versions."""
    missing = [name for name in file.imports if name not in versions]
    if missing:
        raise _refused(pipeline, f"was not given {missing[0]}, which {file.name} imports")
    references = [{"name": name, "subject": name, "version": versions[name]} for name in file.imports]
    return {
        "schemaType": "PROTOBUF",
        "schema": file.schema,
        **({"references": references} if references else {}),
    }


def _registered_file(pipeline: Pipeline, file: ProtoFile, versions: Mapping[str, int]) -> int:
    """Registers a file that others import, under its name; its version there."""
    content = _of_file(file, versions, pipeline)
    _registered_id(pipeline, file.name, content)
    answer = _get(pipeline, f"/subjects/{urllib.parse.quote(file.name, safe='')}", content)
    if not isinstance(answer, dict) or not _is_number(answer.get("version")):
        raise _refused(pipeline, f"gives the schema of {file.name} no version")
    return int(answer["version"])


def _get(pipeline: Pipeline, path: str, given: dict[str, Any] | None = None) -> Any:
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
