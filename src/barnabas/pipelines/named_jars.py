"""Jars that a pipeline's file names (`jars`), by Maven's coordinates or as files: drivers of databases, say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.pipelines.definition import NamedJar, Pipeline, PipelineError, PipelineMissingError
from barnabas.pipelines.file_parts import directory_of
from barnabas.pipelines.ivy import Module
from barnabas.pipelines.jar_sets import SCALA_VERSION, JarSet

if TYPE_CHECKING:
    from barnabas.pipelines.yaml_positions import Section

JARS_MAX: Final = 20
_SPARK: Final = "org.apache.spark"
_AT_HAND: Final = {
    "org.apache.hadoop": (
        *("hadoop-annotations", "hadoop-auth", "hadoop-client", "hadoop-client-api", "hadoop-client-runtime"),
        *("hadoop-common", "hadoop-hdfs-client"),
    ),
    _SPARK: tuple(
        f"spark-{name}_{SCALA_VERSION}"
        for name in ("catalyst", "common-utils", "core", "sketch", "sql", "sql-api", "tags", "unsafe", "variant")
    ),
}
"""By organisation, what Spark has of its modules: a jar of that organisation may need others of it."""
_COORDINATES: Final = re.compile(r"[A-Za-z0-9_.-]{1,200}:[A-Za-z0-9_.-]{1,200}:[A-Za-z0-9_.-]{1,100}")


def jars_named(document: Section, path: Path) -> tuple[NamedJar, ...]:
    """The jars of a pipeline's file. Raises PipelineError for what is neither coordinates nor a jar."""
    found = []
    for text in document.texts("jars", JARS_MAX):
        value = text.value.strip()
        if _COORDINATES.fullmatch(value):
            found.append(NamedJar(value, None, text.line))
        elif value.endswith(".jar"):
            found.append(NamedJar("", directory_of(document, path, "jars", text), text.line))
        else:
            message = (
                f'jars "{value}" is neither group:artifact:version, as Maven names it, nor a file that ends in .jar'
            )
            raise document.error(message, text.line)
    return tuple(found)


def jar_set_of(named: NamedJar, without_organisations: tuple[str, ...]) -> JarSet:
    """What is fetched for coordinates: the jar and what it needs, but for what Spark has.

    Ivy leaves out of an organisation that is left out the jar itself too: of its own what Spark has is named.
    """
    module = Module(*named.coordinates.split(":"))
    left_out = (*without_organisations, _SPARK)
    return JarSet(
        title=named.coordinates,
        name=f"{module.organisation}-{module.name}-{module.version}",
        size_mb=0,
        modules=(module,),
        jars=((module.name, module.version),),
        without_organisations=tuple(each for each in left_out if each != module.organisation),
        without_modules=_AT_HAND.get(module.organisation, ()),
    )


def named_jars(pipeline: Pipeline, resolve: Callable[[NamedJar], tuple[Path, ...]]) -> tuple[Path, ...]:
    """The files of all of them; `resolve` finds those that are coordinates. Raises PipelineError at their line."""
    found: tuple[Path, ...] = ()
    for named in pipeline.jars:
        if named.path is None:
            try:
                found += resolve(named)
            except PipelineError as error:
                raise type(error)(error.message, path=pipeline.path, line=named.line) from error
        elif not named.path.is_file():
            raise PipelineMissingError(f"the jar {named.path} does not exist", path=pipeline.path, line=named.line)
        else:
            found += (named.path,)
    # Two of them may need the same.
    return tuple(dict.fromkeys(found))
